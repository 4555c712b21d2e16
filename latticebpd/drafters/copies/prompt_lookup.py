"""Prompt lookup: drafts what followed the last few tokens at their earlier occurrences.

Texts quote their prompts (summaries, answers, edits) and repeat themselves. The drafter needs no heads and no training:
it looks up the longest suffix of the text that occurs earlier in prompt or output, and copies what followed. Several
occurrences make a small tree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latticebpd.checks import expect
from latticebpd.drafters.copies.text_matches import SuffixIndex, copied, weighted_tree
from latticebpd.drafters.drafter import Drafter, State
from latticebpd.lattices.drafts import DraftTree
from latticebpd.scoring.calibrated import TextIndexes


class PromptNgramDrafter(Drafter):
    """Copies from the context.

    max_ngram: longest suffix looked up.
    min_ngram: shortest suffix that may match; 1 drafts most often, higher only where a copy is likelier.
    block_size: tokens copied from each occurrence.
    num_nodes: nodes of the tree; ``block_size`` of them are only the best match's.
    max_matches: occurrences that compete for the nodes, longest match first, latest first.
    keep: chance that a copied token is right where those before it were; the price of depth against breadth.
    longer: how many times more a match weighs for every token it is longer.
    novelty: weight of a continuation seen nowhere; a match of one token weighs ``longer``.
    """

    needs_hidden = False

    def __init__(
        self,
        max_ngram: int = 12,
        min_ngram: int = 1,
        block_size: int = 8,
        num_nodes: int = 12,
        max_matches: int = 8,
        keep: float = 0.9,
        longer: float = 1.5,
        novelty: float = 12.0,
    ) -> None:
        expect(1 <= min_ngram <= max_ngram, "1 <= min_ngram <= max_ngram", f"{min_ngram} and {max_ngram}")
        wanted = "block_size, num_nodes and max_matches >= 1"
        expect(min(block_size, num_nodes, max_matches) >= 1, wanted, f"{block_size}, {num_nodes} and {max_matches}")
        fits = 0 < keep < 1 and longer >= 1 and novelty >= 0
        expect(fits, "0 < keep < 1, longer >= 1 and novelty >= 0", f"{keep}, {longer} and {novelty}")
        self.max_ngram, self.min_ngram, self.block_size, self.num_nodes = max_ngram, min_ngram, block_size, num_nodes
        self.max_matches, self.keep, self.longer, self.novelty = max_matches, keep, longer, novelty
        # One position more, which is the end of the text itself. Only the texts of the last call are kept: an index
        # takes kilobytes for each token.
        self._texts = TextIndexes(lambda: SuffixIndex(max_ngram, max_matches + 1), most=0)

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        indexes = self._texts.of([np.asarray(state.tokens, np.int64) for state in states])
        depths = [min(self.block_size, state.max_depth) for state in states]
        return list(map(self._tree, indexes, depths))

    def _tree(self, index: SuffixIndex, depth: int) -> DraftTree:
        paths: list[list[int]] = []
        weights: list[float] = []
        for length, positions in index.matches(index.tokens, self.min_ngram):
            for position in reversed(positions[len(paths) - self.max_matches :]):
                paths.append(copied(index.tokens, position, depth))
                weights.append(self.longer**length)
            if len(paths) == self.max_matches:
                break
        return weighted_tree(paths, weights, self.keep, self.num_nodes, self.novelty)
