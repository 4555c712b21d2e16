"""What the comparison of GAD's systems relies on; `test_gad_recipe.py` runs it."""

from __future__ import annotations

import pytest

from benchmarks.decodes import Decoded, ended
from latticebpd import Exact, NoDrafter, TopBeta


def test_texts_end_with_the_first_end_of_text() -> None:
    assert ended([4, 5, 0, 7, 0], 0) == [4, 5, 0]
    assert ended([4, 5], 0) == [4, 5]


def test_exact_systems_must_write_greedy_texts_and_lenient_ones_need_not() -> None:
    pytest.importorskip("sacrebleu")
    from benchmarks.bench_gad import GREEDY, check_exact

    found = {GREEDY: Decoded([[4, 0], [5, 0]]), "GAD": Decoded([[4, 0], [6, 0]])}
    check_exact({GREEDY: {}, "GAD": (NoDrafter, TopBeta(3, 1.0))}, found)
    with pytest.raises(ValueError, match=r"GAD: expected generate\(\)'s texts, got 1 others"):
        check_exact({GREEDY: {}, "GAD": (NoDrafter, Exact())}, found)
