"""The decoding loop: draft, verify, accept, commit.

Everything in blockwise parallel decoding is a drafter and an acceptance rule around this one loop.  It is the
merged form (Stern 2018, section 4): the pass that verifies one draft also yields the hidden state from which the
heads draft the next, so each step costs one call of the base model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from latticebpd.drafters import Drafter, State
from latticebpd.drafts import DraftTree
from latticebpd.models import BlockwiseLM
from latticebpd.verification import Acceptance, Exact, Verifier


@dataclass(frozen=True)
class Step:
    """One call: the tree that was verified, and the tokens that were committed after it (the last is not drafted)."""

    tree: DraftTree
    committed: list[int]


@dataclass(frozen=True)
class Generated:
    """What a decode produced and cost.

    sequences: ``[1, length]`` int64, prompt included, as ``generate()`` returns it.
    accept_counts: histogram over calls of the tokens committed per call; index is the number of tokens.
    num_calls: forward passes that committed tokens; the prefill, which yields the first token, is counted apart.
    num_tokens: new tokens, the prefill's included.
    verified_tokens: drafted nodes over all calls; the next token itself is not counted.
    trace: one ``Step`` per call, or None if none was asked for.
    """

    sequences: Tensor
    accept_counts: np.ndarray
    num_calls: int
    num_tokens: int
    verified_tokens: int
    trace: list[Step] | None

    @property
    def block_efficiency(self) -> float:
        """Tokens committed per call; NaN where the prefill alone sufficed."""
        committed = float(np.arange(len(self.accept_counts)) @ self.accept_counts)
        return committed / self.num_calls if self.num_calls else float("nan")


@dataclass
class _Text:
    """The growing text: the one place that commits tokens and knows when to stop."""

    tokens: list[int]
    limit: int
    eos_ids: frozenset[int]
    finished: bool = field(default=False)

    def commit(self, tokens: Sequence[int]) -> list[int]:
        """Append tokens until an end-of-text token or the length limit; return those appended."""
        committed = []
        for token in tokens:
            if self.finished:
                break
            self.tokens.append(token)
            committed.append(token)
            self.finished = token in self.eos_ids or len(self.tokens) >= self.limit
        return committed


def generate(
    model: BlockwiseLM | PreTrainedModel,
    input_ids: Tensor | Sequence[int],
    drafter: Drafter,
    acceptance: Acceptance | None = None,
    max_new_tokens: int = 256,
    eos_token_id: int | Sequence[int] | None = None,
    trace: bool = False,
) -> Generated:
    """Decode one prompt; under exact acceptance the text is that of ``generate(do_sample=False)``.

    Args:
        model: a blockwise model, or any decoder-only causal LM of ``transformers``.
        input_ids: the prompt, ``[n]`` or ``[1, n]``, n >= 1.
        drafter: proposes what is verified.
        acceptance: ``Exact()`` by default.
        max_new_tokens: length limit, >= 1.
        eos_token_id: token or tokens that end the text; by default the model's own.
        trace: keep the tree and the committed tokens of every call.

    Raises:
        ValueError: an empty prompt, several prompts, a token outside the vocabulary, or a limit below 1.
    """
    base = model.base if isinstance(model, BlockwiseLM) else model
    prompt = _prompt(input_ids, int(base.config.get_text_config().vocab_size))
    if max_new_tokens < 1:
        raise ValueError(f"expected max_new_tokens >= 1, got {max_new_tokens}")
    rule = acceptance or Exact()
    text = _Text(list(prompt), len(prompt) + max_new_tokens, _eos_ids(base, eos_token_id))
    verifier = Verifier(base)

    verified = verifier.prefill(prompt)
    _, next_token = rule.accept(DraftTree.empty(), verified)
    hidden = verified.hidden[0]
    text.commit([next_token])
    steps: list[Step] = []
    committed_per_call: list[int] = []
    verified_tokens = 0
    while not text.finished:
        tree = drafter.propose(State(text.tokens, len(prompt), hidden, text.limit - len(text.tokens) - 1))
        verified = verifier.verify(next_token, tree)
        path, next_token = rule.accept(tree, verified)
        committed = text.commit([*tree.tokens[path].tolist(), next_token])
        drafter.observe(committed)
        verifier.keep(path)
        hidden = verified.hidden[path[-1] + 1 if path else 0]
        committed_per_call.append(len(committed))
        verified_tokens += len(tree)
        if trace:
            steps.append(Step(tree, committed))

    return Generated(
        sequences=torch.tensor([text.tokens]),
        accept_counts=np.bincount(np.array(committed_per_call, dtype=np.int64), minlength=2),
        num_calls=len(committed_per_call),
        num_tokens=len(text.tokens) - len(prompt),
        verified_tokens=verified_tokens,
        trace=steps if trace else None,
    )


def _prompt(input_ids: Tensor | Sequence[int], vocab_size: int) -> list[int]:
    ids = torch.as_tensor(input_ids)
    if ids.ndim == 2 and ids.shape[0] == 1:
        ids = ids[0]
    if ids.ndim != 1 or ids.shape[0] < 1:
        raise ValueError(f"expected one prompt [n] or [1, n] of at least one token, got shape {tuple(ids.shape)}")
    if ids.is_floating_point() or int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        raise ValueError(f"expected token ids from 0 to {vocab_size - 1}, got {ids.dtype} from {ids.min()} to {ids.max()}")
    return [int(token) for token in ids]


def _eos_ids(base: PreTrainedModel, eos_token_id: int | Sequence[int] | None) -> frozenset[int]:
    chosen = eos_token_id
    if chosen is None:
        chosen = base.generation_config.eos_token_id if base.generation_config is not None else base.config.eos_token_id
    if chosen is None:
        return frozenset()
    return frozenset([chosen] if isinstance(chosen, int) else chosen)
