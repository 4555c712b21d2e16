"""Calling a ``transformers`` model for final hidden states, and for the logits of as few columns as possible.

Only nodes on the accepted path need logits, and on a CPU the projection to the vocabulary is most of a small model's
work, so it is computed on request, where the model's logits are its ``exact_projection``.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from latticebpd.models.transformers.transformers_model import Model, TransformersModel
from latticebpd.verification.verifier import Verified


@dataclass(frozen=True, eq=False)
class EncodedSource:
    """An encoder's output for a batch.

    hidden: ``[rows, source, hidden]``; mask: ``[rows, source]``, 1 where the source has a token.
    """

    hidden: Tensor
    mask: Tensor

    @classmethod
    @torch.inference_mode()
    def encode(cls, model: Model, input_ids: Tensor, mask: Tensor) -> EncodedSource:
        """Run the encoder; ``[rows, source]`` both."""
        return cls(
            TransformersModel.of(model).encoder(input_ids=input_ids, attention_mask=mask).last_hidden_state, mask
        )

    def select(self, rows: Tensor) -> EncodedSource:
        """The given rows, in this order; a row may occur several times."""
        return EncodedSource(self.hidden[rows], self.mask[rows])


class Forward:
    """One model, called with its decoder's arguments: ``input_ids``, ``attention_mask``, ``cache`` and so on.

    source: of an encoder–decoder; None for a causal LM.
    layers: from 0, those of a causal LM whose states are returned too; the last one's are normalised.
    """

    def __init__(self, model: Model, source: EncodedSource | None, layers: Sequence[int] = ()) -> None:
        self.base = TransformersModel.of(model)
        self.projection = self.base.exact_projection  # for all passes: hooks may be put on a model between decodes
        self.source, self.layers = source, tuple(layers)

    def select(self, rows: Sequence[int]) -> Forward:
        """For a batch of the given rows, in this order."""
        if self.source is None:
            return self
        chosen = copy.copy(self)
        chosen.source = self.source.select(torch.tensor(rows, device=self.base.device))
        return chosen

    def nodes(self, arguments: dict[str, Any]) -> Verified:
        """Hidden states of every column; logits on request."""
        projection = self.projection
        if projection is None:
            return _computed(*self._full(arguments))
        if self.source is not None:
            states = {"encoder_hidden_states": self.source.hidden, "encoder_attention_mask": self.source.mask}
            arguments = {**arguments, **states}
        out = self.base.decoder(**arguments, **({"output_hidden_states": True} if self.layers else {}))
        hidden = out.last_hidden_state
        layers = self._selected(out.hidden_states) if self.layers else None

        @torch.inference_mode()
        def logits_of(rows: Sequence[int], columns: Sequence[int]) -> Tensor:
            return projection(_picked(hidden, rows, columns))

        return Verified(hidden, logits_of, layers)

    def last(self, arguments: dict[str, Any], last: Tensor) -> Verified:
        """Hidden states and logits at one column of each row, ``last`` ``[rows]``."""
        rows = torch.arange(len(last), device=last.device)
        if self.projection is None and self.base.takes("logits_to_keep"):
            columns, index = torch.unique(last, return_inverse=True)
            hidden, logits, layers = self._full({**arguments, "logits_to_keep": columns})
            return _computed(hidden[rows, last][:, None], logits[rows, index][:, None], layers)
        read, last = self.nodes(arguments), last.cpu()

        def logits_of(rows: Sequence[int], _: Sequence[int]) -> Tensor:
            return read.logits_of(rows, last[list(rows)].tolist())

        return Verified(read.hidden[rows, last][:, None], logits_of, read.layers)

    def _selected(self, states: Sequence[Tensor]) -> Tensor:
        """The states after the selected layers, concatenated; states: the embeddings, then those after each layer."""
        return torch.cat([states[layer + 1] for layer in self.layers], dim=-1)

    def _full(self, arguments: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Hidden states, logits and selected layers' states of a call of the full model."""
        if self.source is not None:
            own = {"input_ids", "inputs_embeds", "attention_mask", "position_ids"}
            renamed = {f"decoder_{name}" if name in own else name: value for name, value in arguments.items()}
            encoded = BaseModelOutput(last_hidden_state=self.source.hidden)
            arguments = renamed | {"encoder_outputs": encoded, "attention_mask": self.source.mask}
        read: list[Any] = []
        hook = self.base.decoder.register_forward_hook(lambda module, inputs, output: read.append(output))
        try:
            output = self.base.model(**arguments, output_hidden_states=True)
        finally:
            hook.remove()
        states = getattr(read[-1], "last_hidden_state", None) if read else None
        if states is None:  # the full model calls other parts of itself
            states = (output.decoder_hidden_states if self.source is not None else output.hidden_states)[-1]
        return states, output.logits, self._selected(output.hidden_states) if self.layers else None


def _computed(hidden: Tensor, logits: Tensor, layers: Tensor | None) -> Verified:
    return Verified(hidden, lambda rows, columns: _picked(logits, rows, columns), layers)


def _picked(values: Tensor, rows: Sequence[int], columns: Sequence[int]) -> Tensor:
    if len(rows) == 1:  # a slice costs a fraction of an indexing
        return values[rows[0], columns[0] : columns[0] + 1]
    return values[list(rows), list(columns)]
