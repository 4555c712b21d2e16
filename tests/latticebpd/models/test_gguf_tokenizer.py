"""Tokenizers of GGUF files without `transformers`: the ids and texts that it has for the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf import TokenType
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from latticebpd.models.gguf.gguf_checkpoints import load_gguf_tokenizer
from latticebpd.models.gguf.gguf_file import GgufFile
from latticebpd.models.gguf.gguf_tokenizer import tokenizer_of_gguf
from tests.helpers.tokenizers import TEMPLATE, TEXTS, assert_same_tokenizer

NAMES = ["<unk>", "<s>", "</s>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"]
TYPES = [TokenType.UNKNOWN, *[TokenType.CONTROL] * 5, TokenType.USER_DEFINED]
CHATS = [
    [{"role": "user", "content": "Hi 12"}],
    [{"role": "system", "content": "Be"}, {"role": "user", "content": "a"}],
]
LENGTHS = ("context_length", "embedding_length", "feed_forward_length", "block_count")
COUNTS = ("attention.head_count", "attention.head_count_kv", "rope.dimension_count")


def write(path: Path, fields: dict[str, Any], architecture: str = "llama") -> Path:
    """A file with the fields of a tokenizer; those of None are left out."""
    writer = gguf.GGUFWriter(path, architecture)
    for name in (*LENGTHS, *COUNTS):
        writer.add_uint32(f"{architecture}.{name}", 4)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    for name, value in fields.items():
        name = name if name == "general.architecture" else f"tokenizer.{name}"
        if isinstance(value, list):
            writer.add_array(name, value)
        elif value is not None:
            {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}[type(value)](name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def trained(tokenizer: Tokenizer, alphabet: list[str]) -> tuple[list[str], list[str]]:
    """Tokens and merges."""
    tokenizer.train_from_iterator(
        [*TEXTS, "1999 2001 1999"] * 2,
        trainers.BpeTrainer(vocab_size=420, special_tokens=NAMES, initial_alphabet=alphabet, show_progress=False),
    )
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [" ".join(merge) for merge in model["merges"]]


def byte_level() -> dict[str, Any]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens, merges = trained(tokenizer, pre_tokenizers.ByteLevel.alphabet())
    return {
        "ggml.model": "gpt2", "ggml.pre": "gpt-2", "ggml.tokens": tokens, "ggml.merges": merges,
        "ggml.token_type": [*TYPES, *[TokenType.NORMAL] * (len(tokens) - len(NAMES))],
        "ggml.bos_token_id": 1, "ggml.eos_token_id": 5, "ggml.padding_token_id": 5, "chat_template": TEMPLATE,
    }  # fmt: skip


def sentence_piece() -> dict[str, Any]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    tokens, merges = trained(tokenizer, [])
    tokens[len(NAMES) : len(NAMES)] = [f"<0x{byte:02X}>" for byte in range(256)]
    types = [*TYPES, *[TokenType.BYTE] * 256, *[TokenType.NORMAL] * (len(tokens) - len(NAMES) - 256)]
    return {
        "ggml.model": "llama", "ggml.tokens": tokens, "ggml.scores": [-float(i // 2) for i in range(len(tokens))],
        "ggml.token_type": types, "ggml.bos_token_id": 1, "ggml.eos_token_id": 2, "ggml.unknown_token_id": 0,
        "ggml.add_bos_token": True, "ggml.add_space_prefix": True, "merges": merges,
    }  # fmt: skip


IDS = ("ggml.bos_token_id", "ggml.eos_token_id", "ggml.padding_token_id")
BYTES, PIECES = byte_level(), sentence_piece()
MERGES = PIECES.pop("merges")
REPEATS = [*PIECES["ggml.tokens"], "q", "qq", "qqq"]
NON_ALPHABET = [*BYTES["ggml.tokens"], "日 本", "▁x"]
FILES: dict[str, tuple[dict[str, Any], str]] = {
    **{f"pre-tokenizer {name}": (BYTES | {"ggml.pre": name}, "llama") for name in (
        "gpt-2", "olmo", "smollm", "starcoder", "refact", "command-r", "llama-bpe", "smaug-bpe", "qwen2",
        "deepseek-r1-qwen", "megrez",
    )},
    "no pre-tokenizer": (BYTES | {"ggml.pre": None}, "llama"),
    "another architecture": (BYTES | {"ggml.pre": "qwen2"}, "qwen2"),
    "a token before a text": (BYTES | {"ggml.add_bos_token": True}, "llama"),
    "tokens around a text": (BYTES | {"ggml.add_bos_token": True, "ggml.add_eos_token": True}, "llama"),
    "a token after a text alone": (BYTES | {"ggml.add_bos_token": False, "ggml.add_eos_token": True}, "llama"),
    "no types": (BYTES | {"ggml.token_type": None}, "llama"),
    "tokens that are not spelled in bytes": (
        BYTES | {"ggml.tokens": NON_ALPHABET, "ggml.token_type": [*BYTES["ggml.token_type"], 1, 3]}, "llama",
    ),
    "no special tokens": (BYTES | dict.fromkeys((*IDS, "chat_template")), "llama"),
    "pieces with scores": (PIECES, "llama"),
    "pieces of one score": (
        PIECES | {"ggml.tokens": REPEATS, "ggml.scores": [0.0] * len(REPEATS), "ggml.token_type": None}, "llama",
    ),
    "pieces with merges": (PIECES | {"ggml.merges": MERGES}, "llama"),
    "pieces, nothing before a text": (PIECES | {"ggml.add_bos_token": None}, "llama"),
    "pieces, a token after a text": (PIECES | {"ggml.add_eos_token": True}, "llama"),
}  # fmt: skip


@pytest.mark.parametrize("what", FILES)
def test_a_file_has_the_ids_and_texts_of_transformers(what: str, tmp_path: Path) -> None:
    fields, architecture = FILES[what]
    path = write(tmp_path / "tokenizer.gguf", fields, architecture)
    theirs = load_gguf_tokenizer(path)
    assert_same_tokenizer(tokenizer_of_gguf(GgufFile.open(path)), theirs, CHATS if theirs.chat_template else ())


def test_a_special_token_keeps_its_number_though_it_is_not_spelled_in_bytes(tmp_path: Path) -> None:
    """As in files of DeepSeek's models."""
    end = len(NON_ALPHABET) - 1
    types = [*BYTES["ggml.token_type"], TokenType.NORMAL, TokenType.CONTROL]
    fields = BYTES | {"ggml.tokens": NON_ALPHABET, "ggml.token_type": types, "ggml.eos_token_id": end}
    tokenizer = tokenizer_of_gguf(GgufFile.open(write(tmp_path / "t.gguf", fields)))
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("▁x", end)
    assert tokenizer("a▁x")["input_ids"][1:] == [end]
    assert tokenizer.decode([end], skip_special_tokens=True) == ""


def test_a_vocabulary_without_an_end_of_text_gets_none(tmp_path: Path) -> None:
    """A model has no row for a token beyond its vocabulary."""
    tokens = ["<|eot|>" if token == "<|endoftext|>" else token for token in BYTES["ggml.tokens"]]
    tokenizer = tokenizer_of_gguf(GgufFile.open(write(tmp_path / "t.gguf", BYTES | {"ggml.tokens": tokens})))
    assert len(tokenizer) == len(tokens)
    assert max(tokenizer("<|endoftext|>")["input_ids"]) < len(tokens)


DAMAGED: dict[str, tuple[dict[str, Any], str]] = {
    "no tokens": (BYTES | {"ggml.tokens": None}, "KeyError: 'ggml.tokens'"),
    "tokens as numbers": (BYTES | {"ggml.tokens": [1, 2]}, "KeyError|TypeError"),
    "a token beyond the vocabulary": (BYTES | {"ggml.eos_token_id": 10**6}, "KeyError: 1000000"),
    "a pre-tokenizer that is unknown": (BYTES | {"ggml.pre": "glm4"}, "unknown pre-tokenizer 'glm4'; load the model"),
    "an unknown model": (BYTES | {"ggml.model": "bert"}, "model 'bert' of 'llama'; load the model from a folder"),
    "a merge of three": (BYTES | {"ggml.merges": ["a b c"]}, "ValueError: too many values"),
    "a merge of one": (BYTES | {"ggml.merges": ["ab"]}, "ValueError: not enough values"),
    "a merge of unknown tokens": (BYTES | {"ggml.merges": ["aaaa bbbb"]}, "merge of 'aaaa' and 'bbbb'"),
    "a merge into no token": (BYTES | {"ggml.merges": ["! !"]}, "a merge of '!' and '!', which are not all in"),
    "merges as numbers": (BYTES | {"ggml.merges": [1]}, "AttributeError"),
    "too few types": (BYTES | {"ggml.token_type": [1]}, "ValueError: zip"),
    "no scores": (PIECES | {"ggml.scores": None}, "KeyError: 'ggml.scores'"),
    "too few scores": (PIECES | {"ggml.scores": [1.0]}, "ValueError: zip"),
    "scores in words": (PIECES | {"ggml.scores": "high"}, "AttributeError"),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_fields_are_refused_in_one_line(what: str, tmp_path: Path) -> None:
    fields, message = DAMAGED[what]
    path = write(tmp_path / "t.gguf", fields)
    with pytest.raises(ValueError, match=f"expected fields of a tokenizer, got .*({message})") as error:
        tokenizer_of_gguf(GgufFile.open(path))
    assert str(error.value).startswith(f"{path}: ")
    assert len(str(error.value).splitlines()) == 1
