"""Sections about machines: hardware cost and latency (Kim 2024, tables 11 to 13)."""

from __future__ import annotations

from latticebpd.drafters.system_names import BEST, NO_MODEL, SystemName
from latticebpd.measuring.hardware_cost import (
    PAPER_DECODINGS,
    PAPER_MODEL,
    Decoding,
    HardwareCost,
    ModelShape,
    hardware_cost,
)
from latticebpd.report.content import Column, Section, Table, text
from latticebpd.report.measurements import Measured, Measurements
from latticebpd.report.wording import system_label, three
from latticebpd.scoring.neural.causal_rescorer import CausalRescorer
from latticebpd.scoring.neural.rescorer import ParallelNeuralRescorer
from latticebpd.scoring.rescoring import as_scorer


def hardware(measurements: Measurements, shape: ModelShape | None) -> Section:
    items = [
        _hardware_table(hardware_cost(mode="paper"), "hardware-paper", "Table 11 of the paper, by its own account")
    ]
    items.append(
        _hardware_table(
            hardware_cost(PAPER_MODEL, PAPER_DECODINGS), "hardware-corrected", "The same systems, corrected account"
        )
    )
    if shape is not None:
        measured = measurements.sets[0]
        model = next(iter(measurements.models), None)
        wanted = [
            "vanilla",
            *(["1-best"] if model else []),
            "16-best:0-gram",
            *(["16-best", "64-tree"] if model else ["64-tree:0-gram"]),
        ]
        wanted += [f"{kind}:{name}" for name in list(measurements.models)[1:] for kind in ("1-best", "16-best")]
        cost = hardware_cost(
            shape, [Decoding("autoregressive", 1.0, 0), *(_decoding(measured, name, model) for name in wanted)]
        )
        source = f", sources of {shape.source:.0f} tokens" if shape.source else ""
        caption = (
            f"This model on {measured.name}, {8 * shape.bytes_per_number} bits a number{source}, corrected account"
        )
        items.append(_hardware_table(cost, "hardware-model", f"{caption}; block efficiency {measured.counted}"))
    lead = (
        "By calculation, for one decoded token at batch size 1. The paper's account counts the cache with the"
        " feed-forward width, linear layers for one token and attention as if computed anew; the corrected account"
        " counts what a pass reads and computes: heads included, every verified token, keys and values as they are"
        " stored, an encoder–decoder's source, a neural rescorer's steps."
    )
    return Section("hardware", "Hardware cost per token", lead, items)


def _decoding(measured: Measured, name: str, model: str | None) -> Decoding:
    """A system as it was measured, with its neural rescorer if it has one."""
    system, label = SystemName.parse(name), system_label(name, model)
    efficiency, verified = measured.efficiency[name], measured.verified[name]
    chosen = system.chosen(measured.models)
    scorer = None if chosen == NO_MODEL else as_scorer(measured.models[chosen])
    if not isinstance(scorer, CausalRescorer):
        return Decoding(label, efficiency, verified)
    slots = measured.comparison.signature.heads - 1
    steps = 1 if isinstance(scorer, ParallelNeuralRescorer) else slots
    # Beams are as many prefixes in every step; a tree's nodes are spread over the slots.
    rows = slots if steps == 1 else system.size if system.kind == BEST else max(1, system.size / slots)
    return Decoding(label, efficiency, verified, ModelShape.of(scorer.model), steps, rows)


def _hardware_table(cost: HardwareCost, name: str, caption: str) -> Table:
    scale, unit = (1e9, "GB") if cost.parameter_bytes.max() >= 1e8 else (1e6, "MB")
    work, flop = (1e12, "T") if cost.flops.max() >= 1e10 else (1e9, "G")
    rows = [(f"parameters read ({unit})", *(cost.parameter_bytes / scale).tolist())]
    rows += [
        (f"cache read at {length} tokens ({unit})", *(cost.cache_bytes[:, i] / scale).tolist())
        for i, length in enumerate(cost.lengths)
    ]
    rows.append((f"{flop}FLOPs at {cost.lengths[-1]} tokens", *(cost.flops / work).tolist()))
    columns = (
        Column("per decoded token"),
        *(Column(system, "Calculated; divided by block efficiency.", three) for system in cost.names),
    )
    return Table(name, caption, columns, tuple(rows))


def latency(measurements: Measurements) -> Section | None:
    measured = measurements.latency
    if measured is None:
        return None
    model = measured.signature.lm or "no language model"
    note = (
        f"Milliseconds on one thread of this machine, {model}; least of several runs, median of {measured.lattices}"
        " lattices."
    )
    p_columns = (
        Column("paths", "Best paths asked for.", text),
        *(Column(f"p = {p}", note, three) for p in measured.ps),
    )
    shape_columns = (
        Column("slots", "Heads that draft.", text),
        *(Column(f"k = {k}", note, three) for k in measured.ks),
    )
    by_shape = tuple((size, *values) for size, values in zip(measured.slots, measured.by_shape.tolist(), strict=True))
    lead = (
        f"Measured here, the only numbers that change from run to run. {note} The paper has 1.6 to 2.0 ms, with 100M"
        " n-grams."
    )
    slots = min(8, measured.signature.heads - 1)
    paths = Table(
        "latency-paths",
        f"The p best paths, {slots} slots (as table 12 of the paper)",
        p_columns,
        (("ms", *measured.by_p.tolist()),),
    )
    shapes = Table(
        "latency-shapes", "The best path by size of lattice (as table 13 of the paper)", shape_columns, by_shape
    )
    return Section("latency", "Latency of rescoring", lead, (paths, shapes))
