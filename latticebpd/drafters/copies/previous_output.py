"""Drafting along an earlier output, for decoding an edited prompt again.

A small change to a prompt leaves much of the answer as it was.  The earlier answer is drafted in order; where the new
one departs from it, the drafter looks up where to continue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from latticebpd.checks import expect
from latticebpd.drafters.copies.text_matches import SuffixIndex, weighted_tree
from latticebpd.drafters.drafter import Drafter, State
from latticebpd.drafters.known_text import by_row
from latticebpd.lattices.drafts import DraftTree


@dataclass
class _Reading:
    """One row's earlier output: how many of the row's tokens are seen, and where the earlier one is taken to go on."""

    index: SuffixIndex
    seen: int
    positions: list[int] = field(default_factory=lambda: [0])


class PreviousOutputDrafter(Drafter):
    """Continues along the output that an earlier prompt had.

    While the new text follows the earlier one, the draft is what comes next there. After a mismatch the last tokens are
    looked up in the earlier text: the longest match wins, then the one nearest to where the reading stood, up to
    ``max_positions`` of them as branches of one tree.  Without a match the new tokens are taken to have replaced as
    many old ones.

    texts: earlier outputs, prompts left out, one for every row of the batch; of a single row, just its tokens.
    num_nodes: nodes of the tree, where several positions compete.
    max_ngram: longest match looked for after a mismatch.
    max_positions: positions tried at once.
    keep: as for ``PromptNgramDrafter``.
    """

    needs_hidden = False

    def __init__(
        self,
        texts: Sequence[int] | Sequence[Sequence[int]],
        block_size: int = 8,
        num_nodes: int = 12,
        max_ngram: int = 4,
        max_positions: int = 3,
        keep: float = 0.9,
    ) -> None:
        wanted = "block_size, num_nodes and max_positions >= 1"
        expect(min(block_size, num_nodes, max_positions) >= 1, wanted, f"{block_size}, {num_nodes} and {max_positions}")
        expect(0 < keep < 1, "0 < keep < 1", keep)
        self.block_size, self.num_nodes, self.max_positions, self.keep = block_size, num_nodes, max_positions, keep
        self._indexes = []
        for text in by_row(texts):
            self._indexes.append(SuffixIndex(max_ngram))
            self._indexes[-1].extend(text)
        self._readings: dict[int, _Reading] = {}

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        return [self._tree(state) for state in states]

    def _tree(self, state: State) -> DraftTree:
        wanted = f"an earlier output for row {state.row} as well"
        expect(state.row < len(self._indexes), wanted, len(self._indexes), "[] stands for none")
        if state.is_first or state.row not in self._readings:
            self._readings[state.row] = _Reading(self._indexes[state.row], state.prompt_length)
        reading = self._readings[state.row]
        self._follow(reading, state)
        old = reading.index.tokens
        depth = min(self.block_size, state.max_depth)
        paths = [old[position : position + depth] for position in reading.positions if position < len(old)]
        # Earlier named positions are likelier: each weighs twice the next.
        return weighted_tree(paths, [0.5**rank for rank in range(len(paths))], self.keep, self.num_nodes)

    def _follow(self, reading: _Reading, state: State) -> None:
        """Move on by what has been committed since the last draft."""
        new = list(state.tokens[reading.seen :])
        reading.seen = len(state.tokens)
        old = reading.index.tokens
        for position in reading.positions:
            if old[position : position + len(new)] == new:
                reading.positions = [position + len(new)]
                return
        expected = reading.positions[0] + len(new)
        # Only of the new text: the prompt is no part of what the earlier output could go on from.
        tail = state.tokens[max(state.prompt_length, len(state.tokens) - reading.index.max_length) :]
        _, positions = next(iter(reading.index.matches(tail)), (0, [expected]))
        reading.positions = sorted(positions, key=lambda position: abs(position - expected))[: self.max_positions]
