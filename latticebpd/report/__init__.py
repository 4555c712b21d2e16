"""Reports: the statistics of lattices on one page, for people and, as CSV, for programs (Kim 2024).

measurements = measure([DataSet("news", ("lattices",))], {"4-gram": rescorer})    # numbers
make_report(measurements, title="my heads").write("report")    # report/report.html, and CSV and PNG next to it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from latticebpd._version import __version__
from latticebpd.checks import extra_module
from latticebpd.report.measurements import DataSet, Measurements, Options, measure
from latticebpd.report.page import Headline, Report
from latticebpd.report.trace import TracedDecode, trace_page, write_trace
from latticebpd.report.wording import system_label

if TYPE_CHECKING:
    from latticebpd.measuring.model_decodes import Decoded

__all__ = ["DataSet", "Measurements", "Options", "TracedDecode", "make_report", "measure", "trace_page", "write_trace"]


def make_report(
    measurements: Measurements,
    title: str = "Block drafts and what rescoring makes of them",
    word: Callable[[int], str] = str,
    decoded: Decoded | None = None,
    quality: Mapping[str, Sequence[float]] | None = None,
) -> Report:
    """Arrange measurements as a report; ValueError where matplotlib, which draws its plots, is not installed.

    word: token id -> its text, for the drawing.
    decoded: decodes by the model itself; quality: theirs, see ``latticebpd.measuring.model_decodes.qualities``.
    """
    extra_module("matplotlib", "plots", "a report's plots")
    from latticebpd.report import draft_sections, head_sections

    first, model = measurements.sets[0], measurements.model
    best = first.best_system(measurements.options.budget)
    efficiency, recovered = first.efficiency, first.recovered[best]
    headline = Headline(
        first.name, efficiency["vanilla"], system_label(best, model), efficiency[best], efficiency["oracle"],
        None if recovered != recovered else recovered,
    )  # fmt: skip
    sections = (
        draft_sections.summary(measurements),
        draft_sections.block_efficiency(measurements),
        draft_sections.headroom(measurements),
        draft_sections.budget(measurements),
        None if decoded is None else draft_sections.decoding(decoded, model, quality or {}),
        draft_sections.repetition(measurements),
        head_sections.entropy(measurements),
        head_sections.weights(measurements),
        head_sections.example(measurements, word),
    )
    sizes = ", ".join(f"{each.name}: {each.comparison.num_lattices:,} lattices" for each in measurements.sets)
    tuned = [each for each in measurements.sets if each.num_excluded]
    facts = [
        ("data", sizes),
        *((f"signature, {each.name}", str(each.comparison.signature)) for each in measurements.sets),
        *((f"language model {name}", words) for name, words in measurements.models.items()),
        *(("held out", f"{each.name}: {each.num_excluded} examples, for tuning") for each in tuned),
        ("made by", f"latticebpd {__version__}"),
    ]
    signature, names = first.comparison.signature, ", ".join(measurements.models) or "no language model"
    subtitle = f"{sizes} · {signature.heads} heads × {signature.k} arcs · {names}"
    return Report(title, subtitle, headline, [section for section in sections if section is not None], facts)
