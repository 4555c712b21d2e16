"""Word lattices of speech recognition and translation: acyclic acceptors of any shape, arcs of any span, epsilons.

A lattice has states ``0..states - 1`` in topological order, start state 0.  Arcs ``offsets[s]`` to ``offsets[s + 1]``
leave state ``s``; an arc has a token (-1: epsilon), a log-probability and a target above its state.  A path is
complete in a final state, whose log-probability counts; its score under a language model is that of `fst.search`,
epsilons leaving the history as it is.  A sausage is the case in which every arc of a state leads to the next one.

    >>> import pynini, fst
    >>> lattice = fst.Lattice.from_fst(pynini.union("ab", pynini.accep("c", weight=0.5)).optimize())
    >>> tokens, scores = lattice.nbest_paths(p=2)  # a label is the token id + 1
    >>> tokens.tolist(), scores.tolist()
    ([[96, 97], [98, -1]], [0.0, -0.5])

Several paths may carry the same tokens: the best of them stands for all in `Lattice.nbest_paths`, posteriors count
each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pywrapfst

from fst import _core
from fst._core import LARGEST_WEIGHT
from fst.automaton import LARGEST_TOKEN, token_sequence
from fst.confusion import EPSILON, confusion_network
from fst.const_file import ACCEPTOR, ARC, EXPANDED, STATE, FstFile
from fst.lattices import Floats, Ints, checked_transitions, slots_of, warn_of_positive
from fst.model import NgramModel, Vocabulary, embedded_symbols, refuse_other_words, warn_of_unseen
from fst.openfst import records_of, refuse_transducer, to_openfst
from fst.printable import expect, expect_count


@dataclass(frozen=True, eq=False)
class Lattice:
    """A word lattice: an acyclic automaton from state 0. State s has the arcs ``offsets[s]`` to ``offsets[s + 1]``.

    offsets: ``[states + 1]`` int64.
    tokens, targets: ``[arcs]`` int32, each arc's token (-1: epsilon) and the state that it leads to.
    log_probs: ``[arcs]`` float64, natural logs.
    finals: ``[states]`` float64, -inf where no path ends.
    symbols: the word of every id, or None.
    """

    offsets: npt.NDArray[np.int64]
    tokens: Ints
    log_probs: Floats
    targets: Ints
    finals: Floats
    symbols: list[str] | None = None

    @classmethod
    def from_arcs(
        cls,
        arcs: Iterable[tuple[int, int, int, float]],
        finals: Iterable[tuple[int, float]],
        start: int = 0,
        symbols: list[str] | None = None,
    ) -> Lattice:
        """The lattice of arcs ``(source, target, token, log p)`` and final states ``(state, log p)``, in any order.

        ValueError for cycles, lattices without a path, NaN, and ids that are no token's; a warning that counts
        log-probabilities above 0.
        """
        sources, targets, tokens, log_probs = _columns(arcs, "arcs (source, target, token, log p)")
        ends, end_log_probs = _columns(finals, "final states (state, log p)")
        if (bad := (tokens < EPSILON) | (tokens > LARGEST_TOKEN)).any():
            wanted = f"token ids from 0 to {LARGEST_TOKEN}, or -1 for epsilon"
            raise ValueError(f"expected {wanted}, got {tokens[bad][0]}")
        for weights in (log_probs, end_log_probs):
            if (bad := ~(weights < LARGEST_WEIGHT)).any():  # NaN too
                raise ValueError(f"expected log-probabilities below 1e30, got {weights[bad][0]}")
        warn_of_positive(np.append(log_probs, end_log_probs))
        starts, _ = _columns([(start, 0.0)], "start states (state, log p)")
        states = np.concatenate([starts, sources, targets, ends])
        expect(states.min() >= 0, "states numbered from 0", states.min())
        wanted, got = "states numbered without large gaps", f"{states.max()} with {len(tokens)} arcs"
        expect(states.max() <= 8 * len(states) + 1024, wanted, got)
        final_costs = np.full(int(states.max()) + 1, np.inf)
        np.minimum.at(final_costs, ends, -end_log_probs)
        file = _topsorted(sources, targets, tokens + 1, -log_probs, final_costs, start)
        return cls._of(file, file.arcs["ilabel"] - 1, symbols)

    @classmethod
    def from_fst(cls, automaton: Any, symbols: Sequence[str] | None = None) -> Lattice:
        """The lattice that an acyclic acceptor of pynini or pywrapfst spells: a label is a token id + 1, 0 is epsilon.

        symbols: the words of a language model (`NgramModel.symbols`); the acceptor's labels are then words by its own
            input symbol table, and words that the model lacks get ids of their own.
        """
        acceptor = records_of(automaton)
        refuse_transducer(acceptor)
        source = np.repeat(np.arange(len(acceptor.states)), acceptor.states["narcs"])
        arcs, finals = acceptor.arcs, acceptor.states["final"].astype(np.float64)
        file = _topsorted(source, arcs["nextstate"], arcs["ilabel"], arcs["weight"], finals, acceptor.start)
        labels = file.arcs["ilabel"]
        if symbols is None:
            return cls._of(file, labels - 1, embedded_symbols(acceptor.symbols)[0])
        if acceptor.symbols is None:
            raise ValueError("expected an FST with an input symbol table, whose words the model's are, got none")
        vocabulary, word_of = Vocabulary(symbols), acceptor.symbols.of_label()
        used, index = np.unique(labels, return_inverse=True)
        if missing := set(used.tolist()) - set(word_of) - {0}:
            got = f"none for {min(missing)}; the symbol table does not fit"
            raise ValueError(f"expected a symbol for every label, got {got}")
        ids = [vocabulary.token(word_of[label]) if label else EPSILON for label in used.tolist()]
        return cls._of(file, np.array(ids, np.int32)[index], vocabulary.words)

    @classmethod
    def _of(cls, file: FstFile, tokens: Ints, symbols: list[str] | None) -> Lattice:
        offsets = np.append(0, np.cumsum(file.states["narcs"], dtype=np.int64))
        log_probs, finals = (-costs.astype(np.float64) for costs in (file.arcs["weight"], file.states["final"]))
        return cls(offsets, tokens, log_probs, file.arcs["nextstate"], finals, symbols)

    @classmethod
    def from_sausage(
        cls, tokens: npt.ArrayLike, log_probs: npt.ArrayLike, transitions: npt.ArrayLike | None = None
    ) -> Lattice:
        """A sausage, arguments as for `fst.nbest_paths`; with transitions a state is a slot and a column."""
        slots = slots_of(tokens, log_probs)
        ids = np.asarray(tokens)
        if transitions is None:
            sizes, arcs = [len(slot) for slot in slots], [arc for slot in slots for arc in sorted(slot)]
            targets = np.repeat(np.arange(1, len(slots) + 1), sizes)
            finals = np.append(np.full(len(slots), -np.inf), 0.0)
            offsets = np.concatenate([[0], np.cumsum(sizes), [sum(sizes)]])
        else:
            present = (ids != -1) & (np.asarray(log_probs) > -LARGEST_WEIGHT)
            gains = checked_transitions(transitions, present).astype(np.float64)
            columns = [np.flatnonzero(row)[np.argsort(slot[row])] for slot, row in zip(ids, present, strict=True)]
            first = np.cumsum([1, *map(len, slots)])  # state of each slot's first column
            arcs, target_list, counts = sorted(slots[0]), [*range(1, int(first[1]))], [len(slots[0])]
            for t in range(1, len(slots)):
                onward, here = gains[t - 1][np.ix_(columns[t - 1], columns[t])], sorted(slots[t])
                before, to = np.nonzero(onward > -np.inf)
                gains_to = zip(to.tolist(), onward[before, to].tolist(), strict=True)
                arcs += [(here[at][0], here[at][1] + gain) for at, gain in gains_to]
                target_list += (first[t] + to).tolist()
                counts += np.bincount(before, minlength=len(onward)).tolist()
            counts += [0] * len(slots[-1])
            offsets, targets = np.cumsum([0, *counts]), np.array(target_list)
            finals = np.where(np.arange(len(counts)) >= first[-2], 0.0, -np.inf)
        spelled = np.array([token for token, _ in arcs], np.int32)
        weights = np.array([weight for _, weight in arcs], np.float64)
        return cls(offsets.astype(np.int64), spelled, weights, targets.astype(np.int32), finals)

    @property
    def num_states(self) -> int:
        return len(self.finals)

    @property
    def sources(self) -> Ints:
        """``[arcs]`` the state that each arc leaves."""
        return np.repeat(np.arange(self.num_states, dtype=np.int32), np.diff(self.offsets))

    def arcs(self, state: int) -> list[tuple[int, float, int]]:
        """Token, log-probability and target of each arc of a state."""
        rows = slice(int(self.offsets[state]), int(self.offsets[state + 1]))
        columns = (column[rows].tolist() for column in (self.tokens, self.log_probs, self.targets))
        return list(zip(*columns, strict=True))

    def words(self, tokens: Sequence[int] | Ints) -> str:
        """A path's words, joined by spaces; ids where the lattice has no symbols."""
        return " ".join(self.symbols[token] if self.symbols else str(token) for token in tokens if token >= 0)

    def nbest_paths(
        self, lm: NgramModel | None = None, p: int = 16, alpha: float = 1.0, context: Sequence[int] = ()
    ) -> tuple[Ints, Floats]:
        """The p best token sequences, exactly: ``tokens [p', longest]``, -1 after the end, and ``scores [p']``.

        lm, p, alpha, context: as for `fst.nbest_paths`; ties go to the smaller sequence, a prefix before its
            continuations.
        """
        count, before = expect_count("p", p), token_sequence("a context", context)
        if lm is not None and alpha != 0:
            warn_of_unseen(lm, self.tokens)
        tokens, scores = _core.lattice_nbest(self._deterministic, self._core_of(lm), count, alpha, before)
        return tokens[:, : int((tokens >= 0).sum(axis=1).max(initial=0))], scores

    def arc_posteriors(self, lm: NgramModel | None = None, alpha: float = 1.0, context: Sequence[int] = ()) -> Floats:
        """``[arcs]`` natural log of the probability of the paths through each arc; -inf where there are none."""
        every = self._posteriors(lm, alpha, context)
        return every[self._with_ends[3] >= 0]

    def oracle(self, reference: Sequence[int] | Ints) -> tuple[Ints, int]:
        """The path with the fewest edits to a reference: its tokens, and how many."""
        tokens = token_sequence("a reference", reference)
        far, steps = np.iinfo(np.int32).max // 2, np.arange(len(tokens) + 1)
        edits = np.full((self.num_states, len(steps)), far)  # of the best path to a state against each prefix
        arrived = np.full(edits.shape, -1)  # the arc by which it comes
        edits[0, 0] = 0
        sources = self.sources.tolist()
        for state in range(self.num_states):
            edits[state] = np.minimum.accumulate(edits[state] - steps) + steps
            for arc in range(int(self.offsets[state]), int(self.offsets[state + 1])):
                target, cost = self.targets[arc], self._edits(edits[state], int(self.tokens[arc]), tokens)
                better = cost < edits[target]
                edits[target][better], arrived[target][better] = cost[better], arc
        ends = np.flatnonzero(self.finals > -np.inf)
        state, q = int(ends[np.argmin(edits[ends, -1])]) if len(ends) else 0, len(tokens)
        fewest, path = int(edits[state, q]), []
        expect(len(ends) and fewest < far, "a lattice with a complete path")
        while (state, q) != (0, 0):
            arc = int(arrived[state, q])
            if arc < 0 or edits[state, q] < self._edits(edits[sources[arc]], int(self.tokens[arc]), tokens)[q]:
                q -= 1  # a deletion
                continue
            before, token = edits[sources[arc]], int(self.tokens[arc])
            if token != EPSILON:
                path.append(token)
                q -= int(q > 0 and before[q - 1] + (token != tokens[q - 1]) == edits[state, q])
            state = sources[arc]
        return np.array(path[::-1], np.int32), fewest

    @staticmethod
    def _edits(before: npt.NDArray[np.int64], token: int, reference: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """``[reference + 1]`` the edits to each prefix after an arc, given those before it."""
        if token == EPSILON:
            return before
        after: npt.NDArray[np.int64] = np.append(before[0] + 1, before[:-1] + (reference != token))
        return np.minimum(before + 1, after)

    def to_fst(self) -> Any:
        """A ``pynini.Fst``: label = token + 1, weight = -log p."""
        states, arcs = np.zeros(self.num_states, STATE), np.zeros(len(self.tokens), ARC)
        states["final"], states["pos"], states["narcs"] = -self.finals, self.offsets[:-1], np.diff(self.offsets)
        epsilons = np.bincount(self.sources[self.tokens == EPSILON], minlength=len(states))
        states["niepsilons"] = states["noepsilons"] = epsilons
        arcs["ilabel"] = arcs["olabel"] = self.tokens + 1
        arcs["weight"], arcs["nextstate"] = -self.log_probs, self.targets
        words = {token + 1: word for token, word in enumerate(self.symbols or []) if word}
        return to_openfst(states, arcs, 0, ("words", {0: "<epsilon>", **words}) if words else None, EXPANDED | ACCEPTOR)

    def to_sausage(
        self, lm: NgramModel | None = None, alpha: float = 1.0, context: Sequence[int] = ()
    ) -> tuple[Ints, Floats]:
        """The confusion network around the best path: a sausage's ``tokens [slots, k]`` and ``log_probs``.

        `fst.confusion` has the method.  A sausage has no epsilons: slots that more likely hold nothing than a token
        are left out, and in the others the probability of nothing is missing.
        """
        paths, _ = self.nbest_paths(lm, 1, alpha, context)
        posteriors = self._posteriors(lm, alpha, context)
        return confusion_network(self._with_ends, np.exp(posteriors), paths[0][paths[0] >= 0].tolist())

    def _posteriors(self, lm: NgramModel | None, alpha: float, context: Sequence[int]) -> Floats:
        """Of the arcs of `_with_ends`."""
        before = token_sequence("a context", context)
        return _core.lattice_posteriors(self._with_ends, self._core_of(lm), alpha, before)

    @cached_property
    def _with_ends(self) -> tuple[Any, Any, Any, Any]:
        """Offsets, tokens, log-probabilities and targets for the core, which has an arc to -1 where a path may end."""
        ends = np.flatnonzero(self.finals > -np.inf)
        at = self.offsets[ends]
        return (
            self.offsets + np.searchsorted(ends, np.arange(self.num_states + 1)),
            np.insert(self.tokens, at, np.int32(EPSILON)),
            np.insert(self.log_probs, at, self.finals[ends]),
            np.insert(self.targets, at, np.int32(-1)),
        )

    @cached_property
    def _deterministic(self) -> tuple[Any, Any, Any, Any]:
        """The same of the lattice that has every token sequence once."""
        pairs = np.sort(self.sources.astype(np.int64) << 32 | self.tokens.astype(np.int64) & 0xFFFFFFFF)
        if (self.tokens != EPSILON).all() and (np.diff(pairs) > 0).all():
            return self._with_ends
        return _core.determinize(self._with_ends)

    def _core_of(self, lm: NgramModel | None) -> _core.Model | None:
        if lm is None:
            return None
        refuse_other_words(lm, self.symbols, self.tokens)
        return lm.core


def _columns(rows: Iterable[tuple[Any, ...]], what: str) -> list[npt.NDArray[Any]]:
    """The columns of rows: integers, int64 each, and log-probabilities, float64; ValueError for anything else.

    what: the rows' name with the columns', in parentheses.
    """
    listed, names = list(rows), what[what.index("(") + 1 : -1].split(", ")
    try:
        columns = [np.array(column) for column in zip(*listed, strict=True)] or [np.empty(0, np.int64)] * len(names)
        fits = len(columns) == len(names) and all(column.ndim == 1 for column in columns)
    except (ValueError, TypeError):
        fits = False
    expect(fits, f"{what} as numbers", f"others, such as {listed[:1]}")
    *integers, log_probs = columns
    for name, column in zip(names, integers, strict=False):
        if column.dtype.kind not in "iu" or (column.dtype.kind == "u" and column.max(initial=0) >= 2**63):
            wrong = next(value for value in column.tolist() if type(value) is not int or abs(value) >= 2**63)
            raise ValueError(f"expected every {name} of the {what} as an integer, got {wrong!r:.60}")
    expect(log_probs.dtype.kind in "fiu", f"every log p of the {what} as a number", log_probs.dtype)
    return [*(column.astype(np.int64) for column in integers), log_probs.astype(np.float64)]


def lattice_to_fst(tokens: npt.ArrayLike, log_probs: npt.ArrayLike, transitions: npt.ArrayLike | None = None) -> Any:
    """A sausage as an OpenFst acceptor, ``tokens`` and ``log_probs [slots, k]``: `Lattice.to_fst` of it."""
    return Lattice.from_sausage(tokens, log_probs, transitions).to_fst()


def _topsorted(source: Any, target: Any, label: Any, cost: Any, final_costs: Any, start: int) -> FstFile:
    """The states on complete paths, sorted topologically; ValueError where there is a cycle or no path."""
    kept = cost < LARGEST_WEIGHT
    order = np.flatnonzero(kept)[np.argsort(source[kept], kind="stable")]
    states, arcs = np.zeros(len(final_costs), STATE), np.zeros(len(order), ARC)
    states["final"] = np.where(final_costs < LARGEST_WEIGHT, final_costs, np.inf)
    states["narcs"] = np.bincount(source[order], minlength=len(states))
    states["pos"] = np.cumsum(states["narcs"]) - states["narcs"]
    arcs["ilabel"] = arcs["olabel"] = label[order]
    arcs["weight"], arcs["nextstate"] = cost[order], target[order]
    automaton = to_openfst(states, arcs, start, None, EXPANDED | ACCEPTOR).connect()
    expect(automaton.start() >= 0, "a lattice with a path from its start to a final state")
    acyclic = automaton.properties(pywrapfst.ACYCLIC, True) == pywrapfst.ACYCLIC
    expect(acyclic, "an acyclic lattice", "one with a cycle")
    return records_of(automaton.topsort())
