"""Block heads: the next several tokens from one hidden state.

Head 1 is the base model itself (identity: exactness never depends on training). Heads 2..h read the base model's final,
normalised hidden state ``x`` and say what comes 2..h tokens ahead. Four kinds::

    FeedForwardHeads   f_i(x) = x + W_i silu(U_i x), then the base model's output embedding       (Kim 2024, section 4)
    ConditionedHeads  f_i(x) = x + W_i silu(U_i x + V_i e), e for the token that the base model has chosen after x:
                 its output embedding, divided by the root mean square   (read so by Hydra's first head, Ankner 2024)
    SternHeads   f_i(x) = x + W_i relu(U x), one hidden layer for all heads, (h - 1) times as wide;
                 then the base model's output embedding                                     (Stern 2018, section 6)
    MedusaHeads  residual blocks x <- x + silu(A x + b), then a vocabulary projection of the head's own (Cai 2024)

FeedForwardHeads and ConditionedHeads may also read the states after some earlier layers, as EAGLE-3 does (Li 2025),
each divided by its root mean square.

Every kind begins as a copy of head 1.  A new kind is one class, four members, a line in `HEAD_KINDS` and one
in `head_files.SIZES`.

Heads whose states the output embedding reads may have *transitions*: one more conditioned head, shared by all slots.
It reads a slot's state and the token that the slot before has drafted, as Hydra's later heads do, and says what follows
that token; without it a slot does not know what was drafted before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from latticebpd.checks import expect
from latticebpd.models.transformers.transformers_model import Projection


class Heads(nn.Module):
    """Heads 2..``num_heads``; index ``i`` is head ``i + 2``.

    hidden_size: width of the base model's hidden state.
    num_heads: number of predictions, the base model's own included.
    """

    kind: ClassVar[str]
    """Name in files and on the command line."""
    reads_token: ClassVar[bool] = False
    """Whether inputs end with the normalised embeddings of the tokens chosen after the states."""
    layers: tuple[int, ...] = ()
    """Layers of the base model, counted from 1, whose states follow the final ones in the inputs."""
    shortlist: Tensor | None
    """``[n]`` int64 ids, ascending: the tokens that the heads know, and the order of their logits; None: all tokens."""
    transitions: ConditionedHeads | None
    """What ties neighbouring slots; its one head reads states of slots, and tokens of the slots before."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        expect(num_heads >= 2, "num_heads >= 2 (head 1 is the base model)", num_heads)
        self.hidden_size, self.num_heads = hidden_size, num_heads
        self.register_buffer("shortlist", None)
        self.transitions = None

    def add_transitions(self, width: int) -> None:
        """Transitions that change no state yet; ValueError for heads that have some, or a vocabulary projection of
        their own."""
        wanted = "heads without transitions, of a kind that uses the model's output embedding"
        expect(self.transitions is None and self.kind != MedusaHeads.kind, wanted, f"{self.kind} heads")
        self.transitions = ConditionedHeads(self.hidden_size, 2, width)

    @property
    def dtype(self) -> torch.dtype:
        """Of the heads' weights; the base model's may be kept in another."""
        return next(self.parameters()).dtype

    @property
    def input_size(self) -> int:
        """Width of what a head reads."""
        return self.hidden_size * (1 + len(self.layers) + self.reads_token)

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments, attributes of the same names; without ``layers``, if there are none."""
        arguments = {name: getattr(self, name) for name in signature(type(self)).parameters}
        return {name: value for name, value in arguments.items() if value != ()}

    def head_state(self, index: int, inputs: Tensor) -> Tensor:
        """``[n, inputs]`` -> ``[n, hidden]``: one head's states, ready for projection."""
        raise NotImplementedError

    def forward(self, inputs: Tensor, slots: int | None = None) -> Tensor:
        """``[..., inputs]`` -> ``[..., slots, hidden]``: states of the first ``slots`` heads, or of all, on every
        position."""
        flat = inputs.reshape(-1, self.input_size)
        states = torch.stack([self.head_state(index, flat) for index in range(self.num_heads - 1)[:slots]], dim=1)
        return states.reshape(*inputs.shape[:-1], states.shape[1], self.hidden_size)

    def states_of(self, rows: Sequence[Tensor]) -> Tensor:
        """``[n, inputs]`` of each head, with its own n -> ``[n of all, hidden]``: their states, one after the other."""
        return torch.cat([self.head_state(index, inputs) for index, inputs in enumerate(rows)])

    def project(self, states: Tensor, counts: Sequence[int], output: Projection) -> Tensor:
        """``[n of all, hidden]`` -> ``[n of all, vocab]``: logits of so many states of each head.

        output: the base model's projection.
        """
        return output(states)

    def logits(self, inputs: Tensor, output: Projection, slots: int | None = None) -> Tensor:
        """``[..., inputs]`` -> ``[..., slots, vocab]``: logits of the first ``slots`` heads, or of all."""
        return output(self(inputs, slots))


class FeedForwardHeads(Heads):
    """A feed-forward network with one hidden layer per head.

    intermediate_size: width of each head's hidden layer.
    layers: whose states it reads too, counted from 1.
    """

    kind = "feed-forward"

    def __init__(self, hidden_size: int, num_heads: int, intermediate_size: int, layers: Sequence[int] = ()) -> None:
        super().__init__(hidden_size, num_heads)
        self.intermediate_size, self.layers = intermediate_size, tuple(layers)
        self.up = nn.Parameter(torch.randn(num_heads - 1, self.input_size, intermediate_size) * self.input_size**-0.5)
        self.down = nn.Parameter(torch.zeros(num_heads - 1, intermediate_size, hidden_size))

    def add_layers(self, layers: Sequence[int]) -> None:
        """Read these layers' states too, which change no state yet; ValueError for heads that read some."""
        expect(not self.layers, "heads that read no further layers", f"some that read {self.layers}")
        own, others = self.up.detach().split([self.hidden_size, self.input_size - self.hidden_size], dim=1)
        new = own.new_zeros(len(own), len(layers) * self.hidden_size, self.intermediate_size)
        self.up, self.layers = nn.Parameter(torch.cat([own, new, others], dim=1)), tuple(layers)

    def head_state(self, index: int, inputs: Tensor) -> Tensor:
        return self._states(inputs, self.up[index], self.down[index])

    def states_of(self, rows: Sequence[Tensor]) -> Tensor:
        # One head's index would make its gradient as large as all heads' weights.
        heads = zip(rows, self.up.unbind(), self.down.unbind(), strict=True)
        return torch.cat([self._states(*each) for each in heads])

    def _states(self, inputs: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return inputs[:, : self.hidden_size] + F.silu(inputs @ up) @ down

    def forward(self, inputs: Tensor, slots: int | None = None) -> Tensor:
        shape = (*inputs.shape[:-1], len(range(self.num_heads - 1)[:slots]), self.hidden_size)
        up, down = self.up[:slots], self.down[:slots]
        read = inputs.reshape(1, -1, self.input_size).expand(len(up), -1, -1)
        states = read[..., : self.hidden_size] + torch.bmm(F.silu(torch.bmm(read, up)), down)
        return states.transpose(0, 1).reshape(shape)


class ConditionedHeads(FeedForwardHeads):
    """The same, which also read the token that the base model has chosen after the state."""

    kind = "conditioned"
    reads_token = True


class SternHeads(Heads):
    """One feed-forward network for all heads: its hidden layer, ``(num_heads - 1) * intermediate_size`` wide, is
    shared.

    Stern's network has an output for head 1 too; here head 1 is the base model, so that its text never changes.
    """

    kind = "stern"

    def __init__(self, hidden_size: int, num_heads: int, intermediate_size: int) -> None:
        super().__init__(hidden_size, num_heads)
        self.intermediate_size = intermediate_size
        width = (num_heads - 1) * intermediate_size
        self.up = nn.Parameter(torch.randn(hidden_size, width) * hidden_size**-0.5)
        self.down = nn.Parameter(torch.zeros(num_heads - 1, width, hidden_size))

    def head_state(self, index: int, inputs: Tensor) -> Tensor:
        return inputs + F.relu(inputs @ self.up) @ self.down[index]

    def forward(self, inputs: Tensor, slots: int | None = None) -> Tensor:
        return inputs.unsqueeze(-2) + torch.einsum("...w,iwd->...id", F.relu(inputs @ self.up), self.down[:slots])


class MedusaHeads(Heads):
    """Residual blocks and a vocabulary projection per head.

    vocab_size: tokens of the base model, or of the shortlist.
    num_layers: residual blocks per head.
    """

    kind = "medusa"

    def __init__(self, hidden_size: int, num_heads: int, vocab_size: int, num_layers: int = 1) -> None:
        super().__init__(hidden_size, num_heads)
        self.vocab_size, self.num_layers = vocab_size, num_layers
        self.weight = nn.Parameter(torch.zeros(num_heads - 1, num_layers, hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.zeros(num_heads - 1, num_layers, hidden_size))
        self.output = nn.Parameter(torch.zeros(num_heads - 1, vocab_size, hidden_size))

    def head_state(self, index: int, inputs: Tensor) -> Tensor:
        for layer in range(self.num_layers):
            inputs = inputs + F.silu(F.linear(inputs, self.weight[index, layer], self.bias[index, layer]))
        return inputs

    def project(self, states: Tensor, counts: Sequence[int], output: Projection) -> Tensor:
        parts = zip(states.split(list(counts)), self.output.unbind(), strict=True)
        return output.biased(torch.cat([F.linear(part, weight) for part, weight in parts]))

    def logits(self, inputs: Tensor, output: Projection, slots: int | None = None) -> Tensor:
        return output.biased(torch.einsum("...id,ivd->...iv", self(inputs, slots), self.output[:slots]))


HEAD_KINDS = {kind.kind: kind for kind in (FeedForwardHeads, ConditionedHeads, SternHeads, MedusaHeads)}
