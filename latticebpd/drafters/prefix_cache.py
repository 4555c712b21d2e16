"""What a drafter with a model of its own has read of the growing texts of a batch, kept from draft to draft."""

from __future__ import annotations

from collections.abc import Sequence

from latticebpd.drafters.drafter import State
from latticebpd.verification.row_cache import RowCache


class PrefixCache:
    """A cache and, for each of its rows, the source and the tokens that were read into it.

    The cache is the tree verifier's: of a pass, the columns that are a text's stay, masks are forgotten.
    """

    def __init__(self, is_encoder_decoder: bool) -> None:
        self.is_encoder_decoder = is_encoder_decoder
        self.rows: dict[int, int] = {}  # row of the batch -> row of the cache
        self.texts: list[tuple[tuple[int, ...], list[int]]] = []
        self.cache = RowCache(is_encoder_decoder)

    @property
    def lengths(self) -> list[int]:
        """Tokens read of each row."""
        return [len(text) for _, text in self.texts]

    def align(self, states: Sequence[State]) -> list[int] | None:
        """Make the cache's rows those of ``states``: the indices of cached rows that are reused; None: all
        rows are new and empty."""
        known = [row for state in states if (row := self._cached_row(state)) is not None]
        self.rows = {state.row: index for index, state in enumerate(states)}
        if len(known) < len(states):
            self.cache = RowCache(self.is_encoder_decoder)
            self.cache.lengths = [0] * len(states)
            self.texts = [(tuple(state.source), []) for state in states]
            return None
        if known != list(range(len(self.texts))):
            self.cache.select(known)
            self.texts = [self.texts[row] for row in known]
        return known

    def keep(self, new: Sequence[Sequence[int]]) -> None:
        """The first columns of the last pass were these tokens of each row: they are kept, later columns are
        dropped."""
        self.cache.keep([range(len(tokens)) for tokens in new])
        for (_, text), tokens in zip(self.texts, new, strict=True):
            text.extend(tokens)

    def _cached_row(self, state: State) -> int | None:
        """The cached row whose tokens are a prefix of this text; None: no such row."""
        row = self.rows.get(state.row)
        if row is None:
            return None
        source, text = self.texts[row]
        begins = len(text) < len(state.tokens) and text == list(state.tokens[: len(text)])
        return row if begins and source == tuple(state.source) else None
