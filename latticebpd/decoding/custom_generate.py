"""Drafting inside ``transformers``: ``model.generate(..., custom_generate=custom_generate(drafter))``.

``generate()`` prepares a decode (generation config, logits processors, stopping criteria, encoded sources), and a
callable takes the place of its own loop. Ours is the one of ``loop.py``. Scripts, pipelines and evaluation harnesses
that pass keyword arguments on to ``generate()`` draft with this one argument.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from latticebpd.decoding.acceptance import Acceptance, Exact, Sampling, bound
from latticebpd.decoding.generation_config import GenerationSettings, refuse
from latticebpd.decoding.loop import Generated, Stream, check_drafter, decode
from latticebpd.decoding.prompts import Prompts
from latticebpd.decoding.session import Session
from latticebpd.decoding.stopping import begin_texts
from latticebpd.drafters.drafter import Drafter
from latticebpd.target.forward import EncodedSource
from latticebpd.target.stock_model import BaseModel

_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
_UNUSED = frozenset({"use_cache", "past_key_values", "cache_position", "logits_to_keep"})
"""Arguments of the model that ``generate()`` itself prepares; the loop has its own cache and asks for the logits that
it needs."""


def custom_generate(drafter: Drafter, acceptance: Acceptance | None = None, trace: bool = False) -> CustomGenerate:
    """What ``model.generate(custom_generate=...)`` of ``transformers`` takes.

    ``model`` is a model of ``transformers``; of a ``BlockwiseLM``, its ``base``. Under ``Exact`` the text is the one
    that ``generate()`` writes without this argument. Under ``do_sample=True`` it is drawn from the same distribution;
    for a single prompt on a CPU the same seed gives the same text. No text grows beyond the model's positions.

    Args:
        drafter: proposes what is verified.
        acceptance: which drafted tokens stay; by default ``Sampling()`` under ``do_sample=True``, else ``Exact()``.
        trace: keep what every call did.

    Example:
        >>> decoding = custom_generate(PromptNgramDrafter())                       # doctest: +SKIP
        >>> model.generate(**inputs, max_new_tokens=64, custom_generate=decoding)  # doctest: +SKIP
        >>> decoding.last.block_efficiency                                         # doctest: +SKIP
    """
    check_drafter(drafter)
    return CustomGenerate(drafter, acceptance, trace)


class CustomGenerate:
    """Takes the place of ``generate()``'s own loop.

    last: what the last call produced and cost; None before the first.
    """

    def __init__(self, drafter: Drafter, acceptance: Acceptance | None, trace: bool) -> None:
        self.drafter, self.acceptance, self.trace = drafter, acceptance, trace
        self.last: Generated | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> CustomGenerate:
        """Itself: evaluation harnesses copy the arguments of ``generate()``, and the drafter may hold a whole model."""
        return self

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        inputs_tensor: Tensor | None = None,
        **model_kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput | GenerateEncoderDecoderOutput:
        """Decode what ``generate()`` has prepared.

        Args:
            input_ids: ``[rows, n]``, the prompts or, of an encoder–decoder, what its texts begin with.
            logits_processor, stopping_criteria, generation_config: as ``generate()`` prepared them.
            inputs_tensor: an encoder–decoder's sources, ``[rows, m]`` or one for several rows.
            model_kwargs: arguments of the model's ``forward``, and of the loop.

        Returns:
            What ``generate()`` returns: ``[rows, length]``, or an output object under ``return_dict_in_generate``.

        Raises:
            ValueError: something was asked for that this loop cannot do; the message says what.
        """
        given = {
            **_arguments_of_generate(),
            **{name: value for name, value in model_kwargs.items() if value is not None},
        }
        settings = PreparedSettings(model, generation_config)
        rule = _rule(self.acceptance, generation_config)
        _refuse_arguments(generation_config, given)
        stream = Stream(given.pop("streamer", None), len(input_ids))
        inputs = given.pop("inputs_tensor", inputs_tensor)
        base = BaseModel.of(model)
        prompts = (_with_sources if base.is_encoder_decoder else _prompts)(base, input_ids, inputs, given)
        if given:
            names = ", ".join(sorted(given))
            raise ValueError(
                f"expected generate() without {names} beside custom_generate, got it; leave one of the two out"
            )
        texts = begin_texts(base, settings, prompts, logits_processor, stopping_criteria)
        for text, row in zip(texts, prompts.given.tolist(), strict=True):
            padding = row[: len(row) - text.prompt_length]
            if padding or len(texts) > 1:
                asked = [
                    _AskedByRow(each, padding, len(texts)) if _foreign(each) else each for each in text.rules.criteria
                ]
                text.rules = replace(text.rules, criteria=StoppingCriteriaList(asked))
        session = Session(base, settings, prompts, texts, bool(getattr(generation_config, "use_cache", True)))
        self.last = decode(session, self.drafter, bound(rule, settings), stream, self.trace)
        sequences: Any = self.last.sequences.to(input_ids.device)
        if not generation_config.return_dict_in_generate:
            return sequences  # type: ignore[no-any-return]
        return (GenerateEncoderDecoderOutput if base.is_encoder_decoder else GenerateDecoderOnlyOutput)(
            sequences=sequences
        )


class PreparedSettings(GenerationSettings):
    """A generation config that ``generate()`` has prepared: processors, warpers and criteria have been made of it
    already.

    Raises:
        ValueError: a field that cannot be honoured.
    """

    def __init__(self, model: PreTrainedModel, config: GenerationConfig) -> None:
        rows = config.num_return_sequences  # generate() has repeated the prompts
        try:
            config.num_return_sequences = 1
            refuse(config)
        finally:
            config.num_return_sequences = rows
        self.device, self.config = BaseModel.of(model).device, config
        eos = config.eos_token_id
        self.eos_ids = [] if eos is None else [eos] if isinstance(eos, int) else [int(token) for token in eos]

    def processors(self, width: int, max_length: int, read: Sequence[int], given: Sequence[Any]) -> LogitsProcessorList:
        return LogitsProcessorList(given)

    def warpers(self, **arguments: Any) -> LogitsProcessorList:
        """None: they stand behind the processors."""
        if given := sorted(name for name, value in arguments.items() if value is not None):
            raise ValueError(
                f"expected a sampling rule without settings of its own, got {', '.join(given)}; pass them to generate()"
            )
        return LogitsProcessorList()

    def criteria(
        self, width: int, given: Sequence[Any], tokenizer: PreTrainedTokenizerBase | None
    ) -> StoppingCriteriaList:
        return StoppingCriteriaList(given)


class _AskedByRow(StoppingCriteria):  # type: ignore[misc, unused-ignore]
    """A criterion of the caller's, asked with one row of a batch as ``generate()`` shows it, padding included."""

    def __init__(self, criterion: Callable[..., Any], padding: list[int], rows: int) -> None:
        self.criterion, self.padding, self.rows = criterion, padding, rows

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        name = getattr(self.criterion, "__name__", type(self.criterion).__name__)
        try:
            found = self.criterion(
                torch.cat([torch.tensor([self.padding], dtype=torch.long), input_ids], dim=1), scores, **kwargs
            )
        except IndexError as error:
            raise ValueError(
                f"expected stopping criteria that look at every row alone, got {name}; decode prompts one by one"
            ) from error
        if self.rows > 1 and not (isinstance(found, Tensor) and found.shape == (1,)):
            raise ValueError(
                f"expected stopping criteria that give a tensor [rows], got {found!r} by {name}; decode prompts one"
                " by one"
            )
        return found


def _foreign(criterion: Any) -> bool:
    return not type(criterion).__module__.startswith("transformers.")


def _arguments_of_generate() -> dict[str, Any]:
    """Arguments of the ``generate()`` that called us.

    From 4.57 on, ``transformers`` does not pass these on to a callable; a streamer would wait for ever.
    """
    frame, code = sys._getframe(2), getattr(GenerationMixin.generate, "__wrapped__", GenerationMixin.generate).__code__
    if frame.f_code is not code:
        return {}
    names = ("streamer", "assistant_model", "synced_gpus", "inputs_tensor")
    return {name: frame.f_locals[name] for name in names if frame.f_locals.get(name) is not None}


def _rule(acceptance: Acceptance | None, config: GenerationConfig) -> Acceptance:
    if acceptance is None:
        return Sampling() if config.do_sample else Exact()
    if (samples := _samples(acceptance)) != bool(config.do_sample):
        raise ValueError(
            f"expected do_sample={samples} with the rule {type(acceptance).__name__}, got do_sample={config.do_sample}"
        )
    return acceptance


def _samples(rule: Any) -> bool:
    return isinstance(rule, Sampling) or (hasattr(rule, "otherwise") and _samples(rule.otherwise))


def _refuse_arguments(config: GenerationConfig, given: dict[str, Any]) -> None:
    """Take out of ``given`` what the loop does not need; refuse what it cannot do."""
    if config.return_dict_in_generate:
        for name in _OUTPUTS:
            if getattr(config, name, False):
                raise ValueError(
                    f"expected generate() without {name} beside custom_generate, got it; leave one of the two out"
                )
    cache = given.get("past_key_values")
    if cache is not None and cache.get_seq_length():
        raise ValueError(
            "expected generate() without past_key_values beside custom_generate, got a cache that holds tokens; leave"
            " it out"
        )
    if not given.get("synced_gpus", True):
        del given["synced_gpus"]
    for name in _UNUSED:
        given.pop(name, None)
    kinds = given.get("token_type_ids")
    if isinstance(kinds, Tensor) and not kinds.any():  # what a model takes where it is given none
        del given["token_type_ids"]


def _prompts(base: BaseModel, input_ids: Tensor, inputs: Tensor | None, given: dict[str, Any]) -> Prompts:
    ids = input_ids.cpu()
    mask = given.pop("attention_mask", torch.ones_like(ids)).cpu().bool()
    if mask.shape != ids.shape:
        raise ValueError(
            f"expected an attention_mask of the prompts' shape {tuple(ids.shape)}, got {tuple(mask.shape)}"
        )
    positions = given.get("position_ids")
    if positions is not None and torch.equal(
        positions.cpu().expand_as(ids)[mask], (mask.long().cumsum(dim=1) - 1)[mask]
    ):
        del given["position_ids"]
    return Prompts(ids, _rows(ids, mask), [[] for _ in ids], None, base.vocab_size)


def _with_sources(base: BaseModel, input_ids: Tensor, inputs: Tensor | None, given: dict[str, Any]) -> Prompts:
    ids, encoded = input_ids.cpu(), given.pop("encoder_outputs").last_hidden_state
    read = given.pop("decoder_attention_mask", None)
    if read is not None and not read.all():
        raise ValueError(
            "expected decoder_input_ids without padding, got a decoder_attention_mask with zeros; decode texts one"
            " by one"
        )
    mask = given.pop("attention_mask", torch.ones(encoded.shape[:2], dtype=torch.long, device=encoded.device))
    if inputs is None or inputs.is_floating_point() or len(ids) % len(inputs) or encoded.shape[1] != inputs.shape[1]:
        raise ValueError("expected sources as token ids [rows, n], got others; pass input_ids to generate()")
    sources = inputs.cpu().repeat_interleave(len(ids) // len(inputs), dim=0)
    return Prompts(ids, ids.tolist(), _rows(sources, mask.cpu().bool()), EncodedSource(encoded, mask), base.vocab_size)


def _rows(ids: Tensor, mask: Tensor) -> list[list[int]]:
    """Each row's tokens without padding."""
    rows = [line[kept].tolist() for line, kept in zip(ids, mask, strict=True)]
    if not all(rows):
        raise ValueError(
            f"expected at least one token in every prompt, got none in row {rows.index([])}; is the attention mask all"
            " zero?"
        )
    return rows
