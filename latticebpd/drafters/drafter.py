"""What a drafter is: it proposes the next tokens.

A drafter has two methods.  ``propose`` sees the moment before a draft, once for every unfinished row of the batch,
and returns a tree of guesses for each; ``observe`` receives the committed tokens.  To add a drafter, write a
class with these two methods; nothing else changes.

A drafter that looks at no hidden state may say so, ``needs_hidden = False``: it is then asked before the model has read
the prompt, so that the first pass verifies a draft already. One that reads hidden states of selected layers
says which, ``needs_layers = (1, 9)``, counted from 0. What a constraint says must follow is added to every drafter's
trees, unless it says ``drafts_forced = False``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from latticebpd.checks import expect
from latticebpd.constraints.token_automaton import TokenAutomaton
from latticebpd.lattices.drafts import DraftTree


@dataclass(frozen=True, eq=False)
class State:
    """One row of the batch at the moment before a draft.

    row: its index in the batch that ``generate`` was given.
    tokens: the prompt without padding and everything committed, the last being the next token, which the base model
        chose itself; of an encoder-decoder, the decoder's text.
    prompt_length: how many of them are the prompt.
    hidden: ``[hidden]``, the base model's final hidden state that predicted the last token; None before the prompt is
        read. An array where the CPU engine computed it, else a tensor; ``latticebpd.lattices.values`` has `as_numpy`
        and `as_tensor` for drafters that need either.
    max_depth: >= 1, how many tokens may be drafted before the length limit cuts them off; deeper nodes are pruned.
    source: an encoder-decoder's source tokens, else empty.
    layers: ``[tokens - 1, layers * hidden]``, states of the layers that the drafter needs, concatenated, for every
        token but the last; None where it needs none. Of the same kind as ``hidden``; good until the next pass.
    automaton, automaton_state: of the row's constraint, and its state after ``tokens``; None and 0 without one. A
        drafter that looks at neither may draft what is illegal: such nodes are cut before the pass.
    asked: whether the drafter was asked for drafts of this row before; None: it was if there is more than one new
        token.
    """

    row: int
    tokens: Sequence[int]
    prompt_length: int
    hidden: Any
    max_depth: int
    source: Sequence[int] = ()
    layers: Any = None
    automaton: TokenAutomaton | None = None
    automaton_state: int = 0
    asked: bool | None = None

    @property
    def is_first(self) -> bool:
        """Whether nothing has been drafted for this row yet: a drafter that keeps a state per row resets it there."""
        return len(self.tokens) <= self.prompt_length + 1 if self.asked is None else not self.asked


def expect_width(states: Any, width: int) -> None:
    """ValueError for hidden states ``[..., numbers]`` of another model than the one that a drafter was made for."""
    wanted, remedy = (
        f"hidden states of {width} numbers (of the drafter's model)",
        "take a drafter of the decoding model",
    )
    expect(states.shape[-1] == width, wanted, states.shape[-1], remedy)


class Drafter(Protocol):
    """Proposes draft trees for the unfinished rows of a batch."""

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        """One tree of what may follow ``state.tokens`` for each state, in their order."""

    def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Called after every call of the model with the tokens committed to each row; most drafters ignore it."""
        return


class NoDrafter(Drafter):
    """Drafts nothing: plain greedy decoding, one token a call, the baseline of everything else.

    drafts_forced: draft what a constraint says must follow, and nothing else.
    """

    needs_hidden = False

    def __init__(self, drafts_forced: bool = False) -> None:
        self.drafts_forced = drafts_forced

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        return [DraftTree.empty()] * len(states)


def needs_hidden(drafter: Drafter) -> bool:
    """Whether a drafter reads the hidden state that predicted the last token; True for drafters that do not say."""
    return bool(getattr(drafter, "needs_hidden", True))


def drafts_forced(drafter: Drafter) -> bool:
    """Whether forced tokens are added to a drafter's trees."""
    return bool(getattr(drafter, "drafts_forced", True))


def needs_layers(*drafters: Drafter) -> tuple[int, ...]:
    """The base model's layers whose states a drafter, or each of several, has to see, from 0; none for most.

    ValueError where two drafters need different ones.
    """
    wanted = dict.fromkeys(layers for drafter in drafters if (layers := tuple(getattr(drafter, "needs_layers", ()))))
    expect(len(wanted) <= 1, "drafters that need the same layers of the model", " and ".join(map(str, wanted)))
    return next(iter(wanted), ())
