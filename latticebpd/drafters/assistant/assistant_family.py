"""The family of assistants: a small causal LM of the target's vocabulary drafts (``assistant_model`` of transformers).

The assistant predicts what follows each prefix. It reads, level by level, the best ``WIDTH``
prefixes of each length, by tree attention over its own cache, and its predictions make a lattice whose transitions hold
its distribution after each of them. With w(i) the probability, normalised, of the prefixes that end with token i,

    log_probs[s, j]          = log sum_i w(i) p(j | prefix of i)
    transitions[s - 1, i, j] = log p(j | prefix of i) - log_probs[s, j]      0 where prefix i was not among the best

so that the score of a path of expanded prefixes is its probability under the assistant. Best-first search over the
lattice then grows the draft tree, by itself or with n-gram models.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch

from fst.fingerprint import vocabulary_fingerprint
from latticebpd.checks import expect
from latticebpd.drafters.drafter import State
from latticebpd.drafters.family import LatticeProposer, LoadOptions, PositionLattices, Target, of_files
from latticebpd.drafters.text_states import NetworkSource, lattices_by_states
from latticebpd.lattices.drafts import ROOT
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.models.catalogue import CATALOGUE
from latticebpd.models.engine.engine_model import EngineModel
from latticebpd.models.gguf.gguf_file import is_gguf
from latticebpd.models.load_target import load_target, load_tokenizer
from latticebpd.models.target_model import AnyModel, target_model
from latticebpd.models.weight_kinds import INT8, TORCH
from latticebpd.scoring.neural.causal_rescorer import first_kept
from latticebpd.scoring.neural.prefix_reader import Reader, reader_for

DRAFTS_ONLY = None
SLOTS, WIDTH = 6, 4
"""Tokens that a draft is long, and prefixes of each length that the assistant is asked about."""


def recognises(path: Path) -> bool:
    """Whether a path holds a model of transformers, or is the name of one."""
    return (path / "config.json").is_file() or is_gguf(path) or str(path) in CATALOGUE


def runs_beside_engine(path: Path) -> bool:
    return True


def load(path: Path, loaded: Target, options: LoadOptions) -> LatticeProposer:
    """The assistant of a path, which must share the target's vocabulary; it runs on the engine if the target does."""
    on_engine = isinstance(loaded.target, EngineModel)
    assistant = load_target(path, None if on_engine else TORCH, default=INT8)
    for role, model in (("--model", loaded.target), ("drafter", assistant)):
        wanted = "decoder-only models to draft with an assistant"
        expect(not model.is_encoder_decoder, wanted, f"an encoder–decoder as {role}", of=path)
    ours, theirs = (vocabulary_fingerprint(each.get_vocab()) for each in (loaded.tokenizer, load_tokenizer(path)))
    expect(ours == theirs, f"an assistant over the target's vocabulary ({ours})", f"one over {theirs}", of=path)
    return AssistantLattices(assistant, loaded.target)


class AssistantLattices(NetworkSource):
    """The outputs of an assistant after its own best prefixes.

    slots: each costs a pass of the assistant, a decoder-only causal LM.
    """

    needs_hidden = False
    has_transitions = True
    vocabulary_name = "the assistant"

    def __init__(self, assistant: AnyModel, target: AnyModel, k: int = 16, slots: int | None = None) -> None:
        drafts = target_model(assistant)
        super().__init__(lambda: drafts.fingerprint, target)
        self.vocab_size = self.target.vocab_size
        self.num_tokens = min(drafts.vocab_size, self.vocab_size)
        expect(1 <= k <= self.num_tokens, f"1 to {self.num_tokens} arcs per slot (the assistant's tokens)", k)
        self.assistant, self.k, self.num_slots = drafts, k, slots or SLOTS
        self.fingerprint: str | None = getattr(target, "tokenizer_fingerprint", None)
        self.reader: Reader = reader_for(drafts)

    def with_shape(self, k: int, slots: int | None = None) -> Self:
        return of_files(self.files, type(self)(self.assistant, self.target, k, slots))

    def lattices_of_text(self, text: Sequence[int], positions: range, source: Sequence[int] = ()) -> PositionLattices:
        return lattices_by_states(self.lattices, text, positions, self.num_slots)

    @torch.inference_mode()
    def lattices(self, states: Sequence[State]) -> list[SausageLattice | None]:
        slots = min(self.num_slots, max(state.max_depth for state in states))
        limit = self.assistant.max_positions
        texts = [np.asarray(state.tokens, np.int64) for state in states]
        if limit is not None:
            texts = [text[first_kept(len(text), limit - slots) :] for text in texts]
        outputs, grown = self.reader.read(texts), 0
        rows = np.arange(len(texts))  # of the prefixes asked about: their texts, arcs that they end with, weights
        arcs, weights = np.zeros(len(texts), np.int64), np.zeros(len(texts))
        numbers = np.full(len(texts), ROOT)
        drawn = []
        for slot in range(slots):
            logits = outputs.verified.logits_of(outputs.rows, outputs.columns)[:, : self.num_tokens]
            scores = logits.float().log_softmax(dim=-1).cpu().numpy()  # [prefixes, vocab] log-probabilities
            tokens, log_probs, following = self._slot(scores, rows, weights, len(texts))
            transitions = np.zeros((len(texts), self.k, self.k), np.float32)
            if slot:
                transitions[rows, arcs] = following - log_probs[rows]
            drawn.append((tokens, log_probs, transitions))
            if slot + 1 == slots:
                break
            parents, arcs = self._best(following + weights[:, None], rows, len(texts))
            above, weights = numbers[parents], (following + weights[:, None])[parents, arcs]
            rows = rows[parents]
            outputs = self.reader.grow(rows, above, tokens[rows, arcs])
            numbers, grown = np.arange(grown, grown + len(rows)), grown + len(rows)
        tokens, log_probs, transitions = (np.stack(each, axis=1) for each in zip(*drawn, strict=True))
        return [
            SausageLattice(tokens[row], log_probs[row], transitions[row, 1:]).first_slots(state.max_depth)
            for row, state in enumerate(states)
        ]

    def _slot(
        self, scores: np.ndarray, rows: np.ndarray, weights: np.ndarray, texts: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A slot's arcs of every text, best first: tokens and log-probabilities ``[texts, k]``; and ``[prefixes, k]``
        the log-probabilities of those tokens after each prefix."""
        marginal = np.full((texts, scores.shape[1]), -np.inf, np.float32)
        for text in range(texts):
            own = rows == text
            share = weights[own] - np.logaddexp.reduce(weights[own])
            marginal[text] = np.logaddexp.reduce(scores[own] + share[:, None].astype(np.float32), axis=0)
        tokens = np.sort(np.argpartition(-marginal, self.k - 1, axis=1)[:, : self.k], axis=1)
        order = np.argsort(-np.take_along_axis(marginal, tokens, axis=1), axis=1, kind="stable")
        tokens = np.take_along_axis(tokens, order, axis=1)
        return tokens, np.take_along_axis(marginal, tokens, axis=1), np.take_along_axis(scores, tokens[rows], axis=1)

    def _best(self, scores: np.ndarray, rows: np.ndarray, texts: int) -> tuple[np.ndarray, np.ndarray]:
        """The prefixes to go on with: each text's ``WIDTH`` best, one for each arc; their parents and arcs."""
        parents, arcs = [], []
        for text in range(texts):
            own = np.flatnonzero(rows == text)
            best = own[scores[own].argmax(axis=0)]  # of the prefixes that end with one arc, the best
            chosen = np.argsort(-scores[best, np.arange(self.k)], kind="stable")[:WIDTH]
            parents.append(best[chosen])
            arcs.append(chosen)
        return np.concatenate(parents), np.concatenate(arcs)
