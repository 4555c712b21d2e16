"""The compiled core of fst (C++ sources in this folder); `fst.search` and `fst.NgramModel` are its documented
interface."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Buffer

LARGEST_WEIGHT: float
NUM_FEATURES: int

class Model:
    """A backoff n-gram automaton, read in place from the records of an OpenFst const file; costs are negated natural
    logs, and failure arcs are followed. `ngrams`: of each order tokens [n, order], costs and costs of backoff weights
    [n]. `resolve`: the states [s] that tokens reach from a state: costs and targets [s, tokens], final costs [s]."""

    def __init__(
        self, states: NDArray[np.void], arcs: NDArray[np.void], start: int, unigram_state: int, unk_label: int = 0
    ) -> None: ...
    def log_prob(self, token: int, context: ArrayLike) -> float: ...
    def score(self, tokens: ArrayLike, bos: bool = False, eos: bool = False) -> float: ...
    def state_of(self, context: ArrayLike) -> int: ...
    def num_ngrams(self) -> list[int]: ...
    def ngrams(self) -> list[tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]]: ...
    @property
    def has_end(self) -> bool: ...
    def resolve(
        self, tokens: ArrayLike, state: int
    ) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.float64]]: ...
    def write_arpa(self, words: list[bytes], markers: bool, sink: Callable[[bytes], object]) -> None: ...

Sausages = tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float32] | None]
"""Tokens and log-probabilities [n, slots, k], transitions [n, slots - 1, k, k]; or one sausage, all without the n."""

Constraints = Sequence[tuple[Any, int] | None] | None
"""For each lattice a `fst.search.ConstraintAutomaton` and its state, or None."""

def posteriors(sausages: Sausages, model: Model | None, alpha: float, context: ArrayLike) -> NDArray[np.float64]: ...

Arcs = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float64], NDArray[np.int32]]
"""Any lattice: offsets [states + 1], tokens (-1: epsilon), log-probabilities and targets (-1: the end) [arcs]."""

def lattice_nbest(
    arcs: Arcs, model: Model | None, p: int, alpha: float, context: ArrayLike
) -> tuple[NDArray[np.int32], NDArray[np.float64]]: ...
def lattice_posteriors(arcs: Arcs, model: Model | None, alpha: float, context: ArrayLike) -> NDArray[np.float64]: ...
def determinize(arcs: Arcs) -> Arcs: ...
def nbest(
    sausages: Sausages,
    model: Model | None,
    p: int,
    alpha: float,
    contexts: ArrayLike,
    threads: int,
    constraints: Constraints,
) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.int32]]: ...
def tree(
    sausages: Sausages,
    model: Model | None,
    num_nodes: int,
    alpha: float,
    contexts: ArrayLike,
    threads: int,
    constraints: Constraints,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64], NDArray[np.int32]]: ...

class TextIndex:
    """The n-grams of one text, counted as the text grows."""

    def __init__(self) -> None: ...
    def extend(self, tokens: ArrayLike) -> None: ...
    def __len__(self) -> int: ...

def calibrated_tree(
    sausages: Sausages,
    model: Model | None,
    texts: list[TextIndex],
    weights: ArrayLike,
    num_nodes: int,
    further: int,
    proposals: int,
    contexts: ArrayLike,
    threads: int,
    constraints: Constraints,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64], NDArray[np.int32]]: ...
def describe(
    sausages: Sausages,
    model: Model | None,
    text: TextIndex,
    path: ArrayLike,
    further: int,
    proposals: int,
    context: ArrayLike,
) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.int32]]: ...

class AutomatonBuilder:
    """Builds a backoff automaton from n-grams, order by order."""

    num_states: int
    num_arcs: int
    start: int
    num_ngrams: list[int]
    def __init__(self) -> None: ...
    def add_ngrams(self, labels: ArrayLike, costs: ArrayLike, backoffs: ArrayLike) -> None: ...
    def end_order(self) -> None: ...
    def finish(self) -> None: ...
    def write(self, sink: Callable[[bytes], object]) -> None: ...

class ArpaParser:
    """Reads ARPA text, piece by piece, into a backoff automaton."""

    automaton: AutomatonBuilder
    unk_label: int
    warnings: list[str]
    def __init__(self, number_words: Callable[[list[bytes]], list[int]], strict: bool = True) -> None: ...
    def feed(self, text: bytes) -> None: ...
    def finish(self) -> None: ...

def read_symbols(
    file: Buffer, begin: int, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int]: ...

class TokenTrie:
    """A model's tokens by their bytes; None for a token that spells nothing."""

    def __init__(self, spelled: list[bytes | None]) -> None: ...

class AcceptorOverTokens:
    """A weighted acceptor, determinized on demand, as an automaton over tokens: of token ids + 1, or with a trie of the
    tokens' bytes. A token's cost is part of the least cost of any path; end tokens lead to a state without arcs."""

    start: int
    vocab_size: int
    weighted: bool
    num_states: int
    def __init__(
        self,
        offsets: ArrayLike,
        labels: ArrayLike,
        targets: ArrayLike,
        costs: ArrayLike,
        finals: ArrayLike,
        start: int,
        trie: TokenTrie | None,
        vocab_size: int,
        end_tokens: list[int],
    ) -> None: ...
    def legal(self, state: int) -> NDArray[np.bool_]: ...
    def successors(self, state: int, tokens: ArrayLike) -> NDArray[np.int64]: ...
    def costs(self, state: int, tokens: ArrayLike) -> NDArray[np.float32]: ...
    def forced_labels(self, state: int) -> NDArray[np.int32]: ...
    def has_longer(self, state: int, spelled: bytes) -> bool: ...
