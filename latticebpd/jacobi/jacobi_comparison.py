"""Jacobi decoding against ``generate()``, greedy and with beams, in one run: time, iterations, operations.

Systems take turns at every batch, so drift of the machine's speed affects all alike. A system's *iterations* are the
decoder's forward passes; speedups are ratios of sums over all texts, and per text for the distribution.

*Operations* are the multiplications and additions of matrix products, from the model's shape: 2 for every weight and
token, and 4 for every query, key and attention width. Norms, activations and embeddings are left out, as in table 3 of
Santilli 2023. Cross-attention costs its keys and values once for each source token, the products once for each token
that the decoder reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from fst.processors import ignore
from latticebpd.checks import expect
from latticebpd.decoding.decode_rows import until_end
from latticebpd.decoding.generation_config import GenerationSettings
from latticebpd.jacobi.solution import Solution
from latticebpd.lattices.texts import padded
from latticebpd.lattices.values import first_number
from latticebpd.models.transformers.transformers_model import Model, TransformersModel

GREEDY = "greedy"
CROSS_KEYS_AND_VALUES = ("encoder_attn.k_proj", "encoder_attn.v_proj", "EncDecAttention.k", "EncDecAttention.v")
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True)
class BatchRun:
    """A batch's new tokens, and for every row the decoder's passes and, if they are counted, the operations."""

    tokens: list[list[int]]
    passes: list[int]
    flops: list[int] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Batch:
    """Texts that are decoded together, from number ``start``; ``ids`` and ``mask`` are ``[rows, n]``.

    lengths: of each row's greedy text, if greedy decoding came first.
    """

    ids: Tensor
    mask: Tensor
    start: int
    lengths: list[int] | None = None


System: TypeAlias = Callable[[Batch], BatchRun]


@dataclass
class SystemRun:
    """One system over all texts.

    seconds: wall-clock time of every text, an equal share of its batch's.
    passes: forward passes of the decoder that read the text.
    """

    name: str
    tokens: list[list[int]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    flops: list[int] = field(default_factory=list)

    def add(self, run: BatchRun, seconds: float) -> None:
        self.tokens += run.tokens
        self.seconds += [seconds / len(run.tokens)] * len(run.tokens)
        self.passes += run.passes
        self.flops += run.flops

    def time_speedup(self, baseline: SystemRun) -> float:
        return sum(baseline.seconds) / sum(self.seconds)

    def iteration_speedup(self, baseline: SystemRun) -> float:
        return sum(baseline.passes) / sum(self.passes)

    def distribution(self, baseline: SystemRun, what: str) -> dict[str, float]:
        """Quantiles over texts of the speedup in ``seconds`` or ``passes``."""
        speedups = np.array(getattr(baseline, what)) / np.array(getattr(self, what))
        return dict(zip(map("{:g}".format, QUANTILES), np.quantile(speedups, QUANTILES).tolist(), strict=True))

    def interval(self, baseline: SystemRun, what: str, level: float = 0.95, samples: int = 2000) -> tuple[float, float]:
        """Bootstrap interval of the speedup in ``seconds`` or ``passes``, a ratio of sums over resampled texts, the
        same for both systems."""
        theirs, mine = np.array(getattr(baseline, what), float), np.array(getattr(self, what), float)
        times = np.random.default_rng(0).multinomial(len(mine), np.full(len(mine), 1 / len(mine)), size=samples)
        low, high = np.quantile((times @ theirs) / (times @ mine), [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)

    def differing(self, baseline: SystemRun) -> int:
        """Number of texts that differ from the baseline's."""
        return sum(mine != theirs for mine, theirs in zip(self.tokens, baseline.tokens, strict=True))

    def flops_per_speed(self, baseline: SystemRun) -> float:
        """Operations over all texts, divided by the speedup in time: the cost in the paper's table 3."""
        return sum(self.flops) / self.time_speedup(baseline)


@dataclass(frozen=True)
class ModelFlops:
    """Numbers of weights by their inputs, and sizes of attention; for encoder and source 0 in a causal LM.

    source_weights: of the decoder's matrices that read the source; decoder_weights: of its other matrices.
    encoder_attention, decoder_attention, cross_attention: layers times width.
    """

    encoder_weights: int
    source_weights: int
    decoder_weights: int
    output_weights: int
    encoder_attention: int
    decoder_attention: int
    cross_attention: int

    @classmethod
    def of(cls, model: PreTrainedModel) -> ModelFlops:
        """From the modules of a causal LM or an encoder-decoder."""
        base = TransformersModel.of(model)
        both = base.is_encoder_decoder
        # The text config of an encoder-decoder has one side only, under common names.
        config: Any = model.config if both else base.config
        encoder = _weights(base.encoder) if both else {}
        decoder = _weights(base.decoder)
        source = sum(count for name, count in decoder.items() if name.endswith(CROSS_KEYS_AND_VALUES))
        heads = first_number(config, "decoder_attention_heads", "num_attention_heads") or 0
        width = heads * (first_number(config, "head_dim", "d_kv") or config.hidden_size // heads)
        layers = first_number(config, "decoder_layers", "num_decoder_layers", "num_hidden_layers") or 0
        encoder_layers = (first_number(config, "encoder_layers", "num_hidden_layers") or 0) if both else 0
        output = model.get_output_embeddings()
        return cls(
            encoder_weights=sum(encoder.values()),
            source_weights=source,
            decoder_weights=sum(decoder.values()) - source,
            output_weights=int(output.weight.numel()),
            encoder_attention=encoder_layers * width,
            decoder_attention=layers * width,
            cross_attention=layers * width if both else 0,
        )

    def flops(self, source: int, columns: int, pairs: int, predicted: int) -> int:
        """Operations of decoding one text of ``source`` tokens for the encoder; columns, pairs: as in ``Solution``;
        predicted: tokens whose states are projected to the vocabulary."""
        weights = (self.encoder_weights + self.source_weights) * source
        weights += self.decoder_weights * columns + self.output_weights * predicted
        attention = self.encoder_attention * source**2 + self.cross_attention * columns * source
        return 2 * weights + 4 * (attention + self.decoder_attention * pairs)

    def greedy_flops(self, source: int, prompt: int, new: int) -> int:
        """Operations of greedy decoding with a cache: ``prompt`` tokens in one pass, then ``new`` one by one."""
        pairs = prompt**2 + sum(prompt + i for i in range(1, new))
        return self.flops(source, prompt + new - 1, pairs, new)


def _weights(module: nn.Module) -> dict[str, int]:
    return {name: each.weight.numel() for name, each in module.named_modules() if isinstance(each, nn.Linear | Conv1D)}


def _lengths(base: TransformersModel, batch: Batch) -> tuple[list[int], list[int]]:
    """For each row, the tokens of the source and of the decoder's prompt."""
    own = batch.mask.sum(1).tolist()
    return (own, [1] * len(own)) if base.is_encoder_decoder else ([0] * len(own), own)


def stock(model: Model, max_new_tokens: int, num_beams: int = 1, **options: Any) -> System:
    """``transformers``' own ``generate()``; operations are not counted under further ``options``."""
    base = TransformersModel.of(model)
    shape, ends, fill = ModelFlops.of(base.model), frozenset(base.eos_ids), GenerationSettings(base).fill_id
    required = {"do_sample": False, "max_new_tokens": max_new_tokens, "pad_token_id": fill, "num_beams": num_beams}

    def decode(batch: Batch) -> BatchRun:
        ids = batch.ids.to(base.device)
        passes: list[None] = []
        hook = base.decoder.register_forward_pre_hook(lambda *_: passes.append(None))
        try:
            out = base.model.generate(ids, attention_mask=batch.mask.to(base.device), **required, **options)
        finally:
            hook.remove()
        prompt = 1 if base.is_encoder_decoder else ids.shape[1]
        tokens = [until_end(row, ends) for row in out[:, prompt:].tolist()]
        # A beam goes on until the batch's last; rows of greedy decoding end, and are counted, by themselves.
        steps = [len(passes)] * len(ids) if num_beams > 1 or options else [len(row) for row in tokens]
        if options:
            return BatchRun(tokens, steps)
        flops = []
        for source, read, new in zip(*_lengths(base, batch), steps, strict=True):
            encoder = shape.flops(source, 0, 0, 0)
            flops.append(encoder + num_beams * (shape.greedy_flops(source, read, new) - encoder))
        return BatchRun(tokens, steps, flops)

    return decode


def parallel(model: Model, algorithm: Callable[[Batch], Solution]) -> System:
    """A Jacobi algorithm of that model."""
    base = TransformersModel.of(model)
    shape = ModelFlops.of(base.model)

    def decode(batch: Batch) -> BatchRun:
        solution = algorithm(batch)
        counts = zip(*_lengths(base, batch), solution.columns.tolist(), solution.pairs.tolist(), strict=True)
        flops = [shape.flops(source, columns, pairs, columns - read + 1) for source, read, columns, pairs in counts]
        return BatchRun([solution.tokens(row) for row in range(len(flops))], solution.passes.tolist(), flops)

    return decode


def compare(
    systems: Mapping[str, System],
    inputs: Sequence[Sequence[int]],
    pad: int,
    pad_left: bool,
    batch_size: int = 1,
    warm_ups: int = 2,
    clock: Callable[[], float] = time.perf_counter,
    on_batch: Callable[[], object] = ignore,
) -> dict[str, SystemRun]:
    """Decode all inputs with all systems.

    systems: by name; if ``greedy`` is the first, the others get its texts' lengths.
    pad: the token that fills a batch; it is masked.
    pad_left: side of the padding: left for a causal LM, right for an encoder, whose positions count from the left.
    warm_ups: first batches that are decoded once more before, unmeasured.
    """
    expect(inputs, "at least one text")
    batches = []
    for start in range(0, len(inputs), batch_size):
        ids, mask = map(torch.from_numpy, padded(inputs[start : start + batch_size], pad, pad_left))
        batches.append(Batch(ids, mask, start))
    runs = {name: SystemRun(name) for name in systems}
    for number, batch in enumerate([*batches[:warm_ups], *batches]):
        for name, system in systems.items():
            started = clock()
            decoded = system(batch)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds = clock() - started
            if name == GREEDY:
                batch = replace(batch, lengths=[len(row) for row in decoded.tokens])
            if number >= min(warm_ups, len(batches)):
                runs[name].add(decoded, seconds)
        on_batch()
    return runs
