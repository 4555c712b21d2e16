"""Sequence-level distillation: the text a model writes, as training data for its own heads (Stern 2018, section 6).

A draft is accepted where it agrees with the base model's output, so that output, not people's text, is what heads
should learn to foresee.  `distill` takes prompts from a corpus and lets the model continue each, greedily or by beam
search.  Results stand in a directory::

    distill.json       how they were made: a later run with other settings is refused, one with the same goes on
    shard-00042.npz    a set of `Sequences`

A shard appears whole or not at all and depends on settings and its number only, so a killed run loses one shard, and
any number of processes may each make every n-th (``part``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from fst.files import replacing
from latticebpd.models import max_positions, weights_fingerprint
from latticebpd.stopping import own_end_of_text_ids
from lm_training.sequences import Sequences

SETTINGS = "distill.json"


@dataclass(frozen=True)
class DistillOptions:
    """What to generate.

    prompts: number of prompts; prompt_tokens: length of each; max_new_tokens: most tokens written after each.
    num_beams: 1 decodes greedily; with more, the best beam is kept.
    shard_prompts: prompts per shard, the unit of resumption.
    """

    prompts: int = 16384
    prompt_tokens: int = 64
    max_new_tokens: int = 96
    num_beams: int = 1
    shard_prompts: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("prompts", "prompt_tokens", "max_new_tokens", "num_beams", "shard_prompts"):
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name} >= 1, got {getattr(self, name)}")

    @property
    def num_shards(self) -> int:
        return -(-self.prompts // self.shard_prompts)

    def prompts_of(self, index: int, parts: int) -> int:
        """Prompts in the shards ``index``, ``index + parts``, ..."""
        return sum(min(self.shard_prompts, self.prompts - shard * self.shard_prompts) for shard in range(index, self.num_shards, parts))


def load_distilled(directory: str | os.PathLike[str]) -> Sequences:
    """All sequences of a directory that `distill` has filled.

    Raises:
        ValueError: the directory is none of ours, or shards are missing or damaged.
    """
    directory = Path(directory)
    options = DistillOptions(**_read_settings(directory)["options"])
    paths = [_shard_path(directory, shard) for shard in range(options.num_shards)]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise ValueError(
            f"{directory}: {len(missing)} of {len(paths)} shards are missing, first {missing[0]}; go on with `latticebpd distill`"
        )
    return Sequences.joined([Sequences.load(path) for path in paths])


def distill(
    base: PreTrainedModel,
    corpus: np.ndarray,
    directory: str | os.PathLike[str],
    options: DistillOptions,
    batch_size: int = 64,
    part: tuple[int, int] = (0, 1),
    on_batch: Callable[[int, int], None] | None = None,
) -> None:
    """Fill ``directory`` with shards; those already there are left as they are.

    Args:
        base: any decoder-only causal LM of ``transformers``.
        corpus: ``[n]`` token ids, documents ending with the model's end-of-text token; no prompt crosses an end.
        batch_size: prompts per `generate()` call.
        part: ``(i, n)``: make shards i, i + n, i + 2n, ...
        on_batch: called after each batch with the prompts done and the tokens written, for progress.

    Raises:
        ValueError: the directory holds text of another model or other settings, or the corpus is too short.
    """
    directory = Path(directory)
    index, parts = part
    if not 0 <= index < parts:
        raise ValueError(f"expected a part i/n with 0 <= i < n, got {index}/{parts}")
    vocab_size, limit = int(base.config.get_text_config().vocab_size), max_positions(base)
    if limit is not None and options.prompt_tokens + options.max_new_tokens > limit:
        raise ValueError(
            f"expected at most {limit} tokens (the model's positions) in prompt and text together, "
            f"got {options.prompt_tokens} + {options.max_new_tokens}; ask for shorter ones"
        )
    directory.mkdir(parents=True, exist_ok=True)
    _claim(directory, {"options": asdict(options), "model": weights_fingerprint(base), "corpus_tokens": len(corpus)})
    starts = prompt_starts(corpus, options, own_end_of_text_ids(base))
    for shard in range(index, options.num_shards, parts):
        path = _shard_path(directory, shard)
        chosen = starts[shard * options.shard_prompts : (shard + 1) * options.shard_prompts]
        if path.exists():
            if on_batch is not None:
                on_batch(len(chosen), 0)
            continue
        rows: list[np.ndarray] = []
        for first in range(0, len(chosen), batch_size):
            prompts = np.stack([corpus[s : s + options.prompt_tokens] for s in chosen[first : first + batch_size]]).astype(np.int64)
            if prompts.max() >= vocab_size:
                raise ValueError(
                    f"expected token ids below {vocab_size} (the model's vocabulary), got {prompts.max()}; "
                    "was the corpus encoded with another tokenizer?"
                )
            written = list(_continue(base, torch.from_numpy(prompts), options))
            rows += written
            if on_batch is not None:
                on_batch(len(written), sum(map(len, written)) - prompts.size)
        dtype = np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)
        Sequences.of_rows(rows, [options.prompt_tokens] * len(rows), dtype).save(path)


def prompt_starts(corpus: np.ndarray, options: DistillOptions, end_ids: list[int]) -> np.ndarray:
    """``[prompts]`` places in the corpus: windows that do not overlap, in random order, none with an end of text inside."""
    length = options.prompt_tokens
    order = np.random.default_rng(options.seed).permutation(len(corpus) // length) * length
    starts: list[int] = []
    for start in order.tolist():
        if not np.isin(corpus[start : start + length], end_ids).any():
            starts.append(start)
        if len(starts) == options.prompts:
            return np.array(starts)
    raise ValueError(
        f"expected a corpus with {options.prompts} prompts of {length} tokens, got {len(starts)} from {len(corpus)} tokens; "
        "give more text, or ask for fewer or shorter prompts"
    )


@torch.inference_mode()
def _continue(base: PreTrainedModel, prompts: torch.Tensor, options: DistillOptions) -> Iterator[np.ndarray]:
    """``[batch, prompt_tokens]`` -> one array per prompt: prompt and continuation, up to and with its end of text."""
    prompts = prompts.to(base.device)
    end_ids = own_end_of_text_ids(base)
    out = base.generate(  # type: ignore[operator]
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=False,
        num_beams=options.num_beams,
        max_new_tokens=options.max_new_tokens,
        pad_token_id=end_ids[0] if end_ids else None,
    )
    for row in out.cpu().numpy():
        ends = np.flatnonzero(np.isin(row[options.prompt_tokens :], end_ids))
        yield row[: options.prompt_tokens + int(ends[0]) + 1] if len(ends) else row


def _shard_path(directory: Path, shard: int) -> Path:
    return directory / f"shard-{shard:05d}.npz"


def _claim(directory: Path, wanted: dict[str, object]) -> None:
    """Write the settings into a new directory; compare them with those of a used one."""
    if not (directory / SETTINGS).exists():
        with replacing(directory / SETTINGS) as temporary:
            temporary.write_text(json.dumps(wanted, indent=2) + "\n")
        return
    for name, value in _read_settings(directory).items():
        if wanted.get(name) != value:
            raise ValueError(f"{directory}: holds text made with {name} {value}, asked for is {wanted.get(name)}; choose another directory")


def _read_settings(directory: Path) -> dict[str, dict[str, int]]:
    try:
        record: dict[str, dict[str, int]] = json.loads((directory / SETTINGS).read_text(encoding="utf-8"))
        DistillOptions(**record["options"])
    except (ValueError, KeyError, TypeError, FileNotFoundError) as error:  # damaged JSON and UTF-8 are ValueErrors
        raise ValueError(f"{directory}: expected a directory that `latticebpd distill` has filled: {error}") from error
    return record
