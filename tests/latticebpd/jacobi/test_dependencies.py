"""Decoding dependency graphs: heat maps and causes held to plain passes of the model over whole texts, pictures to what
they show."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latticebpd import ReferenceDrafter
from latticebpd.jacobi import (
    Dependencies,
    DraftedInitial,
    RandomTokens,
    TokenStatus,
    Wait,
    dependencies,
    gauss_seidel_jacobi,
    jacobi,
    trajectory,
)
from latticebpd.jacobi.analysis import Sentence, analyse, corpus_statistics
from latticebpd.lattices.token_text import classes, piece
from latticebpd.report.dependency_plots import graphs_page, picture
from latticebpd.report.plots import save
from tests.helpers.commands import Run
from tests.helpers.pages import check_page
from tests.helpers.rule_models import (
    RuleModel,
    adds_up,
    follows_its_predecessor,
    follows_the_last_but_one,
    knows_its_place,
)
from tests.helpers.tiny_families import VOCABULARY, tiny
from tests.helpers.tokenizers import letters

PROMPT = [4, 9, 3, 11]
LENGTH = 12


def plainly(model: Any, prompt: list[int], text: Sequence[int]) -> tuple[int, torch.Tensor]:
    """What a model chooses behind a text, by one plain pass: the token, and all probabilities."""
    if model.config.is_encoder_decoder:
        logits = model(
            input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([[1, *text]]), use_cache=False
        ).logits[0, -1]
    else:
        logits = model(input_ids=torch.tensor([[*prompt, *text]]), use_cache=False).logits[0, -1]
    return int(logits.argmax()), logits.softmax(-1)


@pytest.mark.parametrize("family", ["llama", "marian", "t5"])
@pytest.mark.parametrize("seed", [1, 5])
@torch.inference_mode()
def test_heat_map_is_that_of_decoding_again_by_hand(family: str, seed: int) -> None:
    model = tiny(family, seed)
    iterates = trajectory(
        jacobi(model, PROMPT, RandomTokens(VOCABULARY, seed), LENGTH, max_new_tokens=LENGTH, trace=True)
    )
    values = iterates.values[0].tolist()
    for number in range(iterates.passes):
        chosen = [plainly(model, PROMPT, values[:position]) for position in range(LENGTH)]
        for position, (token, probabilities) in enumerate(chosen):
            right, was_right = token == iterates.tokens[position], values[position] == iterates.tokens[position]
            ahead = any(chosen[j][0] != iterates.tokens[j] for j in range(position + 1))
            expected = (
                TokenStatus.NOT_RIGHT
                if not right
                else TokenStatus.NEWLY_RIGHT
                if not was_right
                else TokenStatus.AHEAD
                if ahead
                else TokenStatus.SETTLED
            )
            assert iterates.cells[number, position] == expected
            if not np.isnan(iterates.probabilities[number, position]):
                assert iterates.probabilities[number, position] == pytest.approx(float(probabilities[token]), abs=1e-4)
        values = [token for token, _ in chosen]
        assert iterates.values[number + 1].tolist() == values
    assert values == iterates.tokens


@pytest.mark.parametrize("family", ["gpt2", "marian"])
@pytest.mark.parametrize("block_size", [5, LENGTH])
@torch.inference_mode()
def test_causes_suffice_and_none_can_be_left_out(family: str, block_size: int) -> None:
    asked = 0
    for seed in range(4):
        model = tiny(family, seed)
        decoded = gauss_seidel_jacobi(
            model, PROMPT, block_size, RandomTokens(VOCABULARY, seed), max_new_tokens=LENGTH, trace=True
        )
        iterates = trajectory(decoded)
        graph = dependencies(model, PROMPT, iterates, max_new_tokens=LENGTH)
        for (number, place), change in graph.changes.items():
            new, old = int(iterates.values[number, place]), int(iterates.values[number - 1, place])
            assert new != old
            if number == 1 or np.isnan(iterates.probabilities[number - 2, place]):
                assert not change.causes
                continue
            former, latter = iterates.values[number - 2], iterates.values[number - 1]

            def read(
                kept: set[int], former: Any = former, latter: Any = latter, place: int = place, model: Any = model
            ) -> Any:
                return plainly(model, PROMPT, [int((latter if j in kept else former)[j]) for j in range(place)])

            assert read(set())[0] == old
            assert read(set(change.causes))[0] == new
            for cause, probability in zip(change.causes, change.probabilities, strict=True):
                assert former[cause] != latter[cause]
                token, probabilities = read(set(change.causes) - {cause})
                assert token != new
                assert probability == pytest.approx(float(probabilities[new]), abs=1e-4)
                asked += 1
        for place, since in enumerate(iterates.right_since.tolist()):
            assert [(wait.on, wait.probability is None) for wait in graph.waits[place]] == _roots(
                graph, iterates, since, place
            )
    assert asked >= 4


def _roots(graph: Dependencies, iterates: Any, number: int, place: int) -> list[tuple[int, bool]]:
    """Whom a place waited for, by following causes one by one: the places, and whether other values lie between."""
    roots: dict[int, bool] = {}

    def follow(number: int, place: int, direct: bool) -> None:
        for cause in graph.changes[number, place].causes:
            if iterates.values[number - 1, cause] == iterates.tokens[cause]:
                roots[cause] = roots.get(cause, True) and not direct
            else:
                follow(number - 1, cause, False)

    if number:
        follow(number, place, True)
    return sorted(roots.items())


@pytest.mark.parametrize(
    ("rule", "edges"),
    [
        (follows_its_predecessor, [(j, j + 1) for j in range(7)]),
        (follows_the_last_but_one, [(j, j + 2) for j in range(6)]),
        (knows_its_place, []),
        (adds_up, [(j, j + 1) for j in range(7)]),
    ],
)
def test_graphs_of_known_rules_are_the_rules(
    rule: Callable[[Sequence[int]], int], edges: list[tuple[int, int]]
) -> None:
    model = RuleModel(rule)
    iterates = trajectory(jacobi(model, [1], length=8, max_new_tokens=8, trace=True))
    graph = dependencies(model, [1], iterates, max_new_tokens=8)
    assert [(edge.on, edge.position) for edge in graph.edges] == edges


def test_a_token_may_wait_through_a_guess_that_is_not_right() -> None:
    def rule(tokens: Sequence[int]) -> int:
        """Place 1 needs place 0; place 2 needs only that place 1 is a value above 50, which it becomes before it is
        right."""
        position = len(tokens) - 1
        if position == 0:
            return 60
        if position == 1:
            return 61
        if position == 2:
            return 62 if tokens[2] == 61 else 70 if tokens[1] == 60 else 5
        return 80 if tokens[3] > 50 else 6

    model = RuleModel(rule)
    iterates = trajectory(jacobi(model, [1], length=4, max_new_tokens=4, trace=True))
    assert iterates.values.tolist() == [[0] * 4, [60, 61, 5, 6], [60, 61, 62, 6], [60, 61, 62, 80]]
    graph = dependencies(model, [1], iterates, max_new_tokens=4)
    assert [(wait.on, wait.probability is None) for waits in graph.waits for wait in waits] == [(1, False), (2, False)]

    def slower(tokens: Sequence[int]) -> int:
        """As before, but place 1 waits for place 0 as well, so that place 2 first becomes 70, which suffices for place
        3."""
        return 9 if len(tokens) == 2 and tokens[1] != 60 else rule(tokens)

    model = RuleModel(slower)
    iterates = trajectory(jacobi(model, [1], length=4, max_new_tokens=4, trace=True))
    assert iterates.values.tolist() == [[0] * 4, [60, 9, 5, 6], [60, 61, 70, 6], [60, 61, 62, 80], [60, 61, 62, 80]]
    graph = dependencies(model, [1], iterates, max_new_tokens=4)
    assert [(wait.on, wait.position, wait.probability is None) for waits in graph.waits for wait in waits] == [
        (0, 1, False),
        (1, 2, False),
        (0, 3, True),  # by way of the 70, though place 2 itself is right no sooner than place 3
    ]
    assert iterates.right_since.tolist() == [1, 2, 3, 3]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sets(st.integers(0, 7)), min_size=1, max_size=8))
def test_edges_keep_every_path_and_no_edge_beside_one(needs: list[set[int]]) -> None:
    waits = [
        [Wait(position, on, 0.1) for on in sorted(on for on in each if on < position)]
        for position, each in enumerate(needs)
    ]
    every = {(wait.on, wait.position) for each in waits for wait in each}
    kept = {(edge.on, edge.position) for edge in Dependencies(waits, {}).edges}

    def reachable(edges: set[tuple[int, int]]) -> set[tuple[int, int]]:
        reached = set(edges)
        while more := {(a, d) for a, b in reached for c, d in edges if b == c} - reached:
            reached |= more
        return reached

    assert kept <= every
    assert reachable(kept) == reachable(every)
    for edge in kept:
        assert edge not in reachable(kept - {edge})


def test_a_trajectory_of_another_prompt_is_refused() -> None:
    model = tiny("gpt2", 2)
    iterates = trajectory(jacobi(model, PROMPT, RandomTokens(VOCABULARY, 1), LENGTH, max_new_tokens=LENGTH, trace=True))
    with pytest.raises(ValueError, match="trajectory of a decode of this prompt"):
        dependencies(model, [20, 17, 8], iterates)
    with pytest.raises(ValueError, match="a single prompt, got 2"):
        dependencies(model, [[1], [2]], iterates)


@pytest.fixture(scope="module")
def sentences() -> list[Sentence]:
    model = tiny("marian", 5)
    return [
        analyse(model, letters(), text, RandomTokens(VOCABULARY, 4), max_new_tokens=10)
        for text in ("beg", "cab", "fad")
    ]


def test_drafts_that_were_right_all_along_are_nothing_that_a_pass_made_right() -> None:
    model = RuleModel(follows_its_predecessor)
    drafted = DraftedInitial(ReferenceDrafter([list(range(2, 10))]))
    iterates = trajectory(jacobi(model, [1], drafted, length=8, max_new_tokens=8, trace=True))
    assert iterates.right_since.tolist() == [1] + [0] * 7
    assert iterates.cells.tolist() == [
        [TokenStatus.NEWLY_RIGHT] + [TokenStatus.NOT_RIGHT] * 7,
        [TokenStatus.SETTLED] * 8,
    ]
    assert (iterates.frontier.tolist(), iterates.widths.tolist()) == ([0, 1, 8], [1, 0])
    assert dependencies(model, [1], iterates, max_new_tokens=8).edges == []
    for each in (iterates, trajectory(gauss_seidel_jacobi(model, [1], 3, drafted, max_new_tokens=8, trace=True))):
        assert np.isfinite(each.probabilities[each.cells == TokenStatus.NEWLY_RIGHT]).all()  # what the pictures print


def test_statistics_are_the_sums_of_the_texts(sentences: list[Sentence]) -> None:
    statistics = corpus_statistics(sentences)
    tokens = [(sentence, position) for sentence in sentences for position in range(len(sentence.pieces))]
    since = [sentence.trajectory.right_since.tolist() for sentence in sentences]
    everything = statistics.classes[-1]
    assert (statistics.texts, statistics.tokens, everything.tokens) == (3, len(tokens), len(tokens))
    assert statistics.mean_width == len(tokens) / sum(sentence.trajectory.passes for sentence in sentences)
    assert everything.in_parallel == sum(a >= b for each in since for a, b in pairwise(each))
    assert everything.followers == len(tokens) - 3
    assert everything.mean_pass == pytest.approx(np.mean([number for each in since for number in each]))
    assert everything.mean_waits == pytest.approx(
        np.mean([len(s.dependencies.waits[position]) for s, position in tokens])
    )
    assert sum(each.tokens for each in statistics.classes[:-1]) == len(tokens)
    made_right = sum(each.mean_width * each.texts for each in statistics.iterations)
    assert round(made_right) == sum(number > 0 for each in since for number in each)
    assert [each.texts for each in statistics.iterations] == sorted(
        (each.texts for each in statistics.iterations), reverse=True
    )


def test_classes_tell_words_from_their_parts() -> None:
    tokens = list(range(9))
    pieces = ["▁Hund", "e", "hütte", ",", "▁zwei", "▁3.5", "-", "<pad>", "</s>"]
    assert classes(pieces, tokens, special={7, 8}, ends={8}) == [
        "first part of a word", "further part of a word", "further part of a word", "punctuation", "whole word",
        "number", "punctuation",
        "special token", "end of text",
    ]  # fmt: skip
    assert piece(letters(), 2) == "c"
    assert piece(letters(), 99) == "[99]"


def test_a_picture_of_control_characters_is_valid_xml(sentences: list[Sentence], tmp_path: Path) -> None:
    save(picture(replace(sentences[0], pieces=["\x1b[2J\x00" for _ in sentences[0].pieces])), tmp_path / "graph.svg")
    ElementTree.parse(tmp_path / "graph.svg")
    assert "\\x1b[2J\\x00" in (tmp_path / "graph.svg").read_text()


def test_pictures_are_written_with_every_token(sentences: list[Sentence], tmp_path: Path) -> None:
    drawn = picture(sentences[0])
    labels = [label.get_text() for label in drawn.axes[1].get_xticklabels()]
    assert labels == sentences[0].pieces
    probabilities = [text.get_text() for text in drawn.axes[1].texts]
    iterates = sentences[0].trajectory
    assert probabilities == [f"{p:.2f}" for p in iterates.probabilities[iterates.cells == TokenStatus.NEWLY_RIGHT]]
    assert len(drawn.axes[0].patches) == len(sentences[0].dependencies.edges)
    for name in ("graph.png", "graph.svg"):
        save(drawn, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000


def test_page_holds_its_data_and_asks_for_nothing_else(sentences: list[Sentence]) -> None:
    hostile = Sentence(
        "</script><b>&amp;",
        ["</script>", *sentences[0].pieces[1:]],
        *(getattr(sentences[0], name) for name in ("classes", "values", "trajectory", "dependencies")),
    )
    text = graphs_page([hostile, *sentences[1:]], corpus_statistics(sentences), "settings <of> this")
    check_page(text)
    data = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert len(data) == 1
    read = json.loads(data[0])
    assert read["texts"][0]["source"] == "</script><b>&amp;"
    assert [each["tokens"] for each in read["texts"]] == [sentence.trajectory.tokens for sentence in sentences]
    for each in corpus_statistics(sentences).classes:
        assert f"<tr><td>{each.name}</td><td>{each.tokens}</td>" in text
    assert "settings &lt;of&gt; this" in text
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.findall(r"<(?:link|img|iframe)\b|@import|fetch\(|XMLHttpRequest", text)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tiny("marian", 5).save_pretrained(tmp_path / "model")
    letters().save_pretrained(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("beg\ncab\n")
    return tmp_path


def test_command_draws_measures_and_counts(run: Run, directory: Path) -> None:
    files = [directory / name for name in ("graphs.html", "graph.png", "classes.csv", "widths.csv")]
    arguments = (
        "ddg",
        directory / "texts.txt",
        "--model",
        directory / "model",
        "--max-new-tokens",
        10,
        "--initial",
        "random",
    )
    status, out, _ = run(
        *arguments, "-o", files[0], "-o", files[1], "--classes-csv", files[2], "--widths-csv", files[3]
    )
    assert status == 0
    assert "tokens per iteration" in out
    assert all((directory / name).exists() for name in ("graphs.html", "graph-1.png", "graph-2.png"))
    status, out, err = run(*arguments, "--json")
    record = json.loads(out)
    assert (status, err) == (0, "")
    assert [text["source"] for text in record["texts"]] == ["beg", "cab"]
    with files[2].open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["name"], int(row["tokens"])) for row in rows] == [
        (each["name"], each["tokens"]) for each in record["statistics"]["classes"]
    ]
    with files[3].open() as file:
        assert len(list(csv.DictReader(file))) == len(record["statistics"]["iterations"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "graph.gif"), "expected a name that ends in .html, .png"),
        (("--initial", "previous"), "got previous"),
        (("--initial", "heads"), "expected a model with heads"),
        (("--initial", "ngram"), "name one with --lm"),
    ],
)
def test_command_refuses_what_it_cannot_do(run: Run, directory: Path, arguments: tuple[str, ...], message: str) -> None:
    status, out, err = run("ddg", directory / "texts.txt", "--model", directory / "model", *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
