"""What a model writes after prompts, or answers to sources: by our own greedy loop, or by `generate()`."""

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
    """Our own loop: rows that have ended cost nothing, and no step copies the cache.

    Args:
        drafter: drafts, if it pays; the text is the same.
    """

    def __init__(self, model: BaseModel, drafter: Drafter | None = None) -> None:
        self.model, self.drafter = model, drafter or NoDrafter()

    @staticmethod
    def suits(model: BaseModel) -> bool:
        """Whether the loop has a cache for the model, and honours all that its generation config asks for."""
        try:
            with beams_ignored(model):
                GenerationSettings(model)
        except ValueError:
            return False
        return tree_placement(model.model) is not None

    def __call__(self, prompts: Sequence[np.ndarray], max_new_tokens: int) -> list[np.ndarray]:
        """What follows each prompt, up to and with its end of text."""
        ids, mask = padded(list(prompts), 0)
        given, own = torch.from_numpy(ids), torch.from_numpy(mask)
        with beams_ignored(self.model):
            out = generate(
                self.model, given, self.drafter, max_new_tokens=max_new_tokens, attention_mask=own, trace=True
            )
        return [
            np.array([token for block in out.blocks(row) for token in block], np.int64) for row in range(len(prompts))
        ]


class ByGenerate:
    """`generate()` of ``transformers``: beams, and models that our loop has no cache for."""

    def __init__(self, model: BaseModel, num_beams: int = 1) -> None:
        self.model, self.num_beams = model, num_beams

    @torch.inference_mode()
    def __call__(self, prompts: Sequence[np.ndarray], max_new_tokens: int) -> list[np.ndarray]:
        """What follows each prompt, up to and with its end of text."""
        end_ids, is_encoder_decoder = self.model.eos_ids, self.model.is_encoder_decoder
        fill = self.model.pad_id if self.model.pad_id is not None else min(end_ids, default=0)
        # A text goes on at its prompt's right end; a source has no such end, and an encoder counts positions from the
        # left.
        ids, mask = (
            torch.from_numpy(array).to(self.model.device)
            for array in padded(list(prompts), fill, left=not is_encoder_decoder)
        )
        out = self.model.model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            num_beams=self.num_beams,
            max_new_tokens=max_new_tokens,
            pad_token_id=fill,
        )
        rows = (
            out[:, 1 if is_encoder_decoder else ids.shape[1] :].cpu().numpy()
        )  # behind the decoder's start token, or the prompt
        ends = [np.flatnonzero(np.isin(row, end_ids)) for row in rows]
        return [row[: int(end[0]) + 1] if len(end) else row for row, end in zip(rows, ends, strict=True)]
