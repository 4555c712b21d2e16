"""Trees for SGLang's ``NGRAM`` algorithm: copies of the text and an n-gram model in place of its corpus (0.5.23).

    LATTICEBPD_SGLANG=answers/lm.fst python -m sglang.launch_server --model-path MODEL --speculative-algorithm NGRAM \\
        --speculative-num-draft-tokens 16 --speculative-ngram-max-trie-depth 8192

SGLang calls `register` when it starts, by the entry point ``sglang.srt.plugins``; without the variable nothing changes.
Its worker verifies what `LatticeCorpus` drafts, with its grammars, log-probabilities and caches. The corpus sees the
last ``max-trie-depth`` tokens of a text, so this should be as long as texts are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from latticebpd.checks import expect
from latticebpd.drafters.drafter import Drafter, NoDrafter, State
from latticebpd.drafters.empty_lattices import EmptyLattices
from latticebpd.drafters.system_names import CALIBRATED, drafter_named

VARIABLE, TEXT = "LATTICEBPD_SGLANG", "text"
"""Of the environment: an n-gram model's file, or ``text`` for copies of the text alone."""
REPLACED = "sglang.srt.speculative.ngram_worker.NgramCorpus"


def register() -> None:
    """Put `LatticeCorpus` in the place of SGLang's, where the environment asks for it."""
    if os.environ.get(VARIABLE):
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(REPLACED, LatticeCorpus, HookType.REPLACE)


class LatticeCorpus:
    """Drafts a tree for each request; methods and arguments as of SGLang's ``NgramCorpus``.

    draft_token_num: nodes of a tree, its root included, which is the last token of the text.
    """

    remaining_token_budget = 0

    def __init__(self, draft_token_num: int = 8, **others: Any) -> None:
        given = os.environ.get(VARIABLE, TEXT)
        lm = None if given == TEXT else Path(given)
        expect(lm is None or lm.is_file(), f"an n-gram model's file or {TEXT!r} in {VARIABLE}", given)
        self.draft_token_num = draft_token_num
        nodes = draft_token_num - 1
        self._drafter: Drafter = drafter_named(f"{nodes}-{CALIBRATED}", EmptyLattices(), lm) if nodes else NoDrafter()
        self._texts: dict[str, tuple[int, list[int]]] = {}  # tokens of each request so far, and those that are known

    def batch_get(
        self, req_ids: Sequence[str], batch_tokens: Sequence[Sequence[int]], total_lens: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """``[bs * n]`` int64 the trees' tokens, and ``[bs * n * n]`` bool: whether the column's node is the row's node
        or an ancestor of it. Missing nodes are children of the root with token 0, as SGLang's are.

        batch_tokens: the last tokens of each text.  total_lens: how many tokens it has.
        """
        texts = list(map(self._text, req_ids, batch_tokens, total_lens))
        n, bs = self.draft_token_num, len(texts)
        states = [State(row, text, len(text) - 1, None, max(n - 1, 1)) for row, text in enumerate(texts)]
        tokens, masks = np.zeros((bs, n), np.int64), np.tile(np.eye(n, dtype=bool), (bs, 1, 1))
        masks[:, :, 0] = True
        for row, tree in enumerate(self._drafter.propose(states) if states else []):
            tokens[row, 0] = texts[row][-1]
            tokens[row, 1 : 1 + len(tree)] = tree.tokens
            masks[row, 1 : 1 + len(tree), 1 : 1 + len(tree)] = tree.ancestors
        return tokens.ravel(), masks.ravel()

    def _text(self, request: str, tail: Sequence[int], total: int) -> list[int]:
        """What is known of a request's text, of which the last tokens are given."""
        seen, known = self._texts.get(request, (0, []))
        again = len(tail) - (total - seen)  # tokens of the tail that were there before
        if not (known and 0 <= again <= len(known) and known[len(known) - again :] == list(tail[:again])):
            again, known = 0, []
        text = known + list(tail[again:])
        self._texts[request] = total, text
        return text

    def erase_match_state(self, req_ids: Sequence[str]) -> None:
        """Forget requests that have left."""
        for request in req_ids:
            self._texts.pop(request, None)

    def reset(self) -> None:
        self._texts.clear()

    def batch_put(self, batch_tokens: Sequence[Sequence[int]]) -> None:
        """Nothing: texts are read when they are drafted for."""

    def synchronize(self) -> None:
        """Nothing runs in the background."""

    def load_external_corpus_named(self, corpus_id: str, chunks: Any) -> NoReturn:
        raise ValueError(f"expected no external corpus, got {corpus_id}; train an n-gram model from it for {VARIABLE}")

    def commit_external_corpus_load(self, corpus_id: str, loaded_token_count: int) -> None:
        """Nothing was loaded."""

    def remove_external_corpus(self, corpus_id: str) -> None:
        """There is none."""

    def list_external_corpora(self) -> dict[str, int]:
        return {}
