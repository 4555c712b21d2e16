"""The three parallel decoding algorithms of Santilli et al. 2023, section 3.2, on any ``transformers`` model.

They are one iteration (``solver``) under three schedules (``blocks``).  Whatever the block size, the initial values and
the length, the text is greedy decoding's, ``generate(do_sample=False)``; only the number of passes differs.
"""

from __future__ import annotations

from typing import Unpack

from latticebpd.decoding.session import Ids
from latticebpd.jacobi.block_schedule import Blocks, BlocksThenSingle, Length, Whole
from latticebpd.jacobi.initial_values import Initial
from latticebpd.jacobi.solution import Solution
from latticebpd.jacobi.solver import Options, solve
from latticebpd.target.stock_model import Model


def jacobi(
    model: Model, inputs: Ids, initial: Initial | None = None, length: Length = None, **options: Unpack[Options]
) -> Solution:
    """Parallel Jacobi decoding (algorithm 1): the whole text is one block.

    Args:
        model: any causal LM or encoder-decoder of ``transformers``, with heads or without.
        inputs: prompts, or an encoder-decoder's sources: ``[rows, n]`` or, for a single one, ``[n]``.
        initial: first values; padding by default.
        length: the target's, known or estimated.  Text that turns out longer goes on in another block of that length.
        options: as for ``latticebpd.generate``: attention_mask, max_new_tokens, eos_token_id, pad_token_id,
            logits_processor, stopping_criteria, stop_strings, tokenizer, use_cache; and trace, which keeps every
            iterate.

    Raises:
        ValueError: something that cannot be used; the message says why and what to do.
    """
    return solve(model, inputs, Whole(length), initial, **options)


def gauss_seidel_jacobi(
    model: Model,
    inputs: Ids,
    block_size: int = 3,
    initial: Initial | None = None,
    length: Length = None,
    **options: Unpack[Options],
) -> Solution:
    """Parallel Gauss-Seidel-Jacobi decoding (algorithm 2): blocks of ``block_size`` in sequence, Jacobi inside.

    With blocks of one it is greedy decoding, with blocks as long as the text it is :func:`jacobi`.

    Args:
        model, inputs, initial, options: as for :func:`jacobi`.
        block_size: tokens solved together, >= 1.
        length: the target's, known or estimated, which cuts the block that reaches beyond it; None leaves all blocks
            whole.
    """
    return solve(model, inputs, Blocks(block_size, length), initial, **options)


def hybrid_jacobi(
    model: Model,
    inputs: Ids,
    block_size: int = 3,
    initial: Initial | None = None,
    max_length: int = 256,
    **options: Unpack[Options],
) -> Solution:
    """Hybrid Gauss-Seidel-Jacobi decoding (algorithm 3): blocks up to ``max_length``, then one token at a time.

    It needs no length: the text ends with an end-of-text token in a block's settled part.

    Args:
        model, inputs, initial, options: as for :func:`jacobi`.
        block_size: tokens solved together, >= 1.
        max_length: new tokens decoded in blocks, >= 0; 0 is greedy decoding.
    """
    return solve(model, inputs, BlocksThenSingle(block_size, max_length), initial, **options)
