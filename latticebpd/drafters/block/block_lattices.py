"""A block drafter's slot states -> lattices, with its Markov and confidence heads (DSpark).

Without them a slot's arcs are the drafter's best tokens, as with block heads. A *Markov head* makes a block a chain:
the logits of slot s + 1 depend on the token of slot s, ``p(j | i) = softmax(logits + markov(i))[j]``, over the whole
vocabulary. Slot by slot,

    log_probs[s + 1, j]       = log sum_i w_i p(j | i)      w: probabilities of slot s's kept tokens, normalised
    transitions[s, i, j]      = log p(j | i) - log_probs[s + 1, j]

and a slot keeps the ``k`` best tokens by the former. So a path's score, log_probs and transitions together, is its
probability in the chain, and the log_probs are the chain's marginals. The token before the first slot is the
anchor, which is known: its bigram is in the first ``log_probs``.

DFlash 2's *candidate selector* and LiLiCorr's *reranker* make chains of a slot's best tokens only
(`learned_transitions`).

A *confidence head* gives the probability c that the target accepts a slot's token; a slot's arcs then have the mass c
instead of 1. Where that head reads the token before, p(j | i) is c(i) p(j | i).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from latticebpd.checks import expect
from latticebpd.drafters.block.block_network import BlockDrafter
from latticebpd.drafters.block.learned_transitions import Candidates, chain_lattices, step_scores, top_k
from latticebpd.drafters.top_k import lattices_from_logits
from latticebpd.lattices.sausage import SausageLattice


@dataclass(frozen=True)
class MarkovAndConfidenceHeads:
    """Which of a block drafter's optional heads are used, where it has them.

    bigram: what ties neighbouring slots: the Markov head, the candidate selector or the reranker. confidence: the
    confidence head; one that reads the Markov head's embedding needs that too.
    """

    bigram: bool = True
    confidence: bool = True

    def of(self, drafter: BlockDrafter) -> MarkovAndConfidenceHeads:
        """Those of them that the drafter has."""
        bigram = self.bigram and drafter.ties_slots
        confidence = self.confidence and drafter.confidence_head is not None
        return MarkovAndConfidenceHeads(bigram, confidence and (bigram or not drafter.config.confidence_with_markov))


ALL_HEADS = MarkovAndConfidenceHeads()


@torch.inference_mode()
def block_lattices(
    drafter: BlockDrafter,
    output: Callable[[Tensor], Tensor],
    hidden: Tensor,
    anchors: Sequence[int],
    k: int,
    heads: MarkovAndConfidenceHeads = ALL_HEADS,
    contexts: Tensor | None = None,
    embedding: Tensor | None = None,
) -> list[SausageLattice]:
    """One lattice for each row; a selector or reranker scores as many arcs per slot as it was trained to, or ``k``;
    ValueError for more arcs than the drafter knows tokens.

    output: from states to logits (``BlockDrafter.output``).
    hidden: ``[rows, slots, hidden]`` slot states.
    anchors: each row's last token.
    contexts, embedding: as for `learned_transitions.step_scores`, for drafters with a reranker, whose lattices
        have all slots.
    """
    known = drafter.config.draft_vocab_size or drafter.config.vocab_size
    expect(1 <= k <= known, f"1 to {known} arcs per slot (the tokens that the drafter knows)", k)
    logits, heads = output(hidden), heads.of(drafter)
    if not (heads.bigram or heads.confidence):
        shortlist = None if drafter.draft_tokens is None else drafter.draft_tokens.cpu().numpy()
        return lattices_from_logits(logits, k, shortlist)
    before = torch.tensor(anchors, device=hidden.device)
    if heads.bigram and drafter.markov_head is None:
        candidates = Candidates.of(drafter, logits, min(k, drafter.config.max_candidates or k))
        inputs = (hidden.new_zeros(0) if each is None else each for each in (contexts, embedding))
        return chain_lattices(candidates, *step_scores(drafter, candidates, hidden, before, *inputs))
    return _chain_lattices(drafter, logits.float(), hidden, before, k, heads)


def _chain_lattices(
    drafter: BlockDrafter, logits: Tensor, hidden: Tensor, anchors: Tensor, k: int, heads: MarkovAndConfidenceHeads
) -> list[SausageLattice]:
    markov = drafter.markov_head if heads.bigram else None
    # Tokens of the slot before, and their log weights.
    before, weights = anchors[:, None], torch.zeros(len(anchors), 1, device=hidden.device)
    tokens, log_probs, transitions = [], [], []
    for slot in range(logits.shape[1]):
        scores = logits[:, slot, None] if markov is None else logits[:, slot, None] + markov(before).float()
        scores = scores.log_softmax(dim=-1)  # [rows, arcs of the slot before, or 1, vocab]
        if heads.confidence:
            states = hidden[:, slot, None].expand(-1, scores.shape[1], -1)
            scores = scores + F.logsigmoid(drafter.confidence(states, before[:, : scores.shape[1]]).float())[..., None]
        marginal = scores[:, 0] if scores.shape[1] == 1 else (weights[..., None] + scores).logsumexp(dim=1)
        values, indices = top_k(marginal, k)
        if scores.shape[1] > 1:
            transitions.append(scores.gather(2, indices[:, None].expand(-1, scores.shape[1], -1)) - values[:, None])
        before = indices if drafter.draft_tokens is None else drafter.draft_tokens[indices]
        weights = values.log_softmax(dim=-1)
        tokens.append(before)
        log_probs.append(values)
    arrays = [torch.stack(each, dim=1).cpu().numpy() for each in (tokens, log_probs, transitions) if each]
    return [SausageLattice(*(array[row] for array in arrays)) for row in range(len(anchors))]
