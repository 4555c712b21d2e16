"""The family of assistants: a small causal LM of the target's vocabulary drafts (``assistant_model`` of transformers).

The assistant reads prefixes by tree attention over its own cache; its lattices are those of `prefix_lattices`.
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
from latticebpd.drafters.family import DrafterLattices, LoadOptions, PositionLattices, Target, of_files
from latticebpd.drafters.prefix_lattices import prefix_lattices
from latticebpd.drafters.text_states import NetworkSource, lattices_by_states
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.models.catalogue import CATALOGUE
from latticebpd.models.engine.engine_model import EngineModel
from latticebpd.models.gguf.gguf_file import is_gguf
from latticebpd.models.load_target import load_target, load_tokenizer
from latticebpd.models.target_model import AnyModel, target_model
from latticebpd.models.weight_kinds import INT8, TORCH
from latticebpd.scoring.neural.causal_rescorer import first_kept
from latticebpd.scoring.neural.prefix_reader import Outputs, Reader, reader_for

DRAFTS_ONLY = None
SLOTS = 6
"""Tokens that a draft is long."""


def recognises(path: Path) -> bool:
    """Whether a path holds a model of transformers, or is the name of one."""
    return (path / "config.json").is_file() or is_gguf(path) or str(path) in CATALOGUE


def runs_beside_engine(path: Path) -> bool:
    return True


def load(path: Path, loaded: Target, options: LoadOptions) -> DrafterLattices:
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

        def grow(rows: np.ndarray, parents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
            return self._log_probs(self.reader.grow(rows, parents, tokens))

        drawn = prefix_lattices(self._log_probs(self.reader.read(texts)), grow, slots, self.k)
        return [lattice.first_slots(state.max_depth) for lattice, state in zip(drawn, states, strict=True)]

    def _log_probs(self, outputs: Outputs) -> np.ndarray:
        """``[prefixes, tokens]`` of what follows each prefix."""
        logits = outputs.verified.logits_of(outputs.rows, outputs.columns)[:, : self.num_tokens]
        return logits.float().log_softmax(dim=-1).cpu().numpy()
