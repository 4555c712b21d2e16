"""Fixed-point iteration on a text's equations ``y_i = argmax p(y_i | y_<i, x)`` (Santilli 2023, section 3).

A *pass* reads the settled token before a block and the block's values, and computes all the block's equations at once.
Position ``i`` is *settled*, final, once a pass has left all values before it unchanged. So every pass settles at least
one position, whatever the initial values, and a block is solved when a pass has changed none but its last value, which
no equation of the block reads. The settled prefix stays in the key-value cache; the rest of the block is read again.

The paper's three algorithms (section 3.2) are this iteration under three schedules of blocks. Whatever the blocks,
initial values and length, the text is that of ``generate(do_sample=False)``; only the number of passes differs. Each
row has its own blocks and begins the next as soon as one is solved; one pass serves all rows. A text ends only in its
settled part, token by token under the rules of ``latticebpd.decoding.decode_rows``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from latticebpd.decoding.decode_rows import Ids, SequenceState
from latticebpd.decoding.session import PendingTokens, Session, SessionOptions
from latticebpd.drafters.drafter import State
from latticebpd.jacobi.block_schedule import BlockSchedule, Length
from latticebpd.jacobi.initial_values import Initial, Padding
from latticebpd.jacobi.solution import Iterate, Solution
from latticebpd.lattices.drafts import DraftTree
from latticebpd.models.transformers.transformers_model import Model
from latticebpd.verification.verifier import Verified


class JacobiOptions(SessionOptions, total=False):
    """The options of all three algorithms."""

    trace: bool


@dataclass
class _Row:
    """The state of one row.

    values: the current iterate of its block; empty between blocks.
    hidden: the state that predicted the last settled token.
    columns, pairs, passes, updates, blocks: counts, as in ``Solution``.
    """

    index: int
    text: SequenceState
    columns: int
    pairs: int
    passes: int = 0
    updates: int = 0
    blocks: int = 0
    values: list[int] = field(default_factory=list)
    hidden: Tensor | None = None

    def update(self, computed: list[int], hidden: Tensor, unread: int) -> list[int]:
        """Apply a pass that read ``unread`` settled tokens, and return the newly settled ones.

        computed: the block's first values, at most all. hidden: ``[columns, hidden]``, the states that predicted them.
        """
        differing = [i for i, (old, new) in enumerate(zip(self.values, computed, strict=False)) if old != new]
        agreeing = min([*differing, len(computed) - 1])
        columns = unread - 1 + len(computed)
        self.columns += columns
        self.pairs += columns * (len(self.text.tokens) - unread + columns)
        self.passes += 1
        self.updates += bool(differing)
        self.hidden = hidden[agreeing]
        self.values = computed[agreeing + 1 :] + self.values[len(computed) :]
        return computed[: agreeing + 1]


def jacobi(
    model: Model, inputs: Ids, initial: Initial | None = None, length: Length = None, **options: Unpack[JacobiOptions]
) -> Solution:
    """Parallel Jacobi decoding (algorithm 1): the whole text is one block.

    model: any causal LM or encoder-decoder of ``transformers``, with heads or without.
    inputs: prompts, or an encoder-decoder's sources: ``[rows, n]`` or, for a single one, ``[n]``.
    length: the target's, known or estimated; a longer text goes on in another block of that length. None means
        ``LengthRatio()`` for an encoder-decoder, the text's limit for other models.
    options: as for ``latticebpd.generate``; ``pad_token_id`` also completes the initial values, and ``trace`` keeps
        every iterate.
    Raises ValueError: unusable prompts, limits, processors, lengths, initial values or model.
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

    length: the target's, known or estimated; it cuts the block that reaches beyond it. None cuts none. Other arguments
    are as for :func:`jacobi`.
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

    max_length: new tokens decoded in blocks, >= 0; 0 is greedy decoding. Other arguments are as for :func:`jacobi`.
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
    schedule.check(len(session.texts))
    # All but the prompts' last tokens are read first; or, if that leaves nothing of one, all together with the blocks.
    texts, prefixes = session.texts, [text.tokens[:-1] for text in session.texts]
    unread = PendingTokens(session.verifier, prefixes if all(prefixes) else session.prompts.tokens)
    lengths = [0] * len(texts)
    if all(prefixes):
        unread.verify([DraftTree.empty()] * len(texts))
        unread.keep([[]] * len(texts), [text.tokens[-1] for text in texts])
        lengths = list(map(len, prefixes))
    rows = active = [_Row(i, text, n, n * n) for i, (text, n) in enumerate(zip(texts, lengths, strict=True))]
    iterates: list[Iterate] = []
    num_passes = 0
    while active:
        _begin_blocks(session, [row for row in active if not row.values], schedule, initial)
        room = unread.max_nodes
        trees = [DraftTree.from_paths([row.values[:-1][:room]]) for row in active]  # no equation reads the last value
        verified = unread.verify(trees)
        computed = _evaluate(verified, active, trees, with_probabilities=trace)
        settled = []
        for i, (row, (values, probabilities)) in enumerate(zip(active, computed, strict=True)):
            before, start = row.values, len(row.text.new_tokens)
            final = row.update(values, verified.hidden[i], len(unread.tokens[i]))
            if trace:
                iterates.append(Iterate(row.index, start, before, final + row.values, probabilities, len(final)))
            settled.append(final)
        unread.keep([range(len(final) - 1) for final in settled], [final[-1] for final in settled])
        committed = [row.text.commit(final) for row, final in zip(active, settled, strict=True)]
        initial.observe([row.index for row in active], committed)
        num_passes += 1
        kept = [i for i, row in enumerate(active) if not row.text.finished]
        if kept and len(kept) < len(active):  # rows that have ended cost nothing more
            unread.select(kept)
        active = [active[i] for i in kept]

    names = ("passes", "updates", "blocks", "columns", "pairs")
    counts: dict[str, Any] = {name: np.array([getattr(row, name) for row in rows], np.int64) for name in names}
    return Solution(
        sequences=torch.from_numpy(session.sequences),
        prompt_length=session.prompts.prefix.shape[1],
        num_tokens=np.array([len(text.new_tokens) for text in texts], dtype=np.int64),
        num_passes=num_passes,
        trace=iterates if trace else None,
        **counts,
    )


def _begin_blocks(session: Session, rows: list[_Row], schedule: BlockSchedule, initial: Initial) -> None:
    """Initial values for rows between blocks."""
    asked: list[tuple[_Row, State]] = []
    for row in rows:
        text, source = row.text, session.prompts.sources[row.index]
        start, left = len(text.new_tokens), text.max_depth + 1
        first_alone = initial.after_first_token and start == 0
        width = 1 if first_alone else min(schedule.width(row.index, source, start) or left, left)
        row.values = [session.settings.fill_id] * width
        row.blocks += 1
        if not first_alone:
            asked.append((row, State(row.index, text.tokens, text.prompt_length, row.hidden, width, source)))
    if not asked:
        return
    name, largest = type(initial).__name__, session.target.vocab_size - 1
    initial_values = initial.values([block for _, block in asked])
    if (count := len(initial_values)) != len(asked):
        raise ValueError(f"expected initial values for each of {len(asked)} blocks, got {count} from {name}")
    for (row, block), values in zip(asked, initial_values, strict=True):
        if len(values) > block.max_depth or not all(0 <= value <= largest for value in values):
            expected = f"at most {block.max_depth} initial values from 0 to {largest} (the model's vocabulary)"
            raise ValueError(f"expected {expected}, got {values} from {name}; is it made for this model?")
        row.values[: len(values)] = values


def _evaluate(
    verified: Verified, rows: list[_Row], trees: list[DraftTree], with_probabilities: bool
) -> list[tuple[list[int], list[float]]]:
    """Every row's new values, and their probabilities if asked for, by one projection to the vocabulary."""
    widths = [len(tree) + 1 for tree in trees]
    cells = [(i, j) for i, width in enumerate(widths) for j in range(width)]
    logits = verified.logits_of([i for i, _ in cells], [j for _, j in cells])
    if any(row.text.processors for row in rows):
        lines = zip(cells, logits, strict=True)
        logits = torch.stack([rows[i].text.processed(rows[i].values[:j], line) for (i, j), line in lines])
    best = logits.argmax(dim=-1)
    probabilities: list[float] = []
    if with_probabilities:
        probabilities = logits.float().softmax(dim=-1).gather(-1, best[:, None])[:, 0].tolist()
    tokens, ends = best.tolist(), np.cumsum(widths).tolist()
    spans = [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]
    return [(tokens[span], probabilities[span]) for span in spans]
