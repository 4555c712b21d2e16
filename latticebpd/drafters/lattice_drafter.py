"""Drafters from lattices: a source and a strategy."""

from __future__ import annotations

from collections.abc import Sequence

from latticebpd.checks import expect
from latticebpd.drafters.drafter import Drafter, State
from latticebpd.drafters.family import LatticeSource
from latticebpd.drafters.known_text import by_row, remaining
from latticebpd.drafters.strategies import Oracle, Strategy
from latticebpd.lattices.drafts import DraftTree
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.scoring.rescoring import check_vocabulary


class LatticeDrafter(Drafter):
    """Drafts from the lattices of a source by a strategy; an empty tree where the source has no lattice.

    prompt_context: whether the prompt is context for the strategy's language model; else only the new tokens. Raises
    ValueError where that model is over another vocabulary than the lattices.
    """

    def __init__(self, source: LatticeSource, strategy: Strategy, prompt_context: bool = True) -> None:
        scorer = getattr(strategy, "scorer", None)
        if scorer is not None:
            check_vocabulary(scorer, source.fingerprint, source.vocab_size, source.vocabulary_name)
        self.source, self.strategy, self.needs_hidden = source, strategy, source.needs_hidden
        self.needs_layers: tuple[int, ...] = getattr(source, "needs_layers", ())
        self.prompt_context = prompt_context

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        tokens, largest = self.source.vocab_size, max(state.tokens[-1] for state in states)
        wanted, remedy = f"tokens below {tokens} (of the drafter's model)", "draft for that model"
        expect(tokens is None or largest < tokens, wanted, largest, remedy)
        lattices = {row: each for row, each in enumerate(self.source.lattices(states)) if each is not None}
        trees = [DraftTree.empty()] * len(states)
        if lattices:
            drafted = self._draft([*lattices.values()], [states[row] for row in lattices])
            for row, tree in zip(lattices, drafted, strict=True):
                trees[row] = tree
        return trees

    def _draft(self, lattices: Sequence[SausageLattice], states: Sequence[State]) -> list[DraftTree]:
        contexts = [self.scoring_context(state) for state in states]
        constraints = [state.automaton and (state.automaton, state.automaton_state) for state in states]
        if any(constraints) and getattr(self.strategy, "takes_constraints", False):
            return self.strategy.draft(lattices, contexts, constraints)  # type: ignore[call-arg]
        return self.strategy.draft(lattices, contexts)

    def scoring_context(self, state: State) -> Sequence[int]:
        """The tokens before the lattice, which the strategy's language model reads."""
        return state.tokens if self.prompt_context else state.tokens[state.prompt_length :]


class OracleDrafter(LatticeDrafter):
    """The oracle as a drafter: the best path of a source's lattice in hindsight (Kim 2024, section 6.3).

    continuations: the base model's own output after the prompt, known beforehand: one for every row of the batch,
        or, for a single prompt, just its tokens.
    """

    def __init__(self, source: LatticeSource, continuations: Sequence[int] | Sequence[Sequence[int]]) -> None:
        super().__init__(source, Oracle())
        self.continuations = by_row(continuations)

    def _draft(self, lattices: Sequence[SausageLattice], states: Sequence[State]) -> list[DraftTree]:
        following = [remaining(self.continuations, state) for state in states]
        return Oracle().draft(lattices, [self.scoring_context(state) for state in states], following)
