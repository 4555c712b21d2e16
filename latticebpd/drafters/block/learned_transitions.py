"""Lattices whose neighbouring slots are scored by a trained network: DFlash 2's selector, LiLiCorr's reranker.

Both score a few *candidates*, each slot's best tokens: ``start[j]`` of the first slot's, ``pairs[s, i, j]`` of
candidate j of slot s + 1 after candidate i of slot s, and their lattices are those of that chain
(`latticebpd/cpu/_engine/chains.hpp`). Greedy walks (``chain``), beams and exact searches all read these arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from latticebpd.cpu._engine import chain_weights
from latticebpd.drafters.block.block_network import BlockDrafter
from latticebpd.lattices.sausage import SausageLattice


@dataclass(frozen=True, eq=False)
class Candidates:
    """Each slot's best tokens, best first, of equal ones the lower id first; all ``[rows, slots, k]``.

    indices: of the drafted tokens. tokens: ids of the target's vocabulary. logits, log_probs: by the drafter, over all
    that it drafts.
    """

    indices: Tensor
    tokens: Tensor
    logits: Tensor
    log_probs: Tensor

    @classmethod
    def of(cls, drafter: BlockDrafter, logits: Tensor, k: int) -> Candidates:
        """From ``[rows, slots, tokens]`` logits."""
        logits = logits.float()
        values, indices = top_k(logits, k)
        tokens = indices if drafter.draft_tokens is None else drafter.draft_tokens[indices]
        return cls(indices, tokens, values, values - logits.logsumexp(dim=-1, keepdim=True))


def step_scores(
    drafter: BlockDrafter, candidates: Candidates, hidden: Tensor, anchors: Tensor, contexts: Tensor, embedding: Tensor
) -> tuple[Tensor, Tensor]:
    """``start [rows, k]`` and ``pairs [rows, slots - 1, k, k]`` by the drafter's selector or reranker, float32.

    hidden: ``[rows, slots, hidden]`` slot states.
    anchors: ``[rows]`` the tokens before the first slot.
    contexts: ``[rows, hidden]`` the context vectors before them, zeros where there is none; a reranker reads them.
    embedding: ``[vocab, hidden]`` the target's, which a reranker reads.
    """
    if drafter.lilicorr is not None:
        return drafter.lilicorr(embedding[candidates.tokens].to(hidden.dtype), candidates.log_probs, hidden, contexts)
    assert drafter.candidate_selector is not None
    tokens, unary = candidates.tokens, candidates.logits[:, :, None]
    first = drafter.candidate_selector(hidden[:, :1], anchors[:, None, None], tokens[:, :1]) + unary[:, :1]
    pairs = drafter.candidate_selector(hidden[:, 1:], tokens[:, :-1], tokens[:, 1:]) + unary[:, 1:]
    return first[:, 0, 0], pairs


def chain_lattices(candidates: Candidates, start: Tensor, pairs: Tensor) -> list[SausageLattice]:
    """One lattice for each row, of the chain that the scores describe; arcs in the candidates' order."""
    tokens, *scores = (each.cpu().numpy() for each in (candidates.tokens, candidates.log_probs, start, pairs))
    return list(map(SausageLattice, tokens, *chain_weights(*scores)))


def top_k(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` largest of each row and their indices, largest first, equal ones by lower index."""
    indices = values.topk(k, dim=-1).indices.sort(dim=-1).values
    chosen = values.gather(-1, indices)
    order = chosen.argsort(dim=-1, descending=True, stable=True)
    return chosen.gather(-1, order), indices.gather(-1, order)
