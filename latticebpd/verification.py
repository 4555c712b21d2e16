"""Verifying a draft tree in one forward pass of the base model (tree attention).

The pass sees the *next token* (certain, but not yet in the cache) followed by the tree's nodes.  Row 0 of every
result belongs to the next token, row ``i + 1`` to node ``i``.  A node attends to the text so far, to the next
token, to its ancestors and to itself, at the position that it would have in the text; so every row holds just
what the base model computes for that node's prefix, and a tree without branches is ordinary causal attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from latticebpd.drafts import ROOT, DraftTree


@dataclass(frozen=True)
class Verified:
    """The base model's output for the next token and every drafted node.

    hidden: ``[nodes + 1, hidden]``, the final, normalised hidden states.
    logits_of: rows -> ``[len(rows), vocab]`` logits of those rows.
    """

    hidden: Tensor
    logits_of: Callable[[list[int]], Tensor]

    @cached_property
    def _all_choices(self) -> list[int]:
        choices: list[int] = self.logits_of(list(range(self.hidden.shape[0]))).argmax(dim=-1).tolist()
        return choices

    def greedy_token(self, row: int) -> int:
        """The base model's own next token after a row; ties between logits go to the lowest token id.

        Only the rows on the accepted path are ever asked for.  On a CPU the vocabulary is therefore projected row
        by row, a fraction of the work; elsewhere in one go, because a transfer per row would cost more.
        """
        if self.hidden.device.type != "cpu":
            return self._all_choices[row]
        return int(self.logits_of([row]).argmax())


def tree_attention_mask(tree: DraftTree, prefix_length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Additive mask ``[1, 1, nodes + 1, prefix_length + nodes + 1]``: 0 where a row may look, the type's minimum elsewhere."""
    rows = len(tree) + 1
    visible = np.zeros((rows, prefix_length + rows), dtype=bool)
    visible[:, : prefix_length + 1] = True
    visible[1:, prefix_length + 1 :] = tree.ancestors
    mask = torch.full(visible.shape, torch.finfo(dtype).min, dtype=dtype)
    mask.masked_fill_(torch.from_numpy(visible), 0.0)
    return mask[None, None].to(device)


class Verifier:
    """The base model and its key–value cache over one growing text.

    Args:
        model: a decoder-only causal LM whose attention takes a four-dimensional mask (SDPA or eager).

    Raises:
        ValueError: the model's attention cannot take a tree mask, or its cache cannot drop rejected tokens.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        implementation = getattr(model.config, "_attn_implementation", "eager")
        if implementation not in {"sdpa", "eager"}:
            raise ValueError(
                f"expected SDPA or eager attention, got {implementation!r}, which takes no tree mask; "
                "load the model with attn_implementation='sdpa'"
            )
        self.model = model
        self.cache = DynamicCache(config=model.config)
        self.length = 0
        self._projects_lazily = False

    @torch.inference_mode()
    def prefill(self, tokens: list[int]) -> Verified:
        """Read the prompt; the result has one row, its last token's."""
        inputs = torch.tensor([tokens], device=self.model.device)
        output = self.model(input_ids=inputs, past_key_values=self.cache, use_cache=True, output_hidden_states=True, logits_to_keep=1)
        for layer in self.cache.layers:
            if getattr(layer, "is_sliding", False) or not hasattr(layer, "keys"):
                raise ValueError(
                    f"expected a model with full attention in every layer, got a cache of {type(layer).__name__}; "
                    "rejected tokens cannot be dropped from it"
                )
        self.length = len(tokens)
        hidden, logits = output.hidden_states[-1][0, -1:], output.logits[0, -1:]
        # Some models scale or cap their logits after the output embedding; theirs are left to the model itself.
        self._projects_lazily = torch.equal(self._project(hidden), logits)
        return Verified(hidden, lambda rows: logits[rows])

    @torch.inference_mode()
    def verify(self, next_token: int, tree: DraftTree) -> Verified:
        """One pass over the next token and the tree; ``keep`` must follow."""
        device = self.model.device
        inputs = torch.tensor([[next_token, *tree.tokens.tolist()]], device=device)
        positions = torch.from_numpy(np.concatenate([[0], tree.depths]) + self.length)[None].to(device)
        mask = tree_attention_mask(tree, self.length, self.model.dtype, device)
        arguments = {
            "input_ids": inputs,
            "attention_mask": mask,
            "position_ids": positions,
            "past_key_values": self.cache,
            "use_cache": True,
        }
        if self._projects_lazily:
            hidden = self.model.base_model(**arguments).last_hidden_state[0]
            return Verified(hidden, lambda rows: self._project(hidden[rows]))
        output = self.model(**arguments, output_hidden_states=True)
        logits = output.logits[0]
        return Verified(output.hidden_states[-1][0], lambda rows: logits[rows])

    @torch.inference_mode()
    def _project(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        return logits

    @torch.inference_mode()
    def keep(self, nodes: list[int]) -> None:
        """Keep the next token and the accepted ``nodes`` (a path from the root) in the cache, drop the rest."""
        rows = [self.length, *(self.length + 1 + node for node in nodes)]
        kept = self.length + len(rows)
        contiguous = rows[-1] == kept - 1
        index = torch.tensor(rows, device=self.model.device)
        for layer in self.cache.layers:
            for name in ("keys", "values"):
                states = getattr(layer, name)
                if not contiguous:
                    states[:, :, self.length : kept] = states[:, :, index]
                setattr(layer, name, states[:, :, :kept])
        self.length = kept


class Acceptance(Protocol):
    """Decides which drafted tokens stay."""

    def accept(self, tree: DraftTree, verified: Verified) -> tuple[list[int], int]:
        """The accepted nodes, a path from the root, and the token that follows them."""


class Exact:
    """Keep a drafted token only where it is the base model's own choice: the output is greedy decoding's."""

    def accept(self, tree: DraftTree, verified: Verified) -> tuple[list[int], int]:
        children = {
            (parent, token): node for node, (parent, token) in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
        }
        path: list[int] = []
        node, choice = ROOT, verified.greedy_token(0)
        while (child := children.get((node, choice))) is not None:
            path.append(child)
            node, choice = child, verified.greedy_token(child + 1)
        return path, choice
