"""The page of dependency graphs: every text's graph and heat map with a slider over the iterations, and the statistics
of all."""

from __future__ import annotations

from collections.abc import Sequence

from latticebpd.jacobi.analysis import CorpusStatistics, Sentence
from latticebpd.report import page_templates


def graphs_page(sentences: Sequence[Sentence], statistics: CorpusStatistics, settings: str) -> str:
    """The page as HTML; it asks the network for nothing.

    Args:
        sentences: what is shown, in order.
        statistics: of all texts, also of those that are not shown.
        settings: one line on how the numbers came about.
    """
    data = {"texts": [sentence.record() for sentence in sentences]}
    return page_templates.render("graphs", "Decoding dependency graphs", settings, data=data, statistics=statistics)
