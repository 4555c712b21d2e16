"""A decode, call by call: what was drafted, what stayed, what the model would have written itself, and why each draft
ended.

Along the *shown path* of a call's tree, which is the accepted one and the likeliest below it, each place has a drafted
token and, up to the place where the draft ended, the token that was written there (Xia 2022, table 11).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from latticebpd.decoding.loop import Generated, Step, generate
from latticebpd.drafters.drafter import Drafter
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.drafters.known_text import GoldDrafter
from latticebpd.drafters.mixture import MixtureDrafter
from latticebpd.lattices.drafts import ROOT, DraftTree
from latticebpd.scoring.posteriors import arc_posteriors
from latticebpd.scoring.rescoring import LanguageModel
from latticebpd.scoring.scorer import Scorer
from latticebpd.target.stock_model import BaseModel


class End(Enum):
    """Why a draft went no further."""

    ALL_KEPT = "it was kept to its end"
    END_OF_TEXT = "the text ended"
    MISRANKED = "the right token was in the lattice, but others were drafted in its place"
    BUDGET = "the right token was in the lattice, but nothing was drafted there: no room in the tree"
    NOT_IN_LATTICE = "the right token was not in the lattice"
    OTHERS = "other tokens were drafted"
    NO_DRAFT = "nothing was drafted"


@dataclass(frozen=True)
class Choice:
    """What the model thought of a token of its text.

    best: its most probable token. rank: the written token's, from 0. gap: how far that one's log-probability lies below
        the best's.
    """

    best: int
    rank: int
    gap: float


@dataclass(frozen=True)
class Place:
    """One place of a draft.

    drafted: the shown path's token; None behind its end.
    written: the text's token; None where the draft is void, because it had ended before.
    choice: of the model, for the written token.
    state: ``kept``; ``lenient``, kept though it is not the model's best; ``refused``, where another was written;
        ``own``, behind a draft that was kept whole; ``void``.
    """

    drafted: int | None
    written: int | None
    choice: Choice | None
    state: str


@dataclass(frozen=True, eq=False)
class Call:
    """One call of the model for one row.

    start: new tokens before it.  places: along the shown path, and one behind it.
    after: ``[slots, k]`` natural log, the lattice's weights after rescoring; None where there is no lattice.
    """

    step: Step
    start: int
    places: tuple[Place, ...]
    end: End
    after: np.ndarray | None


def read_calls(
    model: BlockwiseLM | PreTrainedModel,
    prompt: Sequence[int],
    out: Generated,
    lm: LanguageModel = None,
    row: int = 0,
) -> list[Call]:
    """The calls of one row of a traced decode; the model reads the row's text once more.

    Args:
        prompt: the row's prompt, or an encoder–decoder's source, without padding.
        lm: what the lattices were rescored with; a scorer brings its weight, and ``scorer_of`` tells a drafter's.

    Raises:
        ValueError: the decode was not traced.
    """
    written = [token for block in out.blocks(row) for token in block]
    steps = [step for step in out.trace or () if step.row == row]
    choices = _choices(model, prompt, written)
    text = [
        *(out.sequences[row, : out.prompt_length].tolist() if BaseModel.of(model).is_encoder_decoder else prompt),
        *written,
    ]
    found, start = [], len(written) - sum(len(step.committed) for step in steps)
    for step in steps:
        lattice = step.tree.lattice
        after = (
            None if lattice is None else arc_posteriors(lattice, lm, context=text[: len(text) - len(written) + start])
        )
        found.append(Call(step, start, _places(step, choices[start:]), why_it_ended(step), after))
        start += len(step.committed)
    return found


def scorer_of(drafter: Drafter) -> Scorer | None:
    """What a drafter's lattices are rescored with; None where nothing is."""
    if isinstance(drafter, MixtureDrafter):
        return scorer_of(drafter.first) or scorer_of(drafter.second)
    return getattr(getattr(drafter, "strategy", None), "scorer", None)


def why_it_ended(step: Step) -> End:
    """Why a call's draft went no further than it did."""
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
    """The accepted nodes, and the likeliest below them."""
    path, node = list(accepted), accepted[-1] if accepted else ROOT
    while len(below := tree.children(node)):
        node = int(below[0] if tree.log_probs is None else below[tree.log_probs[below].argmax()])
        path.append(node)
    return path


def _places(step: Step, choices: Sequence[Choice]) -> tuple[Place, ...]:
    drafted: list[int | None] = [*step.tree.tokens[shown_path(step.tree, step.accepted)].tolist(), None]
    found = []
    for place, token in enumerate(drafted):
        if place >= len(step.committed):
            found.append(Place(token, None, None, "void"))
            continue
        kept = "lenient" if choices[place].rank else "kept"
        state = kept if place < len(step.accepted) else "own" if token is None else "refused"
        found.append(Place(token, step.committed[place], choices[place], state))
    return tuple(found)


def _choices(model: BlockwiseLM | PreTrainedModel, prompt: Sequence[int], written: Sequence[int]) -> list[Choice]:
    """What the model thinks of every token of its text, by decoding it again along itself."""
    rule = _Along(written)
    # One token more than there is, lest a processor that forces the last token speak where the text went on.
    drafter, mask = GoldDrafter(list(written), len(written)), [[1] * len(prompt)]
    generate(
        model, [list(prompt)], drafter, rule, max_new_tokens=len(written) + 1, eos_token_id=(), attention_mask=mask
    )
    return rule.choices


class _Along:
    """An acceptance rule that writes a given text, and notes what the model thinks of it."""

    def __init__(self, written: Sequence[int]) -> None:
        self.written, self.choices = written, list[Choice]()

    def choose(self, logits: Tensor, drafted: Callable[[int], np.ndarray], depths: Sequence[int]) -> list[int]:
        # Behind the text's end anything will do.
        tokens = [*self.written[len(self.choices) : len(self.choices) + len(logits)]]
        tokens += [0] * (len(logits) - len(tokens))
        for line, token in zip(logits, tokens, strict=True):
            value = line[token]
            rank = int((line > value).sum()) + int((line[:token] == value).sum())
            self.choices.append(Choice(int(line.argmax()), rank, float(line.max() - value)))
        return tokens
