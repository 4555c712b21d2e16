"""Rescoring with a small causal language model (Kim 2024, section 7.1).

The model is any decoder-only LM of ``transformers`` over the target model's vocabulary, and reads the full text before
the lattice, as far as it has positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from transformers import PreTrainedModel

from latticebpd.checks import expect, expect_count
from latticebpd.lattices.drafts import Drafts, DraftTree
from latticebpd.lattices.sausage import SausageLattice, best_tokens
from latticebpd.scoring.neural.causal_rescorer import CausalRescorer
from latticebpd.scoring.neural.level_search import Arcs, best_paths, best_trees, greedy_paths
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.scorer import Context


class NeuralRescorer(CausalRescorer):
    """Conditions each slot on the tokens chosen before it; all prefixes of a level are read in one pass.

    Paths come from a beam search over the lattice, ``max(beams, p)`` prefixes wide: a single draft is chosen greedily
    (Algorithm 2), and the p best are exact where no length has more prefixes than that. Trees are always exact.
    Lattices with transitions are refused. Options: as for ``CausalRescorer``.
    """

    def __init__(self, model: PreTrainedModel, alpha: float = 1.0, beams: int = 1, **options: Any) -> None:
        super().__init__(model, alpha, **options)
        self.beams = expect_count("beams", beams)

    def paths(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context], p: int) -> list[Drafts]:
        width = max(self.beams, expect_count("p", p))
        if not self.alpha:
            return NgramScorer(None).paths(lattices, contexts, p)
        _refuse_transitions(lattices)
        drafts: list[Drafts] = []
        for own, texts in self._groups(lattices, contexts):
            if width == 1:
                drafts += greedy_paths(self.reader, texts, Arcs.of(own), self.alpha)
            else:
                beams = best_paths(self.reader, texts, Arcs.of(own), width, self.alpha)
                drafts += [Drafts(beam.tokens[:p], beam.scores[:p]) for beam in beams]
        return drafts

    def trees(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context], num_nodes: int) -> list[DraftTree]:
        expect_count("num_nodes", num_nodes)
        _refuse_transitions(lattices)
        trees: list[DraftTree] = []
        for own, texts in self._groups(lattices, contexts):
            trees += best_trees(self.reader, texts, Arcs.of(own), num_nodes, self.alpha)
        return [replace(tree, lattice=lattice) for tree, lattice in zip(trees, lattices, strict=True)]


class ParallelNeuralRescorer(CausalRescorer):
    """Conditions each slot on the best arcs of the slots before it, as they were before rescoring.

    One pass of the model reweights the arcs; drafts and trees are the exact best of the resulting lattice.
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
        rescored: list[SausageLattice] = []
        for own, texts in self._groups(lattices, contexts):
            arcs = Arcs.of(own)
            outputs = self.reader.read(texts, best_tokens(arcs.tokens, arcs.weights).clip(min=0)[:, :-1])
            candidates = arcs.tokens.reshape(-1, arcs.tokens.shape[2])
            scores = outputs.log_probs(candidates) if normalised else outputs.scores(candidates)
            weights = arcs.weights + self.alpha * scores.reshape(arcs.weights.shape)
            for lattice, values in zip(own, weights, strict=True):
                rescored.append(replace(lattice, log_probs=values[: lattice.slots, : lattice.k]))
        return rescored


def _refuse_transitions(lattices: Sequence[SausageLattice]) -> None:
    fits, wanted = all(each.transitions is None for each in lattices), "lattices without transitions for NeuralRescorer"
    expect(fits, wanted, "some with", "rank them by an n-gram model, by ParallelNeuralRescorer or without a model")
