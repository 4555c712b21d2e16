"""Lattices of a data set: a drafter's lattices at every position of its target's texts.

A text is the target's own greedy continuation of a prompt, or a given one (*teacher forcing*). The lattice at position
``t`` belongs to the hidden state that predicted token ``t + 1``; its slots cover the tokens from ``t + 2`` on.

If the length limit cuts a text, a few more tokens are written, so that the last lattices have continuations too; after
the end of a text, continuations are -1. A replay through a text's lattices makes the calls of a decode of
``max_new_tokens``: exactly for vanilla drafts and the oracle; a rescored decode may differ by one call, because it cuts
its last lattices at the length limit, and calibrated trees also draft copies after a lattice's last slot, which a
replay does not count. With the same arcs its other calls are the same bit for bit on the engine; on PyTorch, whose
passes round differently in a batch, up to near ties.

An encoder–decoder's prompt is its source. Its texts are recorded as source, then target; the contexts of its lattices
are the decoder's: start token and target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from fst.files import PathLike
from fst.processors import ignore
from latticebpd.checks import expect
from latticebpd.decoding.loop import generate
from latticebpd.drafters import NoDrafter
from latticebpd.drafters.family import DrafterLattices
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.npz import is_intact
from latticebpd.lattices.sausage import PADDING
from latticebpd.lattices.shards import lattice_directory, shares
from latticebpd.lattices.texts import Texts, padded
from latticebpd.measuring.lattice_files import num_lattices, without_prompts
from latticebpd.measuring.signature import GIVEN_TEXT, OWN_TEXT
from latticebpd.models.target_model import TargetModel
from latticebpd.models.transformers.transformers_model import TransformersModel


class NoLatticeError(ValueError):
    """Nobody's text is long enough for a lattice."""

    def __str__(self) -> str:
        return "expected at least one text with two tokens after its prompt, which make a lattice, found none"


@dataclass(frozen=True)
class CollectOptions:
    """What to collect.

    max_new_tokens: tokens of each text after its prompt, at least 2.
    context_length: tokens kept before each lattice, the next token included.
    teacher_force: take the text from the data instead of letting the model write it.
    prompt_context: let the tokens kept before a lattice reach into the prompt.
    eos_ids: tokens that end a text, such as a chat's turn; None for the model's own.
    """

    k: int = 16
    max_new_tokens: int = 128
    context_length: int = 8
    teacher_force: bool = False
    prompt_context: bool = True
    eos_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name, least in (("k", 1), ("max_new_tokens", 2), ("context_length", 1)):
            expect(getattr(self, name) >= least, f"{name} >= {least}", getattr(self, name))


def collect(
    drafts: DrafterLattices,
    data: Texts,
    options: CollectOptions,
    batch_size: int = 8,
    on_text: Callable[[], object] = ignore,
) -> tuple[LatticeSet, Texts]:
    """The lattices of every text, and the texts: those with at least one lattice, numbered from 0; ValueError for a
    source that is longer than an encoder–decoder can read.

    drafts: a drafter next to its target.
    data: what is decoded are the prompts (an encoder–decoder's sources); with ``teacher_force`` also what follows
        them is taken from here.
    """
    drafts = as_source(drafts, options.k)
    slots, writer = drafts.num_slots, drafts.target
    start = _start(writer)
    limit, longest = writer.max_positions, int(data.prompt_lengths.max(initial=0))
    wanted = f"sources of at most {limit} tokens (the model's positions)"
    expect(start is None or longest <= (limit or longest), wanted, f"one of {longest}")
    parts: list[LatticeSet] = []
    rows: list[list[int]] = []
    prompt_lengths: list[int] = []
    own = _written(writer, data, options.max_new_tokens + slots, batch_size, options.eos_ids)
    for text, prompt_length in data.items() if options.teacher_force else own:
        new = min(len(text) - prompt_length, options.max_new_tokens)
        if new > 1:
            source, read, begin = [], text, prompt_length
            if start is not None:
                source, read, begin = text[:prompt_length], [start, *text[prompt_length:]], 1
            positions = range(begin - 1, begin + new - 2)
            parts.append(text_lattices(drafts, read, positions, options.context_length, len(parts), source))
            rows.append(text[: prompt_length + new])
            prompt_lengths.append(prompt_length)
        on_text()
    parts = parts or [text_lattices(drafts, [0], range(0), options.context_length, 0)]  # none, of these shapes
    made_of = GIVEN_TEXT if options.teacher_force else OWN_TEXT
    drafter = None if drafts.files is None else drafts.files.name
    lattices = replace(LatticeSet.joined(parts), origin=f"{drafts.weights_fingerprint}, {made_of}", drafter=drafter)
    if not options.prompt_context:
        (lattices,) = without_prompts([lattices])
    return lattices, Texts.of_rows(rows, prompt_lengths)


def collect_shards(
    drafts: DrafterLattices,
    data: Texts,
    directory: PathLike,
    options: CollectOptions,
    shard_texts: int = 64,
    about: Mapping[str, Any] | None = None,
    batch_size: int = 8,
    on_text: Callable[[int], object] = ignore,
    part: tuple[int, int] = (0, 1),
) -> None:
    """Fill a directory with shards of ``shard_texts`` texts each; intact ones are left as they are.

    about: further settings to record, such as where the data are from; a later run must name the same.
    on_text: called with the number of texts that are done, for progress.
    part: ``(i, n)``: make shards i, i + n, i + 2n, ...
    Raises ValueError: the directory holds lattices of another making, or no text is long enough for a lattice.
    """
    expect(shard_texts >= 1 and len(data), "at least one text in all and per shard", f"{len(data)} and {shard_texts}")
    if options.teacher_force and data.answer_lengths.max() < 2:
        raise NoLatticeError
    num_shards = -(-len(data) // shard_texts)
    shards = lattice_directory(directory)
    drafts, settings = as_source(drafts, options.k), asdict(options)
    if options.prompt_context:  # as directories that were begun before there was a choice
        del settings["prompt_context"]
    if options.eos_ids is None:
        del settings["eos_ids"]
    shards.claim({
        "num_shards": num_shards, "shard_texts": shard_texts, "texts": len(data), "heads": drafts.num_slots + 1,
        **settings, "model": drafts.weights_fingerprint, **(about or {}),
    })  # fmt: skip
    empty = part[1] == 1  # a part by itself shows nothing
    for shard, numbers in shares(len(data), shard_texts, part):
        chosen = data.chosen(numbers)
        if all(is_intact(shards.file(shard, kind)) for kind in ("shard", "texts")):
            on_text(len(chosen))
            empty &= not num_lattices([shards.file(shard)])
            continue
        lattices, texts = collect(drafts, chosen, options, batch_size, lambda: on_text(1))
        texts.save(shards.file(shard, "texts"))
        lattices.save(shards.file(shard))  # last: what is there is complete
        empty &= not len(lattices)
    if empty:
        raise NoLatticeError


def as_source(drafts: DrafterLattices, k: int) -> DrafterLattices:
    """The drafter's lattices with ``k`` arcs per slot; ValueError for more arcs than the drafter knows tokens."""
    expect(k <= drafts.num_tokens, f"at most {drafts.num_tokens} arcs per slot (the tokens that the drafter knows)", k)
    return drafts if drafts.k == k else drafts.with_shape(k, drafts.num_slots)


@torch.inference_mode()
def text_lattices(
    drafts: DrafterLattices,
    text: Sequence[int],
    positions: range,
    context_length: int,
    number: int,
    source: Sequence[int] = (),
) -> LatticeSet:
    """The lattices at some positions of a text, with the entropies of the outputs where they are known.

    text: prompt and what follows it; an encoder–decoder's start token and what follows that.
    positions: of the hidden states that predict the tokens before the lattices, in a row.
    context_length: tokens kept before each lattice, the next token included.
    source: what an encoder–decoder's encoder reads.
    """
    slots, k, n = drafts.num_slots, drafts.k, len(positions)
    tokens = np.full((n, slots, k), PADDING, np.int32)
    log_probs = np.zeros((n, slots, k), np.float32)
    transitions = np.zeros((n, slots - 1, k, k), np.float32) if drafts.has_transitions and slots > 1 and k > 1 else None
    entropy: np.ndarray | None = np.zeros((n, slots + 1), np.float32)
    begin = 0
    for lattices, nats in drafts.lattices_of_text(text, positions, source) if n else ():
        rows = slice(begin, begin + len(lattices))
        tokens[rows] = np.stack([lattice.tokens for lattice in lattices])
        log_probs[rows] = np.stack([lattice.log_probs for lattice in lattices])
        if transitions is not None:
            transitions[rows] = np.stack([ties for lattice in lattices if (ties := lattice.transitions) is not None])
        if nats is None:
            entropy = None
        elif entropy is not None:
            entropy[rows] = nats
        begin = rows.stop
    padded = np.array([PADDING] * context_length + list(text) + [PADDING] * slots, np.int32)
    begins = np.array(positions, np.int64)[:, None] + context_length + 2  # where, in `padded`, each continuation begins
    return LatticeSet(
        tokens,
        log_probs,
        padded[begins + np.arange(slots)],
        padded[begins + np.arange(-context_length, 0)],
        drafts.fingerprint,
        np.full(n, number, np.int64),
        entropy,
        vocab_size=drafts.vocab_size,
        transitions=transitions,
    )


def _written(
    model: TargetModel, data: Texts, max_new_tokens: int, batch_size: int, eos_ids: tuple[int, ...] | None
) -> Iterator[tuple[list[int], int]]:
    """Every prompt, or source, with the model's own greedy text after it."""
    is_encoder_decoder = _start(model) is not None
    prompts = [text[:length] for text, length in data.items()]
    for begin in range(0, len(prompts), batch_size):
        batch = prompts[begin : begin + batch_size]
        # A text goes on at its prompt's right end; an encoder counts a source's positions from the left.
        ids, mask = padded(batch, 0, left=not is_encoder_decoder)
        options: Any = {"max_new_tokens": max_new_tokens, "eos_token_id": eos_ids, "trace": True}
        out = generate(model, ids.tolist(), NoDrafter(), attention_mask=mask.tolist(), **options)
        for row, prompt in enumerate(batch):
            yield prompt + [token for block in out.blocks(row) for token in block], len(prompt)


def _start(target: TargetModel) -> int | None:
    """The token that an encoder–decoder's texts begin with; None for a causal LM."""
    return TransformersModel.of(target).start_id if target.is_encoder_decoder else None
