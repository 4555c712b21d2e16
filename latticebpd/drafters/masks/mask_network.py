"""Non-autoregressive encoder–decoders, which draft a block of tokens in one pass (GAD; Xia 2022, section 3.1).

The decoder reads a text and, after it, k *masks*; at each mask it predicts the token::

    column      start  y_1 .. y_j          m_1 .. m_k
    sees        keys <= its own            the whole text and all masks

The text is read causally, as by a verifier, so it can be cached. In the paper's layout, *bidirectional*, the text's
columns see the whole text and all masks too, and everything is read again for each draft. Model and layers are those of
``transformers``, called with a mask of four dimensions.

An *anchored* drafter, which is not in the paper, needs a mask less: the column of the text's last token, y_j, predicts
the next token, as a verifier's does, and the masks predict the k - 1 tokens after that. With a verifier's weights it
predicts the first token as the verifier would, before any training.

On disk a drafter is the directory that ``save_pretrained`` of the stock model writes, with a ``drafter.json``, which
tells it from an autoregressive model of the same class.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from latticebpd.checks import expect, expect_equal
from latticebpd.lattices.json_files import from_record, read_json, write_json
from latticebpd.models.transformers.checkpoints import load_base
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.verification.forward import EncodedSource
from latticebpd.verification.tree_positions import ByEmbedding

DRAFTER_CONFIG = "drafter.json"
FORMAT_VERSION = 1
ROLE = "non-autoregressive drafter"


@dataclass(frozen=True, eq=False)
class Columns:
    """One pass of the decoder: the unread tokens of each text, padded, then the masks.

    tokens, positions: ``[rows, new + masks]``; positions are those in the text.
    visible: ``[rows, new + masks, cached + new + masks]`` bool: which keys a column sees. The first ``cached`` are the
        cache's, where a row's text begins at index 0.
    new: columns before the masks.
    slots: ``[rows, windows * slots]`` the column that predicts each slot.
    """

    tokens: np.ndarray
    positions: np.ndarray
    visible: np.ndarray
    new: int
    slots: np.ndarray


def masked_columns(
    texts: Sequence[Sequence[int]],
    read: Sequence[int],
    slots: int,
    mask_token_id: int,
    prefixes: Sequence[Sequence[int]] | None = None,
    anchored: bool = False,
    bidirectional: bool = False,
) -> Columns:
    """Lay out a pass that fills ``slots`` slots after every text, or after several prefixes of it at once.

    A mask's position is the one before its token's: that from which a verifier would predict the token, so that the
    verifier's weights are a good initialisation.

    texts: of the decoder, each with its start token.
    read: how many tokens of each are in the cache, fewer than all.
    slots: >= 1; each a mask or, if ``anchored``, each but the first.
    prefixes: ``[rows, windows]`` lengths of the prefixes, >= 1; each has masks of its own, window by window, which
        see neither the text after it nor other masks.
    anchored: whether the last column of a prefix, which must not have been read, predicts the first slot.
    bidirectional: whether the text's columns see all of it and its masks; then nothing has been read, and there are
        no ``prefixes``.
    """
    assert not bidirectional or (prefixes is None and not any(read))
    if prefixes is None:
        prefixes = [[len(text)] for text in texts]
    counts = [len(text) - done for text, done in zip(texts, read, strict=True)]
    new, cached, rows, windows = max(counts), max(read), len(texts), len(prefixes[0])
    masks = slots - anchored
    width = new + windows * masks
    tokens = np.full((rows, width), mask_token_id, dtype=np.int64)
    positions = np.zeros((rows, width), dtype=np.int64)
    visible = np.zeros((rows, width, cached + width), dtype=bool)
    visible[:, :new, cached : cached + new] = np.tri(new, dtype=bool)
    visible[:, new:, cached + new :] = np.kron(np.eye(windows, dtype=bool), np.ones((masks, masks), dtype=bool))
    predicted_by = np.empty((rows, windows, slots), dtype=np.int64)
    predicted_by[:, :, anchored:] = np.arange(new, width).reshape(windows, masks)
    for row, (text, done, count) in enumerate(zip(texts, read, counts, strict=True)):
        tokens[row, :count] = text[done:]
        positions[row, :new] = np.arange(done, done + new)
        visible[row, :new, :done] = True
        if bidirectional:
            visible[row, :count, :count] = visible[row, :count, new:] = True
        for window, prefix in enumerate(prefixes[row]):
            own = slice(new + window * masks, new + (window + 1) * masks)
            positions[row, own] = np.arange(prefix - 1 + anchored, prefix - 1 + slots)
            visible[row, own, : min(done, prefix)] = True
            visible[row, own, cached : cached + max(0, prefix - done)] = True
            if anchored:
                predicted_by[row, window, 0] = prefix - 1 - done
    return Columns(tokens, positions, visible, new, predicted_by.reshape(rows, windows * slots))


@dataclass(frozen=True)
class MaskSettings:
    """The contents of ``drafter.json``: what it describes, and arguments of `NonAutoregressiveModel`."""

    role: str
    mask_token_id: int
    block_size: int
    anchored: bool = False
    bidirectional: bool = False
    tokenizer_fingerprint: str | None = None

    def __post_init__(self) -> None:
        expect(self.role == ROLE, f"a {ROLE}", repr(self.role))


class NonAutoregressiveModel(nn.Module):
    """A stock encoder–decoder that fills masks.

    base: Marian, BART or another model whose decoder adds embedded positions; it is put into evaluation mode.
    mask_token_id: the token that stands for a mask and occurs in no text. block_size: the most masks that it is trained
    to fill at once. tokenizer_fingerprint: compared with the verifier's. anchored, bidirectional: see above. Raises
    ValueError for a model of another kind, or no such mask.
    """

    def __init__(
        self,
        base: PreTrainedModel,
        mask_token_id: int,
        block_size: int,
        tokenizer_fingerprint: str | None = None,
        anchored: bool = False,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        stock = TransformersModel.of(base)
        fits = stock.is_encoder_decoder and hasattr(stock.decoder, "embed_positions")
        wanted = "an encoder–decoder with embedded positions as drafter, such as Marian or BART"
        expect(fits, wanted, base.config.model_type)
        fits = 0 <= mask_token_id < stock.vocab_size and mask_token_id not in stock.eos_ids
        wanted = f"a mask token id below {stock.vocab_size} (the vocabulary) that does not end texts"
        expect(fits, wanted, mask_token_id)
        expect(block_size >= 1, "block_size >= 1", block_size)
        self.base = base.eval()
        self.mask_token_id, self.block_size = mask_token_id, block_size
        self.tokenizer_fingerprint = tokenizer_fingerprint
        self.anchored, self.bidirectional = anchored, bidirectional
        self.placement = ByEmbedding(base)  # it runs the decoder, which dropout would disturb

    @property
    def vocab_size(self) -> int:
        return TransformersModel.of(self).vocab_size

    @property
    def max_positions(self) -> int:
        return TransformersModel.of(self).max_positions or 0

    def encode(self, input_ids: Tensor, mask: Tensor) -> EncodedSource:
        """Run the encoder, with gradients if they are wanted; ``[rows, source]`` both, the mask 1 at tokens."""
        states = TransformersModel.of(self).encoder(input_ids=input_ids, attention_mask=mask).last_hidden_state
        return EncodedSource(states, mask)

    def forward(self, source: EncodedSource, columns: Columns, cache: Any = None) -> Tensor:
        """``[rows, slots, hidden]``: the decoder's final hidden states at the slots' columns; ``cache``: what was read
        before, to which the columns' keys and values are appended, those of the masks too."""
        device = source.hidden.device
        arrays = (columns.tokens, columns.positions, columns.visible)
        arguments = self.placement.arguments(*(torch.from_numpy(array).to(device) for array in arrays))
        stock = TransformersModel.of(self)
        encoded = {"encoder_hidden_states": source.hidden, "encoder_attention_mask": source.mask}
        cached = {stock.cache_argument: cache, "use_cache": cache is not None}
        states: Tensor = stock.decoder(**arguments, **encoded, **cached).last_hidden_state
        columns_of_slots = torch.from_numpy(columns.slots).to(device)
        return states.gather(1, columns_of_slots[:, :, None].expand(-1, -1, states.shape[2]))

    def logits(self, hidden: Tensor) -> Tensor:
        """``[..., hidden]`` -> ``[..., vocab]``."""
        return TransformersModel.of(self).scaled(1.0)(hidden)  # only T5's family scales

    @classmethod
    def like(
        cls,
        verifier: PreTrainedModel,
        mask_token_id: int,
        block_size: int,
        decoder_layers: int | None = None,
        tokenizer_fingerprint: str | None = None,
        anchored: bool = False,
        dropout: float | None = None,
        bidirectional: bool = False,
    ) -> NonAutoregressiveModel:
        """An untrained drafter of the verifier's shape and with its weights; the mask's embedding is the mean of all.

        decoder_layers: the first ones are the verifier's, further ones are random; None, as many as the verifier.
        dropout: in training; None, the verifier's.
        """
        config: Any = copy.deepcopy(verifier.config)
        if decoder_layers is not None:
            expect(decoder_layers >= 1, "decoder_layers >= 1", decoder_layers)
            config.decoder_layers = decoder_layers
        if dropout is not None:
            config.dropout = dropout
        base = type(verifier)(config)
        drafter = cls(base, mask_token_id, block_size, tokenizer_fingerprint, anchored, bidirectional)
        own = base.state_dict().keys()
        base.load_state_dict({name: t for name, t in verifier.state_dict().items() if name in own}, strict=False)
        with torch.no_grad():  # a verifier never reads the mask, so its embedding is untrained
            embedding: Any = base.get_input_embeddings().weight
            embedding[mask_token_id] = embedding.mean(dim=0)
        if verifier.generation_config is not None:
            base.generation_config = copy.deepcopy(verifier.generation_config)
        return drafter.to(verifier.device)

    def reset(self) -> None:
        """Give all weights new random values, as of a model that was never trained."""
        self.base.load_state_dict(type(self.base)(self.base.config).state_dict())

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Write the model; each file is complete or absent."""
        directory = Path(directory)
        self.base.save_pretrained(directory)
        layout = (self.anchored, self.bidirectional, self.tokenizer_fingerprint)
        settings = asdict(MaskSettings(ROLE, self.mask_token_id, self.block_size, *layout))
        write_json(directory / DRAFTER_CONFIG, {"format_version": FORMAT_VERSION, **settings}, indent=2)

    @classmethod
    def from_pretrained(
        cls, directory: str | os.PathLike[str], dtype: torch.dtype = torch.float32
    ) -> NonAutoregressiveModel:
        """Read what ``save_pretrained`` wrote; ValueError for another directory, such as a verifier's, or damage."""
        directory = Path(directory)
        if not is_drafter(directory):
            got = "an autoregressive model, which can only verify" if (directory / "config.json").exists() else "none"
            wanted = f"a drafter as `latticebpd train masks` writes it ({DRAFTER_CONFIG})"
            raise ValueError(f"{directory}: expected {wanted}, found {got}")
        parse = partial(from_record, MaskSettings, version=FORMAT_VERSION)
        problem, remedy = "expected a drafter's settings, got", "is the copy complete?"
        settings = asdict(read_json(directory / DRAFTER_CONFIG, parse, problem, remedy))
        del settings["role"]
        return cls(load_encoder_decoder(directory, dtype), **settings)


def is_drafter(path: str | os.PathLike[str]) -> bool:
    """Whether a directory holds a non-autoregressive drafter."""
    return (Path(path) / DRAFTER_CONFIG).exists()


def load_encoder_decoder(directory: str | os.PathLike[str], dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A stock encoder–decoder from a directory, ready for inference; ValueError if there is none that can be read."""
    model = load_base(directory, dtype)
    wanted = "an encoder–decoder (config.json, model.safetensors)"
    expect(TransformersModel.of(model).is_encoder_decoder, wanted, "a decoder-only model", of=directory)
    return model


def load_verifier(directory: str | os.PathLike[str]) -> PreTrainedModel:
    """The autoregressive encoder–decoder of a directory; ValueError if it holds a drafter, or no such model."""
    wanted = "an autoregressive model as verifier"
    expect(not is_drafter(directory), wanted, f"a {ROLE}", "swap the two arguments", of=directory)
    return load_encoder_decoder(directory)


def check_pair(verifier: PreTrainedModel, drafter: NonAutoregressiveModel, fingerprint: str | None = None) -> None:
    """ValueError unless both have the same vocabulary, start and end of texts, and the drafter as many positions.

    fingerprint: hash of the verifier's vocabulary, if known.
    """
    target, own = TransformersModel.of(verifier), TransformersModel.of(drafter)
    known = drafter.tokenizer_fingerprint
    pairs = {
        "a vocabulary of {} tokens": (target.vocab_size, own.vocab_size),
        "texts that start with token {}": (target.start_id, own.start_id),
        "texts that end with tokens {}": (sorted(target.eos_ids), sorted(own.eos_ids)),
        "the vocabulary {}": (fingerprint, known) if fingerprint and known else (0, 0),
    }
    expect_equal("a drafter", "verifier", pairs)
    positions = target.max_positions or 0
    wanted = f"a drafter of at least {positions} positions (the verifier's)"
    expect(drafter.max_positions >= positions, wanted, drafter.max_positions)
