"""Acceptance rules: which drafted tokens stay.

A rule sees the target model's logits after a node and the tokens drafted below it, and picks one token. If that token
was drafted, the walk goes on below it; if not, it is committed after the accepted path and the walk ends. ``Exact`` and
``Sampling`` pick the target model's own token, and drafts only save calls; the other rules also accept other drafted
tokens. They take the one that the target model prefers, so the accepted path never gets shorter as a rule gets more
lenient.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from latticebpd.checks import expect
from latticebpd.constraints.token_automaton import TokenAutomaton
from latticebpd.decoding.legal_choice import LegalChoice
from latticebpd.lattices.drafts import ROOT, DraftTree
from latticebpd.lattices.sausage import PADDING
from latticebpd.lattices.values import as_tensor
from latticebpd.verification.verifier import Verified

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from latticebpd.decoding.generation_config import GenerationSettings


class NodeDrafts:
    """The drafted tokens right below ``n`` nodes; ``trees`` and ``nodes`` are ``[n]``."""

    def __init__(self, trees: Sequence[DraftTree], nodes: Sequence[int]) -> None:
        self.trees, self.nodes = trees, nodes

    def __call__(self, i: int) -> np.ndarray:
        """The tokens, in the tree's order."""
        return np.asarray(self.trees[i].tokens[self.trees[i].children(self.nodes[i])])

    def log_probs(self, i: int) -> np.ndarray | None:
        """The drafter's log-probability (natural) of each token after the node; None if the tree has none."""
        tree, node = self.trees[i], self.nodes[i]
        if tree.log_probs is None:
            return None
        return np.asarray(tree.log_probs[tree.children(node)] - (0.0 if node == ROOT else tree.log_probs[node]))

    def slot(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """The lattice's slot below the node, tokens and log-probabilities (natural); empty without a lattice."""
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

        logits: ``[n, vocab]``, the target model's.
        drafted: the tokens right below each node.
        depths: ``[n]``, drafted tokens up to and including each node; 0 is the next token.
        """


def bound(rule: Acceptance, settings: GenerationSettings) -> Acceptance:
    """The rule for a decode under these settings, by its own method ``bound`` if it has one."""
    bind: Callable[[GenerationSettings], Acceptance] | None = getattr(rule, "bound", None)
    return rule if bind is None else bind(settings)


@dataclass(frozen=True)
class Exact:
    """Keep what the target model would have written: the text is greedy decoding's. Ties go to the lowest token id."""

    def choose(self, logits: Tensor, drafted: NodeDrafts, depths: Sequence[int]) -> list[int]:
        return logits.argmax(dim=-1).tolist()


class _Lenient:
    """Pick the most probable drafted token if it is accepted, else the most probable of all."""

    def accepts(self, better: int, equal: int, gap: float) -> bool:
        """Whether a token stays; ``better`` tokens are more probable, ``equal`` as probable ones have a lower id, the
        best log-probability is ``gap`` higher."""
        return True

    def choose(self, logits: Tensor, drafted: NodeDrafts, depths: Sequence[int]) -> list[int]:
        return [self.pick(row, drafted(node)) for node, row in enumerate(logits)]

    def pick(self, logits: Tensor, drafted: np.ndarray) -> int:
        """One token; ``logits`` is ``[vocab]``."""
        best = int(logits.argmax())
        if not len(drafted):
            return best
        tokens = as_tensor(np.sort(drafted).astype(np.int64)).to(logits.device)
        token = int(tokens[logits[tokens].argmax()])
        value = logits[token]
        better, equal = int((logits > value).sum()), int((logits[:token] == value).sum())
        return token if self.accepts(better, equal, float(logits[best]) - float(value)) else best


@dataclass(frozen=True)
class TopK(_Lenient):
    """Keep a drafted token that is among the target model's ``k`` best (Stern 2018, section 5.1); k = 1 is exact.

    Of equally probable tokens the one with the lowest id ranks higher.
    """

    k: int

    def __post_init__(self) -> None:
        expect(self.k >= 1, "k >= 1", self.k)

    def accepts(self, better: int, equal: int, gap: float) -> bool:
        return better + equal < self.k


@dataclass(frozen=True)
class TopBeta(_Lenient):
    """Keep a drafted token that is as probable as the ``beta``-th best, and within ``tau`` of the best log-probability.

    That is GAD++ (Xia 2022, equations 6 and 7), equality included: beta = 1 and tau = 0 are exact, but for ties.
    """

    beta: int
    tau: float

    def __post_init__(self) -> None:
        expect(self.beta >= 1 and self.tau >= 0, "beta >= 1 and tau >= 0", f"beta {self.beta} and tau {self.tau}")

    def accepts(self, better: int, equal: int, gap: float) -> bool:
        return better < self.beta and gap <= self.tau


def _absolute_difference(token: int, other: int) -> float:
    return abs(token - other)


@dataclass(frozen=True)
class Distance:
    """Keep a drafted token within ``epsilon`` of the target model's own (Stern 2018, section 5.2).

    epsilon: greatest distance, >= 0; Stern takes 2 for pixel intensities.
    metric: distance of two token ids; by default their absolute difference, for tokens that are numbers.
    """

    epsilon: float
    metric: Callable[[int, int], float] = _absolute_difference

    def __post_init__(self) -> None:
        expect(self.epsilon >= 0, "epsilon >= 0", self.epsilon)

    def choose(self, logits: Tensor, drafted: NodeDrafts, depths: Sequence[int]) -> list[int]:
        chosen = []
        for node, best in enumerate(logits.argmax(dim=-1).tolist()):
            distances = [(self.metric(token, best), token) for token in drafted(node).tolist()]
            distance, token = min(distances, default=(0.0, best))
            chosen.append(token if distance <= self.epsilon else best)
        return chosen


@dataclass(frozen=True)
class MinimumBlock:
    """Commit at least ``length`` tokens a call where the draft has them (Stern 2018, section 5.3).

    Down to that length the most probable drafted token is kept; below it ``otherwise`` decides. The next token counts,
    as in the paper: length 1 changes nothing.
    """

    length: int
    otherwise: Acceptance = field(default_factory=Exact)

    def __post_init__(self) -> None:
        expect(self.length >= 1, "a length >= 1", self.length)

    def choose(self, logits: Tensor, drafted: NodeDrafts, depths: Sequence[int]) -> list[int]:
        chosen = self.otherwise.choose(logits, drafted, depths)
        for node, depth in enumerate(depths):
            if depth < self.length - 1 and len(tokens := drafted(node)) and chosen[node] not in tokens:
                chosen[node] = _Lenient().pick(logits[node], tokens)
        return chosen

    def bound(self, settings: GenerationSettings) -> MinimumBlock:
        return replace(self, otherwise=bound(self.otherwise, settings))


class Sampling:
    """Sample each node's next token from the target model's distribution and follow the drafted token that equals it.

    Every token is one draw from the distribution of ``generate(do_sample=True)`` given the text before it, so the texts
    are distributed exactly as the target model's.

    temperature, top_k, top_p: as for ``generate()``; None means the generation config's or, without one,
        ``transformers``' default, which for ``top_k`` is 50. 1, 0 and 1 leave a filter out.
    generator: source of randomness, on the model's device, one number a token. By default torch's own, of which tokens
        are drawn as ``generate()`` draws them, one number for each token of the vocabulary.
    others: ``min_p``, ``typical_p``, ``epsilon_cutoff``, ``eta_cutoff``, ``top_h``, as for ``generate()``.
    """

    def __init__(
        self,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
        **others: float | None,
    ) -> None:
        from latticebpd.decoding.generation_config import WARPERS, GenerationSettings

        if temperature is not None and not temperature > 0:
            raise ValueError(f"expected a temperature > 0, got {temperature}; take Exact() for greedy decoding")
        if unknown := sorted(others.keys() - set(WARPERS)):
            raise ValueError(f"expected filters {', '.join(WARPERS)}, got {', '.join(unknown)}")
        self.generator = generator
        temperature = None if temperature is None else float(temperature)
        self.arguments = {"temperature": temperature, "top_k": top_k, "top_p": top_p, **others}
        self.warpers = GenerationSettings().warpers(**self.arguments)

    def bound(self, settings: GenerationSettings) -> Sampling:
        rule = copy.copy(self)
        rule.warpers = settings.warpers(**self.arguments)
        return rule

    def choose(self, logits: Tensor, drafted: NodeDrafts, depths: Sequence[int]) -> list[int]:
        import torch

        probabilities = self.probabilities(logits)
        if self.generator is None:
            return torch.multinomial(probabilities, 1)[:, 0].tolist()
        reached = probabilities.double().cumsum(dim=-1)
        drawn = torch.rand(len(reached), 1, generator=self.generator, dtype=reached.dtype, device=reached.device)
        tokens = torch.searchsorted(reached, drawn * reached[:, -1:], right=True)
        last = torch.searchsorted(reached, reached[:, -1:].contiguous())  # where rounding reaches the sum
        return torch.minimum(tokens, last)[:, 0].tolist()

    def probabilities(self, logits: Tensor) -> Tensor:
        """``[n, vocab]``, the distribution of each node's next token."""
        import torch

        no_ids: Any = torch.empty(len(logits), 0, dtype=torch.long)  # warpers read scores only
        return self.warpers(no_ids, logits.float()).softmax(dim=-1)


class SpeculativeSampling(Sampling):
    """Keep a drafted token with probability min(1, p/q), else draw from the rest of p (Leviathan 2023, SpecInfer).

    p is the target model's distribution, as under ``Sampling``, and so the texts'. q is the draft's: its slot of the
    tree's lattice, scaled to sum 1. So the drafter must *draw* its drafts slot by slot, independently, and its tree
    must hold them in that order; siblings are tried one after the other, without replacement. Drafts that are chosen
    instead (best paths or trees, copies), as by this package's drafters, have q = 1: for them ``Sampling`` is this
    rule, and no rule that preserves the distribution accepts more of a given tree. ValueError for a drafted token that
    its slot does not hold.
    """

    def choose(self, logits: Tensor, drafted: NodeDrafts, depths: Sequence[int]) -> list[int]:
        nodes = enumerate(self.probabilities(logits))
        return [self._try_in_turn(p.double(), drafted(node), *drafted.slot(node)) for node, p in nodes]

    def _try_in_turn(self, p: Tensor, tokens: np.ndarray, arcs: np.ndarray, log_probs: np.ndarray) -> int:
        """One token of ``p [vocab]``; ``tokens`` were drawn without replacement from the slot's ``arcs``."""
        import torch

        drawn, remedy = np.isin(tokens, arcs).all(), "take Sampling for drafts that are not drawn"
        expect(drawn, "drafts drawn from their lattice's slots", "others", remedy)
        q = torch.zeros_like(p)
        q[torch.from_numpy(arcs).long().to(p.device)] = torch.from_numpy(log_probs).to(p).softmax(dim=0)
        for token in tokens.tolist():
            if float(torch.rand((), generator=self.generator, device=p.device)) * q[token] < p[token]:
                return int(token)
            p = (p - q).clamp(min=0)
            q[token] = 0
            p, q = p / p.sum(), q / q.sum()
        return int(torch.multinomial(p, 1, generator=self.generator))


Positions = Sequence[tuple[TokenAutomaton, int] | None]
"""For each row its constraint's automaton and the state before its tree; None for a row without a constraint."""
Adjust = Callable[[list[int], Any], Any] | None
"""A row's logits processors: tokens of a path, the logits ``[vocab]`` after it -> processed logits; None: no such."""


def accepted_paths(
    rule: Acceptance | Sequence[Acceptance],
    trees: Sequence[DraftTree],
    verified: Verified,
    adjust: Sequence[Adjust] | None = None,
    automata: Positions | None = None,
) -> tuple[list[list[int]], list[int]]:
    """Walk down every row's tree by the rule.

    rule: picks a token at each node; one for all rows, or one for each.
    adjust: applied to a node's logits before the rule, one for each row.
    automata: of rows whose tokens must be legal; ``trees`` hold legal tokens only.
    Returns for each row the accepted nodes, a path from the root, and the token that follows them.
    """
    rules = rule if isinstance(rule, Sequence) else [rule] * len(trees)
    positions = [None] * len(trees) if automata is None else [*automata]
    adjusts = [None] * len(trees) if adjust is None else [*adjust]
    is_adjusted = [each is not None for each in adjusts]
    constrained = any(position is not None for position in positions)

    def by_rules(rows: Sequence[int], nodes: Sequence[int], logits: Tensor) -> list[int]:
        depths = [int(trees[row].depths[node]) if node != ROOT else 0 for row, node in zip(rows, nodes, strict=True)]
        groups: dict[int, list[int]] = {}  # rows with the same rule choose together
        for i, row in enumerate(rows):
            groups.setdefault(id(rules[row]), []).append(i)
        tokens = [0] * len(rows)
        for group in groups.values():
            own = logits if len(groups) == 1 else logits[group]
            drafts = NodeDrafts([trees[rows[i]] for i in group], [nodes[i] for i in group])
            chosen_here = rules[rows[group[0]]].choose(own, drafts, [depths[i] for i in group])
            for i, token in zip(group, chosen_here, strict=True):
                tokens[i] = token
        return tokens

    def adjusted(rows: Sequence[int], nodes: Sequence[int], logits: Tensor) -> Tensor:
        if not any(is_adjusted[row] for row in rows):
            return logits
        import torch

        lines = list(logits.float())
        for i, (row, node) in enumerate(zip(rows, nodes, strict=True)):
            if (own := adjusts[row]) is not None:
                lines[i] = own(trees[row].tokens[trees[row].path(node)].tolist(), lines[i])
        return torch.stack(lines)

    is_greedy = [type(each) is Exact and own is None for each, own in zip(rules, adjusts, strict=True)]
    differ = verified.best_of is not None and len(set(is_greedy)) > 1  # greedy rows need no logits, and others do

    def choose_any(rows: Sequence[int], nodes: Sequence[int]) -> list[int]:
        columns = [node + 1 for node in nodes]
        if verified.best_of is not None and all(is_greedy[row] for row in rows):
            return verified.best_of(rows, columns)
        return by_rules(rows, nodes, adjusted(rows, nodes, verified.logits_of(rows, columns)))

    choose: Callable[[list[int], list[int]], list[int]] = choose_any
    if constrained or differ:
        choose = LegalChoice(trees, positions, verified, is_greedy, is_adjusted, adjusted, by_rules)
    chosen: dict[tuple[int, int], int] = {}
    if not constrained and not any(is_adjusted) and verified.best_of is None and verified.hidden.device.type != "cpu":
        # One projection for all nodes costs less than a transfer per step. On a CPU, and with processors, logits are
        # computed for the nodes on the way only, a fraction of the work.
        pairs = [(row, node) for row, tree in enumerate(trees) for node in range(ROOT, len(tree))]
        chosen = dict(zip(pairs, choose(*map(list, zip(*pairs, strict=True))), strict=True))
    paths: list[list[int]] = [[] for _ in trees]
    next_tokens = [0] * len(trees)
    walking = list(range(len(trees)))
    while walking:
        ends = [paths[row][-1] if paths[row] else ROOT for row in walking]
        tokens = [chosen[pair] for pair in zip(walking, ends, strict=True)] if chosen else choose(walking, ends)
        still_walking = []
        for row, end, token in zip(walking, ends, tokens, strict=True):
            next_tokens[row] = token
            if (child := trees[row].edges.get((end, token))) is not None:
                paths[row].append(child)
                still_walking.append(row)
        walking = still_walking
    return paths, next_tokens
