"""The tokenizer of a GGUF file, from its fields: byte-level BPE, or SentencePiece's BPE.

The fields are a tokenizer's vocabulary and merges; how texts are split, the file says by a name of llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from latticebpd.models.gguf.gguf_file import GgufFile
from latticebpd.models.model_tokenizer import ModelTokenizer

DIGITS_ALONE = frozenset({"smollm", "starcoder", "refact", "command-r"})
"""Pre-tokenizers of llama.cpp that split off every digit before GPT-2's pattern."""
AS_GPT_2 = frozenset({"gpt-2", "phi-2", "mpt", "olmo", "jais"})
"""Those that are GPT-2's pattern."""
THREE_DIGITS = frozenset({
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "dbrx", "smaug-bpe",
})  # fmt: skip
"""Those of Llama 3's pattern, which takes up to three digits together."""
ONE_DIGIT = frozenset({"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"})
"""Those of Qwen 2's pattern, the same with single digits."""
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_IDS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_DEFAULTS = {"gpt2": ("<|endoftext|>",), "llama": ("<unk>", "<s>", "</s>")}
_OTHER_SENTENCE_PIECE = frozenset({"gemma", "gemma2", "gemma3", "phi3"})
_CONTROL, _USER_DEFINED = 3, 4
"""Types of tokens in GGUF files."""


def tokenizer_of_gguf(file: GgufFile) -> ModelTokenizer:
    """A file's tokenizer; ValueError for damaged fields, or a tokenizer that is neither byte-level BPE with a known
    pattern (model ``gpt2``) nor SentencePiece's BPE (``llama``)."""
    fields = {name.removeprefix("tokenizer."): value for name, value in file.fields.items()}
    ids = ((name, fields.get(f"ggml.{field}_token_id")) for name, field in _IDS.items())
    try:
        tokens = dict(enumerate(fields["ggml.tokens"]))
        special = {name: tokens[number] for name, number in ids if number is not None}
        return ModelTokenizer(_backend(fields, special), special, chat_template=fields.get("chat_template"))
    except Exception as error:  # tokenizers raises bare Exception
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{file.path}: expected fields of a tokenizer, got {cause[:300]}") from error


def _backend(fields: dict[str, Any], special: Mapping[str, str]) -> Tokenizer:
    kind, architecture, tokens = fields["ggml.model"], fields.get("general.architecture"), fields["ggml.tokens"]
    if kind == "gpt2":
        backend = _byte_level(tokens, fields["ggml.merges"], fields.get("ggml.pre", "gpt-2"), set(special.values()))
    elif kind == "llama" and architecture not in _OTHER_SENTENCE_PIECE:
        backend = _sentence_piece(tokens, fields)
    else:
        raise ValueError(f"model {kind!r} of {architecture!r}; load the model from a folder")
    added = {
        token: AddedToken(token, special=True) for token in _DEFAULTS[kind] if backend.token_to_id(token) is not None
    }
    types = np.asarray(fields.get("ggml.token_type", [0] * len(tokens))).tolist()
    for token, type in zip(tokens, types, strict=True):
        if type in (_CONTROL, _USER_DEFINED) and backend.token_to_id(token) is not None:
            added[token] = AddedToken(token, normalized=False, special=type == _CONTROL)
    backend.add_tokens([*({token: AddedToken(token, special=True) for token in special.values()} | added).values()])
    if fields.get("ggml.add_bos_token"):
        ends = [special.get("bos_token"), special.get("eos_token") if fields.get("ggml.add_eos_token") else None]
        first, last = ([] if token is None else [token] for token in ends)
        ids = [(token, backend.token_to_id(token)) for token in first + last]
        backend.post_processor = TemplateProcessing(single=[*first, "$A", *last], special_tokens=ids)
    return backend


def _byte_level(tokens: list[str], merges: list[str], pre: str, special: set[str]) -> Tokenizer:
    """Byte-level BPE; tokens that are not spelled in its alphabet are, except ``special`` ones."""
    alphabet, spelling = set(pre_tokenizers.ByteLevel.alphabet()), pre_tokenizers.ByteLevel(False, use_regex=False)
    vocabulary = {
        token
        if alphabet.issuperset(token) or token in special
        else "".join(piece for piece, _ in spelling.pre_tokenize_str(token)): index
        for index, token in enumerate(tokens)
    }
    backend = Tokenizer(BPE(vocabulary, _pairs(merges, vocabulary)))
    backend.decoder = decoders.ByteLevel()
    if pre in AS_GPT_2:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif pre in DIGITS_ALONE:
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    elif pre in THREE_DIGITS | ONE_DIGIT:
        pattern = Regex(_PATTERN if pre in THREE_DIGITS else _PATTERN.replace("{1,3}", ""))
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, "isolated"), spelling])
    else:
        raise ValueError(f"the unknown pre-tokenizer {pre!r}; load the model from a folder")
    return backend


def _sentence_piece(tokens: list[str], fields: dict[str, Any]) -> Tokenizer:
    """SentencePiece's BPE, with bytes for unknown characters; without merges, those that its scores imply."""
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if (merges := fields.get("ggml.merges")) is not None:
        pairs = _pairs(merges, vocabulary)
    else:  # the best score first, then the longer left part, then the longer right part
        scores = dict(zip(tokens, fields["ggml.scores"].tolist(), strict=True))
        halves = ((token, token[:i], token[i:]) for token in scores for i in range(1, len(token)))
        splits = [split for split in halves if split[1] in vocabulary and split[2] in vocabulary]
        splits.sort(key=lambda split: (scores[split[0]], len(split[1]), len(split[2])), reverse=True)
        pairs = [(left, right) for _, left, right in splits]
    backend = Tokenizer(BPE(vocabulary, pairs, fuse_unk=True, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    spaces = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    backend.decoder = decoders.Sequence(list(spaces))
    return backend


def _pairs(merges: list[str], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    for left, right in pairs:
        if not (left in vocabulary and right in vocabulary and left + right in vocabulary):  # tokenizers would panic
            raise ValueError(f"a merge of {left!r} and {right!r}, which are not all in the vocabulary")
    return pairs
