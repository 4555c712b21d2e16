"""Fixed-point iteration on a text's equations ``y_i = argmax p(y_i | y_<i, x)`` (Santilli 2023, section 3).

A *pass* reads the settled token before a block and the block's values, and computes all the block's equations at once.
Position ``i`` is *settled*, final, once a pass has left all values before it unchanged. So every pass settles at least
one position, whatever the initial values, and a block is solved when a pass has changed none but its last value, which
no equation of the block reads. The settled prefix stays in the key-value cache; the rest of the block is read again.

The paper's three algorithms (section 3.2) are this iteration under three schedules of blocks. Whatever the blocks, initial
values and length, the text is that of ``generate(do_sample=False)``; only the number of passes differs. Each row has its own blocks and begins the next as soon as one is solved; one pass serves all rows. A text ends only in
its settled part, token by token under the rules of ``latticebpd.decoding.stopping``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from latticebpd.decoding.prompts import Ids, Prompts
from latticebpd.decoding.session import Session, SessionOptions
from latticebpd.decoding.stopping import Text
from latticebpd.drafters.drafter import State
from latticebpd.jacobi.block_schedule import BlockSchedule, Length
from latticebpd.jacobi.initial_values import Initial, Padding
from latticebpd.jacobi.solution import Iterate, Solution
from latticebpd.lattices.drafts import DraftTree
from latticebpd.target.forward import Verified
from latticebpd.target.stock_model import Model
from latticebpd.target.verifier import Verifier


class JacobiOptions(SessionOptions, total=False):
    """JacobiOptions of all three algorithms."""

    trace: bool


@dataclass
class _Row:
    """The state of one row.

    unread: settled tokens that the cache does not hold yet, at least one.
    cached: tokens in the cache.
    values: the current iterate of the block after them; empty between blocks.
    hidden: the state that predicted the last settled token.
    columns, pairs, passes, updates, blocks: counts, as in ``Solution``.
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
        """The values as a chain after the unread tokens, without the last, which no equation reads."""
        return DraftTree.from_paths([[*self.unread[1:], *self.values[:-1]][:room]])

    def update(self, computed: list[int], hidden: Tensor) -> tuple[list[int], list[int]]:
        """Apply a pass: its values, and the states that predicted them, ``[columns, hidden]``.

        Returns the newly settled tokens, and the nodes of the chain that now belong to the text.
        """
        differing = [i for i, (old, new) in enumerate(zip(self.values, computed, strict=False)) if old != new]
        agreeing = min([*differing, len(computed) - 1])
        nodes = len(self.unread) - 1 + agreeing
        columns = len(self.unread) - 1 + len(computed)
        self.columns += columns
        self.pairs += columns * (self.cached + columns)
        self.passes += 1
        self.updates += bool(differing)
        self.hidden = hidden[nodes]
        self.cached += nodes + 1
        self.unread = [computed[agreeing]]
        self.values = computed[agreeing + 1 :] + self.values[len(computed) :]
        return computed[: agreeing + 1], list(range(nodes))


def jacobi(
    model: Model, inputs: Ids, initial: Initial | None = None, length: Length = None, **options: Unpack[JacobiOptions]
) -> Solution:
    """Parallel Jacobi decoding (algorithm 1): the whole text is one block.

    Args:
        model: any causal LM or encoder-decoder of ``transformers``, with heads or without.
        inputs: prompts, or an encoder-decoder's sources: ``[rows, n]`` or, for a single one, ``[n]``.
        initial: first values; padding by default.
        length: the target's, known or estimated; a longer text goes on in another block of that length. None means
            ``LengthRatio()`` for an encoder-decoder, the text's limit for other models.
        options: as for ``latticebpd.generate``; ``pad_token_id`` also completes the initial values, and ``trace`` keeps
            every iterate.

    Raises:
        ValueError: unusable prompts, limits, processors, lengths, initial values or model.
    """
    return solve(model, inputs, BlockSchedule(length=length), initial, **options)


def gauss_seidel_jacobi(
    model: Model,
    inputs: Ids,
    block_size: int = 3,
    initial: Initial | None = None,
    length: Length = None,
    **options: Unpack[JacobiOptions],
) -> Solution:
    """Parallel Gauss-Seidel-Jacobi decoding (algorithm 2): blocks of ``block_size`` in sequence, Jacobi inside.

    With blocks of one it is greedy decoding, with blocks as long as the text it is :func:`jacobi`.

    Args:
        model, inputs, initial, options: as for :func:`jacobi`.
        block_size: tokens solved together, >= 1.
        length: the target's, known or estimated; it cuts the block that reaches beyond it. None cuts none.
    """
    return solve(model, inputs, BlockSchedule(block_size, length), initial, **options)


def hybrid_jacobi(
    model: Model,
    inputs: Ids,
    block_size: int = 3,
    initial: Initial | None = None,
    max_length: int = 256,
    **options: Unpack[JacobiOptions],
) -> Solution:
    """Hybrid Gauss-Seidel-Jacobi decoding (algorithm 3): blocks up to ``max_length``, then one token at a time.

    It needs no length: the text ends with an end-of-text token in a block's settled part.

    Args:
        model, inputs, initial, options: as for :func:`jacobi`.
        block_size: tokens solved together, >= 1.
        max_length: new tokens decoded in blocks, >= 0; 0 is greedy decoding.
    """
    return solve(model, inputs, BlockSchedule(block_size, max_length=max_length), initial, **options)


def solve(
    model: Model,
    inputs: Ids,
    schedule: BlockSchedule,
    initial: Initial | None = None,
    *,
    trace: bool = False,
    **options: Unpack[SessionOptions],
) -> Solution:
    """Decode a batch under a schedule; other arguments as for :func:`jacobi`."""
    initial = Padding() if initial is None else initial
    session = Session.begin(model, inputs, **options)
    schedule.check(len(session.prompts))
    prompts, texts, verifier, fill = session.prompts, session.texts, session.verifier, session.settings.fill_id

    rows = active = _begin(verifier, texts)
    iterates: list[Iterate] = []
    num_passes = 0
    while active:
        _begin_blocks([row for row in active if not row.values], schedule, initial, prompts, fill)
        trees = [row.tree(verifier.max_nodes) for row in active]
        verified = verifier.verify([row.unread[0] for row in active], trees)
        paths, settled = [], []
        computed = _evaluate(verified, active, trees, with_probabilities=trace)
        for row, hidden, (values, probabilities) in zip(active, verified.hidden, computed, strict=True):
            before, start = row.values, len(row.text.new_tokens)
            tokens, path = row.update(values, hidden)
            if trace:
                iterates.append(Iterate(row.index, start, before, tokens + row.values, probabilities, len(tokens)))
            settled.append(row.text.commit(tokens))
            paths.append(path)
        verifier.keep(paths)
        initial.observe([row.index for row in active], settled)
        num_passes += 1
        kept = [i for i, row in enumerate(active) if not row.text.finished]
        if kept and len(kept) < len(active):  # rows that have ended cost nothing more
            verifier.select(kept)
        active = [active[i] for i in kept]

    counts: dict[str, Any] = {
        name: np.array([getattr(row, name) for row in rows], dtype=np.int64)
        for name in ("passes", "updates", "blocks", "columns", "pairs")
    }
    return Solution(
        sequences=session.sequences,
        prompt_length=prompts.prefix.shape[1],
        num_tokens=np.array([len(text.new_tokens) for text in texts], dtype=np.int64),
        num_passes=num_passes,
        trace=iterates if trace else None,
        **counts,
    )


def _begin(verifier: Verifier, texts: list[Text]) -> list[_Row]:
    """Read all prompts but for their last tokens; the first pass reads those together with the first block.

    If a prompt is a single token, as an encoder-decoder's is, the first pass reads all of every prompt.
    """
    prefixes = [text.tokens[:-1] for text in texts]
    if all(prefixes):
        verifier.prefill(prefixes)
        return [
            _Row(i, text, text.tokens[-1:], len(read), len(read), len(read) ** 2)
            for i, (text, read) in enumerate(zip(texts, prefixes, strict=True))
        ]
    verifier.begin(len(texts))
    return [_Row(i, text, list(text.tokens), 0, 0, 0) for i, text in enumerate(texts)]


def _begin_blocks(rows: list[_Row], schedule: BlockSchedule, initial: Initial, prompts: Prompts, fill: int) -> None:
    """Initial values for rows between blocks."""
    asked: list[tuple[_Row, State]] = []
    for row in rows:
        text, source = row.text, prompts.sources[row.index]
        start, left = len(text.new_tokens), text.max_depth + 1
        first_alone = initial.after_first_token and start == 0
        width = 1 if first_alone else min(schedule.width(row.index, source, start) or left, left)
        row.values = [fill] * width
        row.blocks += 1
        if not first_alone:
            asked.append((row, State(row.index, text.tokens, text.prompt_length, row.hidden, width, source)))
    if not asked:
        return
    name, vocabulary = type(initial).__name__, prompts.vocab_size
    initial_values = initial.values([block for _, block in asked])
    if len(initial_values) != len(asked):
        raise ValueError(
            f"expected initial values for each of {len(asked)} blocks, got {len(initial_values)} from {name}"
        )
    for (row, block), values in zip(asked, initial_values, strict=True):
        if len(values) > block.max_depth or not all(0 <= value < vocabulary for value in values):
            raise ValueError(
                f"expected at most {block.max_depth} initial values from 0 to {vocabulary - 1} (the model's"
                f" vocabulary), got {values} from {name}; is it made for this model?"
            )
        row.values[: len(values)] = values


def _evaluate(
    verified: Verified, rows: list[_Row], trees: list[DraftTree], with_probabilities: bool
) -> list[tuple[list[int], list[float]]]:
    """Every row's new values, and their probabilities if asked for, by one projection to the vocabulary."""
    widths = [len(tree) + 2 - len(row.unread) for row, tree in zip(rows, trees, strict=True)]
    cells = [(i, j) for i, width in enumerate(widths) for j in range(width)]
    logits = verified.logits_of([i for i, _ in cells], [len(rows[i].unread) - 1 + j for i, j in cells])
    if any(row.text.processors for row in rows):
        logits = torch.stack(
            [rows[i].text.processed(rows[i].values[:j], line) for (i, j), line in zip(cells, logits, strict=True)]
        )
    best = logits.argmax(dim=-1)
    probabilities: list[float] = []
    if with_probabilities:
        probabilities = logits.float().softmax(dim=-1).gather(-1, best[:, None])[:, 0].tolist()
    tokens, ends = best.tolist(), np.cumsum(widths).tolist()
    return [
        (tokens[end - width : end], probabilities[end - width : end]) for end, width in zip(ends, widths, strict=True)
    ]
