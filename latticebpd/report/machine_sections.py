"""Sections about machines: hardware cost and latency (Kim 2024, tables 11 to 13)."""

from __future__ import annotations

from latticebpd.drafters.system_names import BEST, NO_MODEL, SystemName
from latticebpd.measuring.hardware_cost import Decoding, HardwareCost, ModelShape, hardware_cost
from latticebpd.measuring.latency import SLOTS, WIDTHS, P
from latticebpd.report.content import Column, Section, Table
from latticebpd.report.measurements import Measured, Measurements
from latticebpd.report.wording import system_label, three
from latticebpd.scoring.neural.rescorer import NeuralRescorer, ParallelNeuralRescorer
from latticebpd.scoring.rescoring import as_scorer


def hardware(measurements: Measurements, shape: ModelShape | None) -> Section:
    paper, corrected = hardware_cost(mode="paper"), hardware_cost()
    items = [
        _hardware_table(paper, "hardware-paper", "Table 11 of the paper, by its own account"),
        _hardware_table(corrected, "hardware-corrected", "The same systems, corrected account"),
    ]
    if shape is not None:
        measured, model = measurements.sets[0], measurements.model
        names = ["vanilla", "16-best:0-gram", "64-tree:0-gram"]
        if model is not None:
            names = ["vanilla", "1-best", "16-best:0-gram", "16-best", "64-tree"]
        names += [f"{kind}:{name}" for name in list(measurements.models)[1:] for kind in ("1-best", "16-best")]
        decodings = [Decoding("autoregressive", 1.0, 0), *(_decoding(measured, name, model) for name in names)]
        source = f", sources of {shape.source:.0f} tokens" if shape.source else ""
        account = f"{8 * shape.bytes_per_number} bits a number{source}, corrected account"
        caption = f"This model on {measured.name}, {account}; block efficiency {measured.counted}"
        items.append(_hardware_table(hardware_cost(shape, decodings), "hardware-model", caption))
    lead = (
        "By calculation, for one decoded token at batch size 1. The paper's account counts the cache with the"
        " feed-forward width, linear layers for one token and attention without a cache. The corrected account counts"
        " what a pass reads and computes: heads, every verified token, keys and values as they are stored, an"
        " encoder–decoder's source, a neural rescorer's steps."
    )
    return Section("hardware", "Hardware cost per token", lead, items)


def _decoding(measured: Measured, name: str, model: str | None) -> Decoding:
    """A system as it was measured, with its neural rescorer if it has one."""
    system, label = SystemName.parse(name), system_label(name, model)
    efficiency, verified = measured.efficiency[name], measured.verified[name]
    chosen = system.chosen(measured.models)
    scorer = None if chosen == NO_MODEL else as_scorer(measured.models[chosen])
    if not isinstance(scorer, NeuralRescorer | ParallelNeuralRescorer):
        return Decoding(label, efficiency, verified)
    slots = measured.comparison.signature.heads - 1
    steps = 1 if isinstance(scorer, ParallelNeuralRescorer) else slots
    # Beams are as many prefixes in every step; a tree's nodes are spread over the slots.
    rows = slots if steps == 1 else system.size if system.kind == BEST else max(1, system.size / slots)
    return Decoding(label, efficiency, verified, ModelShape.of(scorer.model), steps, rows)


def _hardware_table(cost: HardwareCost, name: str, caption: str) -> Table:
    scale, unit = (1e9, "GB") if cost.parameter_bytes.max() >= 1e8 else (1e6, "MB")
    work, flop = (1e12, "T") if cost.flops.max() >= 1e10 else (1e9, "G")
    rows = [
        (f"parameters read ({unit})", *(cost.parameter_bytes / scale).tolist()),
        *(
            (f"cache read at {length} tokens ({unit})", *(cost.cache_bytes[:, i] / scale).tolist())
            for i, length in enumerate(cost.lengths)
        ),
        (f"{flop}FLOPs at {cost.lengths[-1]} tokens", *(cost.flops / work).tolist()),
    ]
    costs = (Column(system, "Calculated; divided by block efficiency.", three) for system in cost.names)
    return Table(name, caption, [Column("per decoded token"), *costs], rows)


def latency(measurements: Measurements) -> Section | None:
    if (measured := measurements.latency) is None:
        return None
    lm, runs = measured.signature.lm or "no language model", "least of several runs"
    note = f"Milliseconds on one thread of this machine, {lm}; {runs}, median of {measured.lattices} lattices."
    paths = Table(
        "latency-paths",
        f"The p best paths, {min(8, measured.signature.heads - 1)} slots (as table 12 of the paper)",
        [Column("paths", "Best paths asked for."), *(Column(f"p = {p}", note, three) for p in P)],
        [("ms", *measured.by_p.tolist())],
    )
    shapes = Table(
        "latency-shapes",
        "The best path by size of lattice (as table 13 of the paper)",
        [Column("slots", "Heads that draft."), *(Column(f"k = {k}", note, three) for k in WIDTHS)],
        [(size, *values) for size, values in zip(SLOTS, measured.by_shape.tolist(), strict=True)],
    )
    paper = "The paper has 1.6 to 2.0 ms, with 100M n-grams."
    lead = f"Measured here, the only numbers that change from run to run. {note} {paper}"
    return Section("latency", "Latency of rescoring", lead, [paths, shapes])
