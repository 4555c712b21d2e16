"""A decode, call by call: drafted and accepted tokens, the model's own choices, and why each draft ended.

A call's *shown path* is the accepted path of its tree and the most probable one below it. Each of its positions has a
drafted token and, up to the position where the draft ended, the token that was written (Xia 2022, table 11).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from latticebpd.decoding.loop import Generated, Step, generate
from latticebpd.drafters.cost_aware import CostAwareDrafter
from latticebpd.drafters.drafter import Drafter
from latticebpd.drafters.known_text import ReferenceDrafter
from latticebpd.drafters.mixture import MixtureDrafter
from latticebpd.lattices.drafts import ROOT, DraftTree
from latticebpd.models.target_model import AnyModel, target_model
from latticebpd.scoring.posteriors import arc_posteriors
from latticebpd.scoring.rescoring import LanguageModel
from latticebpd.scoring.scorer import Scorer

if TYPE_CHECKING:
    from torch import Tensor


class End(Enum):
    """Why a draft went no further."""

    ALL_KEPT = "it was kept to its end"
    END_OF_TEXT = "the text ended"
    MISRANKED = "the right token was in the lattice, but others were drafted"
    BUDGET = "the right token was in the lattice, but nothing was drafted: no room in the tree"
    NOT_IN_LATTICE = "the right token was not in the lattice"
    OTHERS = "other tokens were drafted"
    NO_DRAFT = "nothing was drafted"


@dataclass(frozen=True)
class ModelChoice:
    """The model's prediction at a position of its text.

    best: its most probable token. rank: the written token's, from 0. gap: of their log-probabilities.
    """

    best: int
    rank: int
    gap: float


@dataclass(frozen=True)
class DraftPosition:
    """One position of a draft.

    drafted: the shown path's token; None after its end.
    written: the text's token; None where the draft is void, because it had ended before.
    choice: the model's, for the written token.
    state: ``kept``; ``lenient``, accepted though not the model's best; ``refused``, where another was written; ``own``,
        after a draft that was accepted to its end; ``void``.
    """

    drafted: int | None
    written: int | None
    choice: ModelChoice | None
    state: str


@dataclass(frozen=True, eq=False)
class Call:
    """One call of the model for one row.

    start: new tokens before it. positions: along the shown path, and one after it.
    after: ``[slots, k]`` natural log, the lattice's weights after rescoring; None where there is no lattice.
    """

    step: Step
    start: int
    positions: tuple[DraftPosition, ...]
    end: End
    after: np.ndarray | None


def read_calls(
    model: AnyModel, prompt: Sequence[int], out: Generated, lm: LanguageModel = None, row: int = 0
) -> list[Call]:
    """The calls of one row of a traced decode; the model reads the row's text once more.

    prompt: the row's, or an encoder–decoder's source, without padding. lm: the scorer of the lattices, see
    ``scorer_of``, or a language model at weight 1. Raises ValueError where the decode was not traced.
    """
    written = [token for block in out.blocks(row) for token in block]
    steps = [step for step in out.trace or () if step.row == row]
    choices = _choices(model, prompt, written)
    read = list(out.sequences[row, : out.prompt_length].tolist() if target_model(model).is_encoder_decoder else prompt)
    calls, start = [], len(written) - sum(len(step.committed) for step in steps)
    for step in steps:
        lattice, context = step.tree.lattice, read + written[:start]
        after = None if lattice is None else arc_posteriors(lattice, lm, context=context)
        calls.append(Call(step, start, _positions(step, choices[start:]), why_it_ended(step), after))
        start += len(step.committed)
    return calls


def scorer_of(drafter: Drafter) -> Scorer | None:
    """The scorer of a drafter's lattices; None where they are not rescored."""
    if isinstance(drafter, MixtureDrafter):
        return scorer_of(drafter.first) or scorer_of(drafter.second)
    if isinstance(drafter, CostAwareDrafter):
        return scorer_of(drafter.drafter)
    return getattr(getattr(drafter, "strategy", None), "scorer", None)


def why_it_ended(step: Step) -> End:
    """Why a call's draft was accepted no further."""
    tree, depth = step.tree, len(step.accepted)
    if not len(tree):
        return End.NO_DRAFT
    if len(step.committed) <= depth:
        return End.END_OF_TEXT
    drafted_here = tree.children(step.accepted[-1] if step.accepted else ROOT).size > 0
    if tree.lattice is None or depth >= tree.lattice.slots:
        return End.OTHERS if drafted_here else End.ALL_KEPT
    arcs = tree.lattice.tokens[depth][tree.lattice.log_probs[depth] > -np.inf]
    if step.committed[depth] not in arcs:
        return End.NOT_IN_LATTICE
    return End.MISRANKED if drafted_here else End.BUDGET


def shown_path(tree: DraftTree, accepted: Sequence[int]) -> list[int]:
    """The accepted nodes, and the most probable ones below them."""
    path, node = list(accepted), accepted[-1] if accepted else ROOT
    while len(below := tree.children(node)):
        node = int(below[0] if tree.log_probs is None else below[tree.log_probs[below].argmax()])
        path.append(node)
    return path


def _positions(step: Step, choices: Sequence[ModelChoice]) -> tuple[DraftPosition, ...]:
    drafted: list[int | None] = [*step.tree.tokens[shown_path(step.tree, step.accepted)].tolist(), None]
    positions = []
    for depth, token in enumerate(drafted):
        if depth >= len(step.committed):
            positions.append(DraftPosition(token, None, None, "void"))
            continue
        accepted = "lenient" if choices[depth].rank else "kept"
        state = accepted if depth < len(step.accepted) else "own" if token is None else "refused"
        positions.append(DraftPosition(token, step.committed[depth], choices[depth], state))
    return tuple(positions)


def _choices(model: AnyModel, prompt: Sequence[int], written: Sequence[int]) -> list[ModelChoice]:
    """The model's choice at every token of its text, from a decode that drafts the text itself."""
    rule = _ForcedText(written)
    # One token more than the text has: a processor that forces the last token must not do so within the text.
    drafter, mask, limit = ReferenceDrafter(list(written), len(written)), [[1] * len(prompt)], len(written) + 1
    generate(model, [list(prompt)], drafter, rule, max_new_tokens=limit, eos_token_id=(), attention_mask=mask)
    return rule.choices


class _ForcedText:
    """An acceptance rule that writes a given text and records the model's choices."""

    def __init__(self, written: Sequence[int]) -> None:
        self.written, self.choices = written, list[ModelChoice]()

    def choose(self, logits: Tensor, drafted: Callable[[int], np.ndarray], depths: Sequence[int]) -> list[int]:
        # After the text's end any token will do.
        tokens = [*self.written[len(self.choices) :], *[0] * len(logits)][: len(logits)]
        for line, token in zip(logits, tokens, strict=True):
            value = line[token]
            rank = int((line > value).sum()) + int((line[:token] == value).sum())
            self.choices.append(ModelChoice(int(line.argmax()), rank, float(line.max() - value)))
        return tokens
