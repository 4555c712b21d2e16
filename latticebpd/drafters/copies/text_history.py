"""Drafts from earlier texts: what followed the last tokens of a text in the prompts and answers of other requests.

Editors and agents ask again for what was written a moment ago, and quote files that earlier prompts held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from latticebpd.checks import expect
from latticebpd.drafters.copies.text_matches import weighted_tree
from latticebpd.drafters.cost_aware import CostAwareDrafter
from latticebpd.drafters.drafter import Drafter, State
from latticebpd.drafters.mixture import MixtureDrafter
from latticebpd.lattices.drafts import DraftTree


class TextHistory:
    """The latest texts, the oldest of which go when all together have more than ``size`` tokens.

    Every n-gram of ``least`` tokens is filed under where it ends, at most its ``most`` latest occurrences, so that
    adding a token and a look-up take a time that does not depend on the size.
    """

    def __init__(self, size: int, least: int = 4, most: int = 8) -> None:
        expect(min(size, least, most) >= 1, "size, least and most >= 1", f"{size}, {least} and {most}")
        self.size, self.least, self.most = size, least, most
        self.tokens = 0  # of all texts
        self._texts: deque[list[int]] = deque()
        self._ends: dict[tuple[int, ...], list[tuple[list[int], int]]] = {}

    def add(self, tokens: Sequence[int]) -> None:
        """File a text, of a long one its end."""
        text = list(tokens[-self.size :])
        self._texts.append(text)
        self.tokens += len(text)
        for end in range(self.least, len(text) + 1):
            places = self._ends.setdefault(tuple(text[end - self.least : end]), [])
            places.append((text, end))
            del places[: -self.most]
        while self.tokens > self.size:
            self._forget(self._texts.popleft())

    def matches(self, tokens: Sequence[int], longest: int) -> Iterator[tuple[int, list[int], int]]:
        """Where the last ``least`` tokens, and up to ``longest``, occur: how many, in which text, and where they end
        there; the latest place first. Where nothing follows them there is none."""
        for text, end in reversed(self._ends.get(tuple(tokens[-self.least :]), [])):
            length = self.least
            while length < min(longest, end, len(tokens)) and text[end - length - 1] == tokens[-length - 1]:
                length += 1
            if end < len(text):
                yield length, text, end

    def _forget(self, text: list[int]) -> None:
        self.tokens -= len(text)
        for end in range(self.least, len(text) + 1):
            ngram = tuple(text[end - self.least : end])
            left = [place for place in self._ends.get(ngram, []) if place[0] is not text]
            if left:
                self._ends[ngram] = left
            else:
                self._ends.pop(ngram, None)


class HistoryDrafter(Drafter):
    """Copies from a history, by the weights of `PromptNgramDrafter`: of each place the next ``block_size`` tokens."""

    needs_hidden = False

    def __init__(self, history: TextHistory, num_nodes: int, block_size: int = 16, longest: int = 12) -> None:
        self.history, self.num_nodes, self.block_size, self.longest = history, num_nodes, block_size, longest

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        return [self._tree(state) for state in states]

    def _tree(self, state: State) -> DraftTree:
        depth = min(self.block_size, state.max_depth)
        found = sorted(self.history.matches(state.tokens, self.longest), key=lambda match: -match[0])
        paths = [text[end : end + depth] for _, text, end in found]
        return weighted_tree(paths, [1.5**length for length, _, _ in found], 0.9, self.num_nodes, 12.0)


def with_history(drafter: Drafter, history: TextHistory, num_nodes: int) -> Drafter:
    """A drafter that drafts from a history first; its trees tell probabilities, and are cut by costs if they were."""
    if isinstance(drafter, CostAwareDrafter):
        costs = drafter.costs  # measured first, which may replace the drafter
        return CostAwareDrafter(with_history(drafter.drafter, history, num_nodes), costs)
    return MixtureDrafter(HistoryDrafter(history, num_nodes), drafter, num_nodes)
