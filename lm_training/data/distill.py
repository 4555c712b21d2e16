"""Sequence-level distillation: the text a model writes, as training data for its own heads (Stern 2018, section 6).

A draft is accepted where it agrees with the base model's output, so that output, not people's text, is what heads
should learn to foresee. `distill` lets the model continue prompts, or an encoder-decoder answer sources, greedily or by
beam search. Results stand in a directory::

    distill.json       how they were made: a later run with other settings is refused, one with the same goes on
    shard-00042.npz    `Texts`: prompts, or sources, and what the model wrote
    hidden             its hidden states, where they are kept (`lm_training.data.hidden_states`)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from latticebpd.drafters import Drafter
from latticebpd.lattices.shards import ShardDirectory, shares
from latticebpd.lattices.texts import Texts
from latticebpd.target.checkpoints import weights_fingerprint
from latticebpd.target.stock_model import BaseModel
from lm_training.data.hidden_states import claim_states, save_states, states_directory, states_of
from lm_training.data.writing import ByGenerate, Greedy

SETTINGS = "distill.json"


@dataclass(frozen=True)
class DistillOptions:
    """How to write.

    max_new_tokens: most tokens written after each prompt.
    num_beams: 1 decodes greedily; with more, the best beam is kept.
    shard_prompts: prompts per shard, the unit of resumption.
    """

    max_new_tokens: int = 96
    num_beams: int = 1
    shard_prompts: int = 512

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "num_beams", "shard_prompts"):
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name} >= 1, got {getattr(self, name)}")

    def shards(self, prompts: int) -> int:
        return -(-prompts // self.shard_prompts)

    def prompts_of(self, prompts: int, part: tuple[int, int]) -> int:
        """How many of the prompts are in the shards ``i``, ``i + n``, ... of a part ``(i, n)``."""
        return sum(len(numbers) for _, numbers in shares(prompts, self.shard_prompts, part))


def corpus_prompts(corpus: np.ndarray, count: int, length: int, end_ids: list[int], seed: int = 0) -> Texts:
    """Windows of a corpus as prompts that nothing follows: they do not overlap, come in random order and hold no end of
    text.

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
    """What `distill` fills."""
    return ShardDirectory(Path(path), SETTINGS, "latticebpd distill", "text", count=_num_shards)


def _num_shards(settings: dict[str, Any]) -> int:
    options, prompts = DistillOptions(**settings["options"]), settings["prompts"]
    if type(prompts) is not int or prompts < 1:
        raise ValueError(f"{prompts!r} prompts")
    return options.shards(prompts)


def load_distilled(directory: str | os.PathLike[str]) -> Texts:
    """All sequences of a directory that `distill` has filled.

    Raises:
        ValueError: the directory is none of ours, or shards are missing or damaged.
    """
    return Texts.joined([Texts.load(path) for path in distilled_directory(directory).files()])


def distill(
    base: PreTrainedModel,
    prompts: Texts,
    directory: str | os.PathLike[str],
    options: DistillOptions,
    batch_size: int = 64,
    part: tuple[int, int] = (0, 1),
    on_batch: Callable[[int, int], object] | None = None,
    hidden: Sequence[int] | None = None,
    drafter: Drafter | None = None,
) -> None:
    """Fill ``directory`` with shards; those already there are left as they are.

    Args:
        base: any causal LM or encoder-decoder of ``transformers``.
        prompts: each sequence's prompt is continued, for an encoder-decoder answered; what follows it is not used.
        batch_size: prompts decoded together; prompts of about one length are.
        part: ``(i, n)``: make shards i, i + n, i + 2n, ...
        on_batch: called after each batch with the prompts done and the tokens written, for progress.
        hidden: also keep the last hidden states of what is written, and those of the layers named here
            (`hidden_states`); of shards that were written before too.
        drafter: drafts for greedy decoding; the text is the same.

    Raises:
        ValueError: the directory holds text of another model, other prompts or settings, or the prompts do not fit the
            model.
    """
    index, parts = part
    if not 0 <= index < parts:
        raise ValueError(f"expected a part i/n with 0 <= i < n, got {index}/{parts}")
    prompts = prompts.prompts()
    _check_fit(base, prompts, options)
    shards = distilled_directory(directory)
    model = weights_fingerprint(base)
    shards.claim(
        {"options": asdict(options), "model": model, "prompts": len(prompts), "prompts_hash": prompts.fingerprint()}
    )
    stock = BaseModel.of(base)
    answer = (
        Greedy(stock, drafter)
        if options.num_beams == 1 and Greedy.suits(stock)
        else ByGenerate(stock, options.num_beams)
    )
    dtype = np.dtype(np.uint16 if max(stock.source_vocab_size, stock.vocab_size) <= 1 << 16 else np.uint32)
    kept = states_directory(directory)
    if hidden is not None:
        claim_states(kept, stock, len(prompts), hidden, options.shard_prompts)
    for shard, chosen in shares(len(prompts), options.shard_prompts, part):
        path = shards.file(shard)
        if path.exists():
            if hidden is not None and not kept.file(shard).exists():
                text = Texts.load(path)
                save_states(kept.file(shard), text, states_of(stock, text, hidden))
            if on_batch is not None:
                on_batch(len(chosen), 0)
            continue
        rows = [prompts[number].astype(np.int64) for number in chosen]
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        written: dict[int, np.ndarray] = {}
        for first in range(0, len(order), batch_size):
            together = order[first : first + batch_size]
            answers = answer([rows[row] for row in together], options.max_new_tokens)
            written |= zip(together, answers, strict=True)
            if on_batch is not None:
                on_batch(len(together), sum(map(len, answers)))
        whole = [np.concatenate([row, written[number]]) for number, row in enumerate(rows)]
        text = Texts.of_rows(whole, [len(row) for row in rows], dtype)
        if hidden is not None:
            save_states(kept.file(shard), text, states_of(stock, text, hidden))
        text.save(path)


def _check_fit(base: PreTrainedModel, prompts: Texts, options: DistillOptions) -> None:
    """Vocabulary and positions; ValueError where the prompts exceed them."""
    if not len(prompts):
        raise ValueError("expected at least one prompt, got none")
    stock = BaseModel.of(base)
    vocabulary, highest = stock.source_vocab_size, int(prompts.tokens.max())
    if highest >= vocabulary:
        raise ValueError(
            f"expected token ids below {vocabulary} (the model's vocabulary), got {highest}; was the text encoded with"
            " another tokenizer?"
        )
    limit, longest = stock.max_positions, int(prompts.lengths.max())
    if limit is None:
        return
    if stock.is_encoder_decoder and max(longest, 1 + options.max_new_tokens) > limit:
        raise ValueError(
            f"expected sources of at most {limit} tokens (the model's positions) and texts of at most {limit - 1}, "
            f"got a source of {longest} and texts of up to {options.max_new_tokens}; ask for shorter ones"
        )
    if not stock.is_encoder_decoder and longest + options.max_new_tokens > limit:
        raise ValueError(
            f"expected at most {limit} tokens (the model's positions) in prompt and text together, "
            f"got {longest} + {options.max_new_tokens}; ask for shorter ones"
        )
