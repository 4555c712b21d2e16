"""Lattices of a model over its own greedy text, and how much of a draft that text would accept.

Teacher forcing the base model's greedy text through it once gives the heads' lattice at every position.  Drafts
are then scored against a fixed continuation, position by position: quick, exact for each position, but no decode
(a decode visits only some positions).  Results of such a replay are to be labelled as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from latticebpd.decoding.loop import generate
from latticebpd.drafters import NoDrafter
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.lattices.drafts import ROOT, DraftTree
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.measuring.collect import CollectOptions, text_lattices


def collect_lattices(
    model: BlockwiseLM,
    prompts: Iterable[Sequence[int]],
    k: int = 16,
    max_new_tokens: int = 128,
    context_length: int = 8,
    on_prompt: Callable[[], None] | None = None,
) -> LatticeSet:
    """Decode every prompt greedily and keep the lattice at each position whose whole continuation is known.

    Args:
        model: blockwise model with ``h`` heads; lattices have ``h - 1`` slots.
        prompts: token ids, each at least one.
        k: arcs per slot.
        max_new_tokens: greedy tokens per prompt.
        context_length: tokens kept before each lattice, the next token included.
        on_prompt: called after each prompt, for progress.
    """
    options = CollectOptions(k, max_new_tokens, context_length)
    slots = model.num_heads - 1
    parts = []
    for number, prompt in enumerate(prompts):
        text = generate(model, prompt, NoDrafter(), max_new_tokens=options.max_new_tokens).sequences[0].tolist()
        positions = range(len(prompt) - 1, max(len(prompt) - 1, len(text) - 1 - slots))
        parts.append(text_lattices(model, text, positions, k, context_length, number))
        if on_prompt is not None:
            on_prompt()
    return LatticeSet.joined(parts)


def accept_length(tree: DraftTree, continuation: Sequence[int] | np.ndarray) -> int:
    """Drafted tokens that exact verification keeps when the base model's next tokens are ``continuation``."""
    children = {edge: node for node, edge in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))}
    node, length = ROOT, 0
    for token in np.asarray(continuation).tolist():
        child = children.get((node, token))
        if child is None:
            break
        node, length = child, length + 1
    return length
