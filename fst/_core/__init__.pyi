"""The compiled core of fst (C++ sources beside this file); `fst.search` and `fst.NgramModel` are its documented face."""

from collections.abc import Buffer

import numpy as np
from numpy.typing import ArrayLike, NDArray

class Model:
    def __init__(
        self, states: Buffer, arcs: Buffer, start: int, unigram_state: int, unk_label: int = 0, unk_log_prob: float = -1000.0
    ) -> None: ...
    def log_prob(self, token: int, context: ArrayLike) -> float: ...
    def score(self, tokens: ArrayLike, bos: bool = False, eos: bool = False) -> float: ...
    def state_of(self, context: ArrayLike) -> int: ...

def nbest(
    tokens: ArrayLike, log_probs: ArrayLike, model: Model | None, p: int, alpha: float, contexts: ArrayLike, threads: int
) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.int32]]: ...
def tree(
    tokens: ArrayLike,
    log_probs: ArrayLike,
    model: Model | None,
    num_nodes: int,
    alpha: float,
    contexts: ArrayLike,
    kept_log_mass: ArrayLike | None,
    threads: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64], NDArray[np.int32]]: ...
