"""The family of block drafters (DFlash, JetSpec, DSpark, DFlash 2, LiLiCorr): they read what layers of their target
return."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from fst.fingerprint import vocabulary_fingerprint
from latticebpd.checks import expect
from latticebpd.drafters.block.block_cache import BlockFiller
from latticebpd.drafters.block.block_checkpoints import is_block_drafter, load_block_drafter
from latticebpd.drafters.block.block_lattices import ALL_HEADS, MarkovAndConfidenceHeads, block_lattices
from latticebpd.drafters.block.block_network import BlockDrafter, check_target
from latticebpd.drafters.drafter import State
from latticebpd.drafters.family import MAX_LOGITS, DrafterLattices, LoadOptions, PositionLattices, Target, of_files
from latticebpd.drafters.text_states import NetworkSource, entropy, layers_of
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.lattices.values import as_tensor
from latticebpd.models.engine.engine_model import EngineModel
from latticebpd.models.target_model import AnyModel
from latticebpd.models.transformers.checkpoints import weights_fingerprint
from latticebpd.verification.finished_texts import read_text

DRAFTS_ONLY = "a block drafter"
recognises = is_block_drafter


def runs_beside_engine(path: Path) -> bool:
    return True


def load(path: Path, loaded: Target, options: LoadOptions) -> DrafterLattices:
    """The block drafter of a directory, for the target that it was trained for; next to the engine with weights
    quantized to int8."""
    drafter = load_block_drafter(path)
    if isinstance(loaded.target, EngineModel):
        drafter.use_int8()
    check_target(drafter, loaded.target, vocabulary_fingerprint(loaded.tokenizer.get_vocab()))
    return BlockLattices(drafter, loaded.target, heads=MarkovAndConfidenceHeads(options.bigram, options.bigram))


class BlockLattices(NetworkSource):
    """The outputs of a block drafter, which reads states of selected layers of the target (DFlash, JetSpec, DSpark,
    DFlash 2, LiLiCorr).

    k: arcs per slot; at most as many as a selector or reranker was trained to score. slots: the first so many only; the
    drafter still fills a whole block, as it was trained to. heads: which of its further heads are used, all by default.
    Raises ValueError for a drafter of another target, or more arcs than it has tokens.
    """

    needs_hidden = True
    vocabulary_name = "the target"

    def __init__(
        self,
        drafter: BlockDrafter,
        target: AnyModel,
        k: int = 16,
        slots: int | None = None,
        heads: MarkovAndConfidenceHeads = ALL_HEADS,
    ) -> None:
        super().__init__(lambda: weights_fingerprint(drafter), target)
        expect(slots is None or slots >= 1, "slots >= 1, or None for all", slots)
        self.fingerprint = getattr(target, "tokenizer_fingerprint", None) or drafter.config.tokenizer_fingerprint
        self.filler = BlockFiller(drafter, target, self.fingerprint)
        most = drafter.config.max_candidates if heads.bigram else 0
        self.k = min(k, most) if most else k
        self.drafter, self.heads = drafter, heads
        self.vocab_size = drafter.config.vocab_size
        self.num_slots = len(range(drafter.config.slots)[:slots])
        self.num_tokens = drafter.config.draft_vocab_size or self.vocab_size
        self.shortlist = None if drafter.draft_tokens is None else drafter.draft_tokens.cpu().numpy()
        self.has_transitions = heads.of(drafter).bigram
        self._reranks = heads.bigram and drafter.lilicorr is not None
        self.needs_layers = drafter.config.target_layer_ids

    def lattices(self, states: Sequence[State]) -> list[SausageLattice | None]:
        reachable = min(max(state.max_depth for state in states), self.num_slots)
        hidden = self.filler.states(states)
        last = [layers_of(state) for state in states] if self._reranks else []
        drawn = self._lattices(hidden, [state.tokens[-1] for state in states], last, reachable)
        return [lattice.first_slots(state.max_depth) for lattice, state in zip(drawn, states, strict=True)]

    def _lattices(
        self, hidden: Tensor, anchors: Sequence[int], last: Sequence[Tensor], slots: int
    ) -> list[SausageLattice]:
        """The first ``slots`` slots of each row's lattice; last: what the context before its anchor is read from."""
        arguments = (self.drafter, self.filler.output)
        if not self._reranks:
            return block_lattices(*arguments, hidden[:, :slots], anchors, self.k, self.heads)
        further = (self.filler.contexts(last), self.filler.embeddings)
        drawn = block_lattices(*arguments, hidden, anchors, self.k, self.heads, *further)
        return [lattice.first_slots(slots) for lattice in drawn]

    def with_shape(self, k: int, slots: int | None = None) -> Self:
        return of_files(self.files, type(self)(self.drafter, self.target, k, slots, self.heads))

    @torch.inference_mode()
    def lattices_of_text(self, text: Sequence[int], positions: range, source: Sequence[int] = ()) -> PositionLattices:
        read = read_text(self.target, text, positions, self.needs_layers, source)
        own, layers = entropy(read.logits)[:, None], as_tensor(read.layers)[: positions.stop]
        anchors = [position + 1 for position in positions]
        softmaxes = self.k if self.heads.bigram and self.drafter.markov_head is not None else 1  # of a slot
        together, begin = max(1, MAX_LOGITS // (self.num_slots * self.num_tokens * softmaxes)), 0
        for hidden in self.filler.states_of_text(text, layers, anchors, together):
            rows = slice(begin, begin + len(hidden))
            begin = rows.stop
            last = [layers[max(anchor - 1, 0) : anchor] for anchor in anchors[rows]] if self._reranks else []
            drawn = self._lattices(hidden, [text[anchor] for anchor in anchors[rows]], last, self.num_slots)
            nats = entropy(self.filler.output(hidden[:, : self.num_slots]))
            yield drawn, torch.cat([own[rows], nats], dim=1).cpu().numpy()
