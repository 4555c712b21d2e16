"""MTP layers that read growing texts, and prefixes that continue them.

With h(p) the target's final hidden state at position p, layer k of the MTP layers (from 0) computes at the position p
of a token

    E_k(p) = layer_k(embedding of the token at p, E_{k-1}(p - 1)),    E_{-1} = h

attending to E_k at positions after k and up to p, and E_k after k drafted tokens predicts the next one. So the layers
together are a network in which each layer's input comes from one position before. In a tree, the position before is a
node's parent: a tree of depth s is read by layer s, whose inputs are what layer s - 1 computed for the nodes' parents.
After the last layer has had its turn, it is applied again, each time to the new nodes alone, its own output for the
parent being the input.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from latticebpd.drafters.drafter import State
from latticebpd.drafters.prefix_cache import PrefixCache
from latticebpd.drafters.text_states import layers_of
from latticebpd.lattices.drafts import ROOT
from latticebpd.verification.tree_positions import additive

CHUNK = 1024
"""Tokens of a text that are read in one pass, which bounds the attention mask."""


class MtpReader:
    """The ``MtpModel`` of ``transformers`` with a cache, in which all layers have a column for every token."""

    def __init__(self, mtp: Any) -> None:
        self.mtp, self.num_layers = copy.copy(mtp), len(mtp.layers)  # the same weights under masks of its own
        self.device, self.dtype = mtp.layers[0].eh_proj.weight.device, mtp.layers[0].eh_proj.weight.dtype
        self.windows = _windows(mtp.config, self.num_layers)
        self.texts = PrefixCache(is_encoder_decoder=False)
        self.mtp.create_masks_for_mtp_layer = self._mask
        self._sees = self._at = torch.empty(0)  # of the pass: which keys each column sees, and the keys' positions

    @torch.inference_mode()
    def read(self, states: Sequence[State]) -> np.ndarray:
        """``[texts, vocab]`` log-probabilities of the token after each text, whose last token the target chose
        itself; drops all prefixes."""
        cache = self.texts.cache
        if self.texts.texts:
            cache.cut()
        self.texts.align(states)
        hidden = [layers_of(state).to(self.device, self.dtype) for state in states]
        while any(done < len(state.tokens) for done, state in zip(self.texts.lengths, states, strict=True)):
            self._read_chunk(states, hidden)
        cache = self.texts.cache
        rows = range(len(states))
        last = torch.stack([cache.vectors(row)[-1] for row in rows])  # type: ignore[index]
        self._roots = last.unflatten(1, (self.num_layers, -1))  # [texts, layers, hidden]: E_k of the last tokens
        self._lengths = torch.tensor(cache.lengths, device=self.device)
        self._ids = self._depths = torch.empty(len(states), 0, dtype=torch.int64, device=self.device)
        self._parents, self._ancestors = self._ids, torch.empty(len(states), 0, 0, dtype=torch.bool, device=self.device)
        self._outputs = self._roots[:, :1]  # [texts, 1 + nodes, hidden]: of the last layer asked; the text itself first
        return self._log_probs(self._roots[:, 0])

    def _read_chunk(self, states: Sequence[State], hidden: Sequence[Tensor]) -> None:
        """Read up to ``CHUNK`` more tokens of each text by all layers."""
        cache, done = self.texts.cache, self.texts.lengths
        new = [list(state.tokens[begin : begin + CHUNK]) for state, begin in zip(states, done, strict=True)]
        ids = pad_sequence([torch.tensor(each, dtype=torch.int64) for each in new], batch_first=True).to(self.device)
        begins, size = torch.tensor(done, device=self.device)[:, None], ids.shape[1]
        positions = begins + torch.arange(size, device=self.device)
        longest = cache.longest
        cached = torch.arange(longest, device=self.device).expand(len(states), -1)
        causal = torch.ones(size, size, dtype=torch.bool, device=self.device).tril().expand(len(states), -1, -1)
        self._at = torch.cat([cached, positions], dim=1)
        self._sees = torch.cat([(cached < begins)[:, None].expand(-1, size, -1), causal], dim=2)
        # The input at a position is the state of the one before; before the first there is none.
        inputs = pad_sequence([_shifted(each, begin, size) for each, begin in zip(hidden, done, strict=True)], True)
        before = [cache.vectors(row) if begin else None for row, begin in enumerate(done)]
        outputs = []
        for layer in range(self.num_layers):
            computed = self._forward(layer, inputs, positions, ids)
            outputs.append(computed)
            first = [_last(each, layer, computed) for each in before]
            inputs = torch.cat([torch.stack(first)[:, None], computed[:, :-1]], dim=1)
        cache.append(torch.cat(outputs, dim=-1))
        self.texts.keep(new)

    @torch.inference_mode()
    def grow(self, rows: np.ndarray, parents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """``[prefixes, vocab]`` log-probabilities after one more token of equally many prefixes of each text; as
        `prefix_lattices.Grow`, a level at a time."""
        texts, old = self._ids.shape
        width = len(rows) // texts
        number = np.where(parents == ROOT, ROOT, parents // len(rows) * width + parents % width)  # among its text's
        above, ids = (
            torch.from_numpy(each.astype(np.int64)).view(texts, width).to(self.device) for each in (number, tokens)
        )
        depth = 1 + old // width
        layer = min(depth, self.num_layers - 1)
        self._ids, self._parents = torch.cat([self._ids, ids], 1), torch.cat([self._parents, above], 1)
        self._depths = torch.cat([self._depths, torch.full_like(ids, depth)], 1)
        self._ancestors = _grown(self._ancestors, above)
        begin = 0 if depth == layer else old  # a layer's first turn is over all nodes
        cached = torch.arange(self.texts.cache.longest, device=self.device).expand(texts, -1)
        positions = self._lengths[:, None] + self._depths - 1
        self._at = torch.cat([cached, positions], dim=1)
        of_text = (cached < self._lengths[:, None])[:, None].expand(-1, old + width - begin, -1)
        self._sees = torch.cat([of_text, self._ancestors[:, begin:]], dim=2)
        source = (self._parents[:, begin:] + 1)[..., None].expand(-1, -1, self._outputs.shape[2])
        computed = self._forward(layer, self._outputs.gather(1, source), positions[:, begin:], self._ids[:, begin:])
        kept = self._outputs if begin else self._roots[:, layer : layer + 1]
        self._outputs = torch.cat([kept, computed], dim=1)
        return self._log_probs(computed[:, -width:].flatten(0, 1))

    def _forward(self, layer: int, inputs: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
        return self.mtp.forward_layer(layer, inputs, positions, self.texts.cache.past, input_ids=ids)

    def _mask(self, layer_idx: int, inputs_embeds: Tensor, mtp_cache: Any, position_ids: Tensor) -> dict[str, Tensor]:
        """In place of the ``MtpModel``'s own causal mask."""
        own = torch.arange(self._at.shape[1] - position_ids.shape[1], self._at.shape[1], device=self.device)
        itself = own[:, None] == torch.arange(self._at.shape[1], device=self.device)
        sees = self._sees & (self._at > layer_idx)[:, None]
        if (window := self.windows[layer_idx]) is not None:
            sees &= position_ids[:, :, None] - self._at[:, None] < window
        return {"attention_mask": additive(sees | itself, self.dtype)}

    def _log_probs(self, hidden: Tensor) -> np.ndarray:
        logits = self.mtp._project_to_logits(hidden)
        return logits.float().log_softmax(dim=-1).cpu().numpy()


def _windows(config: Any, layers: int) -> list[int | None]:
    """How many positions each layer sees, its own included; None: all."""
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * layers
    return [config.sliding_window if kind == "sliding_attention" else None for kind in kinds]


def _shifted(hidden: Tensor, begin: int, size: int) -> Tensor:
    """``[tokens - 1, hidden]`` -> the states of the positions before ``begin``, before the next one, and so on."""
    if begin:
        return hidden[begin - 1 : begin - 1 + size]
    return torch.cat([hidden.new_zeros(1, hidden.shape[1]), hidden[: size - 1]])


def _last(vectors: Tensor | None, layer: int, like: Tensor) -> Tensor:
    """``[hidden]``: what a layer computed for the last token read, zeros where there was none."""
    size = like.shape[-1]
    return like.new_zeros(size) if vectors is None else vectors[-1, layer * size : (layer + 1) * size]


def _grown(ancestors: Tensor, parents: Tensor) -> Tensor:
    """``[texts, nodes, nodes]``, which nodes each one continues, itself included, with new nodes of these parents."""
    texts, old, new = len(parents), ancestors.shape[1], parents.shape[1]
    root = ancestors.new_zeros(texts, 1, old)
    source = (parents + 1)[..., None].expand(-1, -1, old)
    above = torch.cat([root, ancestors], dim=1).gather(1, source)
    own = torch.eye(new, dtype=torch.bool, device=parents.device).expand(texts, -1, -1)
    wider = torch.cat([ancestors, ancestors.new_zeros(texts, old, new)], dim=2)
    return torch.cat([wider, torch.cat([above, own], dim=2)], dim=1)
