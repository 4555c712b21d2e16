"""Weights of the features of calibrated trees, fitted by maximum likelihood under a weak prior.

Every position of the base model's own text, and every slot of its lattice that a tree can reach, is one observation:
after the text and the right tokens of the slots before, one of the slot's arcs was right, or none. The weights of a
slot maximise the probability of all of them. This is a concave problem, so the result does not depend on the start of
the search. All positions after the lattice, where copies continue, share one row of weights; and so do all positions
where there is no lattice, for a model without heads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

import fst
from fst.processors import ignore
from fst.search import FEATURES
from latticebpd.checks import expect
from latticebpd.drafters.empty_lattices import EMPTY
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import PADDING
from latticebpd.lattices.texts import Texts
from latticebpd.measuring.examples import Paths, draw_examples, lattices_fingerprint, numbered
from latticebpd.measuring.lattice_files import blocks, text_numbers
from latticebpd.scoring.calibrated import TextIndexes
from latticebpd.scoring.calibration import Calibration
from latticebpd.scoring.ngram import padded_histories
from latticebpd.scoring.rescoring import check_vocabulary
from latticebpd.scoring.weights import TEXT

BINS = 20
VARIANCE = 10.0
"""Of a Gaussian prior of the weights, which decides on features that the observations hardly show."""
FURTHER = 16
"""Positions after each lattice that are observed."""
NOT_DRAFTED = FEATURES.index("not_drafted")
OUTSIDE = FEATURES.index("outside")
NEVER = -1e3
"""Weight of copies where they are not to be drafted."""

PROPOSALS = 4
"""Of an n-gram model at each position, for a model without heads; more gain nothing measurable."""

Observation: TypeAlias = tuple[np.ndarray, int]
"""Features of a slot's arcs, and which one is right."""
Slots = dict[int, list[Observation]]
"""Observations of every slot."""


@dataclass(frozen=True, eq=False)
class Observations:
    """One slot's. features: ``[n, arcs, features]`` float32. is_arc: ``[n, arcs]``. right: ``[n]`` the right arc."""

    features: Tensor
    is_arc: Tensor
    right: Tensor

    @classmethod
    def of(cls, rows: Sequence[Observation], copies: bool) -> Observations:
        """Without ``copies`` these are no arcs: where a copy was right, ``outside`` is."""
        width = max((len(features) for features, _ in rows), default=1)
        features, is_arc = np.zeros((len(rows), width, len(FEATURES)), np.float32), np.zeros((len(rows), width), bool)
        for row, (known, _) in enumerate(rows):
            features[row, : len(known)], is_arc[row, : len(known)] = known, True
        right = np.array([right for _, right in rows], np.int64)
        if not copies:
            is_copy = features[:, :, NOT_DRAFTED] > 0
            right = np.where(is_copy[np.arange(len(rows)), right], features[:, :, OUTSIDE].argmax(axis=1), right)
            is_arc &= ~is_copy
        return cls(torch.from_numpy(features), torch.from_numpy(is_arc), torch.from_numpy(right))

    def log_probs(self, weights: Tensor) -> Tensor:
        """``[n, arcs]``"""
        return torch.log_softmax((self.features @ weights).masked_fill(~self.is_arc, -torch.inf), dim=1)

    def loss(self, weights: Tensor) -> Tensor:
        """Nats of all observations together."""
        return torch.nn.functional.nll_loss(self.log_probs(weights), self.right, reduction="sum")


@dataclass(frozen=True, eq=False)
class Reliability:
    """Of arcs on texts that the weights were not fitted to, by predicted probability.

    predicted, observed: ``[bins]`` means; count: ``[bins]`` arcs.
    """

    predicted: np.ndarray
    observed: np.ndarray
    count: np.ndarray


def calibrate(
    paths: Paths,
    lm: fst.NgramModel | None,
    examples: int = 100,
    positions: int = 6000,
    seed: int = 0,
    features: Sequence[str] = FEATURES,
    on_lattice: Callable[[], object] = ignore,
) -> tuple[Calibration, Reliability]:
    """Weights for the lattices of a drafter and an n-gram model, fitted to random examples; ValueError for fewer than
    two, no lattice, or a model of another vocabulary.

    The nats per token are cross-validated: weights fitted to either half of the examples are measured on the other.

    paths: lattice files, or directories of them, with contexts that reach back to the beginning of each text.
    examples: texts, or lattices where texts are not known, at most. positions: random lattices of them, at most.
    features: those with a weight; the others' is 0.
    """
    unit, drawn = draw_examples(paths, examples, seed)
    expect(len(drawn) >= 2, f"at least two {unit}s to calibrate on", len(drawn))
    unknown = sorted(set(features) - set(FEATURES))
    expect(not unknown, f"features among {', '.join(FEATURES)}", ", ".join(unknown))
    rng = np.random.default_rng(seed)
    halves: tuple[Slots, Slots] = defaultdict(list), defaultdict(list)
    half_of = {example: number % 2 for number, example in enumerate(rng.permutation(drawn).tolist())}
    texts = text_numbers(paths)[1]
    share, slots, width = positions / (len(drawn) if texts is None else np.isin(texts, drawn).sum()), 0, 0
    indexes, drafters = TextIndexes(fst.TextIndex), set[str | None]()
    for lattices, row, example in chosen(paths, unit, drawn):
        slots, width = lattices.tokens.shape[1:]
        drafters.add(lattices.drafter)
        check_vocabulary(lm, lattices.fingerprint, lattices.vocab_size, "the lattices' model")
        if rng.random() < share:
            for slot, observed in enumerate(_observations(lattices, row, lm, indexes)):
                halves[half_of[example]][min(slot, slots)].append(observed)
        on_lattice()
    wanted = f"positions of both halves of the {unit}s"
    expect(all(half[0] for half in halves), wanted, "none of one", "raise --positions")
    allowed = torch.tensor([float(name in features) for name in FEATURES])
    weights, costs, sums = [], [], np.zeros((3, BINS))
    copies = "not_drafted" in features
    further = copies and all(half[slots] for half in halves)
    for slot in [slot for slot in range(slots + further) if halves[0][slot] or halves[1][slot]]:
        fitted = _crossed(halves[0][slot], halves[1][slot], allowed, copies)
        weights.append(fitted.weights)
        costs.append(fitted.nats)
        sums += fitted.bins
    fingerprint = lattices_fingerprint(paths)
    record = (tuple(weights), unit, drawn, seed, fingerprint, width, tuple(costs), further)
    calibration = Calibration(*record, drafter=drafters.pop() if len(drafters) == 1 else None)
    return calibration, _reliability(sums)


def calibrate_texts(
    texts: Texts,
    lm: fst.NgramModel | None,
    examples: int = 100,
    positions: int = 6000,
    seed: int = 0,
    on_text: Callable[[], object] = ignore,
) -> tuple[Calibration, Reliability]:
    """Weights for a model without heads, whose trees are of the n-gram model and the text, fitted to random ones of its
    own texts; ValueError for fewer than two.

    texts: prompts and what the model wrote after them. positions: random ones of what it wrote, at most. Otherwise as
    `calibrate`.
    """
    expect(len(texts) >= 2, "at least two texts to calibrate on", len(texts))
    check_vocabulary(lm, None, None, "the texts' model")
    rng = np.random.default_rng(seed)
    drawn = rng.permutation(len(texts))[:examples].tolist()
    begins = {number: int(texts.prompt_lengths[number]) + 1 for number in drawn}  # the next token is known by then
    share = positions / max(1, sum(len(texts[number]) - begin for number, begin in begins.items()))
    halves: tuple[list[Observation], list[Observation]] = ([], [])
    for half, number in enumerate(drawn):
        text, index, read = texts[number].astype(np.int64), fst.TextIndex(), 0
        for position in range(begins[number], len(text)):
            if rng.random() < share:
                index.extend(text[read:position])
                read = position
                halves[half % 2].extend(_after(text, position, index, lm))
        on_text()
    expect(all(halves), "positions of both halves of the texts", "none of one", "raise --positions")
    fitted = _crossed(*halves, torch.ones(len(FEATURES)), copies=True)
    record = (texts.fingerprint(), 0, (fitted.nats,))
    proposals = 0 if lm is None else PROPOSALS
    calibration = Calibration((fitted.weights,), TEXT, tuple(sorted(drawn)), seed, *record, proposals=proposals)
    return calibration, _reliability(fitted.bins)


@dataclass(frozen=True, eq=False)
class _Fitted:
    """Weights fitted to all observations; nats of one, and `_binned` counts, by weights of the other half."""

    weights: tuple[float, ...]
    nats: float
    bins: np.ndarray


def _crossed(first: list[Observation], second: list[Observation], allowed: Tensor, copies: bool) -> _Fitted:
    parts = [Observations.of(each, copies) for each in (first, second)]
    crossed = [_fitted(observed, allowed) for observed in reversed(parts)]
    nats = sum(float(observed.loss(own)) for observed, own in zip(parts, crossed, strict=True))
    bins = sum(_binned(observed, own) for observed, own in zip(parts, crossed, strict=True))
    weights = _fitted(Observations.of(first + second, copies), allowed).tolist()
    return _Fitted(tuple(weights), round(nats / (len(first) + len(second)), 4), np.asarray(bins))


def _reliability(sums: np.ndarray) -> Reliability:
    total = sums[2].clip(min=1)
    return Reliability(sums[0] / total, sums[1] / total, sums[2].astype(np.int64))


def chosen(paths: Paths, unit: str, examples: Sequence[int]) -> Iterator[tuple[LatticeSet, int, int]]:
    """Block, row in it and number of the example of every lattice of the examples, in order."""
    for block, numbers in numbered(blocks(paths), unit):
        for row in np.flatnonzero(np.isin(numbers, examples)).tolist():
            yield block, row, int(numbers[row])


def _observations(
    lattices: LatticeSet, row: int, lm: fst.NgramModel | None, indexes: TextIndexes[fst.TextIndex]
) -> list[Observation]:
    """Slot by slot, the features of the arcs and which one is right: the last, ``outside``, where none is.

    They end where a tree can no longer follow the text: later slots are never drafted.
    """
    text, path = np.array(lattices.context_of(row), np.int64), following(lattices, row)
    if not len(path):
        return []
    index, slots = indexes.of([text])[0], lattices.tokens.shape[1]
    transitions = None if lattices.transitions is None else lattices.transitions[row]
    history, beyond = padded_histories([text])[0], max(len(path) - slots, 0)
    arcs = (lattices.tokens[row], lattices.log_probs[row])
    return _along(path, *fst.describe_arcs(*arcs, lm, index, path, history, beyond, transitions))


def _after(text: np.ndarray, position: int, index: fst.TextIndex, lm: fst.NgramModel | None) -> list[Observation]:
    """The observations of the tokens from a position on, without a lattice."""
    path, history = text[position : position + FURTHER], padded_histories([text[:position]])[0]
    arcs = (EMPTY.tokens, EMPTY.log_probs, lm, index, path, history, len(path))
    return _along(path, *fst.describe_arcs(*arcs, proposals=0 if lm is None else PROPOSALS))


def _along(path: np.ndarray, features: np.ndarray, tokens: np.ndarray, sizes: np.ndarray) -> list[Observation]:
    """The observations of a path, as far as a tree can follow it."""
    observations: list[Observation] = []
    begin, reached = 0, True
    for token, size in zip(path.tolist(), sizes.tolist(), strict=True):
        if not reached or size == 1:
            break
        right = np.flatnonzero(tokens[begin : begin + size] == token)
        observations.append((features[begin : begin + size], int(right[0]) if len(right) else size - 1))
        begin, reached = begin + size, len(right) > 0
    return observations


def following(lattices: LatticeSet, row: int) -> np.ndarray:
    """The base model's continuation: up to the lattice's end, and beyond it from the text's next lattices."""
    path = lattices.continuation[row]
    if lattices.sequence is not None:
        later = slice(row + 1, row + 1 + FURTHER)
        is_same_text = lattices.sequence[later] == lattices.sequence[row]
        path = np.concatenate([path, lattices.continuation[later, -1][is_same_text]])
    return path[~np.logical_or.accumulate(path == PADDING)]


def _fitted(observed: Observations, allowed: Tensor) -> Tensor:
    weights = (torch.tensor([float(name in ("log_prob", "mass")) for name in FEATURES]) * allowed).requires_grad_()
    optimizer = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (observed.loss(weights * allowed) + (weights**2).sum() / (2 * VARIANCE)) / len(observed.right)
        loss.backward()
        return loss

    if len(observed.right):
        optimizer.step(closure)
    out = (weights * allowed).detach()
    if not allowed[NOT_DRAFTED]:
        out[NOT_DRAFTED] = NEVER
    return out


def _binned(observed: Observations, weights: Tensor) -> np.ndarray:
    """``[3, bins]`` by predicted probability: sum of predictions, right arcs, arcs."""
    with torch.no_grad():
        predicted = observed.log_probs(weights).exp()
    arcs = observed.is_arc & (observed.features[:, :, OUTSIDE] == 0)
    right = torch.zeros_like(observed.is_arc).scatter_(1, observed.right[:, None], True)[arcs].double().numpy()
    values = predicted[arcs].double().numpy()
    bins = np.minimum((values * BINS).astype(int), BINS - 1)
    return np.stack([np.bincount(bins, weights=each, minlength=BINS) for each in (values, right, np.ones_like(values))])
