"""Rescoring with a small causal language model (Kim 2024, section 7.1).

The model is any decoder-only LM of ``transformers`` over the base model's vocabulary.  Two rescorers use it:

    NeuralRescorer            asks for every slot after the tokens chosen so far: Algorithm 2 for one draft; for more or
                              for a tree, the prefixes of a level are asked for together
    ParallelNeuralRescorer    asks for all slots at once, behind the draft as it was: one pass, and a poorer judge

Both read the whole text before the lattice, as far as the model has positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from transformers import PreTrainedModel

from latticebpd.lattices.drafts import Drafts, DraftTree
from latticebpd.lattices.sausage import SausageLattice, best_tokens
from latticebpd.scoring.neural.causal_rescorer import CausalRescorer
from latticebpd.scoring.neural.level_search import Arcs, best_paths, best_trees, greedy_paths
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.scorer import Context, checked_count


class NeuralRescorer(CausalRescorer):
    """Conditions each slot on the tokens chosen before it.

    Drafts are found by beam search over the lattice, ``max(beams, p)`` prefixes wide, so one draft alone is chosen
    greedily (Algorithm 2), and the p best are exact where the lattice has no more than that many prefixes of a length.
    The prefix tree is always the exact one. Lattices with transitions are refused.

    Args:
        model, alpha, tokenizer_fingerprint, use_cache: as for ``CausalRescorer``.
        beams: the least width of the search.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        alpha: float = 1.0,
        beams: int = 1,
        *,
        tokenizer_fingerprint: str | None = None,
        use_cache: bool = True,
    ) -> None:
        super().__init__(model, alpha, tokenizer_fingerprint=tokenizer_fingerprint, use_cache=use_cache)
        if beams < 1:
            raise ValueError(f"expected beams >= 1, got {beams}")
        self.beams = beams

    def paths(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context], p: int) -> list[Drafts]:
        width = max(self.beams, checked_count("p", p))
        if not self.alpha:
            return NgramScorer(None).paths(lattices, contexts, p)
        _refuse_transitions(lattices)
        found: list[Drafts] = []
        for own, texts in self._groups(lattices, contexts):
            if width == 1:
                found += greedy_paths(self.reader, texts, Arcs.of(own), self.alpha)
            else:
                beams = best_paths(self.reader, texts, Arcs.of(own), width, self.alpha)
                found += [Drafts(drafts.tokens[:p], drafts.scores[:p]) for drafts in beams]
        return found

    def trees(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context], num_nodes: int) -> list[DraftTree]:
        checked_count("num_nodes", num_nodes)
        _refuse_transitions(lattices)
        found: list[DraftTree] = []
        for own, texts in self._groups(lattices, contexts):
            trees = best_trees(self.reader, texts, Arcs.of(own), num_nodes, self.alpha)
            found += [replace(tree, lattice=lattice) for tree, lattice in zip(trees, own, strict=True)]
        return found


class ParallelNeuralRescorer(CausalRescorer):
    """Conditions each slot on the best arcs of the slots before it, whatever rescoring makes of those.

    That takes one pass of the model, and leaves a lattice whose slots depend on each other by its own transitions
    alone: drafts and trees are the exact best of that lattice.
    """

    def paths(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context], p: int) -> list[Drafts]:
        return NgramScorer(None).paths(self.rescored(lattices, contexts), contexts, p)

    def trees(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context], num_nodes: int) -> list[DraftTree]:
        trees = NgramScorer(None).trees(self.rescored(lattices, contexts, normalised=False), contexts, num_nodes)
        return [replace(tree, lattice=lattice) for tree, lattice in zip(trees, lattices, strict=True)]

    def rescored(
        self, lattices: Sequence[SausageLattice], contexts: Sequence[Context], normalised: bool = True
    ) -> list[SausageLattice]:
        """Every lattice with the weights ``log_prob + alpha * ln p(token | context, best arcs of the slots before)``.

        normalised: False may leave out a constant for each slot, which changes neither the order of paths nor trees.
        """
        if not self.alpha:
            return list(lattices)
        found: list[SausageLattice] = []
        for own, texts in self._groups(lattices, contexts):
            arcs = Arcs.of(own)
            best = best_tokens(arcs.tokens, arcs.weights).clip(min=0)
            outputs = self.reader.read(texts, best[:, :-1])
            candidates = arcs.tokens.reshape(-1, arcs.tokens.shape[2])
            said = outputs.log_probs(candidates) if normalised else outputs.scores(candidates)
            weights = arcs.weights + self.alpha * said.reshape(arcs.weights.shape)
            found += [
                replace(lattice, log_probs=weights[row, : lattice.slots, : lattice.k])
                for row, lattice in enumerate(own)
            ]
        return found


def _refuse_transitions(lattices: Sequence[SausageLattice]) -> None:
    if any(lattice.transitions is not None for lattice in lattices):
        raise ValueError(
            "expected lattices without transitions for NeuralRescorer, got some with; rank them by an n-gram model, by "
            "ParallelNeuralRescorer or without a model"
        )
