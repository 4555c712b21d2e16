"""Calling a ``transformers`` model for final hidden states, and for the logits of as few positions as possible.

Of all nodes that a pass verifies, only those on the accepted path are asked for logits.  On a CPU the projection to
the vocabulary is most of a small model's work, so it is done for those alone, wherever the model's logits are its
``exact_projection``.  Models that do something else to their logits (cap them, say) are left to do it themselves, at
every node.

With CPU kernels, projecting a few columns costs hardly more than projecting one, so the first columns are projected
together: a tree's nodes come best first, and the accepted path seldom leads beyond. Where only the best token is asked
for, a quarter of the weight's bytes is read, for a few columns at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from latticebpd.target.stock_model import BaseModel, Model

TOGETHER = 12
"""Columns of a model with CPU kernels that are projected together: as many as its kernels keep the sums of."""
SCREENED = 4
"""Columns of a model with CPU kernels whose best tokens are computed together: more cost more than reading weights."""


@dataclass(frozen=True, eq=False)
class Verified:
    """The base model's output for the next token and every drafted node of each row.

    hidden: ``[rows, nodes + 1, hidden]``, the final, normalised hidden states; columns behind a row's own nodes are
        meaningless.
    logits_of: rows and columns, equally many -> ``[n, vocab]`` logits.
    layers: ``[rows, columns of the pass, layers * hidden]`` what chosen layers handed on, side by side, where they were
        asked for.
    best_of: rows and columns -> the token of the highest logit for each, of equal ones the lowest, where that is
        quicker than logits.
    """

    hidden: Tensor
    logits_of: Callable[[Sequence[int], Sequence[int]], Tensor]
    layers: Tensor | None = None
    best_of: Callable[[Sequence[int], Sequence[int]], list[int]] | None = None


@dataclass(frozen=True, eq=False)
class EncodedSource:
    """What an encoder–decoder's decoder reads besides its own text: encoded once, selected with the rows.

    hidden: ``[rows, source, hidden]``; mask: ``[rows, source]``, 1 where the source has a token.
    """

    hidden: Tensor
    mask: Tensor

    @classmethod
    @torch.inference_mode()
    def encode(cls, model: Model, input_ids: Tensor, mask: Tensor) -> EncodedSource:
        """Run the encoder; ``[rows, source]`` both."""
        return cls(BaseModel.of(model).encoder(input_ids=input_ids, attention_mask=mask).last_hidden_state, mask)

    def select(self, rows: Tensor) -> EncodedSource:
        """The given rows, in this order; a row may come several times."""
        return EncodedSource(self.hidden[rows], self.mask[rows])

    @property
    def arguments(self) -> dict[str, Any]:
        """Of the whole model's ``forward``."""
        return {"encoder_outputs": BaseModelOutput(last_hidden_state=self.hidden), "attention_mask": self.mask}


class Forward:
    """One model, called with its decoder's arguments: ``input_ids``, ``attention_mask``, ``past_key_values`` and so on.

    Args:
        model: a causal LM or an encoder–decoder.
        source: what an encoder–decoder reads; None for a causal LM.
        layers: from 0, those of a causal LM whose states are wanted too; the last one's as the model's output embedding
            reads it.
    """

    def __init__(self, model: Model, source: EncodedSource | None, layers: Sequence[int] = ()) -> None:
        self.base = BaseModel.of(model)
        self.source, self.layers = source, tuple(layers)

    def nodes(self, arguments: dict[str, Any]) -> Verified:
        """Hidden states of every position, logits of those that will be asked for."""
        projection = self.base.exact_projection
        if projection is None:
            return _known(*self._full(arguments))
        read = (
            {}
            if self.source is None
            else {"encoder_hidden_states": self.source.hidden, "encoder_attention_mask": self.source.mask}
        )
        out = self.base.decoder(**arguments, **read, **({"output_hidden_states": True} if self.layers else {}))
        hidden = out.last_hidden_state
        ahead = TOGETHER // len(hidden) if projection.has_cpu_kernels else 0
        first: list[Tensor] = []  # logits of every row's first columns, once somebody asks

        @torch.inference_mode()
        def logits_of(rows: Sequence[int], columns: Sequence[int]) -> Tensor:
            if ahead < 2 or hidden.shape[1] == 1 or max(columns, default=0) >= ahead:
                return projection(_picked(hidden, rows, columns))
            if not first:
                first.append(projection(hidden[:, :ahead]))
            return _picked(first[0], rows, columns)

        width = max(1, SCREENED // len(hidden))
        known: dict[int, Tensor] = {}  # best tokens of every row, by the number of so many columns

        @torch.inference_mode()
        def best_of(rows: Sequence[int], columns: Sequence[int]) -> list[int]:
            if width == 1:
                return list(projection.best(_picked(hidden, rows, columns)).tolist())
            for part in {column // width for column in columns} - known.keys():
                known[part] = projection.best(hidden[:, part * width : (part + 1) * width])
            return [int(known[column // width][row, column % width]) for row, column in zip(rows, columns, strict=True)]

        layers = self._chosen(out.hidden_states) if self.layers else None
        return Verified(hidden, logits_of, layers, best_of if projection.has_cpu_kernels else None)

    def last(self, arguments: dict[str, Any], last: Tensor) -> Verified:
        """Hidden states and logits at one position of each row, ``last`` ``[rows]``."""
        rows = torch.arange(len(last), device=last.device)
        if self.base.exact_projection is None and self.base.takes("logits_to_keep"):
            positions, place = torch.unique(last, return_inverse=True)
            hidden, logits, layers = self._full({**arguments, "logits_to_keep": positions})
            return _known(hidden[rows, last][:, None], logits[rows, place][:, None], layers)
        read, last = self.nodes(arguments), last.cpu()
        return Verified(
            read.hidden[rows, last][:, None],
            lambda rows, _: read.logits_of(rows, last[list(rows)].tolist()),
            read.layers,
        )

    def _chosen(self, states: Sequence[Tensor]) -> Tensor:
        """Of the embeddings and every layer's states, those of the chosen layers, side by side."""
        return torch.cat([states[layer + 1] for layer in self.layers], dim=-1)

    def _full(self, arguments: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Hidden states, logits and chosen layers' states of a call of the whole model."""
        if self.source is not None:
            own = {"input_ids", "inputs_embeds", "attention_mask", "position_ids"}
            arguments = {
                f"decoder_{name}" if name in own else name: value for name, value in arguments.items()
            } | self.source.arguments
        read: list[Any] = []
        hook = self.base.decoder.register_forward_hook(lambda module, given, output: read.append(output))
        try:
            output = self.base.model(**arguments, output_hidden_states=True)
        finally:
            hook.remove()
        states = getattr(read[-1], "last_hidden_state", None) if read else None
        if states is None:  # the whole model calls other parts of itself
            states = (output.decoder_hidden_states if self.source is not None else output.hidden_states)[-1]
        return states, output.logits, self._chosen(output.hidden_states) if self.layers else None


def _known(hidden: Tensor, logits: Tensor, layers: Tensor | None) -> Verified:
    return Verified(hidden, lambda rows, columns: _picked(logits, rows, columns), layers)


def _picked(values: Tensor, rows: Sequence[int], columns: Sequence[int]) -> Tensor:
    if len(rows) == 1:  # a slice costs a fraction of an indexing
        return values[rows[0], columns[0] : columns[0] + 1]
    return values[list(rows), list(columns)]
