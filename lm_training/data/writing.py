"""A model's continuations of prompts, or translations of sources: by our greedy loop, or by `generate()`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from latticebpd.decoding.generation_config import GenerationSettings, beams_ignored
from latticebpd.decoding.loop import generate
from latticebpd.drafters import Drafter, NoDrafter
from latticebpd.target.stock_model import BaseModel
from latticebpd.target.verifier_choice import tree_placement
from lm_training.data.batching import padded


class Greedy:
    """Our own loop: finished rows cost nothing, and no step copies the cache.

    Args:
        drafter: drafts while it pays off; the text is the same.
    """

    def __init__(self, model: BaseModel, drafter: Drafter | None = None) -> None:
        self.model, self.drafter = model, drafter or NoDrafter()

    @staticmethod
    def suits(model: BaseModel) -> bool:
        """Whether the loop has a cache for the model and supports all that its generation config asks for."""
        try:
            with beams_ignored(model):
                GenerationSettings(model)
        except ValueError:
            return False
        return tree_placement(model.model) is not None

    def __call__(self, prompts: Sequence[np.ndarray], max_new_tokens: int) -> list[np.ndarray]:
        """The continuation of each prompt, including its end of text."""
        ids, mask = map(torch.from_numpy, padded(list(prompts), 0))
        with beams_ignored(self.model):
            out = generate(
                self.model, ids, self.drafter, max_new_tokens=max_new_tokens, attention_mask=mask, trace=True
            )
        return [np.array([token for block in out.blocks(row) for token in block], np.int64) for row in range(len(ids))]


class ByGenerate:
    """`generate()` of ``transformers``: for beams, and for models that our loop has no cache for."""

    def __init__(self, model: BaseModel, num_beams: int = 1) -> None:
        self.model, self.num_beams = model, num_beams

    @torch.inference_mode()
    def __call__(self, prompts: Sequence[np.ndarray], max_new_tokens: int) -> list[np.ndarray]:
        """The continuation of each prompt, including its end of text."""
        stock, end_ids = self.model, self.model.eos_ids
        fill = stock.pad_id if stock.pad_id is not None else min(end_ids, default=0)
        # Prompts are padded on the left, to be continued; sources on the right, where encoders expect padding.
        arrays = padded(list(prompts), fill, left=not stock.is_encoder_decoder)
        ids, mask = (torch.from_numpy(array).to(stock.device) for array in arrays)
        options = {"do_sample": False, "num_beams": self.num_beams, "max_new_tokens": max_new_tokens}
        out = stock.model.generate(ids, attention_mask=mask, pad_token_id=fill, **options)
        begin = 1 if stock.is_encoder_decoder else ids.shape[1]  # after the decoder's start token, or the prompt
        rows = out[:, begin:].cpu().numpy()
        ends = [np.flatnonzero(np.isin(row, end_ids)) for row in rows]
        return [row[: int(end[0]) + 1] if len(end) else row for row, end in zip(rows, ends, strict=True)]
