"""Prompts for what is between two texts, such as the code before and after a cursor (Bavarian et al. 2022).

Models that fill in the middle have tokens for it, which stand before each part. Where there are other files, they come
first, with the tokens of a repository in the form of Qwen2.5-Coder (section 3), if the model has these:

    REPO project  FILE name text  ...  FILE name  PREFIX before  SUFFIX after  MIDDLE
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from latticebpd.checks import expect
from latticebpd.loading import Loaded
from latticebpd.models.gguf.gguf_file import GgufFile

NAMES = {
    "prefix": ("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<｜fim▁begin｜>", "▁<PRE>", "<|code_prefix|>"),
    "suffix": ("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<｜fim▁hole｜>", "▁<SUF>", "<|code_suffix|>"),
    "middle": ("<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<｜fim▁end｜>", "▁<MID>", "<|code_middle|>"),
    "repo": ("<|repo_name|>", "<|fim_repo|>", "<reponame>"),
    "file": ("<|file_sep|>",),
}
"""What vocabularies call each token: those of Qwen, StarCoder and Granite, SantaCoder, DeepSeek, Code Llama, GLM."""
NEEDED = {"prefix", "suffix", "middle"}
FIELDS = {"prefix": "fim_pre", "suffix": "fim_suf", "middle": "fim_mid", "repo": "fim_rep", "file": "fim_sep"}
"""What GGUF files call its id: ``tokenizer.ggml.NAME_token_id``."""
ENDS = ("<|endoftext|>", "<|fim_pad|>", "<fim_pad>", "<｜end▁of▁sentence｜>", "▁<EOT>")
"""Tokens that end what is filled in, besides the model's own and those of `NAMES`."""
PROJECT, FILE = "myproject\n", "filename\n"
"""Names of what a request does not name, which are those of llama.cpp's server."""


@dataclass(frozen=True, eq=False)
class InfillPrompts:
    """The prompts of a loaded model; of one without the three tokens that they need there are none."""

    loaded: Loaded

    @cached_property
    def tokens(self) -> dict[str, int]:
        """The ids of those of `NAMES` that the model has, by its vocabulary or else by the fields of its GGUF file."""
        named = {kind: ids[0] for kind, names in NAMES.items() if (ids := self._named(names))}
        if self.loaded.gguf is None or named.keys() >= NEEDED:
            return named
        fields = GgufFile.open(self.loaded.gguf.path).fields
        stored = {kind: fields.get(f"tokenizer.ggml.{field}_token_id") for kind, field in FIELDS.items()}
        return {kind: int(token) for kind, token in stored.items() if token is not None} | named

    def check(self) -> None:
        """ValueError without the tokens."""
        lacking = ", ".join(sorted(NEEDED - self.tokens.keys()))
        wanted = "a model with tokens to fill in the middle (prefix, suffix and middle)"
        expect(not lacking, wanted, f"one without: {lacking}", of=self.loaded.name)

    @cached_property
    def end_ids(self) -> list[int]:
        """Tokens that end what is filled in."""
        return [*dict.fromkeys([*self.loaded.target.eos_ids, *self._named(ENDS), *self.tokens.values()])]

    def between(self, before: str, after: str) -> list[int]:
        """The prompt for what is between two texts."""
        return [*self._begin, *self._middle(self._ids(before), self._ids(after))]

    def within(self, before: Sequence[str], after: str, files: Sequence[tuple[str, str]], room: int) -> list[int]:
        """The prompt for what is in a file between texts of any length, after other files.

        before: parts that are tokenized apart.  files: names and texts.
        room: tokens at most. Of what comes after, a quarter is kept; of what comes before, its beginning is left out in
        steps of an eighth, so that requests at near positions begin alike; of the files, the first ones are left out.
        """
        tail = self._ids(after)[: room // 4]
        head = [token for part in before for token in self._ids(part)]
        around = [self._part("repo", PROJECT), self._part("file", FILE)]
        left = max(0, room - len(self._begin) - sum(map(len, around)) - len(tail) - 3)
        if (excess := len(head) - left) > 0:
            step = max(1, room // 8)
            head = head[-(-excess // step) * step :]
        end = "" if "file" in self.tokens else "\n\n"
        parts = [[*self._part("file", f"{name}\n"), *self._ids(text + end)] for name, text in files]
        while sum(map(len, parts)) > left - len(head):
            del parts[0]
        others = [around[0], *parts, around[1]] if parts else []
        return [*self._begin, *(token for part in others for token in part), *self._middle(head, tail)]

    def _middle(self, head: Sequence[int], tail: Sequence[int]) -> list[int]:
        prefix, suffix, middle = (self.tokens[kind] for kind in ("prefix", "suffix", "middle"))
        return [prefix, *head, suffix, *tail, middle]

    def _part(self, kind: str, name: str) -> list[int]:
        """A token before a name; nothing of a model without the token."""
        return [self.tokens[kind], *self._ids(name)] if kind in self.tokens else []

    @property
    def _begin(self) -> list[int]:
        """The token that begins texts, where the tokenizer adds one."""
        tokenizer = self.loaded.tokenizer
        return [token for token in tokenizer("")["input_ids"][:1] if token == tokenizer.bos_token_id]

    def _named(self, names: Sequence[str]) -> list[int]:
        ids = map(self.loaded.tokenizer.backend_tokenizer.token_to_id, names)
        return [token for token in ids if token is not None]

    @cached_property
    def _special(self) -> list[str]:
        added = self.loaded.tokenizer.backend_tokenizer.get_added_tokens_decoder().values()
        return [token.content for token in added if token.special]

    @cached_property
    def _unaware(self) -> Any:
        """A tokenizer for which names of special tokens are texts like others; making it takes a second."""
        backend = Tokenizer.from_str(self.loaded.tokenizer.backend_tokenizer.to_str())
        backend.encode_special_tokens = True
        return backend

    def _ids(self, text: str) -> list[int]:
        """A text's tokens. Files may contain names of special tokens, which are none there."""
        if any(name in text for name in self._special):
            return list(self._unaware.encode(text, add_special_tokens=False).ids)
        return self.loaded.prompts.ids(text)
