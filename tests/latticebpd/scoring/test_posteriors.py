"""Weights after rescoring of scorers that are no n-gram models: the best paths stand for all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from latticebpd import Drafts, SausageLattice
from latticebpd.scoring import posteriors
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.posteriors import arc_posteriors
from tests.helpers.lattices import num_paths
from tests.helpers.trigrams import trigram


class Opaque:
    """An n-gram model that does not let on that it is one."""

    alpha = 0.8

    def with_alpha(self, alpha: float) -> Opaque:
        raise AssertionError("the weight is the scorer's")

    def paths(self, lattices: Sequence[SausageLattice], contexts: Sequence[Sequence[int]], p: int) -> list[Drafts]:
        return NgramScorer(trigram(), self.alpha).paths(lattices, contexts, p)

    def trees(self, *arguments: object) -> None:
        raise AssertionError("posteriors are of paths")


def test_posteriors_of_all_paths_are_exact_and_those_of_a_beam_are_its_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    lattice = SausageLattice(
        np.stack([rng.permutation(23)[:3] for _ in range(4)]), np.log(rng.dirichlet(np.ones(3), 4))
    )
    assert num_paths(lattice) < posteriors.BEAM
    exact = arc_posteriors(lattice, NgramScorer(trigram(), 0.8), context=[3, 1])
    assert arc_posteriors(lattice, Opaque(), context=[3, 1]) == pytest.approx(exact, abs=1e-6)
    monkeypatch.setattr(posteriors, "BEAM", 2)
    (drafts,) = Opaque().paths([lattice], [[3, 1]], 2)
    shares = np.exp(arc_posteriors(lattice, Opaque(), context=[3, 1]))
    assert shares.sum(axis=1) == pytest.approx(1)
    share = 1 / (1 + np.exp(drafts.scores[1] - drafts.scores[0]))
    differing = int(np.flatnonzero(drafts.tokens[0] != drafts.tokens[1])[0])
    assert shares[differing][lattice.tokens[differing] == drafts.tokens[0, differing]] == pytest.approx(share)
