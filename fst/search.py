"""Exact searches of a sausage lattice under an n-gram model: the p best paths, and the best-first prefix tree.

A *sausage lattice* is the automaton with states 0..slots and, from state t to t + 1, one arc for each of the slot's
tokens: ``tokens [slots, k]`` ids, ``log_probs [slots, k]`` natural logs. Token -1 pads a ragged slot, and a token of
log-probability -1e30 or below (a mask: -inf, the lowest float) counts as absent. Composed with a backoff n-gram model
under failure semantics it stays deterministic, so distinct paths are distinct token sequences.

``score(path) = sum over slots, from the left, of log_prob + alpha * ln p_LM(token | context and the tokens before)``

in float64. Paths are ordered by falling score; equal scores by rising token sequence. Scores nearer to each other than
float64's rounding may be swapped.

A lattice may carry *transitions* ``[slots - 1, k, k]`` float32, as drafters with a bigram head have them:
``transitions[s, i, j]`` is added to the log-probability of column j of slot s + 1 after column i of slot s. One of
-1e30 or below is never taken, so that a prefix may lead nowhere: it is still a prefix, but there may be fewer paths,
or none.

A *constraint* is a `ConstraintAutomaton` and the number of its state before the lattice; batches take one, or None,
for each lattice. Only paths of legal tokens are searched, exactly: where states of the automaton are equal, paths
merge. What a token costs there is subtracted from its log-probability.

``context`` holds the tokens before the lattice. None of them (an empty context) means no history, never an implied
``<s>``; a token that the model does not know counts as its ``<unk>`` or, where it has none, wipes the history out.
``lm`` is anything with a ``core`` (`fst.NgramModel`), or None; with ``alpha`` 0 it is not looked at. ``alpha`` and
``log_probs`` and ``transitions`` are 1e30 (`LARGEST_WEIGHT`) at most, a step costs 256,000 at most: every score is a
finite number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fst import _core
from fst.automaton import token_sequence
from fst.lattices import Floats, Ints
from fst.model import NgramModel
from fst.printable import expect, expect_count
from fst.processors import available_processors

LARGEST_WEIGHT = _core.LARGEST_WEIGHT
TextIndex = _core.TextIndex
"""The n-grams of one text, of up to eleven tokens, counted as it grows by ``extend(tokens)``."""
_OF_ARCS = (
    "log_prob", "not_drafted", "ngram", "ngram_prob", "bigram", "trigram", "longer_ngram",
    "seen", "match_1", "match_2", "match_3", "match_5", "match_8", "match_10", "share_seen", "share_1", "share_longer",
    "share_prob", "outside", "mass",
)  # fmt: skip
FEATURES = (*_OF_ARCS, *(f"matched_{name}" for name in _OF_ARCS))
"""The features of a token in a calibrated tree, in the order of its weights.

    log_prob        the drafter's, with the transition from the token before where the lattice has them and that is no
                    copy, -30 at the least; 0 for a copy that the slot lacks
    not_drafted     1 for such a copy
    ngram           ln p of the n-gram model, -30 at the least; ngram_prob: p
    bigram ...      1 where the n-gram model has the token after a history of one token, two, more
    seen            1 where the text has the token, but not after the path's last one
    match_1 ...     1 where the text has the token after the path's last 1, 2, 3, 4-5, 6-8, 9-10 tokens and no more
    share_seen ...  ln of its share of the text's tokens after that match: where seen, after one token, after more
    share_prob      the share itself, after two tokens or more
    outside         1 for all tokens that are no arc
    mass            ln of the drafter's probability of what the slot lacks; 0 for arcs
    matched_...     each again in slots of which the text has a token after the path's last two or more; 0 elsewhere
"""


class ConstraintAutomaton(Protocol):
    """What searches ask an automaton over tokens, each state at most once a search."""

    weighted: bool
    """Whether ``costs`` may be other than 0."""

    def legal(self, state: int) -> NDArray[np.bool_]:
        """``[vocab]``: the tokens that may follow."""

    def successors(self, state: int, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """``[n]``: the state after each of n legal tokens."""

    def costs(self, state: int, tokens: NDArray[np.int64]) -> NDArray[np.floating[Any]]:
        """``[n]``: what each of n legal tokens costs."""

    def forced(self, state: int) -> NDArray[np.int64]:
        """The tokens that must follow: trees then go on with the first alone."""


Constraints: TypeAlias = "Sequence[tuple[ConstraintAutomaton, int] | None] | None"


def nbest_paths(
    tokens: ArrayLike,
    log_probs: ArrayLike,
    lm: NgramModel | None = None,
    p: int = 16,
    alpha: float = 1.0,
    context: Sequence[int] = (),
    transitions: ArrayLike | None = None,
    constraint: tuple[ConstraintAutomaton, int] | None = None,
) -> tuple[Ints, Floats]:
    """The p best paths: ``tokens [p', slots]``, ``scores [p']``, best first, distinct; p' = min(p, number of paths).

    Where no path is legal to the lattice's end, paths are as long as the longest that is; tokens -1 follow.
    """
    lattice = lattice_arrays(tokens, log_probs, transitions, 2)
    text = token_sequence("a context", context)
    constraints = None if constraint is None else [constraint]
    return _core.nbest(lattice, _model(lm, alpha), expect_count("p", p), alpha, text, 1, constraints)[:2]


def nbest_paths_batch(
    tokens: ArrayLike,
    log_probs: ArrayLike,
    lm: NgramModel | None = None,
    p: int = 16,
    alpha: float = 1.0,
    contexts: ArrayLike | None = None,
    threads: int | None = None,
    transitions: ArrayLike | None = None,
    constraints: Constraints = None,
) -> tuple[Ints, Floats, Ints]:
    """`nbest_paths` of n lattices: ``tokens [n, p', slots]``, ``scores [n, p']`` and ``counts [n]``.

    tokens, log_probs: ``[n, slots, k]``. transitions: ``[n, slots - 1, k, k]``, for all lattices or none.
    contexts: ``[n, c]``, -1 pads on the left. threads: at most this many, by default one for each processor that the
    process may use; the result does not depend on it. Lattice i has ``counts[i]`` paths; tokens -1 and scores -inf
    pad the rest.
    """
    lattices = lattice_arrays(tokens, log_probs, transitions, 3)
    texts = _contexts(contexts, len(lattices[0]))
    model, number = _model(lm, alpha), expect_count("p", p)
    return _core.nbest(lattices, model, number, alpha, texts, _threads(threads), constraints)


def best_first_tree(
    tokens: ArrayLike,
    log_probs: ArrayLike,
    lm: NgramModel | None = None,
    num_nodes: int = 64,
    alpha: float = 1.0,
    context: Sequence[int] = (),
    transitions: ArrayLike | None = None,
    constraint: tuple[ConstraintAutomaton, int] | None = None,
) -> tuple[Ints, Ints, Floats]:
    """The num_nodes most probable prefixes of paths: ``tokens [n]``, ``parents [n]``, ``log_probs [n]``, best first.

    At every slot a path goes on to the slot's tokens with probability
    ``softmax(log_prob + transition + alpha * ln p_LM)``, the softmax taken over the slot's tokens given that path; a
    prefix weighs the product along it, and ``log_probs`` is that product's logarithm. ``parents[i] < i``, -1 is the
    root (no token). Equal prefixes are ordered by their tokens, a prefix before its continuations.

    Under a constraint the softmax is over the slot's legal tokens. A token that is forced follows alone, whether the
    slot has it or not, with probability exp(-0.01), or 1 if no other is legal; after the last slot too.
    """
    lattice = lattice_arrays(tokens, log_probs, transitions, 2)
    nodes, text = expect_count("num_nodes", num_nodes), token_sequence("a context", context)
    constraints = None if constraint is None else [constraint]
    return _core.tree(lattice, _model(lm, alpha), nodes, alpha, text, 1, constraints)[:3]


def best_first_tree_batch(
    tokens: ArrayLike,
    log_probs: ArrayLike,
    lm: NgramModel | None = None,
    num_nodes: int = 64,
    alpha: float = 1.0,
    contexts: ArrayLike | None = None,
    threads: int | None = None,
    transitions: ArrayLike | None = None,
    constraints: Constraints = None,
) -> tuple[Ints, Ints, Floats, Ints]:
    """`best_first_tree` of n lattices: ``tokens``, ``parents``, ``log_probs`` ``[n, nodes]`` and ``counts [n]``.

    tokens, log_probs, transitions, contexts, threads: as for `nbest_paths_batch`. Tree i has
    ``counts[i]`` nodes; tokens and parents -1 and log-probabilities -inf pad the rest.
    """
    lattices = lattice_arrays(tokens, log_probs, transitions, 3)
    nodes = expect_count("num_nodes", num_nodes)
    texts = _contexts(contexts, len(lattices[0]))
    return _core.tree(lattices, _model(lm, alpha), nodes, alpha, texts, _threads(threads), constraints)


def calibrated_tree_batch(
    tokens: ArrayLike,
    log_probs: ArrayLike,
    lm: NgramModel | None,
    texts: Sequence[TextIndex],
    weights: ArrayLike,
    num_nodes: int = 64,
    contexts: ArrayLike | None = None,
    threads: int | None = None,
    further: int = 0,
    transitions: ArrayLike | None = None,
    proposals: int = 0,
    constraints: Constraints = None,
) -> tuple[Ints, Ints, Floats, Ints]:
    """`best_first_tree_batch` under calibrated probabilities of a slot's tokens, of copies and of all other tokens.

    At every slot a path goes on to a token with probability ``exp(w . f) / sum of exp(w . f)``, the sum taken over
    the slot's tokens, up to eight *copies* that the slot lacks, and *outside*, which stands for all other tokens.
    ``f`` are the `FEATURES` of each.

    tokens, log_probs: ``[n, slots, k]``; probabilities, whose sum over a slot leaves the mass outside. Without slots,
        ``[n, 0, k]``, n-gram model and texts draft alone.
    texts: for each lattice all the tokens before it, the next token included.
    weights: ``[slots, features]``, the last row for all further slots; finite, from -1e6 to 1e6. With ``further`` the
        last row is that of slots after the lattice, and the row before it is for all further slots of the lattice;
        of a lattice without slots, all rows are those of the slots after it.
    num_nodes, contexts, threads: as for `best_first_tree_batch`; a context is as much of the text as ``lm`` looks back
        on.
    further: slots after the lattice's last, where only copies and proposals are drafted.
    proposals: likeliest tokens of the n-gram model in each of these slots, from 0 to 64; only tokens that it has after
        a history of one token or more.
    transitions: as for `best_first_tree_batch`; what is outside does not depend on them.
    constraints: all arcs are then legal ones, and outside is multiplied by the share of all other tokens that is legal;
        where at most 16 tokens are legal, all are arcs. A forced token follows alone, as in `best_first_tree_batch`.
    """
    lattices = lattice_arrays(tokens, log_probs, transitions, 3)
    table = np.asarray(weights, np.float64)
    expect(table.ndim == 2 and table.shape[1] == len(FEATURES), f"weights [slots, {len(FEATURES)}]", table.shape)
    nodes, model = expect_count("num_nodes", num_nodes), None if lm is None else lm.core
    histories = _contexts(contexts, len(lattices[0]))
    return _core.calibrated_tree(
        lattices, model, list(texts), table, nodes, further, proposals, histories, _threads(threads), constraints
    )


def describe_arcs(
    tokens: ArrayLike,
    log_probs: ArrayLike,
    lm: NgramModel | None,
    text: TextIndex,
    path: Sequence[int] | Ints,
    context: Sequence[int] | Ints = (),
    further: int = 0,
    transitions: ArrayLike | None = None,
    proposals: int = 0,
) -> tuple[NDArray[np.float32], Ints, Ints]:
    """The features that `calibrated_tree_batch` gives arcs on a path: ``[arcs, features]``; tokens and sizes.

    The arcs of a slot are adjacent, by rising token, outside (token -1) last; ``sizes`` counts those of each slot of
    the path.
    """
    lattice = lattice_arrays(tokens, log_probs, transitions, 2)
    following = token_sequence("a path", path)
    lowest = following.min(initial=0)
    expect(lowest >= 0, "a path of token ids", lowest)
    model, before = None if lm is None else lm.core, token_sequence("a context", context)
    return _core.describe(lattice, model, text, following, further, proposals, before)


def arc_posteriors(
    tokens: ArrayLike,
    log_probs: ArrayLike,
    lm: NgramModel | None = None,
    alpha: float = 1.0,
    context: Sequence[int] = (),
    transitions: ArrayLike | None = None,
) -> Floats:
    """``[slots, k]`` natural log of each arc's posterior under lattice and model (Kim 2024, figure 4).

    A path's probability is ``exp(score) / Z``, ``Z`` the sum over all paths; an arc's posterior is that of the paths
    that take it, -inf where there is none. Forward and backward sums give it exactly, however many paths there are.
    """
    lattice = lattice_arrays(tokens, log_probs, transitions, 2)
    return _core.posteriors(lattice, None if lm is None else lm.core, alpha, token_sequence("a context", context))


def lattice_arrays(
    tokens: ArrayLike, log_probs: ArrayLike, transitions: ArrayLike | None, axes: int
) -> tuple[Ints, Floats, NDArray[np.float32] | None]:
    """A sausage, ``axes`` 2, or several, 3, as the core takes them; ValueError where their shapes differ."""
    ids, scores = _ids(tokens, np.int32), np.asarray(log_probs, dtype=np.float64)
    if ids.ndim != axes or ids.shape != scores.shape:
        shape = "[slots, k]" if axes == 2 else "[n, slots, k]"
        raise ValueError(f"expected tokens and log_probs of one shape {shape}, got {ids.shape} and {scores.shape}")
    with np.errstate(over="ignore"):  # what is beyond float32 is beyond the largest weight
        return ids, scores, None if transitions is None else np.asarray(transitions, np.float32)


def _ids(tokens: ArrayLike, dtype: type[np.int32] | type[np.int64]) -> Any:
    array = np.asarray(tokens)
    if array.dtype == dtype:
        return array
    expect(not array.size or array.dtype.kind in "iu", "integer token ids", array.dtype)
    if array.size and (array.max() >= 2**31 - 1 or array.min() < -1):
        raise ValueError(f"expected token ids from 0 to 2^31 - 2, or -1 as padding, got {array.min()} to {array.max()}")
    return array.astype(dtype)


def _contexts(contexts: ArrayLike | None, n: int) -> NDArray[np.int64]:
    array: NDArray[np.int64] = np.empty((n, 0), dtype=np.int64) if contexts is None else _ids(contexts, np.int64)
    return array if array.size else np.empty((n, 0), dtype=np.int64)


def _model(lm: NgramModel | None, alpha: float) -> _core.Model | None:
    return None if lm is None or alpha == 0 else lm.core


def _threads(threads: int | None) -> int:
    return available_processors() if threads is None else expect_count("threads", threads)
