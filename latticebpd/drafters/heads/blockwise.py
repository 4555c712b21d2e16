"""A language model with block heads (Stern 2018, section 3; Kim 2024, section 4).

A *blockwise language model* is a stock causal LM or encoder-decoder of ``transformers``, left as it is, and
``num_heads`` predictions of the next tokens from one hidden state, an encoder-decoder's from its decoder's;
``heads.py`` has the kinds of heads.

On disk it is the directory that ``save_pretrained`` of the base model writes (``transformers``' own classes open it)
and the two files of its heads (`head_files`).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from fst.fingerprint import vocabulary_fingerprint
from fst.printable import plain_words
from latticebpd.checks import expect
from latticebpd.console import load_tokenizer
from latticebpd.cpu.packed_weights import weight_version
from latticebpd.drafters.heads.head_files import (
    EPSILON,
    FORMAT_VERSION,
    HEADS_CONFIG,
    HEADS_WEIGHTS,
    SCALE,
    HeadSettings,
    has_heads,
    head_file,
    read_settings,
    unreadable,
    unrounded,
)
from latticebpd.drafters.heads.head_networks import HEAD_KINDS, FeedForwardHeads, Heads, MedusaHeads
from latticebpd.lattices.json_files import write_json
from latticebpd.models.catalogue import model_source, remove_earlier_heads, resolved
from latticebpd.models.gguf.gguf_file import is_gguf
from latticebpd.models.load_target import Name, load_stock
from latticebpd.models.transformers.checkpoints import load_base, save_tensors, stored_fingerprint
from latticebpd.models.transformers.transformers_model import Projection, TransformersModel


class BlockwiseLM(nn.Module):
    """A base model and its block heads.

    base: any causal LM or encoder-decoder of ``transformers``.
    heads: heads whose ``hidden_size`` is the base model's.
    tokenizer_fingerprint: hash of the vocabulary (``vocabulary_fingerprint``), stored and compared on load.
    """

    def __init__(self, base: PreTrainedModel, heads: Heads, tokenizer_fingerprint: str | None = None) -> None:
        super().__init__()
        stock = TransformersModel.of(base)
        wanted = f"heads of hidden size {stock.hidden_size} (the base model's)"
        expect(heads.hidden_size == stock.hidden_size, wanted, heads.hidden_size)
        _check_shortlist(heads.shortlist, stock.vocab_size)
        stock.check_layers(heads.layers)
        known = stock.vocab_size if heads.shortlist is None else len(heads.shortlist)
        if isinstance(heads, MedusaHeads):
            wanted = f"heads of {known} tokens (the base model's, or the shortlist's)"
            expect(heads.vocab_size == known, wanted, heads.vocab_size)
        self.base, self.heads, self.tokenizer_fingerprint = base, heads, tokenizer_fingerprint
        self._scale = stock.projection.scale  # read now: training may shard the model
        self._short: tuple[tuple[object, ...], Projection] | None = None

    @property
    def num_heads(self) -> int:
        """Predictions per hidden state, head 1 included: the block size."""
        return self.heads.num_heads

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of the base model, counted from 1, whose states heads read too."""
        return self.heads.layers

    def add_layers(self, layers: Sequence[int]) -> None:
        """Heads read these layers' states too, from zero weights; ValueError for heads that cannot, or already do."""
        TransformersModel.of(self.base).check_layers(layers)
        if not isinstance(self.heads, FeedForwardHeads):
            raise ValueError(f"expected feed-forward or conditioned heads to read layers, got {self.heads.kind} heads")
        self.heads.add_layers(layers)

    @property
    def has_transitions(self) -> bool:
        return self.heads.transitions is not None

    @property
    def vocab_size(self) -> int:
        """Tokens that the model writes."""
        return TransformersModel.of(self.base).vocab_size

    @property
    def projection(self) -> Projection:
        """From the base model's final hidden states, or a head's states, to logits."""
        return TransformersModel.of(self.base).scaled(self._scale)

    @property
    def shortlist(self) -> np.ndarray | None:
        """``[n]`` int64: the tokens that the heads know, in the order of their logits; None: all tokens."""
        return None if self.heads.shortlist is None else self.heads.shortlist.cpu().numpy()

    @property
    def head_projection(self) -> Projection:
        """From a head's states to logits of the tokens that it knows."""
        projection, shortlist = self.projection, self.heads.shortlist
        if shortlist is None:
            return projection
        if torch.is_grad_enabled():  # the embedding may be learning
            return projection.over(shortlist)
        weight: Any = projection.embedding.weight
        key = (id(weight), *weight_version(weight), weight.dtype, weight.device)
        if self._short is None or self._short[0] != key:
            self._short = (key, projection.over(shortlist))
        return self._short[1]

    def head_logits(self, hidden: Tensor, slots: int | None = None, following: Tensor | None = None) -> Tensor:
        """``[..., hidden]`` (final, normalised hidden state; then those of the ``layers`` that the heads read) ->
        ``[..., slots, tokens]``: heads 2..slots + 1, by default all; slot ``i`` predicts the token ``i + 1`` after the
        next token.

        The tokens are those of the vocabulary, or of the ``shortlist``. following: ``[...]`` the tokens after the
        states, which conditioned heads read; ValueError where they are missing.
        """
        return self.heads.logits(self.head_inputs(hidden, following), self.head_projection, slots)

    def head_inputs(self, hidden: Tensor, following: Tensor | None) -> Tensor:
        """``[..., inputs]``: what heads read at these states; arguments as for `head_logits`. All but the final state
        is divided by its root mean square."""
        own, *others = hidden.to(self.heads.dtype).split(self.heads.hidden_size, dim=-1)
        read = torch.cat([own, *map(self._normalised, others)], dim=-1)
        if not self.heads.reads_token:
            return read
        if following is None:
            raise ValueError("expected the tokens after hidden states, which these heads read, got none")
        return self.with_tokens(read, following)

    def with_tokens(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """``[..., states + hidden]``: states, and the normalised embeddings of ``[...]`` tokens."""
        return torch.cat([hidden, self._normalised(self._embeddings(tokens)).to(hidden)], dim=-1)

    def pair_scores(self, states: Tensor, tokens: Tensor, log_probs: Tensor) -> Tensor:
        """``[..., slots - 1, k, k]``: by the heads' transitions, of each of a slot's tokens after each of those of the
        slot before; softmax of the last axis normalises them.

        states: ``[..., slots, hidden]`` of the heads. tokens, log_probs: ``[..., slots, k]``, ids of the vocabulary.
        The output embedding's product with a state is in ``log_probs``, so that only what transitions add is computed.
        """
        assert self.heads.transitions is not None
        own, before = self.heads.transitions.up[0].split(self.heads.hidden_size)
        inner = F.silu(
            states[..., 1:, None, :] @ own + self._normalised(self._embeddings(tokens[..., :-1, :])) @ before
        )
        added = inner @ (self._embeddings(tokens[..., 1:, :]) @ self.heads.transitions.down[0].T).mT
        return log_probs[..., 1:, None, :] + self._scale * added

    def _embeddings(self, tokens: Tensor) -> Tensor:
        weight: Any = self.projection.embedding.weight
        embeddings: Tensor = weight[tokens.to(weight.device)]
        return embeddings.to(self.heads.dtype)

    def _normalised(self, vectors: Tensor) -> Tensor:
        return F.rms_norm(vectors, (self.heads.hidden_size,), eps=EPSILON)

    def save_pretrained(
        self,
        directory: str | os.PathLike[str],
        dtype: torch.dtype | None = None,
        weights: dict[str, Tensor] | None = None,
    ) -> None:
        """Write the model; every file is written atomically.

        dtype: type of the stored weights, such as ``torch.float16``; by default base model and heads keep their
            own.
        weights: unsharded weights and buffers by name, where the model's own are sharded over processes.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        base: Any = self.base
        if dtype not in (None, base.dtype):  # a converted copy keeps tied weights tied, and its config names the type
            base = nn.Module.to(copy.deepcopy(base), dtype)
        state = self.state_dict() if weights is None else weights

        def part(start: str) -> dict[str, Tensor]:
            return {name.removeprefix(start): state[name] for name in state if name.startswith(start)}

        base.save_pretrained(directory, state_dict=None if weights is None else part("base."))
        self.save_heads(directory, dtype, part("heads."))

    def save_heads(
        self,
        directory: str | os.PathLike[str],
        dtype: torch.dtype | None = None,
        weights: dict[str, Tensor] | None = None,
    ) -> None:
        """Write the heads only, next to the files of a base model, that which they were trained on; arguments as for
        `save_pretrained`. ``torch.int8`` rounds weights as the CPU's kernels do."""
        directory, heads = Path(directory), self.heads.state_dict() if weights is None else weights
        tensors: dict[str, Tensor] = {}
        for name, tensor in heads.items():
            tensors |= _stored(name, tensor.detach(), dtype if tensor.is_floating_point() else None)
        (directory / HEADS_WEIGHTS).parent.mkdir(parents=True, exist_ok=True)
        save_tensors(directory / HEADS_WEIGHTS, tensors)
        record = {
            "format_version": FORMAT_VERSION,
            "kind": self.heads.kind,
            **self.heads.settings(),
            "model_type": self.base.config.model_type,
            "tokenizer_fingerprint": self.tokenizer_fingerprint,
            "vocab_size": self.vocab_size,
            "shortlist": None if self.heads.shortlist is None else len(self.heads.shortlist),
            **({"transition_size": ties.intermediate_size} if (ties := self.heads.transitions) is not None else {}),
            "base_fingerprint": stored_fingerprint(directory),
        }
        write_json(directory / HEADS_CONFIG, record, indent=2)
        remove_earlier_heads(directory)

    @classmethod
    def from_pretrained(
        cls, directory: str | os.PathLike[str], dtype: torch.dtype = torch.float32, **kwargs: Any
    ) -> BlockwiseLM:
        """Read what ``save_pretrained`` wrote; further arguments go to the base model's ``from_pretrained``. ValueError
        for a missing or corrupt file, and for a base model and heads that do not belong together."""
        settings, source = read_settings(Path(directory)), model_source(directory)
        base = load_stock(source, dtype) if is_gguf(source) else load_base(directory, dtype, **kwargs)
        return cls.with_heads(base, Path(directory), settings)

    @classmethod
    def with_heads(cls, base: PreTrainedModel, directory: Path, settings: HeadSettings | None = None) -> BlockwiseLM:
        """A base model with the heads of a directory, of its type and on its device; ValueError where they do not
        belong together, or cannot be read."""
        settings = read_settings(directory) if settings is None else settings
        heads = _load_heads(directory, settings).to(base.device, base.dtype)
        model = cls(base, heads, settings.tokenizer_fingerprint)
        settings.check_base(directory, model.vocab_size, str(base.config.model_type))
        _check_vocabulary(directory, model.tokenizer_fingerprint)
        return model.eval()


def load_blockwise(name: Name) -> BlockwiseLM:
    """A model with heads by its name, ready for inference; ValueError for one without."""
    path = Path(resolved(name))
    if not has_heads(path):
        remedy = "see `latticebpd train heads`"
        raise ValueError(f"{os.fspath(name)}: expected a model with heads, got one without; {remedy}")
    return BlockwiseLM.from_pretrained(path)


def _stored(name: str, tensor: Tensor, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """What a file holds of a tensor ``[..., rows, columns]``: of 8 bits with a scale for each column."""
    if dtype != torch.int8:
        return {name: tensor.to(dtype).contiguous()}
    scale = tensor.float().abs().amax(dim=-2, keepdim=True) / 127
    return {name: (tensor / scale.clamp(min=1e-30)).round().to(dtype), name + SCALE: scale}


def new_heads(
    base: PreTrainedModel,
    kind: str,
    num_heads: int,
    intermediate_size: int | None = None,
    num_layers: int = 1,
    shortlist: np.ndarray | None = None,
) -> Heads:
    """Untrained heads that fit ``base`` and begin as copies of its own output.

    kind: a name in ``HEAD_KINDS``.
    num_heads: predictions per position, the base model's own included.
    intermediate_size: width of a head's hidden layer (all kinds but medusa); by default the base model's hidden
        size.
    num_layers: residual blocks per head (medusa).
    shortlist: ``[n]`` the tokens that the heads are to know, ascending; None: all.
    """
    stock = TransformersModel.of(base)
    hidden_size = stock.hidden_size
    expect(kind in HEAD_KINDS, f"heads of a kind among {', '.join(HEAD_KINDS)}", repr(kind))
    tokens = None if shortlist is None else torch.from_numpy(np.asarray(shortlist, np.int64))
    _check_shortlist(tokens, stock.vocab_size)
    if kind == MedusaHeads.kind:
        output = stock.projection if tokens is None else stock.projection.over(tokens)
        weight: Any = output.embedding.weight
        medusa = MedusaHeads(hidden_size, num_heads, len(weight), num_layers)
        medusa.output.data.copy_(weight.detach() * output.scale)
        heads: Heads = medusa
    else:
        heads = HEAD_KINDS[kind](hidden_size, num_heads, intermediate_size or hidden_size)
    heads.shortlist = tokens
    return heads.to(base.device, base.dtype)


def _check_shortlist(shortlist: Tensor | None, vocab_size: int) -> None:
    """ValueError where it is no ascending list of tokens of the vocabulary."""
    if shortlist is None:
        return
    fits = shortlist.ndim == 1 and len(shortlist) and shortlist.dtype == torch.int64
    expect(fits, "a shortlist [n] of token ids", f"shape {tuple(shortlist.shape)} of {shortlist.dtype}")
    fits = int(shortlist[0]) >= 0 and int(shortlist[-1]) < vocab_size and bool((shortlist.diff() > 0).all())
    expect(fits, f"a shortlist of ascending token ids from 0 to {vocab_size - 1}", "others")


def _check_vocabulary(directory: Path, fingerprint: str | None) -> None:
    """ValueError if the tokenizer next to the model is not the one that its heads were trained with."""
    path = directory / "tokenizer.json"
    if fingerprint is None or not path.exists():
        return
    own = vocabulary_fingerprint(load_tokenizer(path).get_vocab())
    wanted = f"the vocabulary of the model's heads ({fingerprint})"
    expect(own == fingerprint, wanted, own, "copy their tokenizer here", of=path)


def _load_heads(directory: Path, settings: HeadSettings) -> Heads:
    """The heads of a directory; no memory is taken beyond the files' own size."""
    with unreadable(directory):
        with torch.device("meta"):
            heads = HEAD_KINDS[settings.kind](**settings.arguments)
            if settings.shortlist is not None:
                heads.shortlist = torch.empty(settings.shortlist, dtype=torch.int64)
            if settings.transition_size:
                heads.add_transitions(settings.transition_size)
        weights = unrounded(load_file(head_file(directory, HEADS_WEIGHTS)))
    try:
        heads.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise ValueError(f"{directory}: {HEADS_WEIGHTS} does not fit {HEADS_CONFIG}: {plain_words(error)}") from error
    return heads
