"""A non-autoregressive model that fills masks after growing texts (GAD; Xia 2022, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from latticebpd.drafters.drafter import State
from latticebpd.drafters.masks.mask_network import NonAutoregressiveModel, masked_columns
from latticebpd.drafters.prefix_cache import PrefixCache
from latticebpd.lattices.texts import padded
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.verification.forward import EncodedSource


class MaskFiller:
    """A non-autoregressive model that follows growing texts: sources are encoded once, and texts are cached.

    Not so the texts of a bidirectional model, whose columns have seen masks.
    """

    def __init__(self, model: NonAutoregressiveModel) -> None:
        self.model = model
        self.device = model.base.device
        self.encoded: dict[tuple[int, ...], Tensor] = {}
        self.read = PrefixCache(is_encoder_decoder=True)
        self.source = EncodedSource(torch.empty(0), torch.empty(0))

    @torch.inference_mode()
    def logits(self, states: Sequence[State], slots: int) -> Tensor:
        """``[rows, slots', vocab]``: fill ``slots`` slots after every text, fewer or none where positions run out."""
        self._align(states)
        model, texts, read = self.model, [state.tokens for state in states], self.read.lengths
        unread = max(len(text) - done for text, done in zip(texts, read, strict=True))
        slots = min(slots, model.max_positions - max(read) - unread + model.anchored)
        if slots < 1:
            return torch.empty(len(states), 0, model.vocab_size)
        columns = masked_columns(texts, read, slots, model.mask_token_id, None, model.anchored, model.bidirectional)
        hidden = model(self.source, columns, self.read.cache.past)
        self.read.keep([() if model.bidirectional else text[done:] for text, done in zip(texts, read, strict=True)])
        return model.logits(hidden)

    @torch.inference_mode()
    def encode(self, sources: Sequence[Sequence[int]]) -> None:
        """Encode new sources, as one batch, on a GPU in a stream of its own; drop the cached ones of other sources."""
        wanted = dict.fromkeys(map(tuple, sources))
        missing = [source for source in wanted if source not in self.encoded]
        if not missing:
            return
        TransformersModel.of(self.model).check_sources(max(map(len, missing)))
        stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        with torch.cuda.stream(stream) if stream is not None else nullcontext():
            ids, mask = (torch.from_numpy(each).to(self.device) for each in padded(missing, missing[0][-1]))
            hidden = self.model.encode(ids, mask).hidden
        if stream is not None:
            stream.synchronize()
        kept = {source: line for source, line in self.encoded.items() if source in wanted}
        self.encoded = kept | {source: line[: len(source)] for source, line in zip(missing, hidden, strict=True)}

    def _align(self, states: Sequence[State]) -> None:
        """Make the rows of the cache and of the sources those of ``states``."""
        before, sources = len(self.source.hidden), [tuple(state.source) for state in states]
        self.encode(sources)
        rows = self.read.align(states)
        if rows is None:
            lines = [self.encoded[source] for source in sources]
            masks = [torch.ones(len(line), dtype=torch.long, device=self.device) for line in lines]
            self.source = EncodedSource(pad_sequence(lines, batch_first=True), pad_sequence(masks, batch_first=True))
        elif rows != list(range(before)):
            self.source = self.source.select(torch.tensor(rows, device=self.device))
