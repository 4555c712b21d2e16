"""The numbers that models' files hold: type and range of each, by the file and the field.

A file is untrusted. What is outside of its range is refused by name before anything is computed from it; a field that
stands in no table is not read as a number, or `transformers` alone reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

from latticebpd.checks import expect
from latticebpd.lattices.values import LARGEST_TOKEN


@dataclass(frozen=True)
class Number:
    """From ``least`` to ``most``.

    whole: no fractions.  listed: how deep lists of them may be, such as one for each layer.
    """

    least: float
    most: float
    whole: bool = True
    listed: int = 0

    def fits(self, value: Any) -> bool:
        """Whether a value is one; NaN and truth values never are."""
        value = value.tolist() if hasattr(value, "tolist") else value
        if self.listed and isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
            return all(map(replace(self, listed=self.listed - 1).fits, value))
        kind: Any = Integral if self.whole else Real
        return isinstance(value, kind) and not isinstance(value, bool) and bool(self.least <= value <= self.most)

    def __str__(self) -> str:
        several = ", or a list of them" if self.listed else ""
        most = SPELLED.get(self.most, self.most)
        return f"{'a whole number' if self.whole else 'a number'} from {self.least} to {most}{several}"


MOST, LONGEST, LARGEST = 2**30, 2**63 - 1, 10**15
SPELLED: dict[float, str] = {MOST: "2^30", LONGEST: "2^63 - 1", LARGEST: "10^15", LARGEST_TOKEN: "2^31 - 2"}
SIZE, SIZES = Number(1, MOST), Number(0, MOST, listed=1)
COUNT, SHARE = Number(0, MOST), Number(0, 1, whole=False)
FACTOR = Number(0, LARGEST, whole=False)
TOKEN, UNSET_TOKENS = Number(0, LARGEST_TOKEN), Number(-1, LARGEST_TOKEN, listed=1)
"""Some configurations have -1 in place of none."""

GGUF: dict[str, Number] = {
    **dict.fromkeys(("context_length", "embedding_length", "block_count", "vocab_size"), SIZE),
    **dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), SIZE),
    **dict.fromkeys(("attention.head_count", "attention.head_count_kv", "feed_forward_length"), SIZES),
    "attention.sliding_window": SIZES,
    **dict.fromkeys(("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"), SHARE),
    **dict.fromkeys(("rope.freq_base", "rope.scaling.factor"), FACTOR),
}
"""Fields of a GGUF file's architecture, whose name comes before each."""
GGUF_TOKENS: dict[str, Number] = {
    f"tokenizer.ggml.{name}_token_id": TOKEN
    for name in ("bos", "eos", "unknown", "padding", "seperator", "separator", "cls", "mask", "eot", "eom")
}
CONFIG: dict[str, Number] = {
    **dict.fromkeys(("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings", "head_dim"), SIZE),
    **dict.fromkeys(("d_model", "encoder_layers", "decoder_layers"), SIZE),
    **dict.fromkeys(("n_positions", "n_embd", "n_layer", "n_head"), SIZE),
    **dict.fromkeys(("intermediate_size", "num_attention_heads", "num_key_value_heads"), SIZES),
    "sliding_window": COUNT,
    **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"), SHARE),
    **dict.fromkeys(("rope_theta", "factor"), FACTOR),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"), UNSET_TOKENS),
}
"""Fields of ``config.json``, and of its parts."""
GENERATION: dict[str, Number] = {
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), UNSET_TOKENS),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id"), UNSET_TOKENS),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens"), UNSET_TOKENS),
    "bad_words_ids": replace(UNSET_TOKENS, listed=2),
    "max_new_tokens": Number(1, LONGEST),
    # transformers takes 2.5 tokens for 3.
    **dict.fromkeys(("max_length", "min_length", "min_new_tokens"), Number(0, LONGEST, whole=False)),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), COUNT),
    **dict.fromkeys(("max_time", "temperature", "repetition_penalty", "encoder_repetition_penalty"), FACTOR),
    "top_k": Number(-1, MOST),  # without effect below 1
    **dict.fromkeys(("top_p", "min_p", "typical_p", "top_h", "epsilon_cutoff", "eta_cutoff"), SHARE),
}
"""Fields of ``generation_config.json``, and arguments of the same names."""


def check_numbers(table: Mapping[str, Number], fields: Mapping[str, Any], of: object, prefix: str = "") -> None:
    """ValueError for the first of the table's fields that is set to anything but such a number.

    of: the file, or what the fields are of.  prefix: of their names in the file.
    """
    for name, number in table.items():
        if (value := fields.get(prefix + name)) is not None and not number.fits(value):
            shown = value.tolist() if hasattr(value, "tolist") else value
            expect(False, f"{' '.join(f'{prefix}{name}'.split()):.80} as {number}", f"{shown!r:.60}", of=of)


def token_ids(name: str, value: Any) -> list[int]:
    """A field of a generation config that holds a token, several or none; ValueError where it holds anything else."""
    check_numbers({name: UNSET_TOKENS}, {name: value}, "the generation config")
    listed = value.tolist() if hasattr(value, "tolist") else value
    ids = [] if listed is None else listed if isinstance(listed, Iterable) else [listed]
    return [int(each) for each in ids]
