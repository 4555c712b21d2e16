"""Sequence-level distillation: text written by a model, as training data for its heads (Stern 2018, section 6).

A draft is accepted if it agrees with the target's own output, so heads should learn that output, not people's text.
`distill` lets the model continue prompts, or an encoder-decoder translate sources, greedily or by beam search. Results
form a directory::

    distill.json       the settings: a later run with other settings is refused, one with the same continues
    shard-00042.npz    `Texts`: prompts, or sources, and what the model wrote
    hidden             its hidden states, if stored (`lm_training.data.hidden_states`)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch

from fst.files import PathLike
from fst.processors import ignore
from latticebpd.checks import expect
from latticebpd.decoding.generation_config import GenerationSettings, beams_ignored
from latticebpd.decoding.loop import EXACT, RowBatch, generate
from latticebpd.decoding.session import Session
from latticebpd.drafters import Drafter, NoDrafter
from latticebpd.lattices.shards import distilled_directory, shares
from latticebpd.lattices.texts import Texts, padded
from latticebpd.lattices.values import as_tensor
from latticebpd.models.engine.engine_model import EngineModel
from latticebpd.models.target_model import AnyModel, TargetModel, target_model
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.verification.engine_verifier import PREFILL_CHUNK
from latticebpd.verification.grouped_attention import grouped_attention
from latticebpd.verification.verifier_choice import tree_placement
from lm_training.data import hidden_states
from lm_training.data.batching import require_vocabulary, token_dtype
from lm_training.data.hidden_states import StateOptions, save_states, states_of
from lm_training.data.sequences import START


@dataclass(frozen=True)
class DistillOptions:
    """How text is written.

    max_new_tokens: most tokens written after each prompt.
    num_beams: 1 decodes greedily; with more, the best beam is stored.
    shard_prompts: prompts per shard; a killed run loses those that it has begun.
    batch_size: prompts decoded together; not part of the stored settings.
    """

    max_new_tokens: int = 96
    num_beams: int = 1
    shard_prompts: int = 512
    batch_size: int = 64

    def __post_init__(self) -> None:
        for each in fields(self):
            expect(getattr(self, each.name) >= 1, f"{each.name} >= 1", getattr(self, each.name))


def corpus_prompts(corpus: np.ndarray, count: int | None, length: int, end_ids: list[int], seed: int = 0) -> Texts:
    """Windows of a corpus as prompts: without overlap, in random order, and without ends of text.

    corpus: ``[n]`` token ids, documents ending with one of ``end_ids``. count: None for as many as there are. length:
    tokens of a prompt. Raises ValueError for a corpus that is too short.
    """
    order = np.random.default_rng(seed).permutation(len(corpus) // length) * length
    windows = (corpus[start : start + length] for start in order.tolist())
    rows = list(islice((window for window in windows if not np.isin(window, end_ids).any()), count))
    wanted, got = f"a corpus with {count} prompts of {length} tokens", f"{len(rows)} from {len(corpus)} tokens"
    expect(count is None or len(rows) == count, wanted, got, "give more text, or ask for fewer or shorter prompts")
    return Texts.of_rows(rows, [length] * len(rows), corpus.dtype)


@dataclass(frozen=True, eq=False)
class Continuation:
    """tokens: ``[n]``, the end of text included.  states: ``[n, hidden]`` that predicted them, where they are kept."""

    tokens: np.ndarray
    states: torch.Tensor | None = None


Continuations = Iterator[dict[int, Continuation]]
"""By their prompts' numbers, some at a time."""
Writer = Callable[[Iterable[np.ndarray]], Continuations]


def in_batches(
    answer: Callable[[Sequence[np.ndarray]], list[np.ndarray]], size: int, prompts: Iterable[np.ndarray]
) -> Continuations:
    """Batches of prompts of similar length, one after another.

    answer: prompts -> the continuation of each, including its end of text.
    """
    rows = list(prompts)
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    for first in range(0, len(order), size):
        together = order[first : first + size]
        yield dict(zip(together, map(Continuation, answer([rows[row] for row in together])), strict=True))


def on_engine(
    target: EngineModel,
    drafter: Drafter,
    size: int,
    max_new_tokens: int,
    with_states: bool,
    prompts: Iterable[np.ndarray],
) -> Continuations:
    """The CPU engine's rows: where a text ends, the next prompt takes its row, so that passes stay wide.

    drafter: drafts while it pays off; the text is the same.  size: rows.
    with_states: keep those that every token is predicted from; without drafts only, which commit several at once.
    """

    def begin(index: int, prompt: np.ndarray) -> RowBatch:
        """A row whose prompt is read but for its last token."""
        mask = [[1] * len(prompt)]
        session = Session.begin(target, prompt.tolist(), attention_mask=mask, max_new_tokens=max_new_tokens)
        row = RowBatch.begin(session, drafter, EXACT, first=index)
        while row.unread.read_ahead(PREFILL_CHUNK):
            pass
        return row

    waiting, batch = enumerate(prompts), None
    states = defaultdict[int, list[torch.Tensor]](list)
    while True:
        while batch is None or len(batch.rows) < size:
            if (coming := next(waiting, None)) is None:
                break
            begun = begin(*coming)
            if batch is not None and batch.rows:
                batch.join(begun)
            else:
                batch = begun
        if batch is None or not batch.rows:
            return
        rows = batch.rows
        batch.step()
        ended: dict[int, Continuation] = {}
        for row in rows:
            if with_states:
                assert row.hidden is not None
                states[row.index].append(as_tensor(row.hidden).to(torch.float16))
            if row.text.finished:
                kept = torch.stack(states.pop(row.index)) if with_states else None
                ended[row.index] = Continuation(np.array(row.text.new_tokens, np.int64), kept)
        if ended:
            yield ended


def suits_loop(target: TargetModel) -> bool:
    """Whether our own loop has a cache for the model and supports all that its generation config asks for, but for
    beams on PyTorch, which are ignored."""
    stock = target if isinstance(target, TransformersModel) else None
    try:
        with nullcontext() if stock is None else beams_ignored(stock):
            GenerationSettings(target)
    except ValueError:
        return False
    return stock is None or tree_placement(stock.model) is not None


def by_loop(
    model: TransformersModel, drafter: Drafter, max_new_tokens: int, prompts: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Our own loop: finished rows cost nothing, and no step copies the cache. The text is the same with a drafter."""
    ids, mask = map(torch.from_numpy, padded(prompts, 0))
    with beams_ignored(model):
        out = generate(model, ids, drafter, max_new_tokens=max_new_tokens, attention_mask=mask, trace=True)
    return [np.array([token for block in out.blocks(row) for token in block], np.int64) for row in range(len(ids))]


@torch.inference_mode()
def by_generate(
    stock: TransformersModel, num_beams: int, max_new_tokens: int, prompts: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """`generate()` of ``transformers``: for beams, on a GPU, and for models that our loop has no cache for."""
    end_ids = stock.eos_ids
    fill = stock.pad_id if stock.pad_id is not None else min(end_ids, default=0)
    # Prompts are padded on the left, to be continued; sources on the right, where encoders expect padding.
    arrays = padded(prompts, fill, left=not stock.is_encoder_decoder)
    ids, mask = (torch.from_numpy(array).to(stock.device) for array in arrays)
    options: dict[str, Any] = {"do_sample": False, "num_beams": num_beams, "max_new_tokens": max_new_tokens}
    if stock.device.type == "cuda" and num_beams == 1 and getattr(stock.model, "_can_compile_fullgraph", False):
        # A static cache is written in place; to compile the model for each length of prompts would take longer.
        options |= {"cache_implementation": "static", "disable_compile": True}
    with grouped_attention(stock.model):
        out = stock.model.generate(ids, attention_mask=mask, pad_token_id=fill, **options)
    begin = 1 if stock.is_encoder_decoder else ids.shape[1]  # after the decoder's start token, or the prompt
    rows = out[:, begin:].cpu().numpy()
    ends = [np.flatnonzero(np.isin(row, end_ids)) for row in rows]
    return [row[: int(end[0]) + 1] if len(end) else row for row, end in zip(rows, ends, strict=True)]


def distill(
    model: AnyModel,
    prompts: Texts,
    directory: PathLike,
    options: DistillOptions,
    part: tuple[int, int] = (0, 1),
    on_batch: Callable[[int, int], object] = ignore,
    states: StateOptions | None = None,
    drafter: Drafter | None = None,
) -> None:
    """Fill ``directory`` with shards; existing ones are left unchanged.

    A model on the CPU engine writes greedy text: rows that end make room for the next prompts, those of the next shard
    included. Rounded weights write other texts: they are among the settings.

    model: on PyTorch its generation config's beams are ignored; on the engine they are refused, as in all decodes.
    prompts: each sequence's prompt is continued, or translated; what follows it is ignored.
    part: ``(i, n)``: make shards i, i + n, i + 2n, ...
    on_batch: called after each batch with the prompts done and the tokens written.
    states: hidden states to store as well, for existing shards too; their shards are those of the text.
    Raises ValueError: the directory holds text of another model or settings, or the prompts do not fit the model.
    """
    index, parts = part
    expect(0 <= index < parts, "a part i/n with 0 <= i < n", f"{index}/{parts}")
    prompts, target = prompts.prompts(), target_model(model)
    _check_fit(target, prompts, options)
    shards, kept = distilled_directory(directory), hidden_states.states_directory(directory)
    stock = target if isinstance(target, TransformersModel) else None
    size, length, drafts = options.batch_size, options.max_new_tokens, drafter or NoDrafter()
    if isinstance(target, EngineModel):
        expect(options.num_beams == 1, "one beam on the CPU engine", options.num_beams, "load with weights='torch'")
        GenerationSettings(target)
        last_states = states is not None and not states.layers and not states.whole and drafter is None
        writer = partial(on_engine, target, drafts, size, length, last_states)
    else:
        assert isinstance(target, TransformersModel)
        by_own_loop = options.num_beams == 1 and (drafter is not None or target.device.type != "cuda")
        if by_own_loop and suits_loop(target):
            writer = partial(in_batches, partial(by_loop, target, drafts, length), size)
        else:
            writer = partial(in_batches, partial(by_generate, target, options.num_beams, length), size)
    decisive = {name: getattr(options, name) for name in ("max_new_tokens", "num_beams", "shard_prompts")}
    start = {START: stock.start_id} if stock is not None and stock.is_encoder_decoder else {}
    settings = {"options": decisive, "model": target.fingerprint, **hidden_states.rounded_weights(target), **start}
    shards.claim(settings | {"prompts": len(prompts), "prompts_hash": prompts.fingerprint()})
    dtype = token_dtype(max(target.source_vocab_size, target.vocab_size))
    if states is not None:
        states = replace(states, shard_texts=options.shard_prompts)
        hidden_states.claim_states(kept, target, len(prompts), states)
    missing: list[tuple[int, range]] = []
    for shard, chosen in shares(len(prompts), options.shard_prompts, part):
        if not shards.file(shard).exists():
            missing.append((shard, chosen))
            continue
        on_batch(len(chosen), 0)
        if states is not None and not kept.file(shard).exists():
            text = Texts.load(shards.file(shard))
            save_states(kept.file(shard), text, states_of(target, text, states))
    groups = [missing] if isinstance(target, EngineModel) else [[each] for each in missing]
    for shard, written in (each for group in groups for each in _write(writer, prompts, group, on_batch)):
        rows = [prompts[number] for number, _ in written]
        joined = [np.concatenate([row, answer.tokens]) for row, (_, answer) in zip(rows, written, strict=True)]
        text = Texts.of_rows(joined, list(map(len, rows)), dtype)
        if states is not None:
            seen = [answer.states for _, answer in written if answer.states is not None]
            own = {hidden_states.LAST: torch.cat(seen)} if seen else states_of(target, text, states)
            save_states(kept.file(shard), text, own)
        text.save(shards.file(shard))


def _write(
    writer: Writer, prompts: Texts, shards: Sequence[tuple[int, range]], on_batch: Callable[[int, int], object]
) -> Iterator[tuple[int, list[tuple[int, Continuation]]]]:
    """Each shard when its last text has ended: its number, and its prompts' numbers in order with what follows each."""
    owners = [(shard, number) for shard, chosen in shards for number in chosen]
    sizes = {shard: len(chosen) for shard, chosen in shards}
    written = defaultdict[int, dict[int, Continuation]](dict)
    for answers in writer(prompts[number].astype(np.int64) for _, number in owners):
        for index, answer in answers.items():
            shard, number = owners[index]
            written[shard][number] = answer
        on_batch(len(answers), sum(len(answer.tokens) for answer in answers.values()))
        for shard in [shard for shard in written if len(written[shard]) == sizes[shard]]:
            yield shard, sorted(written.pop(shard).items())


def _check_fit(target: TargetModel, prompts: Texts, options: DistillOptions) -> None:
    """ValueError for prompts beyond the model's vocabulary or positions."""
    expect(len(prompts), "at least one prompt")
    require_vocabulary(prompts, target.source_vocab_size, "prompt")
    limit, longest, new = target.max_positions, int(prompts.lengths.max()), options.max_new_tokens
    if limit is None or (max(longest, 1 + new) if target.is_encoder_decoder else longest + new) <= limit:
        return
    wanted = f"at most {limit} tokens (the model's positions) in prompt and text together, got {longest} + {new}"
    if target.is_encoder_decoder:
        wanted = f"sources of at most {limit} tokens (the model's positions) and texts of at most {limit - 1}, "
        wanted += f"got a source of {longest} and texts of up to {new}"
    raise ValueError(f"expected {wanted}; ask for shorter ones")
