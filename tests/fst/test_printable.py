"""Foreign text and errors of other libraries, in words for users."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from fst.printable import plain_words, printable
from tests.helpers.commands import Run

RIDDLES = ("ignore_mismatched_sizes", "Error:", "untagged", "<class", "pip install", "validator", "NoneType")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=30, **shape)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_act": "os.system"}, "'os.system' is missing, or is no name that is known"),
        ({"rope_parameters": {"rope_type": "x", "rope_theta": 1.0}}, "'x' is missing, or is no name that is known"),
        ({"hidden_size": 16}, "the weights have other shapes than config.json says"),
        ({"vocab_size": 17}, "the weights have other shapes than config.json says"),
        ({"num_attention_heads": 0}, "a value in its settings does not fit (integer modulo by zero)"),
        ({"model_type": "x"}, "does not recognize this architecture"),
    ],
)
def test_errors_of_transformers_are_plain(folder: Path, tmp_path: Path, change: dict[str, Any], words: str) -> None:
    shutil.copytree(folder, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(Exception) as caught:  # noqa: PT011  (of any kind)
        AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    line = plain_words(caught.value)
    assert words in line
    assert not any(riddle in line for riddle in RIDDLES)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TypeError("Field 'hidden_size' expected int, got str (value: 'x')"), "hidden_size is of another type"),
        (ValueError("expected a. Better B"), "expected a. Better B"),
        (
            ValueError("Class validation error for validator 'v': ValueError: The size (7) is odd."),
            "The size (7) is odd.",
        ),
        (RuntimeError("Error(s) in loading state_dict for M:\n\tsize mismatch for a"), "size mismatch for a"),
        (ValueError("Wrong. Set `x` to False"), "Wrong"),
        (KeyError(), " is missing"),
    ],
)
def test_errors_of_other_versions_are_plain(error: Exception, words: str) -> None:
    assert plain_words(error).startswith(words)


def test_a_tokenizer_of_another_kind_is_refused_in_plain_words(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "x"}}))
    (tmp_path / "text").write_text("a\n")
    command = ("lm", "train", tmp_path / "text", "--tokenizer", tmp_path / "tokenizer.json", "-o", tmp_path / "lm.fst")
    status, _, error = run(*command)
    assert status == 2
    assert "it is of no kind that is known" in error
    assert not any(riddle in error for riddle in RIDDLES)


def test_missing_settings_are_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lattices.json").write_text("{}")
    status, _, error = run("oracle", tmp_path)
    assert status == 2
    assert "'num_shards' is missing" in error


def test_text_in_any_script_stays() -> None:
    text = "tab\tline\nÄ日本語🙂\u200d\u200f"
    assert printable(text) == text
    assert printable("\r\x1b\x9b\ud800\uffff") == "\\r\\x1b\\x9b\\ud800\\uffff"
