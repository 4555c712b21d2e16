"""The backoff automaton of an n-gram model: from an `NgramTable` and back.

States are the contexts that matter: the empty one (the *unigram state*), and every n-gram that some longer n-gram
continues or whose backoff weight is not 1. Any other history is represented by its longest suffix that is a state.

    arcs      (h, w, cost of w after h, longest suffix of hw that is a state) for every n-gram hw
    failure   (h, 0, cost of h's backoff weight, longest proper suffix of h that is a state), one for each h but the empty
    final     cost of ``</s>`` after h; infinite where there is no such n-gram
    start     the history ``<s>``; the unigram state where the model has no such context

The label of a token is its id + 1, that of ``<unk>`` follows the largest one. A cost is -log p, natural, float32.
The arc labelled 0 is taken only where no other matches (it is a *failure* arc), and sorting by label puts it first.

Source: Allauzen, Mohri and Roark 2003; the conventions are OpenGrm NGram's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fst import _core
from fst.const_file import ALIGNMENT, ARC, STATE, Records
from fst.table import BOS, EOS, UNK, NgramTable

LOG_ZERO = -1000.0
"""Natural log that stands for log 0, so that no infinity enters a sum."""

END_LABEL = 0
"""Label that ``</s>`` has in n-grams handed to the core; ``<s>`` has `BOS` + 1. In the automaton neither is an arc."""

MAX_ORDER = 255
"""Longest n-grams accepted; no real model comes near."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Automaton:
    """states: ``[s]`` of `STATE`; arcs: ``[a]`` of `ARC`; unk_label: the label of ``<unk>``, 0 where the model has none."""

    states: Records
    arcs: Records
    start: int
    unigram_state: int
    unk_label: int


def from_table(table: NgramTable) -> Automaton:
    """Build the automaton of ``table``; raises ValueError where a context is missing or a number is not finite."""
    num_tokens = max([int(rows.max(initial=-1)) + 1 for rows in table.ngrams] + [len(table.symbols or [])])
    unk_label = num_tokens + 1 if (table.ngrams[0] == UNK).any() else 0
    builder = _core.AutomatonBuilder()
    for order, (rows, log_probs, backoffs) in enumerate(zip(table.ngrams, table.log_probs, table.backoffs, strict=True), 1):
        if (rows < UNK).any() or (rows == -1).any():
            raise ValueError(f"order {order}: expected token ids of 0 and above or the markers {BOS}, {EOS}, {UNK}, got others")
        if (rows[:, 1:] == BOS).any() or (rows[:, :-1] == EOS).any():
            raise ValueError(f"order {order}: expected <s> only at the beginning of an n-gram and </s> only at its end")
        labels = rows.astype(np.int32) + 1
        labels[rows == EOS], labels[rows == UNK] = END_LABEL, unk_label
        builder.add_order(labels, -log_probs, -backoffs)
    builder.finish()
    return collect(builder, unk_label)


def collect(builder: _core.AutomatonBuilder | _core.ArpaParser, unk_label: int) -> Automaton:
    """The automaton that a finished builder or parser holds, as arrays in memory."""
    states_size = builder.num_states * STATE.itemsize
    arcs_begin = states_size + -states_size % ALIGNMENT
    data = np.empty(arcs_begin + builder.num_arcs * ARC.itemsize, np.uint8)
    filled = 0

    def fill(block: bytes) -> None:
        nonlocal filled
        data[filled : filled + len(block)] = np.frombuffer(block, np.uint8)
        filled += len(block)

    builder.write(fill)
    return Automaton(data[:states_size].view(STATE), data[arcs_begin:].view(ARC), builder.start, 0, unk_label)


def conventional(states: Records, arcs: Records) -> tuple[Records, Records]:
    """Bring the records of any OpenFst backoff model into the form above: an acceptor, sorted, with failure arcs labelled 0.

    Failure arcs may be transductions of one label to epsilon, as Kaldi's ``#0:<eps>`` are. Records that are in form
    already come back as they are. Raises ValueError for other transducers.
    """
    narcs = states["narcs"].astype(np.int64)
    begin = np.cumsum(narcs) - narcs
    if int(narcs.sum()) != len(arcs) or ((states["pos"] != begin) & (narcs > 0)).any():
        raise ValueError("expected the arcs of the states one after another, as OpenFst writes them; the file is damaged")
    labels = arcs["ilabel"].copy()
    differ = labels != arcs["olabel"]
    if differ.any():
        marks = np.unique(labels[differ])
        if len(marks) > 1 or arcs["olabel"][differ].any():
            raise ValueError("expected an acceptor, got a transducer; project it with fstproject")
        labels[labels == marks[0]] = 0
    source = np.repeat(np.arange(len(states)), narcs)
    if not (differ.any() or ((np.diff(labels) < 0) & (np.diff(source) == 0)).any()):
        return states, arcs
    by_label = np.lexsort((labels, source))
    states, arcs = states.copy(), arcs[by_label]
    arcs["ilabel"] = arcs["olabel"] = labels[by_label]
    states["pos"] = begin
    states["niepsilons"] = states["noepsilons"] = np.bincount(source[labels == 0], minlength=len(states))
    return states, arcs


def to_table(automaton: Automaton, symbols: list[str] | None = None, fingerprint: str | None = None) -> NgramTable:
    """Read the n-grams back from an automaton; raises ValueError where it is no backoff model.

    A breadth-first walk from the unigram state and the start state meets every state first from its own context,
    because the longest suffix of hw that is a state is no longer than hw, and equal to it only on h's own arc.
    """
    states, arcs = automaton.states, automaton.arcs
    check(automaton)
    pos, narcs = states["pos"].astype(np.int64), states["narcs"].astype(np.int64)
    has_failure = np.zeros(len(states), bool)
    nonempty = np.flatnonzero(narcs)
    has_failure[nonempty] = arcs["ilabel"][pos[nonempty]] == 0
    seen = np.zeros(len(states), bool)
    seen[[automaton.unigram_state, automaton.start]] = True
    has_bos = automaton.start != automaton.unigram_state

    ngrams: list[np.ndarray] = []
    log_probs: list[Floats] = []
    backoffs: list[Floats] = []
    contexts = np.zeros((1, 0), np.int32)  # of the states below, in lexicographic order
    layer = np.array([automaton.unigram_state])
    while len(layer):
        if contexts.shape[1] >= MAX_ORDER:
            raise ValueError(f"expected a model of order {MAX_ORDER} at most, got longer n-grams; is this a backoff model?")
        first = pos[layer] + has_failure[layer]
        count = pos[layer] + narcs[layer] - first
        owner = np.repeat(np.arange(len(layer)), count)
        arc = np.arange(len(owner)) + np.repeat(first - (np.cumsum(count) - count), count)
        label = arcs["ilabel"][arc].astype(np.int64)
        token = np.where(label == automaton.unk_label, UNK, label - 1) if automaton.unk_label else label - 1
        cost = arcs["weight"][arc].astype(np.float64)
        target = arcs["nextstate"][arc].astype(np.int64)
        ends = np.flatnonzero(np.isfinite(states["final"][layer]))
        owner = np.concatenate([owner, ends])
        token = np.concatenate([token, np.full(len(ends), EOS)])
        cost = np.concatenate([cost, states["final"][layer[ends]].astype(np.float64)])
        target = np.concatenate([target, np.full(len(ends), -1)])
        if not ngrams and has_bos:
            owner, token = np.append(owner, 0), np.append(token, BOS)
            cost, target = np.append(cost, -LOG_ZERO), np.append(target, automaton.start)
            seen[automaton.start] = False
        by_row = np.lexsort((token, owner))
        owner, token, cost, target = owner[by_row], token[by_row], cost[by_row], target[by_row]
        own = (target >= 0) & ~seen[target]
        backoff = np.zeros(len(owner))
        children = target[own]
        if len(np.unique(children)) != len(children):
            raise ValueError("expected one context for each state, got a state that two n-grams of one order lead to; no backoff model")
        backoff[own] = -np.where(has_failure[children], arcs["weight"][pos[children]].astype(np.float64), 0.0)
        seen[children] = True
        rows = np.concatenate([contexts[owner], token[:, None].astype(np.int32)], axis=1)
        ngrams.append(rows)
        log_probs.append(-cost)
        backoffs.append(backoff)
        layer, contexts = children, rows[own]
    if not seen.all():
        raise ValueError(f"expected a backoff model, got an automaton with {int((~seen).sum())} states that no n-gram leads to")
    if not len(ngrams[-1]) and len(ngrams) > 1:  # contexts that have a backoff weight but no arcs
        del ngrams[-1], log_probs[-1], backoffs[-1]
    return close_suffixes(NgramTable(ngrams, log_probs, backoffs, symbols, fingerprint))


def check(automaton: Automaton) -> None:
    """Look at every state and arc of an untrusted automaton; ValueError says what is wrong with the first bad one."""
    states, arcs = automaton.states, automaton.arcs
    end = states["pos"].astype(np.int64) + states["narcs"]
    _refuse(end > len(arcs), "state {}: its arcs lie outside the file")
    _refuse((arcs["nextstate"] < 0) | (arcs["nextstate"] >= len(states)), "arc {}: its next state does not exist")
    _refuse(arcs["ilabel"] < 0, "arc {}: its label is negative")
    _refuse(arcs["ilabel"] != arcs["olabel"], "arc {}: its input and output labels differ")
    _refuse(~np.isfinite(arcs["weight"]), "arc {}: its weight is not finite")
    _refuse(np.isnan(states["final"]) | (states["final"] == -np.inf), "state {}: its final weight is NaN or minus infinity")
    inner = np.ones(len(arcs) + 1, bool)
    inner[states["pos"]] = False
    _refuse(inner[1:-1] & (np.diff(arcs["ilabel"]) <= 0), "arc {}: its label is not below the next one's of its state")


def _refuse(bad: npt.NDArray[np.bool_], message: str) -> None:
    if bad.any():
        raise ValueError(f"expected a backoff model; {message.format(int(np.argmax(bad)))}")


def close_suffixes(table: NgramTable) -> NgramTable:
    """Add the suffixes that n-grams lack, at the probability they already have by backing off; scores stay the same."""
    index = _Index(table.ngrams)
    if all((suffix >= 0).all() for suffix in _suffixes(table, index)):
        return table
    ngrams, log_probs, backoffs = list(table.ngrams), list(table.log_probs), list(table.backoffs)
    for lower in range(table.order - 1, 0, -1):
        rows = np.concatenate([ngrams[lower - 1], ngrams[lower][:, 1:]])
        ngrams[lower - 1], row = np.unique(rows, axis=0, return_inverse=True)
        given = row.reshape(-1)[: len(log_probs[lower - 1])]
        closed_log_probs, closed_backoffs = np.full(len(ngrams[lower - 1]), np.nan), np.zeros(len(ngrams[lower - 1]))
        closed_log_probs[given], closed_backoffs[given] = log_probs[lower - 1], backoffs[lower - 1]
        log_probs[lower - 1], backoffs[lower - 1] = closed_log_probs, closed_backoffs
    if (missing := np.isnan(log_probs[0])).any():
        token = int(ngrams[0][missing][0, 0])
        raise ValueError(f"expected every token among the unigrams, but token {token} occurs in longer n-grams only")
    closed = NgramTable(ngrams, log_probs, backoffs, table.symbols, table.fingerprint)
    index = _Index(ngrams)
    for lower, suffix in enumerate(_suffixes(closed, index)[1:], 1):
        missing = np.isnan(log_probs[lower])
        log_probs[lower][missing] = (log_probs[lower - 1][suffix] + backoffs[lower - 1][index.contexts[lower]])[missing]
    return closed


class _Index:
    """Finds n-grams in a table: an n-gram is the number of its row, looked up from its context's row and its last token."""

    def __init__(self, ngrams: list[np.ndarray]) -> None:
        self.width = max((int(rows.max()) for rows in ngrams if rows.size), default=0) + 5  # the markers are -4..-2
        self.contexts: list[Ints] = []
        self.keys: list[Ints] = []
        for order, rows in enumerate(ngrams, 1):
            context = self._contexts_of(rows) if order > 1 else np.zeros(len(rows), np.int64)
            keys = self._key(context, rows[:, -1]) if len(rows) else np.empty(0, np.int64)
            if (np.diff(keys) <= 0).any():
                raise ValueError(f"order {order}: expected unique n-grams in lexicographic order; sort them first")
            self.contexts.append(context)
            self.keys.append(keys)

    def find(self, order: int, context: Ints, token: Ints) -> Ints:
        """Rows of the n-grams of ``order`` with the given context rows (of the order below) and last tokens; -1 where missing."""
        keys = self.keys[order - 1]
        if not len(keys):
            return np.full(len(context), -1, np.int64)
        wanted = self._key(context, token)
        row = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where((context >= 0) & (keys[row] == wanted), row, -1)

    def _key(self, context: Ints, token: Ints) -> Ints:
        return context * self.width + (token.astype(np.int64) - UNK)

    def _contexts_of(self, rows: np.ndarray) -> Ints:
        """The row, one order below, of every n-gram's context."""
        if not len(rows):
            return np.empty(0, np.int64)
        first = np.concatenate([[True], (rows[1:, :-1] != rows[:-1, :-1]).any(axis=1)])
        heads = rows[first]
        found = np.zeros(len(heads), np.int64)
        for order in range(1, rows.shape[1]):
            found = self.find(order, found, heads[:, order - 1])
        if (found < 0).any():
            ngram = heads[np.argmax(found < 0)].tolist()
            raise ValueError(f"n-gram {ngram}: expected its context {ngram[:-1]} among the {rows.shape[1] - 1}-grams")
        rows_of_contexts: Ints = found[np.cumsum(first) - 1]
        return rows_of_contexts


def _suffixes(table: NgramTable, index: _Index) -> list[Ints]:
    """For every n-gram of each order, the row of its longest proper suffix, one order below; -1 where it is missing."""
    suffixes = [np.zeros(len(table.ngrams[0]), np.int64)]
    for lower in range(1, table.order):
        shorter = suffixes[lower - 1][index.contexts[lower]] if lower > 1 else np.zeros(len(table.ngrams[lower]), np.int64)
        suffixes.append(index.find(lower, shorter, table.ngrams[lower][:, -1]))
    return suffixes
