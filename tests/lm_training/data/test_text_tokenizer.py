"""The token that ends texts: a tokenizer's own, or one that is named; the same for corpora and n-gram models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

import fst
from lm_training.data.corpus import train_tokenizer
from lm_training.data.text_tokenizer import text_tokenizer
from tests.helpers.commands import Run
from tests.helpers.own_models import own_gguf, own_llama

TEXT = "the cat sat on the mat"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.jsonl").write_text(f'{{"text": "{TEXT}"}}\n' * 9)
    return tmp_path / "text.jsonl"


def saved(folder: Path, special: tuple[str, ...], **named: str) -> Path:
    """A tokenizer's file, with its settings next to it where it names tokens."""
    folder.mkdir()
    backend = train_tokenizer([TEXT], vocab_size=300, special_tokens=special)
    if named:
        PreTrainedTokenizerFast(tokenizer_object=backend, **named).save_pretrained(folder)
    else:
        backend.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


@pytest.mark.parametrize(
    ("special", "named", "asked", "end"),
    [
        (("<unk>", "<s>", "</s>"), {"eos_token": "</s>"}, None, 2),
        (("<unk>", "<s>", "</s>"), {}, None, 2),
        (("<|endoftext|>", "<|im_end|>"), {"eos_token": "<|im_end|>"}, None, 1),
        (("<|endoftext|>", "<|im_end|>"), {}, None, 0),
        (("<|endoftext|>", "<|im_end|>"), {"eos_token": "<|im_end|>"}, "<|endoftext|>", 0),
        (("<|endoftext|>", "<|im_end|>"), {"eos_token": "<|im_end|>"}, "0", 0),
        (("<begin>", "<end>"), {}, "<end>", 1),
        (("<begin>", "<end>"), {}, "1", 1),
    ],
)
def test_corpora_and_ngram_models_end_texts_with_the_same_token(
    run: Run, text: Path, tmp_path: Path, special: tuple[str, ...], named: dict[str, str], asked: str | None, end: int
) -> None:
    file = saved(tmp_path / "model", special, **named)
    options = () if asked is None else ("--end-of-text", asked)
    for number, tokenizer in enumerate((file, file.parent)):
        corpus, one, other = (tmp_path / f"{number}{name}" for name in (".npy", "a.fst", "b.fst"))
        status, _, err = run("train", "encode", text, "--tokenizer", tokenizer, *options, "-o", corpus)
        assert status == 0, err
        ids = np.load(corpus).tolist()
        assert ids[-1] == end
        assert ids.count(end) == 9
        for source, model in ((text, one), (corpus, other)):
            status, _, err = run("lm", "train", source, "--tokenizer", tokenizer, *options, "-o", model)
            assert status == 0, err
        assert one.read_bytes() == other.read_bytes()


def test_a_tokenizer_that_names_no_end_of_text_is_refused_with_the_option_and_its_special_tokens(
    run: Run, text: Path, tmp_path: Path
) -> None:
    file = saved(tmp_path / "model", ("<begin>", "<end>"))
    size = Tokenizer.from_file(str(file)).get_vocab_size()
    for command in (
        ("train", "encode", text, "-o", tmp_path / "a.npy"),
        ("lm", "train", text, "-o", tmp_path / "a.fst"),
    ):
        status, out, err = run(*command, "--tokenizer", file)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert f"{file}: expected a tokenizer with an end-of-text token, got one of {size} tokens without it" in err
        assert "with --end-of-text; its special tokens are <begin> <end>" in err
        status, _, err = run(*command, "--tokenizer", file, "--end-of-text", "</s>")
        assert status == 2
        assert "expected a tokenizer with the token '</s>'" in err
        status, _, err = run(*command, "--tokenizer", file, "--end-of-text", size)
        assert status == 2
        assert f"expected --end-of-text below {size}, the tokenizer's size, got {size}" in err


def test_token_ids_need_the_id_where_no_tokenizer_is_named(run: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.array([5, 6, 3] * 9))
    command = ("lm", "train", tmp_path / "ids.npy", "--order", 2, "-o", tmp_path / "lm.fst", "--end-of-text")
    status, _, err = run(*command, "</s>")
    assert status == 2
    assert "expected --end-of-text as a token's id, without --tokenizer, got '</s>'; give --tokenizer" in err
    assert run(*command, "3")[0] == 0
    assert fst.NgramModel.load(tmp_path / "lm.fst").log_prob(5, [3]) > -0.5  # a text begins after each end


def test_models_of_every_kind_name_their_own(tmp_path: Path) -> None:
    own_llama(tmp_path / "model", TEXT)
    own_gguf(tmp_path / "model.gguf")
    for name in ("model", "model/tokenizer.json", "model.gguf"):
        tokenizer, end = text_tokenizer(tmp_path / name)
        assert tokenizer.id_to_token(end) == "</s>"
        assert tokenizer.decode(tokenizer.encode(TEXT, add_special_tokens=False).ids) == TEXT
