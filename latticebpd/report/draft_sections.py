"""Sections about drafts: how many tokens each system has accepted, at what cost (Kim 2024, tables 1, 3 to 5, 7, 9 and
10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from latticebpd.measuring.model_decodes import Decoded
from latticebpd.measuring.oracle_tally import CUT, MISRANKED, NOT_IN_LATTICE
from latticebpd.report import plots
from latticebpd.report.content import Cell, Column, Plot, Section, Table, decimals, text
from latticebpd.report.measurements import PATHS, Measured, Measurements
from latticebpd.report.wording import EFFICIENCY, ORACLE, counted, one, percent, slug, system_label, three, two

COUNTED = (
    "By decode: over the calls of a decode through each text, where one goes on where the last one stopped. By"
    " position: over all positions, where the texts are not known or it was asked for."
)


def summary(measurements: Measurements) -> Section:
    model = next(iter(measurements.models), None)
    rows = []
    for measured in measurements.sets:
        efficiency, best = measured.efficiency, measured.best_system(measurements.options.budget)
        rows.append((
            measured.name, measured.comparison.num_lattices, measured.texts, efficiency["vanilla"],
            system_label(best, model),
            efficiency[best], efficiency["oracle"], 100 * measured.recovered[best], measured.counted,
        ))  # fmt: skip
    columns = (
        Column("data set"),
        Column("lattices", "Positions measured, each one step of a possible decode.", decimals(0)),
        Column("texts", "Texts that the lattices belong to.", text),
        Column("vanilla", f"The best token of every head, unrescored. {EFFICIENCY}", two),
        Column(
            "best system", f"Most tokens per call at no more than {measurements.options.budget} verified tokens.", text
        ),
        Column("its tokens/call", EFFICIENCY, two),
        Column("oracle", f"{ORACLE} {EFFICIENCY}", two),
        Column("headroom recovered", "(system − vanilla) / (oracle − vanilla).", decimals(0, " %")),
        Column("counted", COUNTED, text),
    )
    return Section("summary", "Summary", "", (Table("summary", "The data sets at a glance", columns, tuple(rows)),))


def block_efficiency(measurements: Measurements) -> Section:
    model = next(iter(measurements.models), None)
    shown = ["vanilla", *(["1-best"] if model else []), "16-best:0-gram", *(["16-best"] if model else [])]
    shown += ["64-tree:0-gram", *(["64-tree"] if model else [])]
    shown += [name for name in ("64-calibrated",) if name in measurements.sets[0].efficiency]

    def gain(measured: Measured, value: float) -> Cell:
        base = measured.efficiency["vanilla"]
        return Cell(value, f"{100 * (value / base - 1):+.1f} %", value > base)

    rows = []
    for measured in measurements.sets:
        values = [measured.efficiency[name] for name in shown]
        narrow = (
            float(measured.oracle.block_efficiency[measured.oracle.ks.index(2), -1])
            if 2 in measured.oracle.ks
            else None
        )
        rows.append(
            (
                measured.name,
                values[0],
                *(gain(measured, value) for value in values[1:]),
                narrow,
                measured.efficiency["oracle"],
            )
        )
    k = measurements.sets[0].comparison.signature.k
    columns = (
        Column("data set"),
        *(Column(system_label(name, model), EFFICIENCY, two) for name in shown),
        Column("oracle, k = 2", f"{ORACLE} Two arcs per slot.", two),
        Column(f"oracle, k = {k}", f"{ORACLE} All arcs.", two),
    )
    items: list[Table | Plot] = [
        Table(
            "block-efficiency",
            f"Block efficiency of rescored drafts (as tables 1, 4 and 9 of the paper), {counted(measurements.sets)}",
            columns, tuple(rows),
            ("● more tokens per call than vanilla, ○ not more; the change relative to vanilla behind.",),
        )
    ]  # fmt: skip
    items += [_systems(measured, model) for measured in measurements.sets]
    if len(measurements.models) > 1:
        items.append(_rescorers(measurements))
    lead = (
        f"Each system drafts from the same lattices, and drafts are verified against {_texts(measurements)}. {COUNTED}"
        " Gains, wins and losses are paired: the vanilla draft of the same lattice stands against each. Verified"
        " tokens are what a system costs: compare systems at equal numbers."
    )
    return Section("block-efficiency", "Block efficiency", lead, items)


def _systems(measured: Measured, model: str | None) -> Table:
    comparison = measured.comparison
    interval = comparison.gain_interval()
    rows = []
    for i, name in enumerate(comparison.systems):
        gain = None if i == 0 else f"{interval[i, 0]:+.2f} … {interval[i, 1]:+.2f}"
        lost = comparison.lost_share[i]
        rows.append((
            system_label(name, model), float(comparison.block_efficiency[i]), gain, 100 * measured.recovered[name],
            float(comparison.verified_tokens[i]), *comparison.outcome_share[i].tolist(),
            *lost[[MISRANKED, CUT, NOT_IN_LATTICE]].tolist(),
        ))  # fmt: skip
    steps = comparison.signature.steps
    columns = (
        Column("system"),
        Column("tokens/call", EFFICIENCY, two),
        Column(
            "gain, 95 %",
            "Bootstrap interval of the gain over vanilla, tokens per call: texts drawn anew, paired.",
            text,
        ),
        Column("headroom", "(system − vanilla) / (oracle − vanilla).", decimals(0, " %")),
        Column("verified", "Drafted tokens that the model sees per call.", one),
        Column(
            "win",
            f"{steps.capitalize()} where the system has more tokens accepted than the vanilla draft of the same"
            " lattice.",
            percent,
        ),
        Column("tie", f"{steps.capitalize()} where it has as many accepted.", percent),
        Column("loss", f"{steps.capitalize()} where it has fewer accepted.", percent),
        Column(
            "misranked",
            f"{steps.capitalize()} that end at a right token in the lattice: others were drafted in its place.",
            percent,
        ),
        Column(
            "cut",
            f"{steps.capitalize()} that end at a right token in the lattice: no node was left to draft anything there.",
            percent,
        ),
        Column("not in lattice", f"{steps.capitalize()} that end where the lattice lacks the right token.", percent),
    )
    caption = f"{measured.name}: every system, {measured.counted}; from wins on in % of {steps}"
    return Table(f"systems-{slug(measured.name)}", caption, columns, tuple(rows))


def _texts(measurements: Measurements) -> str:
    """What drafts are held to."""
    kinds = {
        (
            "given texts, not what the model would write itself"
            if measured.comparison.signature.given_text
            else "the base model's own text"
        )
        for measured in measurements.sets
    }
    return " or ".join(sorted(kinds))


def _rescorers(measurements: Measurements) -> Table:
    names = list(measurements.models)
    kinds = ("1-best", "16-best", "64-tree")
    rows = []
    for measured in measurements.sets:
        systems = [kind if name == names[0] else f"{kind}:{name}" for kind in kinds for name in names]
        base, values = measured.efficiency["vanilla"], [measured.efficiency[system] for system in systems]
        rows.append((measured.name, *(Cell(value, "", value > base) for value in values)))
    columns = (
        Column("data set"),
        *(
            Column(f"{kind.replace('-tree', '-node tree')}, {name}", EFFICIENCY, two)
            for kind in kinds
            for name in names
        ),
    )
    notes = tuple(f"{name}: {words}." for name, words in measurements.models.items())
    return Table(
        "rescorers",
        f"Language models side by side (as tables 7 and 9 of the paper), {counted(measurements.sets)}",
        columns,
        tuple(rows),
        notes,
    )


def headroom(measurements: Measurements) -> Section:
    items: list[Table | Plot] = []
    model = next(iter(measurements.models), None)
    for measured in measurements.sets:
        best = measured.best_system(measurements.options.budget)
        items += [
            Plot(
                f"oracle-{slug(measured.name)}",
                f"{measured.name}: oracle block efficiency by arcs per slot (figure 6), {measured.counted}."
                " k = 1 is vanilla.",
                plots.oracle_curves(measured.oracle),
            ),
            Plot(
                f"accepted-{slug(measured.name)}", f"{measured.name}: drafted tokens accepted, {measured.counted}.",
                plots.accepted_histogram(measured.comparison, {
                    name: system_label(name, model) for name in ("vanilla", best, "oracle")
                }),
            ),
            Plot(
                f"losses-{slug(measured.name)}",
                f"{measured.name}: where vanilla drafts end, and why, {measured.counted}.",
                plots.losses_by_head(measured.oracle),
            ),
        ]  # fmt: skip
    heads = list(dict.fromkeys(head for measured in measurements.sets for head in measured.oracle.heads))
    rows = []
    for measured in measurements.sets:
        vanilla = measured.oracle.block_efficiency[measured.oracle.ks.index(1)]
        tried = measured.oracle.heads
        rows.append((measured.name, *(float(vanilla[tried.index(head)]) if head in tried else None for head in heads)))
    columns = (
        Column("data set"),
        *(Column(f"{head} heads", f"Vanilla drafts with the first {head} heads. {EFFICIENCY}", two) for head in heads),
    )
    caption = (
        f"Vanilla block efficiency by number of heads (as tables 1 and 10 of the paper), {counted(measurements.sets)}"
    )
    items.append(Table("heads", caption, columns, tuple(rows)))
    columns = (
        Column("data set"),
        Column("k", "Arcs per slot.", text),
        Column("heads", "Predictions per position, head 1 (the base model's own) included.", text),
        Column("tokens/call", EFFICIENCY, three),
        Column(
            "at best",
            "Tokens per call at the fewest calls that any choice of accepted lengths allows: the true upper bound.",
            three,
        ),
    )
    rows = []
    for measured in measurements.sets:
        oracle = measured.oracle
        for i, k in enumerate(oracle.ks):
            for j, head in enumerate(oracle.heads):
                values = (oracle.block_efficiency, oracle.best_block_efficiency)
                rows.append((measured.name, k, head, *(float(value[i, j]) for value in values)))
    items.append(Table("oracle", f"Oracle block efficiency, {counted(measurements.sets)}", columns, tuple(rows)))
    lead = (
        "The oracle picks, in hindsight, the path of the lattice that the base model accepts longest. What lies between"
        " it and vanilla is what rescoring can gain; what lies beyond it, only better heads can. A draft ends where a"
        " slot holds the right token behind a better one (misranked: rescoring may mend it) or lacks it."
    )
    return Section("headroom", "Headroom", lead, items)


def budget(measurements: Measurements) -> Section:
    model = next(iter(measurements.models), None)
    items: list[Table | Plot] = []
    for measured in measurements.sets:
        items += [
            Plot(
                f"paths-{slug(measured.name)}",
                f"{measured.name}: the p best paths verified in parallel (figure 7), {measured.counted}.",
                plots.path_curves(measured.efficiency, PATHS, model),
            ),
            Plot(
                f"trade-off-{slug(measured.name)}",
                f"{measured.name}: what verified tokens buy, {measured.counted}."
                " Paths share prefixes, which are verified once.",
                plots.trade_off(measured.efficiency, measured.verified, model),
            ),
        ]  # fmt: skip
    lead = (
        "More drafts in one pass have more accepted, and cost more to verify. Prefix trees spend the same tokens on the"
        " most probable prefixes instead of on whole paths."
    )
    return Section("budget", "What verification buys", lead, items)


def decoding(decoded: Decoded, model: str | None, quality: Mapping[str, Sequence[float]]) -> Section:
    calls = decoded.calls
    rows = []
    for i, name in enumerate(decoded.names):
        system, comma, rule = name.partition(", ")
        rows.append((
            system_label(system, model) + comma + rule, float(decoded.block_efficiency[i]),
            float(decoded.block_efficiency_with_prefill[i]),
            int(calls[i]), int(decoded.tokens[i]), float(decoded.verified[i] / max(calls[i], 1)),
            int(decoded.differing[i]),
            *(values[i] for values in quality.values()),
        ))  # fmt: skip
    columns = (
        Column("system", "With the acceptance rule behind it where that is not exact."),
        Column("tokens/call", "Tokens that calls committed over calls; the prefill is in neither.", three),
        Column("with prefill", "The same with each text's prefill as a call, and the token that it yields.", three),
        Column("calls", "Forward passes that committed tokens.", decimals(0)),
        Column("tokens", "Tokens that they committed.", decimals(0)),
        Column("verified", "Drafted tokens that the model sees per call.", one),
        Column("other texts", "Texts that differ from what the model writes greedily; 0 under exact acceptance.", text),
        *(Column(measure, QUALITY[measure], two) for measure in quality),
    )  # fmt: skip
    lead = (
        f"The model itself, decoding {decoded.texts} of the texts again with every system; the other numbers replay the"
        " lattices."
    )
    return Section("decoding", "Decoded by the model", lead, (Table("decoded", "Decodes", columns, tuple(rows)),))


QUALITY = {
    "perplexity": "Of what was written, under the model itself.",
    "reference-perplexity": "Of the references, under the model itself, whatever drafts.",
    "exact-match": "Texts that equal a reference, normalised as SQuAD's, %.",
    "f1": "Mean F1 of words against the best reference, normalised as SQuAD's, %.",
    "rouge-l": "Mean F-measure of ROUGE-L, stemmed, against the best reference, %.",
    "bleu": "Of all texts together, sacrebleu's defaults.",
}


def repetition(measurements: Measurements) -> Section:
    model = next(iter(measurements.models), None)
    rescored = "1-best" if model else "64-tree:0-gram"
    after = system_label(rescored, model)
    rows, contest = [], []
    for measured in measurements.sets:
        comparison = measured.comparison
        i = comparison.systems.index(rescored)
        values = [
            float(array[row]) for array in (comparison.consecutive_repeats, comparison.longest_run) for row in (0, i)
        ]
        rows.append((
            measured.name, values[0], Cell(values[1], good=values[1] < values[0]), values[2],
            Cell(values[3], good=values[3] < values[2]),
        ))  # fmt: skip
        shares = [comparison.mended_share(outcome)[i].tolist() for outcome in (0, 2)]
        wins, ties, losses = comparison.outcomes[i].tolist()
        contest.append((measured.name, ties, wins, *shares[0], losses, *shares[1]))
    by = counted(measurements.sets)
    consec, run = (
        "Neighbours in drafts that are one token twice, of all neighbours.",
        "Tokens of the longest run of one token, mean over drafts.",
    )
    columns = (
        Column("data set"), Column("% Consec, vanilla", consec, one), Column(f"% Consec, {after}", consec, one),
        Column("Max run, vanilla", run, two), Column(f"Max run, {after}", run, two),
    )  # fmt: skip
    repair, regress = (
        "Of these, the rescored draft repeats nothing and the vanilla draft did.",
        "Of these, the rescored draft repeats a token and the vanilla draft did not.",
    )
    contest_columns = (
        Column("data set"), Column("ties", "Steps of the rescored decode with equal accepted lengths.", decimals(0)),
        Column("wins", "Steps where the rescored draft is accepted longer than the vanilla draft.", decimals(0)),
        Column("% Repair", repair, one), Column("% Regress", regress, one),
        Column("losses", "Steps where it is accepted shorter.", decimals(0)),
        Column("% Repair (losses)", repair, one), Column("% Regress (losses)", regress, one),
    )  # fmt: skip
    lead = (
        "Heads guess independently, so neighbours often guess the same token. As in the paper, a draft begins with head"
        " 1's token, which is committed in any case."
    )
    return Section("repetition", "Repetition", lead, (
        Table(
            "repetition", f"Repetition before and after rescoring (as table 3 of the paper), {by}",
            columns, tuple(rows),
        ),
        Table(
            "wins-losses", f"{after} against vanilla (as table 5 of the paper), {by}",
            contest_columns, tuple(contest),
        ),
    ))  # fmt: skip
