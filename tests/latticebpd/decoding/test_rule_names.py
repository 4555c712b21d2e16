"""Every rule has a name, every name a rule; what is no name is refused in one line that says what would be."""

from __future__ import annotations

import pytest
import torch

from latticebpd import Acceptance, Distance, DraftTree, Exact, MinimumBlock, Sampling, TopBeta, TopK
from latticebpd.decoding.acceptance import NodeDrafts
from latticebpd.decoding.rule_names import EXPECTED, parse_rule


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("exact", Exact()),
        ("top-k:2", TopK(2)),
        ("distance:2", Distance(2)),
        ("distance:0.5", Distance(0.5)),
        ("beta:5,3", TopBeta(5, 3)),
        ("beta:5,0.25", TopBeta(5, 0.25)),
        ("min-block:3", MinimumBlock(3)),
        ("min-block:3,top-k:2", MinimumBlock(3, TopK(2))),
        ("min-block:3,beta:5,3", MinimumBlock(3, TopBeta(5, 3))),
    ],
)
def test_name_stands_for_its_rule(name: str, rule: Acceptance) -> None:
    assert parse_rule(name) == parse_rule(name, temperature=None) == rule


def test_sample_takes_the_settings_given_beside_it() -> None:
    logits = torch.tensor([[0.0, 9.0, 8.0]])
    for name in ("sample", "min-block:3,sample"):
        rule = parse_rule(name, temperature=0.5, top_k=1, top_p=None)
        assert rule.choose(logits, NodeDrafts([DraftTree.empty()], [-1]), [9]) == [1]
    assert isinstance(parse_rule("sample"), Sampling)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Exact",
        "exact:1",
        "top-k",
        "top-k:",
        "top-k:two",
        "top-k:2.5",
        "beta:5",
        "beta:5,3,1",
        "min-block:3,",
        "sample:1",
        "distance:-1",
    ],
)
def test_what_is_no_name_is_refused_with_all_that_are(name: str) -> None:
    with pytest.raises(ValueError, match="expected an acceptance rule") as refused:
        parse_rule(name)
    message = str(refused.value)
    assert EXPECTED in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("top-k:0", "k >= 1, got 0"),
        ("beta:0,1", "beta >= 1"),
        ("min-block:0", "length >= 1"),
        ("min-block:2,top-k:0", "k >= 1"),
    ],
)
def test_number_out_of_range_is_refused_by_the_rule(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_rule(name)


@pytest.mark.parametrize("name", ["exact", "top-k:2", "min-block:3,beta:5,3"])
def test_settings_of_sampling_are_refused_where_nothing_is_sampled(name: str) -> None:
    with pytest.raises(ValueError, match="expected the rule sample with temperature, got"):
        parse_rule(name, temperature=0.7)
