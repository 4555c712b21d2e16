"""What predictors are to say: batches of texts, or of the hidden states they were written from, with labels.

Prediction ``p`` at position ``t`` has the label ``t + p`` if that token follows the prompt and the hidden state at
``t`` is one from which a draft could start, that of the prompt's last token or of a later one. An encoder-decoder's
encoder reads the prompt; its decoder's text begins with the start token, in the prompt's place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from latticebpd.lattices.texts import Texts
from latticebpd.target.stock_model import BaseModel, Model
from lm_training.data.batching import padded
from lm_training.data.hidden_states import HiddenStates
from lm_training.training.selection import Selection


@dataclass(frozen=True, eq=False)
class Labels:
    """What one predictor is to say.

    positions: ``[n]`` rows of the batch's flattened hidden states. tokens: ``[n]``, by their place among those it
        knows.
    weights: ``[n]``; over all pairs, their sum's mean over the parts of a step is expected to be 1.
    """

    positions: Tensor
    tokens: Tensor
    weights: Tensor


@dataclass(frozen=True, eq=False)
class HeadBatch:
    """Labels, and either texts, padded on the right, or hidden states.

    labels: of head 1 (the base model), 2, ..., h.
    inputs: ``[rows, length]``. sources, mask: ``[rows, source length]``, what an encoder-decoder's encoder reads, and 1
        where that is no padding.
    states: ``[n, hidden]``, all rows' one behind the other, in place of all these.
    """

    labels: list[Labels]
    inputs: Tensor | None = None
    sources: Tensor | None = None
    mask: Tensor | None = None
    states: Tensor | None = None


@dataclass(frozen=True, eq=False)
class ModelTexts:
    """What a base model reads and writes.

    texts: texts that it continues; an encoder-decoder's begin with its start token alone.
    sources: what its encoder reads, one for each text; None for a causal LM.
    """

    texts: Texts
    sources: Texts | None

    @classmethod
    def of(cls, model: Model, data: Texts, name: str) -> ModelTexts:
        """Prompts and what follows them, as a model takes them; ValueError where vocabulary or positions do not fit."""
        stock = BaseModel.of(model)
        read = cls(data.answers(stock.start_id), data.prompts()) if stock.is_encoder_decoder else cls(data, None)
        sources = stock.source_positions if stock.is_encoder_decoder else None
        for part, ids, limit in (
            (read.texts, stock.vocab_size, stock.max_positions),
            (read.sources, stock.source_vocab_size, sources),
        ):
            if part is None:
                continue
            highest, longest = int(part.tokens.max(initial=0)), int(part.lengths.max(initial=0))
            if highest >= ids:
                raise ValueError(
                    f"expected {name} token ids below {ids} (the model's vocabulary), got {highest}; "
                    "was the text encoded with another tokenizer?"
                )
            if limit is not None and longest > limit:
                raise ValueError(
                    f"expected {name} sequences of at most {limit} tokens (the model's positions), got one of {longest}"
                )
        return read

    def __len__(self) -> int:
        return len(self.texts)


class HeadSampler:
    """Makes batches of chosen texts.

    Args:
        model: whose text it is.
        data: what is learnt, or measured.
        predictions: tokens predicted from each hidden state, the base model's own included.
        states: what the texts were written from; without them the base model reads the texts.
        shortlist: ``[n]`` the tokens that heads 2..h know, ascending; labels that are none of them are none for these
            heads.
    """

    def __init__(
        self,
        model: Model,
        data: Texts,
        name: str,
        predictions: int,
        states: HiddenStates | None = None,
        shortlist: np.ndarray | None = None,
    ) -> None:
        stock = BaseModel.of(model)
        if states is not None and (len(states) != len(data) or states.hidden_size != stock.hidden_size):
            raise ValueError(
                f"expected hidden states of {len(data)} {name} texts, {stock.hidden_size} wide (the model's), "
                f"got {len(states)} of {states.hidden_size}"
            )
        self.source, self.read = data, ModelTexts.of(model, data, name)
        self.predictions, self.states = predictions, states
        self.device, self.fill = stock.device, stock.pad_id or 0
        # Where each token stands among those that the heads know; -1: nowhere.
        self.place = np.arange(stock.vocab_size)
        if shortlist is not None:
            self.place[:] = -1
            self.place[shortlist] = np.arange(len(shortlist))

    def __len__(self) -> int:
        return len(self.read)

    @property
    def texts(self) -> Texts:
        """What the decoder reads and writes."""
        return self.read.texts

    def batch(
        self,
        chosen: list[int],
        selection: Selection,
        taught: np.ndarray,
        seed: list[int],
        part: int = 0,
        parts: int = 1,
    ) -> HeadBatch:
        """Part of the chosen texts.

        Args:
            taught: ``[predictions]``, those that have labels.
            seed: of what the selection draws.
        """
        texts = self.texts
        counts = sum((self._labelled(index).sum(axis=1) for index in chosen), np.zeros(self.predictions, np.int64))
        mine = range(part, len(chosen), parts)
        rows = [texts[chosen[slot]] for slot in mine]
        length = max(map(len, rows), default=0)
        pairs: list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = [[] for _ in range(self.predictions)]
        begin = 0
        for number, (slot, row) in enumerate(zip(mine, rows, strict=True)):
            labelled = self._labelled(chosen[slot])
            row_rng, step_rng = np.random.default_rng([*seed, slot + 1]), np.random.default_rng([*seed, 0])
            weights = selection.weights(labelled, taught, row_rng, step_rng)
            first = int(texts.prompt_lengths[chosen[slot]]) - 1  # of the positions that hidden states are kept of
            offset = number * length if self.states is None else begin - first
            begin += len(row) - 1 - first
            for prediction, kept in enumerate(weights):
                places = np.flatnonzero(kept)
                said = row[places + prediction + 1].astype(np.int64)
                pairs[prediction].append((places + offset, self.place[said] if prediction else said, kept[places]))
        labels = []
        for prediction, found in enumerate(pairs):
            positions, tokens, weights = (np.concatenate(column) for column in zip(*found, strict=True))
            share = weights * parts / max(1, counts[prediction])
            arrays = (positions.astype(np.int64), tokens.astype(np.int64), share.astype(np.float32))
            labels.append(Labels(*(torch.from_numpy(array).to(self.device) for array in arrays)))
        if self.states is not None:
            states = [self.states.of_text(chosen[slot]) for slot in mine]
            return HeadBatch(labels, states=torch.cat(states).to(self.device))
        read = [padded(rows, 0)[0]]
        if self.read.sources is not None:
            read += padded([self.read.sources[chosen[slot]] for slot in mine], self.fill)
        return HeadBatch(labels, *(torch.from_numpy(array).to(self.device) for array in read))

    def _labelled(self, index: int) -> np.ndarray:
        """``[predictions, positions]``, whether there is a label, of one text."""
        row, prompt = self.texts[index], int(self.texts.prompt_lengths[index])
        place = np.arange(len(row))
        ahead = place + np.arange(1, self.predictions + 1)[:, None]
        labelled = (place >= prompt - 1) & (ahead < len(row))
        labelled[1:] &= self.place[row[np.minimum(ahead[1:], len(row) - 1)]] >= 0
        return labelled
