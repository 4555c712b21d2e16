"""Acceptance rules: which drafted tokens stay.

A rule looks at one node at a time, with the base model's logits for what follows it and the tokens that were
drafted below it, and picks one token.  If that is a drafted token, the walk goes on below it; if not, the token is
committed behind the accepted path and the walk ends.  Under ``Exact`` and ``Sampling`` the pick is the base model's
own and drafts only save calls; under the others a drafted token that is good enough is kept in its place.

Where several drafted tokens would do, the one that the base model likes best is taken: the accepted path then never
gets shorter as a rule gets more lenient.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from latticebpd.decoding.generation_config import WARPERS, GenerationSettings
from latticebpd.lattices.drafts import ROOT, DraftTree
from latticebpd.lattices.sausage import PADDING
from latticebpd.target.forward import Verified


class NodeDrafts:
    """What was drafted right below ``n`` nodes.

    Args:
        trees, nodes: ``[n]``, each node and the tree that it belongs to.
    """

    def __init__(self, trees: Sequence[DraftTree], nodes: Sequence[int]) -> None:
        self.trees, self.nodes = trees, nodes

    def __call__(self, i: int) -> np.ndarray:
        """The tokens below the ``i``-th node, in the tree's order."""
        tokens: np.ndarray = self.trees[i].tokens[self.trees[i].children(self.nodes[i])]
        return tokens

    def log_probs(self, i: int) -> np.ndarray | None:
        """Natural log of the probability that the drafter gave to each of those tokens behind the node; None if it gave
        none."""
        tree, node = self.trees[i], self.nodes[i]
        if tree.log_probs is None:
            return None
        found: np.ndarray = tree.log_probs[tree.children(node)] - (0.0 if node == ROOT else tree.log_probs[node])
        return found

    def slot(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """All tokens of the lattice's slot below the node, and the natural logs of their probabilities, whatever came
        before; none without a lattice."""
        tree, node = self.trees[i], self.nodes[i]
        depth = 0 if node == ROOT else int(tree.depths[node])
        if tree.lattice is None or depth >= tree.lattice.slots:
            return np.empty(0, np.int32), np.empty(0)
        arcs = tree.lattice.tokens[depth] != PADDING
        return tree.lattice.tokens[depth][arcs], tree.lattice.log_probs[depth][arcs]


class Acceptance(Protocol):
    """Picks the token that follows a node."""

    def choose(self, logits: Tensor, drafted: NodeDrafts, depths: Sequence[int]) -> list[int]:
        """One token for each of ``n`` nodes.

        Args:
            logits: ``[n, vocab]``, the base model's.
            drafted: index of a node, 0 <= index < n -> the drafted tokens right below it; their probabilities, and the
                slot that they come from, where a rule wants those.
            depths: ``[n]``, drafted tokens up to and including each node; 0 is the next token.
        """


@runtime_checkable
class Bindable(Protocol):
    """A rule that depends on the model's generation config."""

    def bound(self, settings: GenerationSettings) -> Acceptance:
        """The rule for a decode under these settings."""


def bound(rule: Acceptance, settings: GenerationSettings) -> Acceptance:
    """The rule, as it is for a decode under these settings."""
    return rule.bound(settings) if isinstance(rule, Bindable) else rule


@dataclass(frozen=True)
class Exact:
    """Keep what the base model would have written: the text is greedy decoding's.  Ties go to the lowest token id."""

    def choose(self, logits: Tensor, drafted: NodeDrafts, depths: Sequence[int]) -> list[int]:
        chosen: list[int] = logits.argmax(dim=-1).tolist()
        return chosen


@dataclass(frozen=True)
class TopK:
    """Keep a drafted token that is among the base model's ``k`` best (Stern 2018, section 5.1); k = 1 is exact."""

    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"expected k >= 1, got {self.k}")

    def choose(self, logits: Tensor, drafted: NodeDrafts, depths: Sequence[int]) -> list[int]:
        return [
            _kept(row, drafted(node), lambda better, equal, gap: better + equal < self.k)
            for node, row in enumerate(logits)
        ]


@dataclass(frozen=True)
class TopBeta:
    """Keep a drafted token that is as probable as the ``beta``-th best, and whose log-probability is within ``tau`` of
    the best.

    That is GAD++ (Xia 2022, equations 6 and 7), equality included: beta = 1 and tau = 0 are exact, but for ties.
    """

    beta: int
    tau: float

    def __post_init__(self) -> None:
        if self.beta < 1 or not self.tau >= 0:
            raise ValueError(f"expected beta >= 1 and tau >= 0, got beta {self.beta} and tau {self.tau}")

    def choose(self, logits: Tensor, drafted: NodeDrafts, depths: Sequence[int]) -> list[int]:
        return [
            _kept(row, drafted(node), lambda better, equal, gap: better < self.beta and gap <= self.tau)
            for node, row in enumerate(logits)
        ]


def _absolute_difference(token: int, other: int) -> float:
    return abs(token - other)


@dataclass(frozen=True)
class Distance:
    """Keep a drafted token within ``epsilon`` of the base model's own (Stern 2018, section 5.2).

    Args:
        epsilon: greatest distance, >= 0; Stern takes 2 for pixel intensities.
        metric: distance of two token ids; by default that of the ids themselves, for tokens that are numbers.
    """

    epsilon: float
    metric: Callable[[int, int], float] = _absolute_difference

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise ValueError(f"expected epsilon >= 0, got {self.epsilon}")

    def choose(self, logits: Tensor, drafted: NodeDrafts, depths: Sequence[int]) -> list[int]:
        chosen = []
        for node, best in enumerate(logits.argmax(dim=-1).tolist()):
            distance, token = min(
                ((self.metric(int(token), best), int(token)) for token in drafted(node)), default=(float("inf"), best)
            )
            chosen.append(token if distance <= self.epsilon else best)
        return chosen


@dataclass(frozen=True)
class MinimumBlock:
    """Commit at least ``length`` tokens a call where the draft has them (Stern 2018, section 5.3).

    Down to that length the drafted token that the base model likes best is kept, however little; below it ``otherwise``
    decides.  The next token counts, as in the paper: length 1 changes nothing.
    """

    length: int
    otherwise: Acceptance = field(default_factory=Exact)

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"expected a length >= 1, got {self.length}")

    def choose(self, logits: Tensor, drafted: NodeDrafts, depths: Sequence[int]) -> list[int]:
        chosen = self.otherwise.choose(logits, drafted, depths)
        for node, depth in enumerate(depths):
            if depth < self.length - 1:
                tokens = drafted(node)
                if len(tokens) and chosen[node] not in tokens:
                    chosen[node] = _kept(logits[node], tokens, lambda better, equal, gap: True)
        return chosen

    def bound(self, settings: GenerationSettings) -> MinimumBlock:
        return replace(self, otherwise=bound(self.otherwise, settings))


class Sampling:
    """Sample each node's next token from the base model's own distribution and follow the drafted token that equals it.

    Every token is one draw from the distribution that ``generate(do_sample=True)`` draws from, given the text before
    it, whatever was drafted; so the texts are distributed exactly as the base model's.

    Args:
        temperature, top_k, top_p: as for ``generate()``; None leaves what the model's generation config says or, where
            it says nothing, ``transformers``' default, which for ``top_k`` is 50. 1, 0 and 1 leave a filter out.
        generator: source of randomness, on the model's device; torch's own by default.
        others: the other filters of ``generate()``: ``min_p``, ``typical_p``, ``epsilon_cutoff``, ``eta_cutoff``,
            ``top_h``.
    """

    def __init__(
        self,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
        **others: float | None,
    ) -> None:
        if temperature is not None and not temperature > 0:
            raise ValueError(f"expected a temperature > 0, got {temperature}; take Exact() for greedy decoding")
        if unknown := sorted(others.keys() - set(WARPERS)):
            raise ValueError(f"expected filters {', '.join(WARPERS)}, got {', '.join(unknown)}")
        self.generator = generator
        self.arguments = {
            "temperature": None if temperature is None else float(temperature),
            "top_k": top_k,
            "top_p": top_p,
            **others,
        }
        self.warpers = GenerationSettings().warpers(**self.arguments)

    def bound(self, settings: GenerationSettings) -> Sampling:
        rule = copy.copy(self)
        rule.warpers = settings.warpers(**self.arguments)
        return rule

    def choose(self, logits: Tensor, drafted: NodeDrafts, depths: Sequence[int]) -> list[int]:
        chosen: list[int] = torch.multinomial(self.probabilities(logits), 1, generator=self.generator)[:, 0].tolist()
        return chosen

    def probabilities(self, logits: Tensor) -> Tensor:
        """``[n, vocab]``: what each node's next token is drawn from."""
        # The warpers look at scores alone; the ids they are given do not matter.
        no_ids: Any = torch.empty(len(logits), 0, dtype=torch.long)
        scores: Tensor = self.warpers(no_ids, logits.float())
        return scores.softmax(dim=-1)


class SpeculativeSampling(Sampling):
    """Keep a drafted token with probability min(1, p/q), else draw from what is left of p (Leviathan 2023; SpecInfer
    for trees).

    p is the base model's distribution, as under ``Sampling``, and that of the texts. q is the one that the draft was
    drawn
    from: its slot of the tree's lattice, scaled to sum 1. So the drafter must have *drawn* its drafts, slot by slot and
    without looking at anything else, and its tree hold them in the order in which they were drawn; then siblings, which
    are distinct, are tried one after the other, without replacement.

    Drafts that are chosen instead of drawn (the best paths or trees, copies), as this package's drafters choose them,
    have q = 1: for them ``Sampling`` is this rule, and no rule that leaves the distribution alone accepts more of a
    given tree.

    Raises:
        ValueError: a drafted token that its slot does not hold.
    """

    def choose(self, logits: Tensor, drafted: NodeDrafts, depths: Sequence[int]) -> list[int]:
        return [
            self._tried(p.double(), drafted(node), *drafted.slot(node))
            for node, p in enumerate(self.probabilities(logits))
        ]

    def _tried(self, p: Tensor, tokens: np.ndarray, arcs: np.ndarray, log_probs: np.ndarray) -> int:
        """One token of distribution ``p [vocab]``; ``tokens`` were drawn without replacement from the slot of these
        arcs."""
        if not np.isin(tokens, arcs).all():
            raise ValueError(
                "expected drafts drawn from their lattice's slots, got others; take Sampling for drafts that are not"
                " drawn"
            )
        q = torch.zeros_like(p)
        q[torch.from_numpy(arcs).long().to(p.device)] = torch.from_numpy(log_probs).to(p).softmax(dim=0)
        for token in tokens.tolist():
            if float(torch.rand((), generator=self.generator, device=p.device)) * q[token] < p[token]:
                return int(token)
            p = (p - q).clamp(min=0)
            q[token] = 0
            p, q = p / p.sum(), q / q.sum()
        return int(torch.multinomial(p, 1, generator=self.generator))


def _kept(logits: Tensor, drafted: np.ndarray, good: Callable[[int, int, float], bool]) -> int:
    """The best drafted token if it is ``good(better, equal, gap)``, else the best of all.

    logits: ``[vocab]``.  better: how many tokens are more probable; equal: how many as probable have a lower id.
    gap: how far its log-probability lies below the best one's.
    """
    best = int(logits.argmax())
    if not len(drafted):
        return best
    tokens = torch.from_numpy(np.sort(drafted).astype(np.int64)).to(logits.device)
    token = int(tokens[logits[tokens].argmax()])
    value = logits[token]
    better, equal = int((logits > value).sum()), int((logits[:token] == value).sum())
    return token if good(better, equal, float(logits[best]) - float(value)) else best


Adjust = Callable[[int, list[int], Tensor], Tensor]
"""Row, nodes of a path, that path's logits ``[vocab]`` -> logits as a logits processor leaves them."""


def walk(
    rule: Acceptance, trees: Sequence[DraftTree], verified: Verified, adjust: Adjust | None = None
) -> tuple[list[list[int]], list[int]]:
    """Walk down every row's tree as the rule says.

    Args:
        rule: picks a token at each node.
        trees: one for each row.
        verified: the base model's output for them.
        adjust: applied to a node's logits before the rule sees them.

    Returns:
        For each row the accepted nodes, a path from the root, and the token that follows them.
    """
    # Only the nodes on the way are asked for logits, which on a CPU is a fraction of the work; elsewhere all nodes in
    # one go are cheaper than a transfer per step.  What a processor adjusts is costly anywhere.
    one_by_one = adjust is not None or verified.hidden.device.type == "cpu"
    choose = (_picked_on_the_way if one_by_one else _picked_at_once)(rule, trees, verified, adjust)
    paths: list[list[int]] = [[] for _ in trees]
    next_tokens = [0] * len(trees)
    walking = list(range(len(trees)))
    while walking:
        ends = [paths[row][-1] if paths[row] else ROOT for row in walking]
        going_on = []
        for row, end, token in zip(walking, ends, choose(walking, ends), strict=True):
            tree = trees[row]
            child = np.flatnonzero((tree.parents == end) & (tree.tokens == token))
            if child.size:
                paths[row].append(int(child[0]))
                going_on.append(row)
            else:
                next_tokens[row] = token
        walking = going_on
    return paths, next_tokens


def _picked_on_the_way(
    rule: Acceptance, trees: Sequence[DraftTree], verified: Verified, adjust: Adjust | None
) -> Callable[[list[int], list[int]], list[int]]:
    def choose(rows: list[int], nodes: list[int]) -> list[int]:
        columns = [node + 1 for node in nodes]
        if verified.best_of is not None and adjust is None and type(rule) is Exact:
            return verified.best_of(rows, columns)
        logits = verified.logits_of(rows, columns)
        if adjust is not None:
            logits = torch.stack(
                [adjust(row, trees[row].path(node), line) for row, node, line in zip(rows, nodes, logits, strict=True)]
            )
        depths = [int(trees[row].depths[node]) if node != ROOT else 0 for row, node in zip(rows, nodes, strict=True)]
        return rule.choose(logits, NodeDrafts([trees[row] for row in rows], nodes), depths)

    return choose


def _picked_at_once(
    rule: Acceptance, trees: Sequence[DraftTree], verified: Verified, adjust: Adjust | None
) -> Callable[[list[int], list[int]], list[int]]:
    rows = [row for row, tree in enumerate(trees) for _ in range(len(tree) + 1)]
    nodes = [node for tree in trees for node in range(ROOT, len(tree))]
    chosen = _picked_on_the_way(rule, trees, verified, adjust)(rows, nodes)
    table = dict(zip(zip(rows, nodes, strict=True), chosen, strict=True))
    return lambda rows, nodes: [table[where] for where in zip(rows, nodes, strict=True)]
