"""The fields of a model's generation config: each is honoured as ``generate()`` honours it, or refused by name.

The meaning of a field is that of the installed ``transformers``: its own functions fill in defaults, put a caller's
arguments before the config's, and build logits processors, warpers and stopping criteria, in their order. It is loaded
when a field asks for that: a greedy decode on the engine that ends at a token or a length does not need it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from latticebpd.checks import expect
from latticebpd.models.engine.engine_model import BEAMS, EngineModel
from latticebpd.models.load_target import search_no_beams
from latticebpd.models.model_tokenizer import ModelTokenizer
from latticebpd.models.number_fields import GENERATION, check_numbers, token_ids
from latticebpd.models.target_model import AnyModel, TargetModel, target_model

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizerBase
    from transformers.generation.logits_process import LogitsProcessorList
    from transformers.generation.stopping_criteria import StoppingCriteriaList

    from latticebpd.models.transformers.transformers_model import Model

DEFAULT_NEW_TOKENS = 256
PLAIN = frozenset({
    "_from_model_config", "transformers_version", "bos_token_id", "eos_token_id", "pad_token_id", "use_cache",
    "output_attentions", "output_hidden_states", "do_sample", "temperature", "top_k", "top_p", "max_new_tokens",
})  # fmt: skip
"""Fields that change no greedy text but by its end."""
WARPERS = ("temperature", "top_h", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
"""Fields that sampling honours; without it they have no effect, as in ``generate()``."""

HONOURED = frozenset({
    # Where texts end
    "max_length", "max_new_tokens", "max_time", "stop_strings", "eos_token_id",
    # Logits processors
    "min_length", "min_new_tokens", "repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "forced_bos_token_id", "forced_eos_token_id", "sequence_bias",
    "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "remove_invalid_values",
    # Tokens at the beginning and after the end
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
    "prefill_chunk_size", "continuous_batching_config", "low_memory",
    # For beam search only; shifts all scores alike
    "early_stopping", "length_penalty", "renormalize_logits",
    # What is returned, and where the config comes from
    "output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate",
    "_from_model_config", "transformers_version",
})  # fmt: skip
"""Fields that do not change a text decoded one token at a time."""

REFUSED: dict[str, tuple[Any, ...]] = {
    **{name: (neutral,) for name, neutral in BEAMS.items()},
    **dict.fromkeys(("constraints", "force_words_ids", "dola_layers", "watermarking_config"), ()),
    **dict.fromkeys(("token_healing", "is_assistant"), (False,)),
    "assistant_ensemble_weight": (),
    "num_return_sequences": (1,),
    "penalty_alpha": (0.0,),
    "guidance_scale": (1.0,),
}
"""Fields that only ``generate()`` can honour -> their neutral values besides None."""


class GenerationSettings:
    """A model's generation config with a caller's arguments, combined as by ``generate()``; ValueError for a field that
    cannot be honoured, or a value out of its range.

    model: a target model, or a model of ``transformers``; None means an empty config.
    arguments: fields that replace the config's own; None leaves the config's.
    """

    def __init__(self, model: AnyModel | None = None, **arguments: Any) -> None:
        check_numbers(GENERATION, arguments, "")
        self.target = None if model is None else target_model(model)
        self._arguments = _without_none(arguments)
        if not isinstance(self.target, EngineModel):
            fields = vars(self.config)
        else:
            fields = {name: value for name, value in (self.target.generation | self._arguments).items() if value != []}
            if not fields.keys() <= PLAIN:
                fields = vars(self.config)
        check_numbers(GENERATION, fields, "the generation config")
        self._is_plain = fields.keys() <= PLAIN
        self.eos_ids = token_ids("eos_token_id", fields.get("eos_token_id"))
        self.pad_id: int | None = next(iter(token_ids("pad_token_id", fields.get("pad_token_id"))), None)

    @cached_property
    def config(self) -> Any:
        """The combined ``GenerationConfig``."""
        import torch

        refuse(self._host.generation_config)
        config: Any = self._host._prepare_generation_config(None, **self._arguments)[0]
        config.do_sample = False
        ends = token_ids("eos_token_id", config.eos_token_id)
        config._eos_token_tensor = torch.tensor(ends, device=self.device) if ends else None
        if not ends:
            config.exponential_decay_length_penalty = None  # no end-of-text token to boost
        config.stop_strings = config.stop_strings or None
        return config

    @cached_property
    def _host(self) -> Any:
        return _host(self.target)

    @property
    def device(self) -> Any:
        """The device of logits."""
        return "cpu" if self.target is None else self.target.device

    @property
    def stop_strings(self) -> Sequence[str]:
        """Strings that end a text."""
        strings = None if self._is_plain else self.config.stop_strings
        return [strings] if isinstance(strings, str) else list(strings or ())

    @property
    def fill_id(self) -> int:
        """Token that fills rows that end early: the padding token, else the first that ends texts, else 0."""
        return next(iter(self.eos_ids), 0) if self.pad_id is None else self.pad_id

    def start_ids(self, rows: int) -> list[int]:
        """The token that an encoder–decoder's text begins with, for each row; ValueError without one for each."""
        start = self.config.decoder_start_token_id
        start = self.config.bos_token_id if start is None else start
        expect(start is not None, "a model whose generation config has a decoder_start_token_id", "none", "set it")
        if isinstance(start, int):
            return [start] * rows
        expect(len(start) == rows, f"one decoder_start_token_id, or one for each of {rows} rows", len(start))
        return [int(token) for token in start]

    def max_columns(self, width: int) -> int:
        """Length limit of texts with prompts of ``width`` columns, padding included; ValueError if it is no greater."""
        if self._is_plain:
            return width + int(self._arguments.get("max_new_tokens", DEFAULT_NEW_TOKENS))
        if self.config.max_new_tokens is not None:
            return width + int(self.config.max_new_tokens)
        own: int | None = self._host.generation_config.max_length
        if own is None or own == _empty().max_length:
            return width + DEFAULT_NEW_TOKENS
        wanted = f"prompts below the generation config's max_length of {own} columns"
        expect(own > width, wanted, width, "pass max_new_tokens")
        return own

    def row_processors(
        self, width: int, rows: Sequence[tuple[int, int, Sequence[int]]], processors: Sequence[Any]
    ) -> Sequence[LogitsProcessorList | list[Any]]:
        """Each row's logits processors; ValueError for an inapplicable one.

        rows: padding before a prompt, tokens of the text at most, and the prompt or source without padding.
        """
        if self._is_plain and not processors:
            return [[] for _ in rows]
        from latticebpd.decoding.processors import check_processors, without_padding

        check_processors(processors, len(rows))
        return [
            without_padding(self.processors(width, limit + padding, prompt, processors), row, padding)
            for row, (padding, limit, prompt) in enumerate(rows)
        ]

    def stops(
        self, width: int, criteria: Sequence[Any], tokenizer: PreTrainedTokenizerBase | None
    ) -> tuple[frozenset[int], int, Sequence[Any]]:
        """Where texts end, by `criteria`: tokens, columns at most, and the other criteria."""
        if self._is_plain and all(getattr(each, "accepts_numpy", False) for each in criteria):
            return frozenset(self.eos_ids), self.max_columns(width), [*criteria]
        from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

        merged = self.criteria(width, criteria, tokenizer)
        ends = [each.eos_token_id.tolist() for each in merged if type(each) is EosTokenCriteria]
        # transformers takes 2.5 tokens for 3.
        columns = math.ceil(min(each.max_length for each in merged if type(each) is MaxLengthCriteria))
        others = [each for each in merged if type(each) not in (EosTokenCriteria, MaxLengthCriteria)]
        return frozenset(int(token) for each in ends for token in each), columns, StoppingCriteriaList(others)

    def processors(
        self, width: int, max_length: int, prompt: Sequence[int], processors: Sequence[Any]
    ) -> LogitsProcessorList:
        """One row's logits processors: the given ones, and those of the config whose kind is not among them.

        width, max_length: columns of the prompts, and of the row's text at most, padding included.
        prompt: the row's prompt or source without padding.
        """
        config = copy.copy(self.config)
        config.max_length = max_length
        if config.min_new_tokens is not None:
            config.min_length = config.min_new_tokens + width
        return self._build_processors(config, width, prompt, processors)

    def warpers(self, **arguments: Any) -> LogitsProcessorList:
        """The warpers that ``generate(do_sample=True)`` puts after all other processors; they read scores only.

        arguments: fields that replace the config's own; None leaves the config's.
        """
        from transformers import GenerationConfig

        own = {name: getattr(self.config, name, None) for name in WARPERS}
        return self._build_processors(GenerationConfig(do_sample=True, **own | _without_none(arguments)), 0, [], [])

    def _build_processors(
        self, config: GenerationConfig, width: int, prompt: Sequence[int], processors: Sequence[Any]
    ) -> LogitsProcessorList:
        import torch
        from transformers.generation.logits_process import LogitsProcessorList

        return self._host._get_logits_processor(
            generation_config=config,
            input_ids_seq_length=width,
            encoder_input_ids=torch.tensor([list(prompt)], dtype=torch.long, device=self.device),
            logits_processor=LogitsProcessorList(processors),
            device=str(self.device),
            model_kwargs={},
        )

    def criteria(self, width: int, criteria: Sequence[Any], tokenizer: Any) -> StoppingCriteriaList:
        """The given stopping criteria, and those of the config whose kind is not among them, for prompts of ``width``
        columns; ValueError for stop strings without a tokenizer."""
        if self.config.stop_strings is not None and tokenizer is None:
            raise ValueError("expected a tokenizer together with stop_strings, got none; pass tokenizer=")
        from transformers.generation.stopping_criteria import StoppingCriteriaList

        config = copy.copy(self.config)
        config.max_length = self.max_columns(width)
        if isinstance(tokenizer, ModelTokenizer):
            tokenizer = tokenizer.for_transformers()
        return self._host._get_stopping_criteria(config, StoppingCriteriaList(criteria), tokenizer=tokenizer)


def refuse(config: GenerationConfig) -> None:
    """ValueError if a field is set that only ``generate()`` can honour, or an unknown one of a later version, or if the
    end of text or the padding is no token."""
    check_numbers(GENERATION, vars(config), "the generation config")
    from transformers.generation.configuration_utils import ALL_CACHE_IMPLEMENTATIONS

    # A quantized cache changes texts.
    refused = {**REFUSED, "cache_implementation": tuple(set(ALL_CACHE_IMPLEMENTATIONS) - {"quantized"})}
    for name, neutral in refused.items():
        value = getattr(config, name, None)
        if value is not None and value not in neutral:
            advice = "set it to None on the model, or use generate()"
            advice += "; on the command line, --ignore-beams" if name in BEAMS else ""
            raise ValueError(f"expected a generation config without {name}, got {value!r}; {advice}")
    for name, value in vars(_empty()).items():
        known = name in HONOURED | WITHOUT_EFFECT | refused.keys() or name.startswith("_")
        if not known and getattr(config, name, value) != value:
            got = f"{name} = {getattr(config, name)!r}; set it to {value!r}"
            raise ValueError(f"expected a generation config of fields known here, got {got}")


@contextmanager
def beams_ignored(model: Model) -> Iterator[None]:
    """No beam search inside the context; the model's own config comes back after it."""
    from latticebpd.models.transformers.transformers_model import TransformersModel

    host: Any = TransformersModel.of(model).model
    own = host.generation_config
    search_no_beams(host)
    try:
        yield
    finally:
        host.generation_config = own


def _host(target: TargetModel | None) -> Any:
    """The functions of ``transformers`` that read a generation config: the model, if it has ``generate()``, else a
    stand-in."""
    from transformers import GenerationConfig, GenerationMixin, PretrainedConfig

    stock: Any = getattr(target, "model", None)
    if isinstance(stock, GenerationMixin):
        return stock
    own: Any = PretrainedConfig() if stock is None else stock.config
    set_fields = target.generation if isinstance(target, EngineModel) else None

    class Host(GenerationMixin):
        config = own
        generation_config = (
            GenerationConfig.from_model_config(own) if set_fields is None else GenerationConfig(**set_fields)
        )

    return Host()


def _without_none(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


@cache
def _empty() -> GenerationConfig:
    from transformers import GenerationConfig

    return GenerationConfig()
