"""Reports: everything that lattices tell, on one page that people can look at and one program can read (Kim 2024).

measurements = measure([DataSet("news", ("lattices",))], {"4-gram": rescorer})    # numbers
make_report(measurements, title="my heads").write("report")    # report/report.html, and CSV and PNG next to it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from latticebpd._version import __version__
from latticebpd.measuring.hardware_cost import ModelShape
from latticebpd.measuring.model_decodes import Decoded
from latticebpd.report import draft_sections, head_sections, machine_sections
from latticebpd.report.measurements import DataSet, Measurements, Options, measure
from latticebpd.report.page import Headline, Report
from latticebpd.report.trace import TracedDecode, trace_page, write_trace
from latticebpd.report.wording import system_label

__all__ = [
    "DataSet",
    "Headline",
    "Measurements",
    "Options",
    "Report",
    "TracedDecode",
    "make_report",
    "measure",
    "trace_page",
    "write_trace",
]

DEFINITIONS = (
    (
        "call",
        (
            "One forward pass of the model that commits tokens. The prefill, which yields each text's first token, is"
            " counted apart."
        ),
    ),
    (
        "block efficiency",
        (
            "Tokens committed per call, pooled over the data set; the number of times that decoding takes fewer calls"
            " than greedy."
        ),
    ),
    ("by decode", "Over the calls of a decode through each text, replayed: each goes on where the last one stopped."),
    ("by position", "Over all positions of the texts. No decode visits all of them, so this is not a decode's number."),
    (
        "head 1",
        "The base model's own prediction. It is committed without being drafted, so h heads have h − 1 slots to draft.",
    ),
    ("vanilla", "The best token of every head, as it is (Stern et al. 2018)."),
    (
        "p-best",
        "The p best paths of the lattice, rescored by a language model (Kim et al. 2024), verified in one pass.",
    ),
    ("N-node tree", "The N most probable prefixes of paths, verified in one pass."),
    ("no LM", "The lattice's own log-probabilities alone: the paper's 0-gram."),
    ("oracle", "The path with the longest accepted prefix, chosen in hindsight."),
    (
        "verified tokens",
        "Drafted tokens in one pass; prefixes that drafts share count once, the next token itself is not counted.",
    ),
    (
        "headroom recovered",
        "(system − vanilla) / (oracle − vanilla), in tokens per call.",
    ),
)


def make_report(
    measurements: Measurements,
    title: str = "Block drafts and what rescoring makes of them",
    word: Callable[[int], str] = str,
    shape: ModelShape | None = None,
    decoded: Decoded | None = None,
    quality: Mapping[str, Sequence[float]] | None = None,
) -> Report:
    """Arrange measurements as a report.

    Args:
        measurements: what ``measure`` returns.
        word: token id -> its text, for the drawing.
        shape: the base model's, for its hardware cost.
        decoded: decodes by the model, where it was at hand.
        quality: of what it wrote, by measure, see ``latticebpd.measuring.model_decodes.qualities``.
    """
    first = measurements.sets[0]
    model = next(iter(measurements.models), None)
    best = first.best_system(measurements.options.budget)
    efficiency, recovered = first.efficiency, first.recovered[best]
    headline = Headline(
        first.name, efficiency["vanilla"], system_label(best, model), efficiency[best], efficiency["oracle"],
        None if recovered != recovered else recovered,
    )  # fmt: skip
    made = [
        draft_sections.summary(measurements), draft_sections.block_efficiency(measurements),
        draft_sections.headroom(measurements),
        draft_sections.budget(measurements),
        None if decoded is None else draft_sections.decoding(decoded, model, quality or {}),
        draft_sections.repetition(measurements),
        head_sections.entropy(measurements), head_sections.weights(measurements),
        head_sections.example(measurements, word), machine_sections.hardware(measurements, shape),
        machine_sections.latency(measurements),
    ]  # fmt: skip
    sizes = ", ".join(
        f"{measured.name}: {measured.comparison.num_lattices:,} lattices" for measured in measurements.sets
    )
    signature = first.comparison.signature
    facts = [
        ("data", sizes),
        *((f"signature, {measured.name}", str(measured.comparison.signature)) for measured in measurements.sets),
    ]
    facts += [(f"language model {name}", words) for name, words in measurements.models.items()]
    facts += [
        ("set aside", f"{measured.name}: {measured.num_excluded} examples, for tuning")
        for measured in measurements.sets
        if measured.num_excluded
    ]
    facts.append(("made by", f"latticebpd {__version__}"))
    subtitle = (
        f"{sizes} · {signature.heads} heads × {signature.k} arcs ·"
        f" {', '.join(measurements.models) or 'no language model'}"
    )
    return Report(
        title, subtitle, headline, tuple(section for section in made if section is not None), DEFINITIONS, tuple(facts)
    )
