"""Sequence-level distillation: text written by a model, as training data for its heads (Stern 2018, section 6).

A draft is accepted if it agrees with the target's own output, so heads should learn that output, not people's text.
`distill` lets the model continue prompts, or an encoder-decoder translate sources, greedily or by beam search. Results
form a directory::

    distill.json       the settings: a later run with other settings is refused, one with the same continues
    shard-00042.npz    `Texts`: prompts, or sources, and what the model wrote
    hidden             its hidden states, if stored (`lm_training.data.hidden_states`)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from latticebpd.decoding.generation_config import GenerationSettings, beams_ignored
from latticebpd.decoding.loop import generate
from latticebpd.drafters import Drafter, NoDrafter
from latticebpd.lattices.shards import ShardDirectory, shares
from latticebpd.lattices.texts import Texts
from latticebpd.target.checkpoints import weights_fingerprint
from latticebpd.target.stock_model import BaseModel
from latticebpd.target.verifier_choice import tree_placement
from lm_training.data.batching import padded, require_vocabulary, token_dtype
from lm_training.data.hidden_states import StateOptions, claim_states, save_states, states_directory, states_of

SETTINGS = "distill.json"


@dataclass(frozen=True)
class DistillOptions:
    """How text is written.

    max_new_tokens: most tokens written after each prompt.
    num_beams: 1 decodes greedily; with more, the best beam is stored.
    shard_prompts: prompts per shard; a killed run loses one shard.
    batch_size: prompts decoded together, of similar length; not part of the stored settings.
    """

    max_new_tokens: int = 96
    num_beams: int = 1
    shard_prompts: int = 512
    batch_size: int = 64

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) < 1:
                raise ValueError(f"expected {each.name} >= 1, got {getattr(self, each.name)}")

    def record(self) -> dict[str, int]:
        """What decides the text and its shards."""
        return {name: getattr(self, name) for name in ("max_new_tokens", "num_beams", "shard_prompts")}

    def prompts_of(self, prompts: int, part: tuple[int, int]) -> int:
        """Number of the prompts in the shards ``i``, ``i + n``, ... of a part ``(i, n)``."""
        return sum(len(numbers) for _, numbers in shares(prompts, self.shard_prompts, part))


def corpus_prompts(corpus: np.ndarray, count: int, length: int, end_ids: list[int], seed: int = 0) -> Texts:
    """Windows of a corpus as prompts: without overlap, in random order, and without ends of text.

    Args:
        corpus: ``[n]`` token ids, documents ending with one of ``end_ids``.
        count: number of prompts; length: tokens of each.

    Raises:
        ValueError: the corpus is too short.
    """
    order = np.random.default_rng(seed).permutation(len(corpus) // length) * length
    rows: list[np.ndarray] = []
    for start in order.tolist():
        if len(rows) == count:
            break
        window = corpus[start : start + length]
        if not np.isin(window, end_ids).any():
            rows.append(window)
    if len(rows) < count:
        raise ValueError(
            f"expected a corpus with {count} prompts of {length} tokens, got {len(rows)} from {len(corpus)} tokens; "
            "give more text, or ask for fewer or shorter prompts"
        )
    return Texts.of_rows(rows, [length] * count, corpus.dtype)


def distilled_directory(path: str | os.PathLike[str]) -> ShardDirectory:
    """The directory that `distill` fills."""
    return ShardDirectory(Path(path), SETTINGS, "latticebpd distill", "text", count=_num_shards)


def _num_shards(settings: dict[str, Any]) -> int:
    options, prompts = DistillOptions(**settings["options"]), settings["prompts"]
    if type(prompts) is not int or prompts < 1:
        raise ValueError(f"{prompts!r} prompts")
    return -(-prompts // options.shard_prompts)


def load_distilled(directory: str | os.PathLike[str]) -> Texts:
    """All sequences of a directory that `distill` has filled; ValueError if it is not one, or incomplete."""
    return Texts.joined([Texts.load(path) for path in distilled_directory(directory).files()])


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


def distill(
    base: PreTrainedModel,
    prompts: Texts,
    directory: str | os.PathLike[str],
    options: DistillOptions,
    part: tuple[int, int] = (0, 1),
    on_batch: Callable[[int, int], object] | None = None,
    states: StateOptions | None = None,
    drafter: Drafter | None = None,
) -> None:
    """Fill ``directory`` with shards; existing ones are left unchanged.

    Args:
        base: any causal LM or encoder-decoder of ``transformers``.
        prompts: each sequence's prompt is continued, or translated; what follows it is ignored.
        part: ``(i, n)``: make shards i, i + n, i + 2n, ...
        on_batch: called after each batch with the prompts done and the tokens written, for progress.
        states: hidden states to store as well, for existing shards too; their shards are those of the text.
        drafter: drafts for greedy decoding; the text is the same.

    Raises:
        ValueError: the directory holds text of another model, other prompts or settings, or the prompts do not fit the
            model.
    """
    index, parts = part
    if not 0 <= index < parts:
        raise ValueError(f"expected a part i/n with 0 <= i < n, got {index}/{parts}")
    prompts, stock = prompts.prompts(), BaseModel.of(base)
    _check_fit(stock, prompts, options)
    shards, kept = distilled_directory(directory), states_directory(directory)
    settings: dict[str, Any] = {"options": options.record(), "model": weights_fingerprint(base)}
    shards.claim(settings | {"prompts": len(prompts), "prompts_hash": prompts.fingerprint()})
    greedy = options.num_beams == 1 and Greedy.suits(stock)
    answer = Greedy(stock, drafter) if greedy else ByGenerate(stock, options.num_beams)
    dtype = token_dtype(max(stock.source_vocab_size, stock.vocab_size))
    if states is not None:
        states = replace(states, shard_texts=options.shard_prompts)
        claim_states(kept, stock, len(prompts), states)
    for shard, chosen in shares(len(prompts), options.shard_prompts, part):
        path = shards.file(shard)
        exists = path.exists()
        lacks_states = states is not None and not (exists and kept.file(shard).exists())
        if exists:
            if on_batch is not None:
                on_batch(len(chosen), 0)
            if not lacks_states:
                continue
            text = Texts.load(path)
        else:
            rows = [prompts[number].astype(np.int64) for number in chosen]
            order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
            written: dict[int, np.ndarray] = {}
            for first in range(0, len(order), options.batch_size):
                together = order[first : first + options.batch_size]
                answers = answer([rows[row] for row in together], options.max_new_tokens)
                written |= zip(together, answers, strict=True)
                if on_batch is not None:
                    on_batch(len(together), sum(map(len, answers)))
            joined = [np.concatenate([row, written[number]]) for number, row in enumerate(rows)]
            text = Texts.of_rows(joined, [len(row) for row in rows], dtype)
        if states is not None and lacks_states:
            save_states(kept.file(shard), text, states_of(stock, text, states))
        if not exists:
            text.save(path)


def _check_fit(stock: BaseModel, prompts: Texts, options: DistillOptions) -> None:
    """ValueError for prompts beyond the model's vocabulary or positions."""
    if not len(prompts):
        raise ValueError("expected at least one prompt, got none")
    require_vocabulary(prompts, stock.source_vocab_size, "prompt")
    limit, longest, new = stock.max_positions, int(prompts.lengths.max()), options.max_new_tokens
    if limit is None or (max(longest, 1 + new) if stock.is_encoder_decoder else longest + new) <= limit:
        return
    wanted = f"at most {limit} tokens (the model's positions) in prompt and text together, got {longest} + {new}"
    if stock.is_encoder_decoder:
        wanted = f"sources of at most {limit} tokens (the model's positions) and texts of at most {limit - 1}, "
        wanted += f"got a source of {longest} and texts of up to {new}"
    raise ValueError(f"expected {wanted}; ask for shorter ones")
