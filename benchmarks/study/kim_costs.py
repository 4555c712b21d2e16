"""Memory traffic and arithmetic of a decoded token, by calculation (Kim 2024, table 11; batch size 1).

    python -m benchmarks.study.kim_costs                                         # the paper's table, by both accounts
    latticebpd compare lattices --lm lm.fst -s 16-best -s 64-tree --json > compared.json
    python -m benchmarks.study.kim_costs --model model --compared compared.json  # of systems as they were measured

Two accounts of one call of the model, each divided by the block efficiency. N parameters, n layers, L tokens in the
cache, w tokens verified; 2 bytes per number in the paper, those of the model's type otherwise.

``paper``      reproduces table 11, whose formulas the paper does not print::

    parameters   2 N                                            a neural rescorer: + 2 N_r
    cache        2 n H (L + w) numbers, H the feed-forward width   + 2 n_r H_r (L + w)
    FLOPs        2 N + 8 n d (L + w)^2, d the hidden width          + 2 N_r + 8 n_r d_r (L + w)^2

It counts the cache with the feed-forward width, linear layers for one token, attention without a cache, and no heads.

``corrected``  counts what a pass over the next token and the w drafted ones reads and computes::

    parameters   bytes * (N + N_heads)                          + its sequential steps * bytes * N_r
    cache        2 n d_kv (L + 1 + w + S) numbers                  + steps * rows * 2 n_r d_kv_r (L + steps)
    FLOPs        (1 + w) (2 N + 4 n d (L + 1 + w + S)) + 2 N_heads + 2 (h - 1) d V
                                                                + steps * rows * (2 N_r + 4 n_r d_r (L + steps))

S tokens are an encoder–decoder's source, whose keys and values every call reads; its encoding is part of the prefill,
which no account contains. A neural rescorer reads ``rows`` prefixes in parallel in each of its steps. An n-gram model's
search runs on the CPU; `bench_rescoring.py` measures it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.nn import Parameter

from benchmarks.common import options, read_json, run, set_up, table
from latticebpd import BlockwiseLM
from latticebpd.checks import expect
from latticebpd.drafters.heads.blockwise import load_blockwise
from latticebpd.drafters.heads.head_files import has_heads
from latticebpd.lattices.values import first_number
from latticebpd.models.catalogue import resolved
from latticebpd.models.load_target import load_stock
from latticebpd.models.transformers.transformers_model import Model, TransformersModel

MODES = ("paper", "corrected")
LENGTHS = (128, 512, 1024, 2048)
FEED_FORWARD = ("decoder_ffn_dim", "intermediate_size", "ffn_dim", "n_inner", "d_ff")
"""Names of the width of a layer's feed-forward network in configurations."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a transformer that its traffic and arithmetic depend on.

    parameters: of the base model. layers, hidden, feed_forward: its depth and widths. key_value: width of a layer's
    keys, and of its values. heads, head_parameters: predictions per position, and parameters of heads 2..h.
    vocabulary: its tokens. source: tokens of an encoder–decoder's source.
    """

    parameters: float
    layers: int
    hidden: int
    feed_forward: int
    key_value: int
    heads: int = 1
    head_parameters: float = 0
    vocabulary: int = 0
    bytes_per_number: int = 2
    source: float = 0

    def __post_init__(self) -> None:
        for name in ("parameters", "layers", "hidden", "feed_forward", "key_value", "heads", "bytes_per_number"):
            expect(getattr(self, name) > 0, f"{name} > 0", getattr(self, name))

    @classmethod
    def of(cls, model: Model, source: float = 0) -> ModelShape:
        """The shape of a model with heads or without; of an encoder–decoder the decoder's, which calls read.

        Raises ValueError where the configuration does not name a width. source: mean tokens of the texts' sources.
        """
        base = TransformersModel.of(model)
        config, blockwise = base.config, model if isinstance(model, BlockwiseLM) else None
        hidden, attention_heads = config.hidden_size, _named(config, "decoder_attention_heads", "num_attention_heads")
        head_dim = getattr(config, "head_dim", None) or hidden // attention_heads
        return cls(
            parameters=_numbers(_read_by_calls(base)),
            layers=_named(config, "decoder_layers", "num_decoder_layers", "num_hidden_layers"),
            hidden=hidden,
            feed_forward=first_number(config, *FEED_FORWARD) or 4 * hidden,
            key_value=int(getattr(config, "num_key_value_heads", None) or attention_heads) * int(head_dim),
            heads=1 if blockwise is None else blockwise.num_heads,
            head_parameters=0 if blockwise is None else _numbers(blockwise.heads.parameters()),
            vocabulary=base.vocab_size,
            bytes_per_number=base.dtype.itemsize,
            source=source if base.is_encoder_decoder else 0,
        )


def _numbers(parameters: Iterable[Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _read_by_calls(base: TransformersModel) -> list[Parameter]:
    """A model's parameters, without those that only an encoder reads."""
    if not base.is_encoder_decoder:
        return list(base.model.parameters())
    decoder = (base.decoder, base.model.get_output_embeddings())
    shared = {id(parameter) for part in decoder for parameter in part.parameters()}
    own = {id(parameter) for parameter in base.encoder.parameters()} - shared
    return [parameter for parameter in base.model.parameters() if id(parameter) not in own]


def _named(config: Any, *names: str) -> int:
    if (value := first_number(config, *names)) is None:
        raise ValueError(f"expected a model whose configuration names {names[0]}, got {type(config).__name__}")
    return value


PAPER_MODEL = ModelShape(1.5e9, 18, 1536, 12288, 1536, heads=9)
"""The paper's 1.5B model; its heads are not counted."""
PAPER_RESCORER = ModelShape(61e6, 12, 384, 1536, 384)
"""The paper's 61M neural rescorer."""


@dataclass(frozen=True)
class Decoding:
    """One way to decode.

    block_efficiency: tokens per call. verified: drafted tokens in each call's pass.
    rescorer: a neural one, which runs ``steps`` times in sequence before each call, over ``rows`` prefixes at a time.
    """

    name: str
    block_efficiency: float
    verified: float
    rescorer: ModelShape | None = None
    steps: int = 1
    rows: float = 1


PAPER_DECODINGS = (
    Decoding("autoregressive", 1.0, 0), Decoding("base BPD", 1.646, 9), Decoding("4-gram BPD", 1.657, 9),
    Decoding("neural-61M BPD", 1.724, 9, PAPER_RESCORER, 8), Decoding("16-best 0-gram BPD", 1.717, 16 * 9),
    Decoding("16-best 4-gram BPD", 1.797, 16 * 9),
)  # fmt: skip
"""Table 11's columns: mean block efficiencies over the paper's seven data sets, p * h tokens verified."""


@dataclass(frozen=True, eq=False)
class HardwareCost:
    """Cost of one decoded token.

    names: ``[systems]``. lengths: tokens in the cache.
    parameter_bytes ``[systems]``, cache_bytes ``[systems, lengths]``: read from memory. flops ``[systems]``: at the
    last length.
    """

    names: tuple[str, ...]
    lengths: tuple[int, ...]
    parameter_bytes: np.ndarray
    cache_bytes: np.ndarray
    flops: np.ndarray


def hardware_cost(
    shape: ModelShape = PAPER_MODEL,
    decodings: Sequence[Decoding] = PAPER_DECODINGS,
    lengths: Sequence[int] = LENGTHS,
    mode: str = "corrected",
) -> HardwareCost:
    """Table 11 for any model and any systems; ``mode``: one of ``MODES``."""
    expect(mode in MODES, f"a mode among {', '.join(MODES)}", repr(mode))
    got = f"{len(decodings)} systems and lengths {list(lengths)}"
    expect(decodings and lengths and min(lengths) >= 0, "at least one system and lengths >= 0", got)
    for decoding in decodings:
        if not (decoding.block_efficiency >= 1 and decoding.verified >= 0 and decoding.steps >= 1):
            least = "block efficiency and steps >= 1 and verified tokens >= 0"
            raise ValueError(f"{decoding.name}: expected {least}, got {decoding}")
    call = _paper_call if mode == "paper" else _corrected_call
    costs = [[call(shape, decoding, length) for length in lengths] for decoding in decodings]
    table = np.array(costs) / np.array([decoding.block_efficiency for decoding in decodings])[:, None, None]
    names = tuple(decoding.name for decoding in decodings)
    return HardwareCost(names, tuple(lengths), table[:, 0, 0], table[:, :, 1], table[:, -1, 2])


def _paper_call(shape: ModelShape, decoding: Decoding, length: int) -> tuple[float, float, float]:
    """Parameter bytes, cache bytes, FLOPs."""
    seen = length + decoding.verified
    models = [shape, *([] if decoding.rescorer is None else [decoding.rescorer])]
    parameters = sum(model.bytes_per_number * model.parameters for model in models)
    cache = sum(2 * model.layers * model.feed_forward * model.bytes_per_number * seen for model in models)
    return parameters, cache, sum(2 * each.parameters + 8 * each.layers * each.hidden * seen**2 for each in models)


def _corrected_call(shape: ModelShape, decoding: Decoding, length: int) -> tuple[float, float, float]:
    """Parameter bytes, cache bytes, FLOPs."""
    size, read = shape.bytes_per_number, 1 + decoding.verified
    drafts = shape.heads > 1 and decoding.verified > 0
    heads = shape.head_parameters if drafts else 0
    parameters = size * (shape.parameters + heads)
    attended = length + read + shape.source
    cache = 2 * shape.layers * shape.key_value * size * attended
    flops = read * (2 * shape.parameters + 4 * shape.layers * shape.hidden * attended) + 2 * heads
    if drafts:
        flops += 2 * (shape.heads - 1) * shape.hidden * shape.vocabulary
    if (small := decoding.rescorer) is not None:
        steps, seen = decoding.steps, length + decoding.steps
        parameters += steps * small.bytes_per_number * small.parameters
        cache += steps * decoding.rows * 2 * small.layers * small.key_value * small.bytes_per_number * seen
        flops += steps * decoding.rows * (2 * small.parameters + 4 * small.layers * small.hidden * seen)
    return parameters, cache, flops


def print_costs(caption: str, cost: HardwareCost) -> None:
    """The table of a cost: a line for each quantity, a column for each system."""
    scale, unit = (1e9, "GB") if cost.parameter_bytes.max() >= 1e8 else (1e6, "MB")
    work, flop = (1e12, "T") if cost.flops.max() >= 1e10 else (1e9, "G")
    rows = [(f"parameters read ({unit})", cost.parameter_bytes / scale)]
    for length, read in zip(cost.lengths, cost.cache_bytes.T, strict=True):
        rows.append((f"cache read at {length} tokens ({unit})", read / scale))
    rows.append((f"{flop}FLOPs at {cost.lengths[-1]} tokens", cost.flops / work))
    lines = [[name, *(f"{value:.3f}" for value in values)] for name, values in rows]
    table(caption, ("per decoded token", *cost.names), lines)


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("--model", type=Path, help="the lattices' model, as for `latticebpd generate`")
    parser.add_argument("--compared", type=Path, help="what `latticebpd compare --json` has printed about its lattices")
    parser.add_argument("--source", type=float, default=0, help="mean tokens of an encoder-decoder's sources")
    args = parser.parse_args()
    if (args.model is None) != (args.compared is None):
        parser.error("expected --model and --compared together")
    if args.compared is None:
        print_costs("Table 11 of the paper, by its own account", hardware_cost(mode="paper"))
        print_costs("The same systems, corrected account", hardware_cost())
        return
    set_up()
    read = load_blockwise if has_heads(resolved(args.model)) else load_stock
    shape = ModelShape.of(read(args.model), args.source)
    systems = read_json(args.compared)["systems"]
    measured = [Decoding(each["system"], each["block_efficiency"], each["verified_tokens"]) for each in systems]
    cost = hardware_cost(shape, [Decoding("autoregressive", 1.0, 0), *measured])
    print_costs(f"{8 * shape.bytes_per_number} bits a number, corrected account", cost)


if __name__ == "__main__":
    run(main)
