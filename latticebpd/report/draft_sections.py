"""Sections about drafts: accepted tokens of each system, and their cost (Kim 2024, tables 1, 3 to 5, 7, 9 and 10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from latticebpd.measuring.model_decodes import Decoded
from latticebpd.measuring.oracle_tally import CUT, MISRANKED, NOT_IN_LATTICE
from latticebpd.report import plots
from latticebpd.report.content import Cell, Column, Plot, Section, Table, decimals
from latticebpd.report.measurements import PATHS, Measured, Measurements
from latticebpd.report.wording import counted, one, percent, plot_of, slug, system_label, three, two

EFFICIENCY = "Tokens committed per call of the model: accepted drafted tokens and the one that comes free."
ORACLE = "The lattice's best path in hindsight: what perfect rescoring would draft."
HEADROOM = "(system − vanilla) / (oracle − vanilla)."
VERIFIED = "Drafted tokens that the model sees per call."
COUNTED = "By decode: the calls of a decode of each text. By position: all positions, where texts are not known."
QUALITY = {
    "perplexity": "Of what was written, under the model itself.",
    "reference-perplexity": "Of the references, under the model itself, whatever drafts.",
    "exact-match": "Texts that equal a reference, normalised as SQuAD's, %.",
    "f1": "Mean F1 of words against the best reference, normalised as SQuAD's, %.",
    "rouge-l": "Mean F-measure of ROUGE-L, stemmed, against the best reference, %.",
    "bleu": "Of all texts together, sacrebleu's defaults.",
}


def summary(measurements: Measurements) -> Section:
    rows, budget = [], measurements.options.budget
    for measured in measurements.sets:
        efficiency, best = measured.efficiency, measured.best_system(budget)
        rows.append((
            measured.name, measured.comparison.num_lattices, measured.texts, efficiency["vanilla"],
            system_label(best, measurements.model), efficiency[best], efficiency["oracle"],
            100 * measured.recovered[best], measured.counted,
        ))  # fmt: skip
    columns = (
        Column("data set"), Column("lattices", "Positions measured, each one step of a possible decode.", decimals(0)),
        Column("texts", "Texts that the lattices belong to."),
        Column("vanilla", f"The best token of every head, unrescored. {EFFICIENCY}", two),
        Column("best system", f"Most tokens per call at no more than {budget} verified tokens."),
        Column("its tokens/call", EFFICIENCY, two), Column("oracle", f"{ORACLE} {EFFICIENCY}", two),
        Column("headroom recovered", HEADROOM, decimals(0, " %")), Column("counted", COUNTED),
    )  # fmt: skip
    return Section("summary", "Summary", "", [Table("summary", "The data sets at a glance", columns, rows)])


def block_efficiency(measurements: Measurements) -> Section:
    model, first = measurements.model, measurements.sets[0]
    wanted = ("vanilla", "1-best", "16-best:0-gram", "16-best", "64-tree:0-gram", "64-tree", "64-calibrated")
    shown = [name for name in wanted if name in first.efficiency]
    rows = []
    for measured in measurements.sets:
        oracle, vanilla = measured.oracle, measured.efficiency["vanilla"]
        rescored = [measured.efficiency[name] for name in shown[1:]]
        gains = [Cell(value, f"{100 * (value / vanilla - 1):+.1f} %", value > vanilla) for value in rescored]
        two_arcs = float(oracle.block_efficiency[oracle.ks.index(2), -1]) if 2 in oracle.ks else None
        rows.append((measured.name, vanilla, *gains, two_arcs, measured.efficiency["oracle"]))
    columns = (
        Column("data set"), *(Column(system_label(name, model), EFFICIENCY, two) for name in shown),
        Column("oracle, k = 2", f"{ORACLE} Two arcs per slot.", two),
        Column(f"oracle, k = {first.comparison.signature.k}", f"{ORACLE} All arcs.", two),
    )  # fmt: skip
    caption = f"Block efficiency of rescored drafts (as tables 1, 4 and 9 of the paper), {counted(measurements.sets)}"
    note = "● more tokens per call than vanilla, ○ not more; then the change relative to vanilla."
    items = [Table("block-efficiency", caption, columns, rows, (note,))]
    items += [_systems(measured, model) for measured in measurements.sets]
    if len(measurements.models) > 1:
        items.append(_rescorers(measurements))
    texts = {
        "given texts, not what the model would write itself" if teacher_forced else "the base model's own text"
        for teacher_forced in (measured.comparison.signature.given_text for measured in measurements.sets)
    }
    lead = (
        f"Each system drafts from the same lattices, and drafts are verified against {' or '.join(sorted(texts))}."
        f" {COUNTED} Gains, wins and losses are against the vanilla draft of the same lattice. Verified tokens are the"
        " cost of a system: compare systems at equal numbers."
    )
    return Section("block-efficiency", "Block efficiency", lead, items)


def _range(low: float, high: float) -> str | None:
    return None if low != low else f"{low:+.2f} … {high:+.2f}"


def _systems(measured: Measured, model: str | None) -> Table:
    comparison = measured.comparison
    interval, rows = comparison.gain_interval(), []
    for i, name in enumerate(comparison.systems):
        rows.append((
            system_label(name, model), float(comparison.block_efficiency[i]),
            _range(*interval[i]) if i else None, 100 * measured.recovered[name],
            float(comparison.verified_tokens[i]), *comparison.outcome_share[i].tolist(),
            *comparison.lost_share[i, [MISRANKED, CUT, NOT_IN_LATTICE]].tolist(),
        ))  # fmt: skip
    steps = comparison.signature.steps
    shares = {
        "win": "where the system has more tokens accepted than the vanilla draft of the same lattice.",
        "tie": "where it has as many accepted.",
        "loss": "where it has fewer accepted.",
        "misranked": "that end at a right token in the lattice: others were drafted.",
        "cut": "that end at a right token in the lattice: no node was left for it.",
        "not in lattice": "that end where the lattice lacks the right token.",
    }
    columns = (
        Column("system"), Column("tokens/call", EFFICIENCY, two),
        Column("gain, 95 %", "Bootstrap interval of the gain over vanilla, tokens per call: texts drawn anew, paired."),
        Column("headroom", HEADROOM, decimals(0, " %")), Column("verified", VERIFIED, one),
        *(Column(name, f"{steps.capitalize()} {meaning}", percent) for name, meaning in shares.items()),
    )  # fmt: skip
    caption = f"{measured.name}: every system, {measured.counted}; from wins on in % of {steps}"
    return Table(f"systems-{slug(measured.name)}", caption, columns, rows)


def _rescorers(measurements: Measurements) -> Table:
    pairs = [(kind, name) for kind in ("1-best", "16-best", "64-tree") for name in measurements.models]
    systems = [kind if name == measurements.model else f"{kind}:{name}" for kind, name in pairs]
    rows = []
    for measured in measurements.sets:
        base, values = measured.efficiency["vanilla"], [measured.efficiency[system] for system in systems]
        rows.append((measured.name, *(Cell(value, "", value > base) for value in values)))
    titles = (f"{kind.replace('-tree', '-node tree')}, {name}" for kind, name in pairs)
    columns = (Column("data set"), *(Column(title, EFFICIENCY, two) for title in titles))
    notes = tuple(f"{name}: {words}." for name, words in measurements.models.items())
    caption = f"Language models side by side (as tables 7 and 9 of the paper), {counted(measurements.sets)}"
    return Table("rescorers", caption, columns, rows, notes)


def headroom(measurements: Measurements) -> Section:
    items: list[Table | Plot] = []
    by = counted(measurements.sets)
    heads = list(dict.fromkeys(head for measured in measurements.sets for head in measured.oracle.heads))
    by_heads, by_k = [], []
    for measured in measurements.sets:
        oracle, best = measured.oracle, measured.best_system(measurements.options.budget)
        labels = {name: system_label(name, measurements.model) for name in ("vanilla", best, "oracle")}
        arcs = "oracle block efficiency by arcs per slot (figure 6)"
        accepted = plots.accepted_histogram(measured.comparison, labels)
        items += [
            plot_of(measured, "oracle", arcs, plots.oracle_curves(oracle), " k = 1 is vanilla."),
            plot_of(measured, "accepted", "drafted tokens accepted", accepted),
            plot_of(measured, "losses", "where vanilla drafts end, and why", plots.losses_by_head(oracle)),
        ]
        vanilla = dict(zip(oracle.heads, oracle.block_efficiency[oracle.ks.index(1)].tolist(), strict=True))
        by_heads.append((measured.name, *(vanilla.get(head) for head in heads)))
        by_k += [
            (measured.name, k, head, float(oracle.block_efficiency[i, j]), float(oracle.best_block_efficiency[i, j]))
            for i, k in enumerate(oracle.ks)
            for j, head in enumerate(oracle.heads)
        ]
    columns = (
        Column("data set"),
        *(Column(f"{head} heads", f"Vanilla drafts with the first {head} heads. {EFFICIENCY}", two) for head in heads),
    )
    caption = f"Vanilla block efficiency by number of heads (as tables 1 and 10 of the paper), {by}"
    items.append(Table("heads", caption, columns, by_heads))
    fewest = "Tokens per call at the fewest calls that any choice of accepted lengths allows: the true upper bound."
    columns = (
        Column("data set"), Column("k", "Arcs per slot."),
        Column("heads", "Predictions per position, head 1 (the base model's own) included."),
        Column("tokens/call", EFFICIENCY, three), Column("at best", fewest, three),
    )  # fmt: skip
    items.append(Table("oracle", f"Oracle block efficiency, {by}", columns, by_k))
    lead = (
        "The oracle picks, in hindsight, the path of the lattice that the base model accepts longest. What lies between"
        " it and vanilla can be gained by rescoring, what lies beyond it only by better heads. A draft ends at a slot"
        " that ranks another token before the right one (misranked: rescoring may correct it) or lacks the right one."
    )
    return Section("headroom", "Headroom", lead, items)


def budget(measurements: Measurements) -> Section:
    items = []
    for measured in measurements.sets:
        efficiency, model = measured.efficiency, measurements.model
        paths = plots.path_curves(efficiency, PATHS, model)
        trade_off = plots.trade_off(efficiency, measured.verified, model)
        shared = " Paths share prefixes, which are verified once."
        items += [
            plot_of(measured, "paths", "the p best paths verified in parallel (figure 7)", paths),
            plot_of(measured, "trade-off", "what verified tokens buy", trade_off, shared),
        ]
    lead = (
        "More drafts in one pass have more accepted tokens and a higher cost of verification. Prefix trees spend the"
        " same tokens on the most probable prefixes instead of on whole paths."
    )
    return Section("budget", "What verification buys", lead, items)


def decoding(decoded: Decoded, model: str | None, quality: Mapping[str, Sequence[float]]) -> Section:
    calls = decoded.calls
    rows = []
    for i, name in enumerate(decoded.names):
        system, comma, rule = name.partition(", ")
        rows.append((
            system_label(system, model) + comma + rule, float(decoded.block_efficiency[i]),
            float(decoded.block_efficiency_with_prefill[i]), int(calls[i]), int(decoded.tokens[i]),
            float(decoded.verified[i] / max(calls[i], 1)), int(decoded.differing[i]),
            *(values[i] for values in quality.values()),
        ))  # fmt: skip
    columns = (
        Column("system", "Followed by the acceptance rule where that is not exact."),
        Column("tokens/call", "Tokens that calls committed over calls; the prefill is in neither.", three),
        Column("with prefill", "The same with each text's prefill as a call, and the token that it yields.", three),
        Column("calls", "Forward passes that committed tokens.", decimals(0)),
        Column("tokens", "Tokens that they committed.", decimals(0)), Column("verified", VERIFIED, one),
        Column("other texts", "Texts that differ from what the model writes greedily; 0 under exact acceptance."),
        *(Column(measure, QUALITY[measure], two) for measure in quality),
    )  # fmt: skip
    lead = f"Decodes of {decoded.texts} texts by the model with every system; the other numbers replay the lattices."
    return Section("decoding", "Decoded by the model", lead, [Table("decoded", "Decodes", columns, rows)])


def repetition(measurements: Measurements) -> Section:
    rescored = "1-best" if measurements.model else "64-tree:0-gram"
    after, by = system_label(rescored, measurements.model), counted(measurements.sets)
    rows, contest = [], []
    for measured in measurements.sets:
        comparison = measured.comparison
        i = comparison.systems.index(rescored)
        measures = (comparison.consecutive_repeats.tolist(), comparison.longest_run.tolist())
        cells = [(values[0], Cell(values[i], good=values[i] < values[0])) for values in measures]
        rows.append((measured.name, *cells[0], *cells[1]))
        won, lost = (comparison.repetition_shares(outcome)[i].tolist() for outcome in (0, 2))
        wins, ties, losses = comparison.outcomes[i].tolist()
        contest.append((measured.name, ties, wins, *won, losses, *lost))
    consec = "Neighbours in drafts that are one token twice, of all neighbours."
    run = "Tokens of the longest run of one token, mean over drafts."
    columns = (
        Column("data set"), Column("% Consec, vanilla", consec, one), Column(f"% Consec, {after}", consec, one),
        Column("Max run, vanilla", run, two), Column(f"Max run, {after}", run, two),
    )  # fmt: skip
    repair = "Of these, the rescored draft repeats nothing and the vanilla draft did."
    regress = "Of these, the rescored draft repeats a token and the vanilla draft did not."
    contest_columns = (
        Column("data set"), Column("ties", "Steps of the rescored decode with equal accepted lengths.", decimals(0)),
        Column("wins", "Steps where the rescored draft is accepted longer than the vanilla draft.", decimals(0)),
        Column("% Repair", repair, one), Column("% Regress", regress, one),
        Column("losses", "Steps where it is accepted shorter.", decimals(0)),
        Column("% Repair (losses)", repair, one), Column("% Regress (losses)", regress, one),
    )  # fmt: skip
    lead = (
        "Heads predict independently, so neighbours often predict the same token. As in the paper, a draft begins with"
        " head 1's token, which is committed in any case."
    )
    before = f"Repetition before and after rescoring (as table 3 of the paper), {by}"
    against = f"{after} against vanilla (as table 5 of the paper), {by}"
    tables = [Table("repetition", before, columns, rows), Table("wins-losses", against, contest_columns, contest)]
    return Section("repetition", "Repetition", lead, tables)
