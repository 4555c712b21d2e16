"""Lattices of a model over its own greedy text, and how much of a draft that text would accept.

Teacher forcing the base model's greedy text through it once gives the heads' lattice at every position.  Drafts
are then scored against a fixed continuation, position by position: quick, exact for each position, but no decode
(a decode visits only some positions).  Results of such a replay are to be labelled as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch

from latticebpd.decoding import generate
from latticebpd.drafters import NoDrafter, lattice_from_logits
from latticebpd.drafts import ROOT, DraftTree
from latticebpd.lattice import PADDING, LatticeSet, SausageLattice
from latticebpd.models import BlockwiseLM


@torch.inference_mode()
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
    if context_length < 1:
        raise ValueError(f"expected context_length >= 1 (the next token belongs to it), got {context_length}")
    slots = model.num_heads - 1
    tokens, log_probs, continuations, contexts, sequence = [], [], [], [], []
    for number, prompt in enumerate(prompts):
        text = generate(model, prompt, NoDrafter(), max_new_tokens=max_new_tokens).sequences
        hidden = model.base(input_ids=text, output_hidden_states=True, logits_to_keep=1).hidden_states[-1][0]
        row = text[0].tolist()
        # Position t predicted row[t + 1], the lattice's last context token; its slots are row[t + 2 :].
        for t in range(len(prompt) - 1, len(row) - 1 - slots):
            lattice = lattice_from_logits(model.head_logits(hidden[t]), k)
            tokens.append(lattice.tokens)
            log_probs.append(lattice.log_probs)
            continuations.append(row[t + 2 : t + 2 + slots])
            context = row[: t + 2][-context_length:]
            contexts.append([PADDING] * (context_length - len(context)) + context)
            sequence.append(number)
        if on_prompt is not None:
            on_prompt()
    return LatticeSet(
        np.array(tokens, dtype=np.int32).reshape(-1, slots, k),
        np.array(log_probs, dtype=np.float32).reshape(-1, slots, k),
        np.array(continuations, dtype=np.int32).reshape(-1, slots),
        np.array(contexts, dtype=np.int32).reshape(-1, context_length),
        model.tokenizer_fingerprint,
        np.array(sequence, dtype=np.int64),
    )


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


def accept_lengths(
    lattices: LatticeSet, draft: Callable[[SausageLattice, list[int]], DraftTree], on_lattice: Callable[[], None] | None = None
) -> np.ndarray:
    """``[n]`` accepted drafted tokens of ``draft(lattice, context)`` at every position."""
    lengths = np.zeros(len(lattices), dtype=np.int64)
    for index in range(len(lattices)):
        lengths[index] = accept_length(draft(lattices[index], lattices.context_of(index)), lattices.continuation[index])
        if on_lattice is not None:
            on_lattice()
    return lengths
