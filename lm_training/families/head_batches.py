"""Batches of texts, or of the hidden states that they were written from, with each predictor's labels.

Prediction ``p`` at position ``t`` has the label ``t + p`` if that token follows the prompt and a draft could start at
``t``, the position of the prompt's last token or a later one. An encoder-decoder's encoder reads the prompt; its
decoder's text begins with the start token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.lattices.texts import padded
from latticebpd.models.transformers.transformers_model import TransformersModel
from lm_training.data.hidden_states import LAST, layer_name
from lm_training.data.shortlist import shortlist_indices
from lm_training.data.training_data import HeadData
from lm_training.training.model_texts import ModelTexts
from lm_training.training.selection import Selection


@dataclass(frozen=True, eq=False)
class Labels:
    """One predictor's labels.

    positions: ``[n]`` rows of the batch's flattened hidden states. tokens: ``[n]``, for heads indices of their
        shortlist.
    weights: ``[n]``; over all pairs, the expected mean of their sum over a step's parts is 1.
    """

    positions: Tensor
    tokens: Tensor
    weights: Tensor

    def padded(self, multiple: int) -> Labels:
        """With copies of the first label, of weight 0, up to a multiple of their number; none stay none."""
        missing = -len(self.tokens) % multiple
        positions, tokens = (torch.cat([each, each[:1].expand(missing)]) for each in (self.positions, self.tokens))
        return Labels(positions, tokens, F.pad(self.weights, (0, missing)))


@dataclass(frozen=True, eq=False)
class HeadBatch:
    """Labels, with either padded texts or hidden states.

    labels: of head 1 (the base model), 2, ..., h.
    following: ``[n]`` the token after each position, of all rows or states, flattened; of a row's last, its first.
    inputs: ``[rows, length]``, padded on the right.
    sources, mask: ``[rows, source length]`` the encoder's input of an encoder-decoder, and 0 at padding.
    states: ``[n, states]`` of all rows, concatenated, each the final one and those of further layers; replaces all
        inputs.
    """

    labels: list[Labels]
    following: Tensor
    inputs: Tensor | None = None
    sources: Tensor | None = None
    mask: Tensor | None = None
    states: Tensor | None = None


class HeadSampler:
    """Makes batches of chosen texts; tokens that are not on the heads' shortlist are no labels of heads 2..h."""

    def __init__(self, model: BlockwiseLM, data: HeadData, name: str) -> None:
        stock = TransformersModel.of(model)
        self.layers = [LAST, *map(layer_name, model.layers)]
        if data.states is not None:
            data.states.require(model.layers)
            data.states.require_size(len(data.texts), name, stock.hidden_size)
        self.read, self.predictions, self.states = ModelTexts.of(model, data.texts, name), model.num_heads, data.states
        self.texts = self.read.texts  # the decoder's
        self.device, self.fill = stock.device, stock.pad_id or 0
        self.indices = shortlist_indices(stock.vocab_size, model.shortlist)

    def __len__(self) -> int:
        return len(self.texts)

    def batch(
        self,
        chosen: list[int],
        selection: Selection,
        importance: np.ndarray,
        seed: list[int],
        part: int = 0,
        parts: int = 1,
    ) -> HeadBatch:
        """Part of the chosen texts.

        importance: ``[predictions]`` the weights ``w_p``; 0 for those that are not trained.
        """
        texts = self.texts
        counts = sum((self._labelled(index).sum(axis=1) for index in chosen), np.zeros(self.predictions, np.int64))
        mine = range(part, len(chosen), parts)
        rows = [texts[chosen[slot]] for slot in mine]
        length = max(map(len, rows), default=0)
        pairs: list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = [[] for _ in range(self.predictions)]
        begin, following = 0, list[np.ndarray]()
        for number, (slot, row) in enumerate(zip(mine, rows, strict=True)):
            row_rng, step_rng = np.random.default_rng([*seed, slot + 1]), np.random.default_rng([*seed, 0])
            weights = selection.weights(self._labelled(chosen[slot]), importance, row_rng, step_rng)
            first = int(texts.prompt_lengths[chosen[slot]]) - 1  # position of the first stored state
            offset = number * length if self.states is None else begin - first
            begin += len(row) - 1 - first
            following.append(row[first + 1 :].astype(np.int64))
            for prediction, kept in enumerate(weights):
                positions = np.flatnonzero(kept)
                tokens = row[positions + prediction + 1].astype(np.int64)
                tokens = self.indices[tokens] if prediction else tokens
                pairs[prediction].append((positions + offset, tokens, kept[positions]))
        labels = []
        for prediction, columns in enumerate(pairs):
            positions, tokens, weights = (np.concatenate(column) for column in zip(*columns, strict=True))
            share = weights * parts / max(1, counts[prediction])
            arrays = (positions.astype(np.int64), tokens.astype(np.int64), share.astype(np.float32))
            labels.append(Labels(*(torch.from_numpy(array).to(self.device) for array in arrays)))
        if self.states is not None:
            states = [self.states.of_text(chosen[slot], *self.layers) for slot in mine]
            after = torch.from_numpy(np.concatenate(following)).to(self.device)
            return HeadBatch(labels, after, states=torch.cat(states).to(self.device))
        read = [padded(rows, 0)[0]]
        if self.read.sources is not None:
            read += padded([self.read.sources[chosen[slot]] for slot in mine], self.fill)
        inputs, *others = (torch.from_numpy(array).to(self.device) for array in read)
        return HeadBatch(labels, inputs.roll(-1, dims=1).flatten(), inputs, *others)

    def _labelled(self, index: int) -> np.ndarray:
        """``[predictions, positions]`` whether a text has a label there."""
        row, prompt = self.texts[index], int(self.texts.prompt_lengths[index])
        positions = np.arange(len(row))
        ahead = positions + np.arange(1, self.predictions + 1)[:, None]
        labelled = (positions >= prompt - 1) & (ahead < len(row))
        labelled[1:] &= self.indices[row[np.minimum(ahead[1:], len(row) - 1)]] >= 0
        return labelled
