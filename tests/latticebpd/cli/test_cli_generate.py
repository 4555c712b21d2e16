"""``latticebpd generate`` as a user types it: any model, any source of text, and always the base model's own words."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from latticebpd.models import bundle
from tests.helpers.commands import Run
from tests.helpers.tiny_families import tiny

TEXT = "The history of the city"


@pytest.fixture(scope="module")
def expected() -> str:
    """The bundled model's own text, by ``generate()``."""
    tokenizer = Tokenizer.from_file(str(bundle.TOKENIZER))
    model = AutoModelForCausalLM.from_pretrained(bundle.MODEL, dtype=torch.float32)
    ids = tokenizer.encode(TEXT).ids
    out = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=24)
    return tokenizer.decode(out[0, len(ids) :].tolist())


@pytest.fixture
def tiny_directory(tmp_path: Path) -> Path:
    """A stock model without heads, as ``save_pretrained`` writes it, and a tokenizer of letters."""
    tiny("gpt2").save_pretrained(tmp_path / "gpt2")
    tokenizer = Tokenizer(BPE({chr(ord("a") + i): i for i in range(23)}, []))
    tokenizer.decoder = Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


@pytest.mark.parametrize("options", [(), ("--nodes", 0), ("--no-copy",), ("--nodes", 5, "--k", 4, "--alpha", 0.1)])
def test_text_streams_as_the_base_model_writes_it(run: Run, expected: str, options: tuple[object, ...]) -> None:
    status, out, err = run("generate", TEXT, "--max-new-tokens", 24, *options)
    assert (status, out) == (0, expected + "\n")
    assert err.startswith("24 tokens in ")


def test_text_comes_from_a_file_or_standard_input(
    run: Run,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "prompt.txt").write_text(TEXT)
    assert run("generate", "--file", tmp_path / "prompt.txt", "--max-new-tokens", 24)[1] == expected + "\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT))
    assert run("generate", "-", "--max-new-tokens", 24)[1] == expected + "\n"


def test_json_counts_what_the_text_cost(run: Run, expected: str) -> None:
    status, out, err = run("generate", TEXT, "--max-new-tokens", 24, "--json")
    record = json.loads(out)
    assert (status, err) == (0, "")
    assert record["text"] == expected
    assert record["tokens"] == 24
    assert sum(n * count for n, count in enumerate(record["accept_counts"])) == 23
    assert record["calls"] == sum(record["accept_counts"]) < 23
    assert record["block_efficiency"] == 23 / record["calls"]


def test_marked_blocks_hold_the_text_and_as_many_calls(run: Run, expected: str) -> None:
    status, out, err = run("generate", TEXT, "--max-new-tokens", 24, "--show-blocks")
    assert status == 0
    assert "".join((TEXT + expected).split()) == "".join(out.replace("┃", "").split())
    calls = int(err.split(" in ")[1].split()[0])
    assert out.count("┃") == calls + 1  # and the prefill's token


def test_model_without_heads_drafts_by_copying(run: Run, tiny_directory: Path) -> None:
    status, out, err = run("generate", "abcd", "--model", tiny_directory, "--max-new-tokens", 30, "--json")
    assert status == 0, err
    ids = torch.tensor([[0, 1, 2, 3]])
    own = tiny("gpt2").generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=30)[0, 4:]  # type: ignore[operator]
    record = json.loads(out)
    assert record["text"] == "".join(chr(ord("a") + int(token)) for token in own)
    assert record["verified_tokens"] > 0


def test_stop_string_ends_the_text(run: Run, tiny_directory: Path) -> None:
    text = json.loads(run("generate", "abcd", "--model", tiny_directory, "--max-new-tokens", 30, "--json")[1])["text"]
    stop = text[5:7]
    stopped = json.loads(run("generate", "abcd", "--model", tiny_directory, "--max-new-tokens", 30, "--stop", stop, "--json")[1])["text"]
    assert stopped == text[: text.index(stop) + 2]


def test_sampling_repeats_with_a_seed(run: Run) -> None:
    options = ("generate", TEXT, "--max-new-tokens", 12, "--temperature", 1.2, "--top-k", 50, "--json")
    texts = [json.loads(run(*options, "--seed", seed)[1])["text"] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected a text, - for standard input, or --file"),
        (("x", "--file", "y"), "just one of them"),
        (("--file", "none.txt"), "none.txt: expected a file, found none"),
        (("x", "--model", "/none"), "/none: expected the directory of a model"),
        (("x", "--model", "."), "the base model cannot be read"),
        (("",), "at least one token"),
    ],
)  # fmt: skip
def test_bad_input_ends_with_one_line_and_status_2(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = run("generate", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("latticebpd: error: ")
    assert len(err.splitlines()) == 1
    assert message in err


def test_lm_without_heads_is_refused(run: Run, tiny_directory: Path) -> None:
    status, _, err = run("generate", "abcd", "--model", tiny_directory, "--lm", bundle.LM)
    assert status == 2
    assert "expected a model with heads for --lm" in err
