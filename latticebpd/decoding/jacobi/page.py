"""One self-contained page: every text's graph and heat map with a slider over the iterations, and the statistics of all."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib import resources

from fst.files import replacing
from latticebpd.decoding.jacobi.sentence import Sentence
from latticebpd.decoding.jacobi.statistics import CorpusStatistics


def page(sentences: Sequence[Sentence], statistics: CorpusStatistics, settings: str) -> str:
    """The page as HTML; it asks the network for nothing.

    Args:
        sentences: what is shown, in order.
        statistics: of all texts, also of those that are not shown.
        settings: one line on how the numbers came about.
    """
    record = {"settings": settings, "texts": [sentence.record() for sentence in sentences], "statistics": statistics.record()}
    # Nothing in the data may end the script element that carries it.
    data = json.dumps(record, ensure_ascii=False).replace("<", "\\u003c")
    template = resources.files("latticebpd.decoding.jacobi").joinpath("page.html").read_text(encoding="utf-8")
    return template.replace("@DATA@", data)


def write_page(path: str | os.PathLike[str], sentences: Sequence[Sentence], statistics: CorpusStatistics, settings: str) -> None:
    """Write the page, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(page(sentences, statistics, settings), encoding="utf-8")
