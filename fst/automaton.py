"""The backoff automaton of an n-gram model, and how it is built from an `NgramTable`.

States are the contexts that matter: the empty one (the *unigram state*), and every n-gram that some longer n-gram
continues or whose backoff weight is not 1. Any other history is represented by its longest suffix that is a state.

    arcs      (h, w, cost of w after h, longest suffix of hw that is a state) for every n-gram hw
    failure   (h, 0, cost of h's backoff weight, longest proper suffix of h that is a state), one for each h but
              the empty one
    final     cost of ``</s>`` after h, infinite where there is no such n-gram; 0 everywhere in a model without ``</s>``
    start     the history ``<s>``; the unigram state where the model has no such context

The label of a token is its id + 1, that of ``<unk>`` follows the largest one. A cost is -log p, natural, float32.
The arc labelled 0 is taken only where no other matches (it is a *failure* arc), and sorting by label puts it first.

Source: Allauzen, Mohri and Roark 2003; the conventions are OpenGrm NGram's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fst import _core
from fst.const_file import ALIGNMENT, ARC, STATE, Records
from fst.files import release
from fst.printable import expect
from fst.table import BOS, EOS, UNK, NgramTable

LOG_ZERO = -1000.0
"""Natural log that stands for log 0 in the core, so that no infinity enters a sum."""

END_LABEL = 0
"""Label that ``</s>`` has in n-grams handed to the core; ``<s>`` has `BOS` + 1. In the automaton neither is an arc."""

LARGEST_TOKEN = 2**31 - 3
"""Leaves labels for it and for ``<unk>``."""

PIECE = 1 << 20
"""N-grams handed to the core at a time."""

MAX_ORDER = 255
"""Longest n-grams accepted; no real model comes near."""


def token_sequence(name: str, tokens: Any) -> npt.NDArray[np.int64]:
    """``[n]`` token ids, negative ones included; ValueError for text, several sequences, and numbers that are no ids.

    name: what they are, for the message.
    """
    try:
        ids = np.asarray(tokens)
    except (ValueError, TypeError):  # rows of several lengths; a tensor of a GPU
        ids = np.empty((), object)
    fits = ids.ndim == 1 and (not ids.size or (ids.dtype.kind in "iu" and ids.max() < 2**63))
    if not fits:
        kind = "text; encode it" if ids.dtype.kind in "US" else f"{type(tokens).__name__} {tokens!r:.40}"
        raise ValueError(f"expected {name} as one sequence of token ids [n], got {kind}")
    return ids.astype(np.int64, copy=False)


def most_labels(words: int) -> int:
    """The largest label accepted in a table of so many words: a damaged one could ask for memory up to 2^63."""
    return max(1 << 20, 64 * words)


class Automaton(NamedTuple):
    """states: ``[s]`` of `STATE`; arcs: ``[a]`` of `ARC`; unk_label: that of ``<unk>``, 0 where there is none."""

    states: Records
    arcs: Records
    start: int
    unigram_state: int
    unk_label: int


def build(table: NgramTable) -> tuple[_core.AutomatonBuilder, int]:
    """A finished builder that holds the automaton of ``table``, and the label of ``<unk>``.

    Missing suffixes are added at the probability they have by backing off, so scores are the table's. Raises ValueError
    where a context is missing or a number is not finite.
    """
    num_tokens = max(int(table.ngrams[0].max(initial=-1)) + 1, len(table.symbols or []))
    expect(num_tokens <= LARGEST_TOKEN + 1, f"token ids of at most {LARGEST_TOKEN}", num_tokens - 1)
    unk_label = num_tokens + 1 if (table.ngrams[0] == UNK).any() else 0
    builder = _core.AutomatonBuilder()
    for order, columns in enumerate(zip(table.ngrams, table.log_probs, table.backoffs, strict=True), 1):
        for begin in range(0, len(columns[0]), PIECE):
            rows, log_probs, backoffs = (column[begin : begin + PIECE] for column in columns)
            wanted = f"token ids of 0 and above or the markers {BOS}, {EOS}, {UNK}"
            expect(((rows >= UNK) & (rows != -1)).all(), wanted, "others", of=f"order {order}")
            wanted, highest = f"tokens of the unigrams, whose highest id is {num_tokens - 1}", rows.max()
            expect(highest < num_tokens, wanted, highest, of=f"order {order}")
            inside = (rows[:, 1:] == BOS).any() or (rows[:, :-1] == EOS).any()
            expect(not inside, "<s> only at the beginning of an n-gram and </s> only at its end", of=f"order {order}")
            labels = rows.astype(np.int32)
            labels += 1
            labels[rows == EOS], labels[rows == UNK] = END_LABEL, unk_label
            builder.add_ngrams(labels, -log_probs, -backoffs)
            for column in columns:
                release(column)
        builder.end_order()
    builder.finish()
    return builder, unk_label


def collect(builder: _core.AutomatonBuilder, unk_label: int) -> Automaton:
    """The automaton that a finished builder holds, as arrays in memory."""
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
    """Bring the records of any backoff model into the form above: an acceptor, sorted, failure arcs labelled 0.

    Failure arcs may be transductions of one label to epsilon, as Kaldi's ``#0:<eps>`` are. Records that are in form
    already come back as they are. Raises ValueError for other transducers.
    """
    narcs = states["narcs"].astype(np.int64)
    begin = np.cumsum(narcs) - narcs
    if int(narcs.sum()) != len(arcs) or ((states["pos"] != begin) & (narcs > 0)).any():
        wanted = "the arcs of the states one after another, as OpenFst writes them"
        raise ValueError(f"expected {wanted}; the file is damaged")
    labels = arcs["ilabel"].copy()
    differ = labels != arcs["olabel"]
    if differ.any():
        marks = np.unique(labels[differ])
        one_to_epsilon = len(marks) == 1 and not arcs["olabel"][differ].any()
        expect(one_to_epsilon, "an acceptor", "a transducer", "project it with fstproject")
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


def refuse_other_automata(automaton: Automaton) -> None:
    """ValueError unless it is deterministic and every state but the unigram state backs off, at last to that one."""
    labels, unigram_state = automaton.arcs["ilabel"], automaton.unigram_state
    source = np.repeat(np.arange(len(automaton.states)), automaton.states["narcs"])
    repeated = (np.diff(labels) == 0) & (np.diff(source) == 0)
    if repeated.any():
        label, state = labels[:-1][repeated][0], source[:-1][repeated][0]
        got = f"two arcs labelled {label} at state {state}"
        raise ValueError(f"expected a deterministic backoff model, got {got}; determinize it")
    failure = labels == 0
    target = np.full(len(automaton.states), -1)
    target[source[failure]] = automaton.arcs["nextstate"][failure]
    if (missing := np.flatnonzero((target < 0) & (np.arange(len(target)) != unigram_state))).size:
        got = f"state {missing[0]} without a failure arc (label 0), although failure arcs lead to state {unigram_state}"
        raise ValueError(f"expected a backoff model, got {got} as that of the unigrams")
    target[unigram_state] = unigram_state
    for _ in range(MAX_ORDER.bit_length()):
        target = target[target]
    if (lost := np.flatnonzero(target != unigram_state)).size:
        got = f"a cycle of them from state {lost[0]}"
        raise ValueError(f"expected failure arcs that lead to state {unigram_state}, got {got}")
    unknown = ~np.isin(labels, labels[source == unigram_state]) & ~failure
    if unknown.any():
        got = f"label {labels[unknown][0]} at state {source[unknown][0]}, which the unigram state {unigram_state} lacks"
        raise ValueError(f"expected arcs of the unigrams' labels, got {got}; this is no backoff model")
