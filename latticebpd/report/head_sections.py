"""Sections about heads and lattices: confidence, the weight, a drawing (Kim 2024, table 8, figures 3 and 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fst.drawing import lattice_svg
from latticebpd.measuring.entropy import HeadEntropy, regress
from latticebpd.report import plots
from latticebpd.report.content import Column, Drawing, Plot, Section, Table
from latticebpd.report.measurements import Measured, Measurements
from latticebpd.report.wording import counted, plot_of, slug, system_label, three


def entropy(measurements: Measurements) -> Section | None:
    with_entropy = [(measured, measured.entropy) for measured in measurements.sets if measured.entropy is not None]
    if not with_entropy:
        return None
    items: list[Table | Plot] = []
    rows = []
    exact = all(heads.exact for _, heads in with_entropy)
    for measured, heads in with_entropy:
        low, high = heads.h_max
        for head, least, most in zip(heads.heads, heads.low.tolist(), heads.high.tolist(), strict=True):
            bounds = (least,) if exact else (least, most)
            rows.append((measured.name, head, *bounds, f"{low}" if low == high else f"{low} … {high}"))
        items.append(plot_of(measured, "entropy", "entropy of each head (figure 3a)", plots.entropy_densities(heads)))
    by = counted([measured for measured, _ in with_entropy])
    if (points := _h_max_points(with_entropy)) is not None:
        x, y, what, first = points
        rest = "" if first == 1 else " Counted from head 2, because head 1 makes h_max the same everywhere."
        caption = f"h_max against block efficiency, {what} (figure 3b), {by}.{rest}"
        items.append(Plot("h-max", caption, plots.h_max_scatter(x, y, regress(x, y), what, first)))
    mean = "Nats, mean over the steps of vanilla drafts."
    bound = "Bound from the top k: where the rest of the probability may lie."
    means = [("mean entropy", mean)] if exact else [("mean entropy, least", f"{mean} {bound}"), ("most", bound)]
    columns = (
        Column("data set"), Column("head", "Head 1 is the base model's own prediction."),
        *(Column(title, note, three) for title, note in means),
        Column("h_max", "The last head up to which the mean entropy never falls."),
    )  # fmt: skip
    items.append(Table("entropy", f"Mean entropy of each head, {by}", columns, rows))
    lead = (
        "The further ahead, the harder to guess: entropy should rise from head to head. h_max is the last head up to"
        " which its mean never falls; the paper finds block efficiency to follow it (R = 0.77 over its tasks)."
    )
    return Section("entropy", "Confidence of the heads", lead, items)


def _h_max_points(sets: Sequence[tuple[Measured, HeadEntropy]]) -> tuple[np.ndarray, np.ndarray, str, int] | None:
    """h_max and block efficiency of three or more data sets, else of texts; what a point is; h_max's first head."""
    if len(sets) >= 3:
        x = np.array([heads.h_max[0] for _, heads in sets])
        return x, np.array([measured.efficiency["vanilla"] for measured, _ in sets]), "one point per data set", 1
    for first in (1, 2):
        x = np.concatenate([heads.text_h_max(first) for _, heads in sets])
        y = np.concatenate([heads.text_efficiency for _, heads in sets])
        if len(x) >= 3 and x.min() < x.max():
            return x, y, "one point per text", first
    return None


def weights(measurements: Measurements) -> Section | None:
    items: list[Table | Plot] = []
    rows, fixed_alpha = [], measurements.options.alpha
    for measured in (measured for measured in measurements.sets if measured.tunings):
        pairs = [(name, tuning) for name, tunings in measured.tunings.items() for tuning in tunings]
        by = " or ".join(sorted({tuning.by for _, tuning in pairs}))
        caption = f"{measured.name}: block efficiency by weight, by {by}."
        items.append(Plot(f"alpha-{slug(measured.name)}", caption, plots.weight_curves(measured.tunings)))
        for name, tuning in pairs:
            best, used = f"{tuning.alpha:g}{' (the last tried)' if tuning.at_edge else ''}", tuning.alpha
            rows.append((
                measured.name, name, tuning.system, best, used if fixed_alpha is None else fixed_alpha,
                f"{len(tuning.examples)} {tuning.unit}s", tuning.by,
            ))  # fmt: skip
    if not items:
        return None
    columns = (
        Column("data set"), Column("language model"), Column("system"),
        Column("best α", "The weight with the most tokens per call on the held-out examples."),
        Column("α of this report", "Given, stored with the model, or the best."),
        Column("tuned on", "Held out for tuning; in no other number of this report."),
        Column("by", "Decode: over decodes of the examples. Position: mean over positions; texts are not known."),
    )  # fmt: skip
    items.append(Table("alpha", "Weights of the language models (as table 8 of the paper)", columns, rows))
    lead = "A language model's log-probabilities count α times as much as the heads'; every system has its own weight."
    return Section("weights", "Weight of the language model", lead, items)


def example(measurements: Measurements, word: Callable[[int], str]) -> Section:
    step = measurements.example
    written, before = (
        "".join(word(token) for token in tokens).replace("\n", "⏎") for tokens in (step.continuation, step.context)
    )
    arcs = (step.lattice.tokens, step.lattice.log_probs)
    drawing = lattice_svg(*arcs, word, step.continuation, step.draft, after=step.after)
    posterior = " → its posterior under lattice and language model, by which arcs are ranked"
    caption = (
        f"Lattice {step.index} (figure 4), each head's best arcs: natural log-probability"
        f"{'' if step.after is None else posterior}. Green and bold: what the model writes next. ◆ first draft of"
        f" {system_label(step.system, measurements.model)}. Drafted tokens accepted: {step.accepted[0]} of the vanilla"
        f" draft, which takes the best arc of every slot before rescoring, and {step.accepted[1]} of the system."
    )
    lead = f"One step of a decode: after “… {before}” the model writes “{written}”."
    return Section("example", "A lattice", lead, [Drawing("lattice", caption, drawing)])
