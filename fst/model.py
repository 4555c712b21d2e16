"""`NgramModel`: a backoff language model as an OpenFst automaton, in memory or mapped from its file."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fst import _core, const_file
from fst import automaton as _automaton
from fst.arpa import MARKER_NAMES, Progress, parse_arpa, write_arpa
from fst.automaton import LOG_ZERO, MAX_ORDER, Automaton, most_labels, token_sequence
from fst.const_file import FstFile, Records, Symbols, SymbolTable
from fst.files import PathLike, replacing
from fst.openfst import records_of, to_openfst
from fst.printable import expect
from fst.processors import ignore
from fst.table import UNK, NgramTable

TOKEN_IDS, WORDS = "token-ids", "words"
"""Names of the embedded symbol tables; a fingerprint may follow after a space."""


class NgramModel:
    """An n-gram backoff model; `fst.automaton` defines its ``states`` and ``arcs``.

    ``start_state`` is that of the history ``<s>``, ``unigram_state`` that of the empty one, ``unk_label`` the label of
    ``<unk>``, 0 for a model without it.

    Log-probabilities are natural. A token that the unigrams lack is read as ``<unk>`` where the model has one, and has
    `fst.automaton.LOG_ZERO` otherwise; the backoff weights on the way to the unigrams count in either case.
    """

    def __init__(
        self,
        automaton: Automaton,
        symbols: list[str] | None = None,
        fingerprint: str | None = None,
        own_ids: bool | None = None,
    ) -> None:
        """symbols: the word of every id, None where tokens are ids of a tokenizer, whose `fingerprint` may be given.

        own_ids: whether the ids only number the model's own words and mean nothing to others; by default so where
            there are symbols and no fingerprint.
        """
        self.automaton = automaton
        self.states, self.arcs, self.start_state, self.unigram_state, self.unk_label = automaton
        self.symbols = symbols
        self.fingerprint = fingerprint
        self.own_ids = symbols is not None and fingerprint is None if own_ids is None else own_ids
        self._mapped_from: Path | None = None
        self.core = _core.Model(*automaton)

    @classmethod
    def from_table(cls, table: NgramTable) -> NgramModel:
        """Build a model from arrays of n-grams, whose contexts must all be there."""
        return cls(_automaton.collect(*_automaton.build(table)), table.symbols, table.fingerprint)

    @classmethod
    def from_arpa(
        cls, path: PathLike, vocab: Mapping[str, int] | None = None, strict: bool = True, progress: Progress = ignore
    ) -> NgramModel:
        """Read an ARPA file, plain or gzip, into memory; the arguments are those of `fst.arpa.parse_arpa`."""
        parsed = parse_arpa(path, vocab, strict, progress)
        automaton = _automaton.collect(parsed.builder, parsed.unk_label)
        return cls(automaton, parsed.symbols, own_ids=parsed.symbols is not None and vocab is None)

    @classmethod
    def load(cls, path: PathLike, mmap: bool = True) -> NgramModel:
        """Load an OpenFst file (mapped if it is ``const``, read if it is ``vector``) or an ARPA file.

        A mapped file must not be changed in place while the model is in use: where it is truncated, the operating
        system ends the process (SIGBUS). `save` replaces files and is safe. ``mmap=False`` reads the file into
        memory instead. Raises ValueError for other files; the message says what to do.
        """
        path = Path(path)
        with open(path, "rb") as file:
            head = file.read(64)
        if not head.startswith(const_file.MAGIC.to_bytes(4, "little")):
            _refuse_unreadable(path, head)
            return cls.from_arpa(path)
        try:
            model = cls._from_file(const_file.read_fst(path, mmap))
        except ValueError as error:
            raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
        model._mapped_from = path.absolute() if mmap else None
        return model

    @classmethod
    def from_fst(cls, automaton: Any) -> NgramModel:
        """The model that an automaton of pynini or pywrapfst is: a deterministic backoff acceptor.

        Arcs may be in any order; the failure arc of a state is labelled 0 (or is Kaldi's ``#0:<eps>``).  Raises
        ValueError for other automata, saying what is wrong.
        """
        model = cls._from_file(records_of(automaton))
        _automaton.refuse_other_automata(model.automaton)
        return model

    def to_fst(self, tokens: npt.ArrayLike | None = None, context: Sequence[int] = ()) -> Any:
        """A ``pynini.Fst``.

        tokens: None for the automaton as it is, its failure arcs labelled 0, which composition reads as epsilons. Token
            ids give an automaton for only these tokens, from every history that they reach, failure arcs resolved: its
            plain composition with a lattice of these tokens is that of a phi matcher.
        context: the tokens before, whose history is the start state of an automaton for given tokens.
        """
        if tokens is None:
            return to_openfst(self.states, self.arcs, self.start_state, self._symbols())
        ids = np.unique(np.asarray(tokens, np.int64))
        ids = ids[ids >= 0]
        most = ids.max(initial=0)
        expect(most <= _automaton.LARGEST_TOKEN, f"token ids up to {_automaton.LARGEST_TOKEN}", most)
        costs, targets, finals = self.core.resolve(ids, self.core.state_of(token_sequence("a context", context)))
        states, arcs = np.zeros(len(finals), const_file.STATE), np.zeros(len(costs), const_file.ARC)
        states["final"], states["narcs"] = finals, len(ids)
        states["pos"] = np.arange(len(finals)) * len(ids)
        arcs["ilabel"] = arcs["olabel"] = np.tile(ids + 1, len(finals))
        arcs["weight"], arcs["nextstate"] = costs, targets
        return to_openfst(states, arcs, 0, None, const_file.model_properties(1))

    def __reduce__(self) -> tuple[Any, ...]:
        """A mapped model is pickled by its file's path, so that processes share pages; others with their arrays."""
        if self._mapped_from is None:
            return NgramModel, (self.automaton, self.symbols, self.fingerprint, self.own_ids)
        return _mapped, (self._mapped_from, len(self.states), len(self.arcs))

    @classmethod
    def _from_file(cls, file: FstFile) -> NgramModel:
        states, arcs = file.states, file.arcs
        promised = const_file.ACCEPTOR | const_file.INPUT_SORTED
        if file.properties & promised != promised:
            states, arcs = _automaton.conventional(states, arcs)
        symbols, unk_label, fingerprint = embedded_symbols(file.symbols)
        unigram_state = _unigram_state(states, arcs, file.start)
        if unk_label not in _arcs_of(states, arcs, unigram_state)["ilabel"]:  # listed, but not in the model
            unk_label = 0
        return cls(Automaton(states, arcs, file.start, unigram_state, unk_label), symbols, fingerprint)

    def save(self, path: PathLike) -> None:
        """Write the model as an OpenFst ``const`` file, atomically."""
        with replacing(path) as temporary, open(temporary, "wb") as file:
            file.writelines(const_file.const_blocks(self.states, self.arcs, self.start_state, self._symbols()))

    def _symbols(self) -> SymbolTable:
        return _symbols_to_embed((self._labels - 1).tolist(), self.symbols, self.unk_label, self.fingerprint)

    def to_arpa(self, path: PathLike, markers: bool = False) -> None:
        """Write the model as an ARPA file, gzip where the name ends in ``.gz``.

        markers: add those of ``<s>``, ``</s>`` and ``<unk>`` that the model lacks, which KenLM demands; scores stay.
        """
        write_arpa(self.core, path, self.symbols, markers)

    def to_table(self) -> NgramTable:
        """All n-grams as arrays; raises ValueError where the automaton is no backoff model."""
        tokens, costs, weights = zip(*self.core.ngrams(), strict=True)
        log_probs, backoffs = [-each for each in costs], [0 - each for each in weights]
        return NgramTable(list(tokens), log_probs, backoffs, self.symbols, self.fingerprint)

    @cached_property
    def num_ngrams(self) -> list[int]:
        """The number of n-grams of each order; counted once, when asked for.

        Where the longest n-grams have backoff weights, an order without n-grams follows them, as in ARPA files.
        """
        return self.core.num_ngrams()

    @property
    def order(self) -> int:
        """The number of orders: a token depends on the ``order - 1`` before it."""
        return len(self.num_ngrams)

    @cached_property
    def vocab_size(self) -> int:
        """The largest token id of the unigrams, plus one."""
        return int(self._labels[-1]) if len(self._labels) else 0

    def log_prob(self, token: int, context: Sequence[int] | npt.NDArray[np.integer] = ()) -> float:
        """Natural log of p(``token`` | ``context``), the tokens before it; an empty context is no history at all."""
        (only,) = token_sequence("a token", [token])
        return self.core.log_prob(int(only), token_sequence("a context", context))

    def score(self, tokens: Sequence[int] | npt.NDArray[np.integer], bos: bool = False, eos: bool = False) -> float:
        """Natural log-probability of a sequence, from the history ``<s>`` if ``bos``, with ``</s>`` if ``eos``."""
        return self.core.score(token_sequence("a text", tokens), bos, eos)

    def vocabulary(self) -> Vocabulary:
        """Ids of the words of the model's lattices; ValueError where its tokens are ids of a tokenizer."""
        if self.symbols is None:
            raise ValueError("expected a model of words, got one of token ids; encode texts with its tokenizer")
        return Vocabulary(self.symbols)

    def unseen(self, tokens: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The ids among these, each once and rising, that the unigrams lack; negative ones are padding."""
        ids = np.unique(np.asarray(tokens, np.int64))
        ids = ids[ids >= 0]
        at = np.searchsorted(self._labels, ids + 1)
        return ids[np.append(self._labels, 0)[at] != ids + 1]

    @cached_property
    def _labels(self) -> npt.NDArray[np.int32]:
        """Of the unigrams but ``<unk>``, rising."""
        labels = _arcs_of(self.states, self.arcs, self.unigram_state)["ilabel"]
        return np.ascontiguousarray(labels[labels != self.unk_label])

    def __repr__(self) -> str:
        return f"NgramModel({len(self.states)} states, {len(self.arcs)} arcs, vocab_size={self.vocab_size})"


def _mapped(path: Path, num_states: int, num_arcs: int) -> NgramModel:
    """The model that was pickled."""
    model = NgramModel.load(path)
    if (len(model.states), len(model.arcs)) != (num_states, num_arcs):
        wanted = f"the model of {num_states} states and {num_arcs} arcs that was pickled"
        remedy = "the file has been replaced: load and pickle the model again"
        raise ValueError(f"{path}: expected {wanted}, got {model!r}; {remedy}")
    return model


def table_to_fst(table: NgramTable, output: PathLike) -> list[int]:
    """Write a table as an OpenFst ``const`` file; returns the number of n-grams of each order.

    The automaton is never complete in memory: it takes 16 bytes an n-gram, and 12 for each that is a context.
    """
    builder, unk_label = _automaton.build(table)
    tokens = table.ngrams[0][:, 0]
    symbols = _symbols_to_embed(tokens[tokens >= 0].tolist(), table.symbols, unk_label, table.fingerprint)
    return _write(output, builder, symbols)


def _write(output: PathLike, builder: _core.AutomatonBuilder, symbols: SymbolTable) -> list[int]:
    with replacing(output) as temporary, open(temporary, "wb") as file:
        file.write(const_file.header(builder.start, builder.num_states, builder.num_arcs, symbols))
        builder.write(file.write)
    return builder.num_ngrams


def arpa_to_fst(
    arpa: PathLike,
    output: PathLike,
    vocab: Mapping[str, int] | None = None,
    strict: bool = True,
    fingerprint: str | None = None,
    progress: Progress = ignore,
    vocab_size: int | None = None,
) -> list[int]:
    """Convert an ARPA file to an OpenFst ``const`` file in one pass; returns the number of n-grams of each order.

    Takes less memory than the size of the result. vocab, strict, progress: as for `fst.arpa.parse_arpa`.
    fingerprint, vocab_size: of the tokenizer whose ids the words are, or stand for in ``vocab``. Raises ValueError
        where they are other words, or ids that the tokenizer does not have.
    """
    parsed = parse_arpa(arpa, vocab, strict, progress)
    if fingerprint is not None and vocab is None and parsed.symbols is not None:
        word = next((word for word in parsed.symbols if not word.isdigit()), parsed.symbols[0])
        got = f"words such as {word!r}; convert without a tokenizer"
        raise ValueError(f"{arpa}: expected the ids of a tokenizer as words, got {got}")
    wanted, most = f"token ids below {vocab_size}, the tokenizer's size", max(parsed.tokens, default=-1)
    expect(vocab_size is None or most < vocab_size, wanted, most, of=arpa)
    symbols = _symbols_to_embed(parsed.tokens, parsed.symbols, parsed.unk_label, fingerprint)
    return _write(output, parsed.builder, symbols)


def _symbols_to_embed(
    tokens: list[int], symbols: list[str] | None, unk_label: int, fingerprint: str | None
) -> SymbolTable:
    """The name of the embedded table and the symbol of every label: OpenFst wants all of them listed, ids as well."""
    if symbols is None:
        of_label = {token + 1: str(token) for token in tokens}
    else:
        of_label = {token + 1: word for token, word in enumerate(symbols) if word and word not in MARKER_NAMES.values()}
    of_label[0] = "<epsilon>"
    if unk_label:
        of_label[unk_label] = MARKER_NAMES[UNK]
    name = TOKEN_IDS if symbols is None else WORDS
    return f"{name} {fingerprint}" if fingerprint else name, of_label


class Vocabulary:
    """Ids of words: those of a model, and further ones for words that it lacks.

    Example:
        >>> vocabulary = Vocabulary(["a", "cat", "sat"])  # or model.vocabulary()
        >>> vocabulary.ids([["a", "the"], ["cat", "sat"]])
        [[0, 3], [1, 2]]
        >>> vocabulary.text([3, 1])
        'the cat'
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self._ids = {word: token for token, word in enumerate(words) if word}

    def token(self, word: str) -> int:
        """The word's id; a word that is new gets the next one."""
        token = self._ids.setdefault(word, len(self.words))
        if token == len(self.words):
            self.words.append(word)
        return token

    def ids(self, words: Any) -> Any:
        """The id of a word, or of each in lists of any depth, such as a lattice's slots; -1, padding, of no text."""
        if isinstance(words, str):
            return self.token(words) if words else -1
        return [self.ids(each) for each in words]

    def text(self, tokens: Iterable[int]) -> str:
        """The words of ids, joined by spaces; negative ids are padding."""
        return " ".join(self.words[token] for token in tokens if token >= 0)


def warn_of_unseen(model: NgramModel, tokens: npt.NDArray[np.integer], stacklevel: int = 3) -> None:
    """A warning that counts a lattice's tokens that the model does not have: where it has no ``<unk>`` they sink every
    path that they are on; where it has, and knows none of the tokens, it cannot tell them apart."""
    missing, each = model.unseen(tokens), len(np.unique(tokens[tokens >= 0]))
    if not len(missing) or (model.unk_label and len(missing) < each):
        return
    how = "all of them count as <unk>" if model.unk_label else f"each of them costs {-LOG_ZERO:g} nats or more"
    got = f"{len(missing)} of the lattice's {each} tokens are not in the n-gram model, such as {missing[0]}"
    warnings.warn(f"{got}; {how}; are its ids those of the lattice?", stacklevel=stacklevel)


def refuse_other_words(model: NgramModel, symbols: Sequence[str] | None, tokens: npt.NDArray[np.int32]) -> None:
    """ValueError where the model and a lattice both have words and give one of its tokens different ones."""
    if symbols is None or model.symbols is None:
        return
    for token in np.unique(tokens[tokens >= 0]).tolist():
        if token < min(len(symbols), len(model.symbols)) and symbols[token] and symbols[token] != model.symbols[token]:
            got = f"{symbols[token]!r} as token {token}, which the model has as {model.symbols[token]!r}"
            remedy = "read the lattice with symbols=model.symbols"
            raise ValueError(f"expected a lattice in the model's words, got {got}; {remedy}")


def embedded_symbols(table: Symbols | None) -> tuple[list[str] | None, int, str | None]:
    """The symbols, the label of ``<unk>`` and the fingerprint that an embedded table stands for."""
    if table is None:
        return None, 0, None
    unk_label = table.find("<unk>") or table.find("<UNK>") or 0
    name, _, fingerprint = table.name.partition(" ")
    if name == TOKEN_IDS:
        return None, unk_label, fingerprint or None
    words = {label: word for label, word in table.of_label().items() if label not in (0, unk_label)}
    largest, most = max(words, default=0), most_labels(len(words))
    if min(words, default=1) < 0 or largest > most:
        raise ValueError(f"expected symbols with labels from 0 to {most}, got {min(words)} to {largest}")
    if len(set(words.values())) < len(words):
        word, count = Counter(words.values()).most_common(1)[0]
        raise ValueError(f"expected every symbol once, got {word!r} {count} times")
    symbols = [words.get(label, "") for label in range(1, largest + 1)]
    return symbols, unk_label, fingerprint if name == WORDS and fingerprint else None


def _arcs_of(states: Records, arcs: Records, state: int) -> Records:
    begin, count = int(states["pos"][state]), int(states["narcs"][state])
    wanted = f"the arcs of state {state} among the {len(arcs)} of the file"
    expect(begin + count <= len(arcs), wanted, f"{begin}..{begin + count - 1}")
    return arcs[begin : begin + count]


def _unigram_state(states: Records, arcs: Records, start: int) -> int:
    """Follow failure arcs from the start state to the state that has none."""
    state = start
    for _ in range(MAX_ORDER + 1):
        row = _arcs_of(states, arcs, state)
        if not len(row) or int(row["ilabel"][0]) != 0:
            return state
        state = int(row["nextstate"][0])
        expect(0 <= state < len(states), f"a backoff arc to one of the {len(states)} states", state)
    raise ValueError("expected backoff arcs that end in the unigram state, got a cycle; this is no backoff model")


def _refuse_unreadable(path: Path, head: bytes) -> None:
    """Name the formats that are easily mistaken for ones we read; head: how the file begins."""
    if head.startswith(b"mmap lm http://kheafield.com/code"):
        remedy = "use the ARPA file that it was built from, or pass kenlm.Model(path) itself as the language model"
        got = f"a KenLM binary, which keeps hashes of its words only; {remedy}"
        raise ValueError(f"{path}: expected an ARPA or OpenFst file, got {got}")
    is_text, wanted = b"\0" not in head, "an ARPA file (plain or gzip) or an OpenFst file"
    expect(is_text or head.startswith(b"\x1f\x8b"), wanted, "some other binary file", of=path)
