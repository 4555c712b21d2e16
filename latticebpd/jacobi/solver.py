"""Fixed-point iteration on a text's equations ``y_i = argmax p(y_i | y_<i, x)`` (Santilli 2023, section 3).

A *pass* reads the settled token before a block and the block's values, and finds every place's value anew: all the
block's equations at once.  Place ``i`` is *settled*, final, once all values before it came out of a pass as they went
in: nothing that it depends on will change.  So every pass settles at least one place, whatever the initial values,
and a block is solved when a pass has left it unchanged, its last place aside, which no equation of the block reads.
The settled prefix stays in the key-value cache; the rest of the block is evaluated again.

Rows have blocks of their own and begin the next as soon as one is solved; one pass serves all rows.  A text ends in
its settled part only, token by token under the rules of ``latticebpd.decoding.stopping``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from latticebpd.decoding.prompts import Prompts
from latticebpd.decoding.session import Ids, Session, SessionOptions
from latticebpd.decoding.stopping import Text
from latticebpd.jacobi.block_schedule import Schedule
from latticebpd.jacobi.initial_values import Block, Initial, Padding
from latticebpd.jacobi.solution import Iterate, Solution
from latticebpd.lattices.drafts import DraftTree
from latticebpd.target.forward import Verified
from latticebpd.target.stock_model import Model
from latticebpd.target.verifier import Verifier


class Options(SessionOptions, total=False):
    """What the algorithms have in common."""

    trace: bool


@dataclass
class _Row:
    """One row's place in the iteration.

    unread: settled tokens that the cache does not hold yet, at least one.
    cached: tokens in the cache.
    values: the current iterate of the block behind them; empty between blocks.
    hidden: the state that predicted the last settled token.
    columns, pairs, passes, updates, blocks: counts, as ``Solution`` has them.
    """

    index: int
    text: Text
    unread: list[int]
    cached: int
    columns: int
    pairs: int
    values: list[int] = field(default_factory=list)
    hidden: Tensor | None = None
    passes: int = 0
    updates: int = 0
    blocks: int = 0

    def tree(self, room: int | None) -> DraftTree:
        """The values as a chain behind the unread tokens; the last value is left out, because no equation reads it."""
        chain = [*self.unread[1:], *self.values[:-1]][:room]
        return DraftTree(np.array(chain, dtype=np.int32), np.arange(-1, len(chain) - 1, dtype=np.int32))

    def update(self, found: list[int], hidden: Tensor) -> tuple[list[int], list[int]]:
        """Take the values that a pass found and the states that they were found from, ``[columns, hidden]``.

        Returns the newly settled tokens, and the nodes of the chain that now belong to the text.
        """
        read = self.values[: len(found)]
        differing = [i for i, (old, new) in enumerate(zip(read, found, strict=True)) if old != new]
        agreeing = min(differing[0] if differing else len(found), len(found) - 1)
        nodes = len(self.unread) - 1 + agreeing
        columns = len(self.unread) - 1 + len(found)
        self.columns += columns
        self.pairs += columns * (self.cached + columns)
        self.passes += 1
        self.updates += bool(differing)
        self.hidden = hidden[nodes]
        self.cached += nodes + 1
        self.unread = [found[agreeing]]
        self.values = found[agreeing + 1 :] + self.values[len(found) :]
        return found[: agreeing + 1], list(range(nodes))


def solve(
    model: Model,
    input_ids: Ids,
    schedule: Schedule,
    initial: Initial | None = None,
    *,
    trace: bool = False,
    **options: Unpack[SessionOptions],
) -> Solution:
    """Decode a batch, block by block; the text is that of ``generate(do_sample=False)``.

    Args:
        model: any causal LM or encoder-decoder of ``transformers``, with heads or without.
        input_ids: prompts, or an encoder-decoder's sources: ``[rows, n]`` or, for a single one, ``[n]``.
        schedule: how the text is cut into blocks.
        initial: the blocks' first values; padding by default.
        trace: keep every iterate.
        options: ``pad_token_id`` also stands where ``initial`` gives nothing.

    Raises:
        ValueError: prompts, limits, processors, a schedule, initial values or a model that cannot be used.
    """
    initial = Padding() if initial is None else initial
    session = Session.begin(model, input_ids, **options)
    schedule.check(len(session.prompts))
    prompts, texts, verifier, fill = session.prompts, session.texts, session.verifier, session.settings.fill_id

    rows = _begin(verifier, texts)
    going_on = rows
    iterates: list[Iterate] = []
    num_passes = 0
    while going_on:
        _begin_blocks([row for row in going_on if not row.values], schedule, initial, prompts, fill)
        trees = [row.tree(verifier.max_nodes) for row in going_on]
        verified = verifier.verify([row.unread[0] for row in going_on], trees)
        found = _find(verified, going_on, trees, with_probabilities=trace)
        paths, settled = [], []
        for at, (row, (values, probabilities)) in enumerate(zip(going_on, found, strict=True)):
            before, place = row.values, len(row.text.new_tokens)
            tokens, path = row.update(values, verified.hidden[at])
            if trace:
                iterates.append(Iterate(row.index, place, before, tokens + row.values, probabilities, len(tokens)))
            settled.append(row.text.commit(tokens))
            paths.append(path)
        verifier.keep(paths)
        initial.observe([row.index for row in going_on], settled)
        num_passes += 1
        if any(row.text.finished for row in going_on):  # rows that have ended cost nothing more
            places = [place for place, row in enumerate(going_on) if not row.text.finished]
            going_on = [going_on[place] for place in places]
            if places:
                verifier.select(places)

    def counted(name: str) -> np.ndarray:
        return np.array([getattr(row, name) for row in rows], dtype=np.int64)

    return Solution(
        sequences=session.sequences,
        prompt_length=prompts.given.shape[1],
        num_tokens=np.array([len(text.new_tokens) for text in texts], dtype=np.int64),
        passes=counted("passes"),
        updates=counted("updates"),
        blocks=counted("blocks"),
        columns=counted("columns"),
        pairs=counted("pairs"),
        num_passes=num_passes,
        trace=iterates if trace else None,
    )


def _begin(verifier: Verifier, texts: list[Text]) -> list[_Row]:
    """Read all prompts but for their last tokens; the first pass reads those together with the first block.

    Where a prompt is a single token, as an encoder-decoder's is, the first pass reads all of every prompt.
    """
    read = [text.tokens[:-1] for text in texts]
    if all(read):
        verifier.prefill(read)
        return [
            _Row(row, text, text.tokens[-1:], len(text.tokens) - 1, len(text.tokens) - 1, (len(text.tokens) - 1) ** 2)
            for row, text in enumerate(texts)
        ]
    verifier.begin(len(texts))
    return [_Row(row, text, list(text.tokens), 0, 0, 0) for row, text in enumerate(texts)]


def _begin_blocks(rows: list[_Row], schedule: Schedule, initial: Initial, prompts: Prompts, fill: int) -> None:
    """Initial values for rows between blocks."""
    asked: list[tuple[_Row, Block]] = []
    for row in rows:
        text, source = row.text, prompts.sources[row.index]
        place, left = len(text.new_tokens), text.max_depth + 1
        first_alone = initial.after_first_token and place == 0
        width = 1 if first_alone else min(schedule.width(row.index, source, place) or left, left)
        row.values = [fill] * width
        row.blocks += 1
        if not first_alone:
            asked.append((row, Block(row.index, text.tokens, text.prompt_length, width, source, row.hidden)))
    if not asked:
        return
    given = initial.values([block for _, block in asked])
    if len(given) != len(asked):
        raise ValueError(
            f"expected initial values for each of {len(asked)} blocks, got {len(given)} from {type(initial).__name__}"
        )
    for (row, block), values in zip(asked, given, strict=True):
        if len(values) > block.width or not all(0 <= value < prompts.vocab_size for value in values):
            raise ValueError(
                f"expected at most {block.width} initial values from 0 to {prompts.vocab_size - 1} (the model's"
                f" vocabulary), got {values} from {type(initial).__name__}; is it made for this model?"
            )
        row.values[: len(values)] = values


def _find(
    verified: Verified, rows: list[_Row], trees: list[DraftTree], with_probabilities: bool
) -> list[tuple[list[int], list[float]]]:
    """Every row's new values, and their probabilities if asked for, in one projection to the vocabulary."""
    places: list[int] = []
    columns: list[int] = []
    for place, (row, tree) in enumerate(zip(rows, trees, strict=True)):
        looked_at = range(len(row.unread) - 1, len(tree) + 1)
        places += [place] * len(looked_at)
        columns += looked_at
    logits = verified.logits_of(places, columns)
    if any(row.text.processors for row in rows):
        behind = (
            rows[place].values[: column - len(rows[place].unread) + 1]
            for place, column in zip(places, columns, strict=True)
        )
        logits = torch.stack(
            [
                rows[place].text.processed(drafted, one)
                for place, drafted, one in zip(places, behind, logits, strict=True)
            ]
        )
    best = logits.argmax(dim=-1)
    probabilities: list[float] = []
    if with_probabilities:
        probabilities = logits.float().softmax(dim=-1).gather(-1, best[:, None])[:, 0].tolist()
    found: list[tuple[list[int], list[float]]] = [([], []) for _ in rows]
    for i, (place, token) in enumerate(zip(places, best.tolist(), strict=True)):
        found[place][0].append(token)
        found[place][1].extend(probabilities[i : i + 1])
    return found
