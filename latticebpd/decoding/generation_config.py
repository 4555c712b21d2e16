"""What a model's generation config asks for: each of its fields is honoured as ``generate()`` honours it, or refused by
name.

``transformers`` itself says what the fields mean. Its own functions fill in defaults, let a caller's arguments go
before the model's settings, and make logits processors, warpers and stopping criteria of them, in its own order; so a
field has the meaning that it has in the version that is installed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)
from transformers.generation.configuration_utils import ALL_CACHE_IMPLEMENTATIONS

from latticebpd.target.stock_model import BaseModel, Model

WARPERS = ("temperature", "top_h", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
"""Fields that sampling honours; without it they have no effect, as in ``generate()``."""

HONOURED = frozenset({
    # Where texts end
    "max_length", "max_new_tokens", "max_time", "stop_strings", "eos_token_id",
    # Logits processors
    "min_length", "min_new_tokens", "repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "forced_bos_token_id", "forced_eos_token_id",
    "remove_invalid_values",
    "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "sequence_bias",
    # Tokens that stand at the beginning and behind the end
    "bos_token_id", "decoder_start_token_id", "pad_token_id",
    *WARPERS,
})  # fmt: skip

WITHOUT_EFFECT = frozenset({
    # The acceptance rule samples or does not; the drafter drafts
    "do_sample", "use_mtp", "speculation_type", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit",
    "assistant_lookbehind", "target_lookbehind",
    # How the same text is computed
    "use_cache", "cache_config", "max_cache_len", "return_legacy_cache", "compile_config", "disable_compile",
    "prefill_chunk_size",
    "continuous_batching_config", "low_memory",
    # Beam search alone looks at these
    "early_stopping", "length_penalty",
    # Shifts all scores alike
    "renormalize_logits",
    # What is returned, and where the config comes from
    "output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate",
    "_from_model_config",
    "transformers_version",
})  # fmt: skip
"""Fields that change no text of a decode by one row and one token after the other."""

REFUSED: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "num_return_sequences": (1,),
    "diversity_penalty": (0.0,),
    "constraints": (),
    "force_words_ids": (),
    "penalty_alpha": (0.0,),
    "dola_layers": (),
    "guidance_scale": (1.0,),
    "watermarking_config": (),
    "token_healing": (False,),
    "is_assistant": (False,),
    "assistant_ensemble_weight": (),
    "cache_implementation": tuple(set(ALL_CACHE_IMPLEMENTATIONS) - {"quantized"}),
}
"""Fields that ``generate()`` alone can honour -> their values besides None that ask for nothing; a quantized cache
changes texts."""

BEAMS = {"num_beams": 1, "num_beam_groups": 1, "diversity_penalty": 0.0}
"""Those of them that ask for beam search, and what asks for none."""

DEFAULT_NEW_TOKENS = 256


class GenerationSettings:
    """A model's generation config and a caller's arguments, put together as ``generate()`` does.

    Args:
        model: a causal LM or encoder–decoder; None stands for one whose config is empty.
        arguments: fields that go before the config's own; None leaves the config's.

    Raises:
        ValueError: a field that cannot be honoured, or a value out of its range.
    """

    def __init__(self, model: Model | None = None, **arguments: Any) -> None:
        base = None if model is None else BaseModel.of(model)
        self.device = torch.device("cpu") if base is None else base.device
        self._host = _host(base)
        refuse(self._host.generation_config)
        if (new_tokens := arguments.get("max_new_tokens")) is not None and new_tokens < 1:
            raise ValueError(f"expected max_new_tokens >= 1, got {new_tokens}")
        given = {name: value for name, value in arguments.items() if value is not None}
        self.config: Any = self._host._prepare_generation_config(None, **given)[0]
        self.config.do_sample = False
        eos = self.config.eos_token_id
        self.eos_ids: list[int] = (
            [] if eos is None else [eos] if isinstance(eos, int) else [int(token) for token in eos]
        )
        self.config._eos_token_tensor = torch.tensor(self.eos_ids, device=self.device) if self.eos_ids else None
        if not self.eos_ids:
            self.config.exponential_decay_length_penalty = None  # it raises the scores of tokens that there are not
        self.config.stop_strings = self.config.stop_strings or None

    @property
    def fill_id(self) -> int:
        """What stands behind rows that end early: the padding token, else the first that ends texts, else 0."""
        pad = self.config.pad_token_id
        return int(pad) if pad is not None else next(iter(self.eos_ids), 0)

    def start_ids(self, rows: int) -> list[int]:
        """The token that an encoder–decoder's text begins with, for each row.

        Raises:
            ValueError: there is none, or a list of another length.
        """
        start = (
            self.config.decoder_start_token_id
            if self.config.decoder_start_token_id is not None
            else self.config.bos_token_id
        )
        if start is None:
            raise ValueError("expected a model whose generation config has a decoder_start_token_id, got none; set it")
        if isinstance(start, int):
            return [start] * rows
        if len(start) != rows:
            raise ValueError(f"expected one decoder_start_token_id, or one for each of {rows} rows, got {len(start)}")
        return [int(token) for token in start]

    def max_columns(self, width: int) -> int:
        """How long texts may become, from prompts of ``width`` columns, padding included.

        Raises:
            ValueError: the config's ``max_length`` leaves no room behind the prompts.
        """
        if self.config.max_new_tokens is not None:
            return width + int(self.config.max_new_tokens)
        own: int | None = self._host.generation_config.max_length
        if own is None or own == _empty().max_length:
            return width + DEFAULT_NEW_TOKENS
        if own <= width:
            raise ValueError(
                f"expected prompts below the generation config's max_length of {own} columns, got {width}; pass"
                " max_new_tokens"
            )
        return own

    def processors(self, width: int, max_length: int, read: Sequence[int], given: Sequence[Any]) -> LogitsProcessorList:
        """One row's logits processors: the config's, and the given ones, which take the place of the config's of their
        kind.

        Args:
            width: columns of the prompts, padding included; max_length: of the row's text, counted like that.
            read: the row's prompt or source without padding.
            given: the caller's.
        """
        config = copy.copy(self.config)
        config.max_length = max_length
        if config.min_new_tokens is not None:
            config.min_length = config.min_new_tokens + width
        return self._made(config, width, read, given)

    def warpers(self, **arguments: Any) -> LogitsProcessorList:
        """What ``generate(do_sample=True)`` puts behind all other processors; they look at scores alone.

        Args:
            arguments: fields that go before the config's own; None leaves the config's.
        """
        own = {name: getattr(self.config, name, None) for name in WARPERS}
        given = {name: value for name, value in arguments.items() if value is not None}
        return self._made(GenerationConfig(do_sample=True, **{**own, **given}), 0, [], [])

    def _made(
        self, config: GenerationConfig, width: int, read: Sequence[int], given: Sequence[Any]
    ) -> LogitsProcessorList:
        found: LogitsProcessorList = self._host._get_logits_processor(
            generation_config=config,
            input_ids_seq_length=width,
            encoder_input_ids=torch.tensor([list(read)], dtype=torch.long, device=self.device),
            logits_processor=LogitsProcessorList(given),
            device=str(self.device),
            model_kwargs={},
        )
        return found

    def criteria(
        self, width: int, given: Sequence[Any], tokenizer: PreTrainedTokenizerBase | None
    ) -> StoppingCriteriaList:
        """The stopping criteria: the config's, length and ends of text among them, and the given ones, which take the
        place of their kind.

        Raises:
            ValueError: stop strings without a tokenizer.
        """
        if self.config.stop_strings is not None and tokenizer is None:
            raise ValueError("expected a tokenizer together with stop_strings, got none; pass tokenizer=")
        config = copy.copy(self.config)
        config.max_length = self.max_columns(width)
        found: StoppingCriteriaList = self._host._get_stopping_criteria(
            config, StoppingCriteriaList(given), tokenizer=tokenizer
        )
        return found


def refuse(config: GenerationConfig) -> None:
    """Refuse what only ``generate()`` itself can do, and fields of later versions that nobody here has thought about.

    Raises:
        ValueError: such a field is set.
    """
    empty = _empty()
    for name, neutral in REFUSED.items():
        value = getattr(config, name, None)
        if value is not None and value not in neutral:
            instead = "set it to None on the model, or use generate()" + "; on the command line, --ignore-beams" * (
                name in BEAMS
            )
            raise ValueError(f"expected a generation config without {name}, got {value!r}; {instead}")
    for name, value in vars(empty).items():
        if (
            name not in HONOURED | WITHOUT_EFFECT | REFUSED.keys()
            and not name.startswith("_")
            and getattr(config, name, value) != value
        ):
            raise ValueError(
                f"expected a generation config of fields known here, got {name} = {getattr(config, name)!r}; set it to"
                f" {value!r}"
            )


def ignore_beams(model: Model) -> None:
    """Let a model be decoded token by token though its generation config, which stays as it is, asks for beam
    search."""
    host: Any = BaseModel.of(model).model
    config = host.generation_config = copy.deepcopy(host.generation_config)
    for name, neutral in BEAMS.items():
        if getattr(config, name, None) is not None:
            setattr(config, name, neutral)


@contextmanager
def beams_ignored(model: Model) -> Iterator[None]:
    """:func:`ignore_beams`, for as long as the context lasts."""
    host: Any = BaseModel.of(model).model
    own = host.generation_config
    ignore_beams(model)
    try:
        yield
    finally:
        host.generation_config = own


class _Host(GenerationMixin):
    """Stands for a model that has no ``generate()`` of its own."""

    def __init__(self, config: PretrainedConfig) -> None:
        self.config: Any = config
        self.generation_config = GenerationConfig.from_model_config(config)


def _host(base: BaseModel | None) -> Any:
    """What has ``transformers``' own functions that read a generation config."""
    if base is None:
        return _Host(PretrainedConfig())
    return base.model if isinstance(base.model, GenerationMixin) else _Host(base.model.config)


@cache
def _empty() -> GenerationConfig:
    return GenerationConfig()
