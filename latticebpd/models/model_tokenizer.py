"""A model's tokenizer by the ``tokenizers`` library only.

It stands where a tokenizer of ``transformers`` stands, with the same ids and texts, and imports nothing of it. Where
``transformers`` builds a tokenizer anew by the name of its class, this one is as ``tokenizer.json`` says.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

from latticebpd.checks import expect
from latticebpd.console import load_tokenizer
from latticebpd.lattices.json_files import DAMAGE, read_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPECIAL = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""Names of special tokens that every tokenizer has, some without a token."""
_CLEANED = [(f" {mark}", mark) for mark in ".?!,"] + [(" ' ", "'")]
_CLEANED += [(f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")]
"""Spaces that remain after a word-level tokenizer."""


class ModelTokenizer:
    """The interface of ``transformers``' tokenizers, as far as decoding needs it.

    backend: the tokenizer itself, without truncation and padding.
    special: special tokens by name, such as ``eos_token``; ``eos_token_id`` and the like are attributes, maybe None.
    extra: special tokens without names.
    chat_template: a Jinja template, several by name, or None.
    """

    def __init__(
        self,
        backend: Tokenizer,
        special: Mapping[str, str] | None = None,
        extra: Iterable[str] = (),
        chat_template: str | dict[str, str] | None = None,
        cleans_up: bool = False,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend_tokenizer, self.chat_template, self.cleans_up = backend, chat_template, cleans_up
        self.special_tokens_map = dict(special or {})
        self.all_special_tokens = list(dict.fromkeys([*self.special_tokens_map.values(), *extra]))
        self.all_special_ids: list[int] = self.convert_tokens_to_ids(self.all_special_tokens)

    @classmethod
    def of_folder(cls, folder: str | os.PathLike[str]) -> ModelTokenizer:
        """From ``tokenizer.json`` and, where there is one, ``tokenizer_config.json``, with ``special_tokens_map.json``
        and chat templates; ValueError for a missing or damaged file."""
        folder = Path(folder)
        backend, path = load_tokenizer(folder / "tokenizer.json"), folder / "tokenizer_config.json"
        if not path.is_file():
            return cls(backend)
        problem, remedy = "expected settings of a tokenizer, got", "is the copy complete?"
        config = read_json(path, _object, problem, remedy)
        if "added_tokens_decoder" not in config and (older := folder / "special_tokens_map.json").is_file():
            config = {"extra_special_tokens": config.get("additional_special_tokens")} | config
            config |= read_json(older, _object, problem, remedy)
        try:
            special, extra = _add_special_tokens(backend, config)
            backend.encode_special_tokens = bool(config.get("split_special_tokens"))
            cleans_up = bool(config.get("clean_up_tokenization_spaces"))
            return cls(backend, special, extra, _templates(folder, config), cleans_up)
        except DAMAGE as error:
            raise ValueError(f"{path}: {problem} {type(error).__name__}: {error}; {remedy}") from error

    def __call__(self, text: str | Sequence[str], add_special_tokens: bool = True) -> dict[str, Any]:
        """Token ids of one text or of several, as ``input_ids``."""
        if isinstance(text, str):
            return {"input_ids": self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids}
        encodings = self.backend_tokenizer.encode_batch(list(text), add_special_tokens=add_special_tokens)
        return {"input_ids": [encoding.ids for encoding in encodings]}

    def decode(
        self, token_ids: Any, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = None
    ) -> Any:
        """The text of a token, of a sequence of tokens or, as a list, of several sequences."""
        ids = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
        if not isinstance(ids, int) and len(ids) and not isinstance(ids[0], int):
            return [self.decode(row, skip_special_tokens, clean_up_tokenization_spaces) for row in ids]
        ids = [ids] if isinstance(ids, int) else list(ids)
        text = self.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        cleans_up = self.cleans_up if clean_up_tokenization_spaces is None else clean_up_tokenization_spaces
        if cleans_up and not isinstance(self.backend_tokenizer.model, BPE):  # whose spaces are the text's own
            for spaced, cleaned in _CLEANED:
                text = text.replace(spaced, cleaned)
        return text

    def get_chat_template(self, chat_template: None = None, tools: Sequence[Any] | None = None) -> str:
        """The template of a conversation, with tools where they are given; ValueError if there is none."""
        template: Any = self.chat_template
        if isinstance(template, dict):
            template = template.get("tool_use" if tools is not None and "tool_use" in template else "default")
        expect(template, "a tokenizer with a chat template", "one without", "give the prompt as plain text")
        return str(template)

    def for_transformers(self) -> PreTrainedTokenizerBase:
        """The same tokenizer as an object of ``transformers``."""
        from transformers import PreTrainedTokenizerFast

        named = {name: token for name, token in self.special_tokens_map.items() if name in SPECIAL}
        template = self.chat_template
        return PreTrainedTokenizerFast(tokenizer_object=self.backend_tokenizer, chat_template=template, **named)

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        """A token as the vocabulary spells it, None for no token's id; a list of them for several ids."""
        if isinstance(ids, int):
            return self.backend_tokenizer.id_to_token(ids)
        return [self.backend_tokenizer.id_to_token(int(number)) for number in ids]

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """The id of a token, the unknown token's for one that there is not; a list of ids for several."""
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        number = self.backend_tokenizer.token_to_id(tokens)
        unknown = self.special_tokens_map.get("unk_token", tokens)
        return number if number is not None or unknown == tokens else self.convert_tokens_to_ids(unknown)

    def __getattr__(self, name: str) -> Any:
        """``eos_token``, ``eos_token_id`` and the like."""
        if name.removesuffix("_id") not in SPECIAL:
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        token = self.special_tokens_map.get(name.removesuffix("_id"))
        return token if token is None or not name.endswith("_id") else self.convert_tokens_to_ids(token)

    def get_vocab(self) -> dict[str, int]:
        return self.backend_tokenizer.get_vocab()

    def __len__(self) -> int:
        """Tokens, added ones included."""
        return self.backend_tokenizer.get_vocab_size()


def _object(record: Any) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise TypeError(f"a {type(record).__name__} instead of an object")
    return record


def _added(fields: Any, special: bool | None = True) -> AddedToken:
    """A token as its text or as JSON files spell it."""
    settings = {"content": fields} if isinstance(fields, str) else _object(fields)
    flags = {name: value for name, value in settings.items() if name not in ("content", "__type")}
    return AddedToken(settings["content"], **(flags if special is None else flags | {"special": special}))


def _add_special_tokens(backend: Tokenizer, config: dict[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Add a configuration's special tokens that the tokenizer lacks; return those with names, and the others."""
    extra: Any = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    names = [*SPECIAL, *(name for name in config if name.endswith("_token") and name not in SPECIAL)]
    special = {name: _added(config[name]) for name in names if isinstance(config.get(name), str | dict)}
    if isinstance(extra, dict):
        special, extra = special | {name: _added(token) for name, token in extra.items()}, []
    others = [_added(token) for token in extra]
    present = backend.get_added_tokens_decoder()
    if (decoder := config.get("added_tokens_decoder")) is None:
        tokens = list(present.values())
    else:
        tokens = [_added(decoder[number], special=None) for number in sorted(_object(decoder), key=int)]
    named = {token.content for token in special.values()}
    for token in tokens:
        token.special = token.special or token.content in named
    known = {token.content for token in (*present.values(), *tokens)}
    backend.add_tokens(tokens + [token for token in (*special.values(), *others) if token.content not in known])
    return {name: token.content for name, token in special.items()}, [token.content for token in others]


def _templates(folder: Path, config: dict[str, Any]) -> str | dict[str, str] | None:
    """A folder's chat templates, whose own files come before its configuration."""
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (path := folder / "chat_template.jinja").is_file():
        files["default"] = path
    named: Any = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    if not files:
        named = config.get("chat_template")
        named = {each["name"]: each["template"] for each in named} if isinstance(named, list) else named
    template = named["default"] if isinstance(named, dict) and named.keys() == {"default"} else named
    texts = template.values() if isinstance(template, dict) else [template]
    if not all(isinstance(text, str | None) for text in texts):
        raise TypeError("a chat template that is no text")
    return template
