"""``latticebpd jacobi`` and what it measures: the texts are greedy decoding's, operations are those that torch counts,
numbers add up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version
from torch.utils.flop_counter import FlopCounterMode

from latticebpd import BlockwiseLM
from latticebpd.drafters.heads.head_networks import FeedForwardHeads
from latticebpd.jacobi import gauss_seidel_jacobi, jacobi
from latticebpd.jacobi.jacobi_comparison import GREEDY, Batch, ModelFlops, compare, parallel, stock
from tests.helpers.commands import Run
from tests.helpers.tiny_families import tiny
from tests.helpers.tokenizers import letters

TEXTS = ["beg", "cab", "fadebag", "gab"]
NEW = 10


@pytest.mark.parametrize("family", ["marian", "bart", "t5", "llama", "gpt2", "opt", "bloom"])
def test_operations_are_those_that_torch_counts(family: str) -> None:
    model: Any = tiny(family, seed=3, attention="eager")
    ids = torch.tensor([[3, 4, 6, 8, 2]])
    shape, is_encoder_decoder = ModelFlops.of(model), model.config.is_encoder_decoder
    with FlopCounterMode(display=False) as counted:
        model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=9)
    # Before version 5, transformers computes some families' logits for the whole prompt, and Llama's rotary angles,
    # which the shape leaves out, by a matrix product.
    before_5 = Version(transformers.__version__).major < 5
    prompt = 4 * 2 * shape.output_weights if before_5 and family in ("opt", "bloom") else 0
    angles = 2 * 4 if before_5 and family == "llama" else 0  # of a column
    greedy = shape.greedy_flops(5 if is_encoder_decoder else 0, 1 if is_encoder_decoder else 5, 9)
    assert greedy + prompt + 13 * angles == counted.get_total_flops()
    if family == "bloom":  # read without a cache
        return
    jacobi(model, ids, max_new_tokens=9)  # what kind of model it is, is found out the first time
    with FlopCounterMode(display=False) as counted:
        decoded = jacobi(model, ids, max_new_tokens=9)
    predicted = int(decoded.columns[0]) - (0 if is_encoder_decoder else 4)
    own = shape.flops(5 if is_encoder_decoder else 0, int(decoded.columns[0]), int(decoded.pairs[0]), predicted)
    assert own + int(decoded.columns[0]) * angles == counted.get_total_flops()


def test_measurements_add_up_and_systems_take_turns() -> None:
    model = tiny("marian", 3, eos=7)
    inputs = [[3, 4, 6], [5, 9], [8, 8, 2, 11], [12], [2, 6]]
    asked: list[tuple[str, int]] = []
    now = iter(range(1000))

    def noted(name: str, system: Callable[[Batch], Any]) -> Callable[[Batch], Any]:
        def decode(batch: Batch) -> Any:
            asked.append((name, batch.start))
            return system(batch)

        return decode

    systems = {
        GREEDY: noted("greedy", stock(model, NEW)),
        "beam": noted("beam", stock(model, NEW, num_beams=3)),
        "blocks": noted(
            "blocks",
            parallel(
                model,
                lambda batch: gauss_seidel_jacobi(
                    model, batch.ids, 4, None, batch.lengths, attention_mask=batch.mask, max_new_tokens=NEW
                ),
            ),
        ),
    }
    comparison = compare(systems, inputs, 0, False, batch_size=2, warm_ups=1, clock=lambda: float(next(now)))
    assert asked == [(name, start) for start in (0, 0, 2, 4) for name in ("greedy", "beam", "blocks")]
    greedy, blocks = comparison[GREEDY], comparison["blocks"]
    assert blocks.differing(greedy) == 0
    assert greedy.passes == [len(tokens) for tokens in greedy.tokens]
    assert greedy.seconds == blocks.seconds == [0.5] * 4 + [1.0]  # each decode takes one tick of the clock
    assert blocks.iteration_speedup(greedy) == sum(greedy.passes) / sum(blocks.passes)
    assert blocks.flops_per_speed(greedy) == sum(blocks.flops)
    spread = blocks.distribution(greedy, "passes")
    each = sorted(a / b for a, b in zip(greedy.passes, blocks.passes, strict=True))
    assert (spread["0"], spread["0.5"], spread["1"]) == (each[0], each[2], each[-1])
    expected = model.generate(torch.tensor([[8, 8, 2, 11]]), do_sample=False, num_beams=3, max_new_tokens=NEW)[
        0, 1:
    ].tolist()
    assert comparison["beam"].tokens[2] == expected[: len(comparison["beam"].tokens[2])]
    assert min(comparison["beam"].flops) > max(greedy.flops)


def test_the_commands_run_without_a_file_or_a_model_on_what_is_bundled(run: Run) -> None:
    status, out, err = run("jacobi", "--initial", "ngram", "--limit", 2, "--max-new-tokens", 24, "--json")
    assert status == 0, err
    record = json.loads(out)
    assert "model bundled | texts 2" in record["settings"]
    assert record["differing_texts"] == 0
    assert record["systems"][-1]["iteration_speedup"] > 1
    status, out, err = run("ddg", "--limit", 1, "--max-new-tokens", 8, "--json")
    assert status == 0, err
    assert "model bundled" in json.loads(out)["settings"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    model = tiny("marian", 5, eos=7)
    BlockwiseLM(model, FeedForwardHeads(16, 4, 8)).save_pretrained(tmp_path / "model")
    letters().save_pretrained(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("".join(text + "\n" for text in TEXTS))
    records = [{"en": text, "de": text[::-1]} for text in TEXTS]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path


@pytest.fixture
def expected() -> list[str]:
    """The model's own texts, by ``generate()``."""
    model = tiny("marian", 5, eos=7)
    tokenizer = letters()
    rows = [
        torch.tensor([tokenizer(text)["input_ids"]]) for text in TEXTS
    ]  # token 0 among them is a letter, not padding
    out = [
        model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW)[0, 1:]
        for ids in rows
    ]
    return [tokenizer.decode(row) for row in out]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--algorithm", "jacobi", "--length", "known"),
        ("--algorithm", "jacobi", "--initial", "random", "--length", 3, "--batch-size", 3),
        ("--algorithm", "gauss-seidel", "--block-size", 4, "--initial", "heads"),
        ("--initial", "source", "--max-length", 4),
        ("--no-baselines",),
    ],
)
def test_texts_are_greedy_decodings_whatever_the_options(
    run: Run, directory: Path, expected: list[str], options: tuple[Any, ...]
) -> None:
    written = directory / "out.txt"
    arguments = ("jacobi", directory / "texts.txt", "--model", directory / "model", "--max-new-tokens", NEW)
    status, out, err = run(*arguments, *options, "-o", written, "--json")
    record = json.loads(out)
    assert (status, err) == (0, "")
    assert record["texts"] == expected
    assert written.read_text().splitlines() == expected
    assert record["differing_texts"] == (None if "--no-baselines" in options else 0)
    assert len(record["systems"]) == (1 if "--no-baselines" in options else 3)


def test_an_earlier_output_takes_one_iteration_a_text(run: Run, directory: Path, expected: list[str]) -> None:
    (directory / "earlier.txt").write_text("".join(text + "\n" for text in expected))
    arguments = (
        "jacobi",
        directory / "texts.txt",
        "--model",
        directory / "model",
        "--max-new-tokens",
        NEW,
        "--algorithm",
        "jacobi",
    )
    status, out, _ = run(
        *arguments, "--initial", "previous", "--previous", directory / "earlier.txt", "--length", "known", "--json"
    )
    mine = json.loads(out)["systems"][-1]
    assert status == 0
    assert mine["iterations"] == len(TEXTS)
    assert mine["iteration_speedup"] == np.sum(mine["tokens"]) / len(TEXTS)


def test_table_gives_bleu_with_its_signature(run: Run, directory: Path, expected: list[str]) -> None:
    metrics = pytest.importorskip("sacrebleu.metrics")
    arguments = (
        "jacobi",
        directory / "texts.jsonl",
        "--model",
        directory / "model",
        "--max-new-tokens",
        NEW,
        "--target",
        "de",
    )
    status, out, _ = run(*arguments)
    assert status == 0
    assert "nrefs:1|case:mixed" in "".join(out.split())
    assert all(heading in out for heading in ("passes", "BLEU", "FLOPs", "quantile"))
    record = json.loads(run(*arguments, "--json")[1])
    score = metrics.BLEU().corpus_score(expected, [[text[::-1] for text in TEXTS]]).score
    assert [row["bleu"] for row in record["systems"]][::2] == [score, score]


@pytest.mark.parametrize(
    ("file", "arguments", "message"),
    [
        ("texts.txt", ("--target", "de"), "expected --target with a .jsonl file only"),
        ("texts.jsonl", ("--source", "fr"), "texts.jsonl, line 1: expected an object with text under 'fr'"),
        ("texts.txt", ("--references", "short.txt"), "expected 4 references, one a line as in"),
        ("gap.txt", (), "gap.txt:2: expected a text on every line"),
        ("empty.txt", (), "expected at least one text, found none"),
        ("long.txt", (), "expected sources of at most"),
        ("texts.txt", ("--initial", "previous"), "expected --previous FILE together with --initial previous"),
        ("texts.txt", ("--algorithm", "jacobi", "--length", "some"), "expected --length as a number"),
        ("texts.txt", ("--algorithm", "jacobi", "--length", "known", "--no-baselines"), "leave --no-baselines out"),
        ("absent.txt", (), "absent.txt: expected a file, found none"),
        ("texts.txt", ("--lm", "lm.fst"), "expected --lm and --alpha with --initial ngram or heads, got padding"),
    ],
)
def test_bad_input_ends_with_one_line(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch, file: str, arguments: Any, message: str
) -> None:
    for name, text in (
        ("short.txt", "a\n"),
        ("gap.txt", "a\n\nb\n"),
        ("empty.txt", ""),
        ("long.txt", "a\n" + "b" * 500 + "\n"),
    ):
        (directory / name).write_text(text)
    monkeypatch.chdir(directory)
    status, out, err = run("jacobi", file, "--model", "model", *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
