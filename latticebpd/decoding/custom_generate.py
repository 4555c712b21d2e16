"""Drafting inside ``transformers``: ``model.generate(..., custom_generate=custom_generate(drafter))``.

``generate()`` prepares a decode (generation config, logits processors, stopping criteria, encoded sources) and calls a
``custom_generate`` callable in place of its own loop. This one runs the loop of ``loop.py``, so any script, pipeline or
evaluation harness that passes keyword arguments on to ``generate()`` can draft.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import StoppingCriteriaList
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from latticebpd.checks import expect
from latticebpd.constraints.constraint import Constraints
from latticebpd.decoding.acceptance import Acceptance, Exact, Sampling, bound
from latticebpd.decoding.decode_rows import Prompts, begin_texts, unpadded
from latticebpd.decoding.generation_config import GenerationSettings, refuse
from latticebpd.decoding.loop import Generated, check_drafter, check_streamer, decode
from latticebpd.decoding.processors import BY_ROW, check_processors
from latticebpd.decoding.session import Session
from latticebpd.drafters.drafter import Drafter
from latticebpd.models.engine.engine_model import EngineModel
from latticebpd.models.number_fields import token_ids
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.verification.forward import EncodedSource

_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
HARNESS_CRITERION = "MultiTokenEOSCriteria"
"""lm-evaluation-harness's, which ends a batch when all rows have their stop strings. Rows may end there one by one,
since the harness cuts texts there."""
DRAFTING = ("prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp")
"""Arguments of ``generate()`` that choose how it drafts. Those of a model's own configuration stand back."""
# Prepared by generate(), not needed here
_UNUSED = frozenset({"use_cache", "cache_position", "logits_to_keep"})


class CustomGenerate:
    """A value for ``model.generate(custom_generate=...)`` of ``transformers``; of a ``BlockwiseLM``, for its ``base``.

    Under ``Exact`` the text is the one that ``generate()`` writes without this argument. Under ``do_sample=True`` it is
    drawn from the same distribution; for a single prompt on a CPU the same seed gives the same text. No text grows
    beyond the model's positions. In a batch, every row has its own copies of the caller's processors and criteria.

    Args:
        drafter, acceptance, trace: as for ``latticebpd.generate``; the acceptance rule is by default ``Sampling()``
            under ``do_sample=True``, else ``Exact()``.
        target: the CPU engine's copy of the same model (``latticebpd.load(...).target``), which then computes the
            passes; by default the model itself does, on PyTorch.
        constraint, tokenizer: what the texts may be, as for ``latticebpd.generate``, and the model's tokenizer.

    Example:
        >>> decoding = custom_generate(PromptNgramDrafter())                       # doctest: +SKIP
        >>> model.generate(**inputs, max_new_tokens=64, custom_generate=decoding)  # doctest: +SKIP
        >>> decoding.last.block_efficiency                                         # doctest: +SKIP

    last: result and costs of the last call; None before the first.
    """

    def __init__(
        self,
        drafter: Drafter,
        acceptance: Acceptance | None = None,
        trace: bool = False,
        target: EngineModel | None = None,
        constraint: Constraints = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> None:
        check_drafter(drafter)
        self.constraint, self.tokenizer = constraint, tokenizer
        self.drafter, self.acceptance, self.trace, self.target = drafter, acceptance, trace, target
        self.last: Generated | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> CustomGenerate:
        """Itself: evaluation harnesses copy the arguments of ``generate()``, and the drafter may hold a large model."""
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

        input_ids: ``[rows, n]``, the prompts or, of an encoder–decoder, the beginnings of its texts.
        inputs_tensor: an encoder–decoder's sources, ``[rows, m]`` or one for several rows.
        model_kwargs: arguments of the model's ``forward``, and of the loop.
        Returns ``[rows, length]``, or an output object under ``return_dict_in_generate``, as ``generate()``.
        Raises ValueError: an argument that this loop does not support; the message names it.
        """
        own = {name: value for name, value in model_kwargs.items() if value is not None}
        arguments = _arguments_of_generate() | own
        base, settings = TransformersModel.of(model), PreparedSettings(model, generation_config)
        rule = _rule(self.acceptance, generation_config)
        _remove_unused(generation_config, arguments)
        if (streamer := arguments.pop("streamer", None)) is not None:
            check_streamer(len(input_ids))
        inputs = arguments.pop("inputs_tensor", inputs_tensor)
        prompts = (_encoded_prompts if base.is_encoder_decoder else _prompts)(input_ids, inputs, arguments)
        if arguments:
            raise _unsupported(", ".join(sorted(arguments)))
        check_processors(logits_processor, 1)
        texts = begin_texts(base, settings, prompts, None, stopping_criteria, self.tokenizer, self.constraint)
        for row, text in enumerate(texts):  # padding is shown, as by generate()
            text.shown = prompts.prefix[row].tolist()
            text.processors = LogitsProcessorList(_of_row(each, row, len(texts)) for each in logits_processor)
            text.criteria = StoppingCriteriaList(_of_row(each, row, len(texts)) for each in text.criteria)
        if (target := self.target) is not None:
            sizes = {"{} tokens": "vocab_size", "hidden size {}": "hidden_size", "{} layers": "num_layers"}
            for words, name in sizes.items():
                engines, own = getattr(target, name), getattr(base, name)
                expect(own == engines, f"a model of {words.format(engines)} (target is the engine's copy of it)", own)
        session = Session(target or base, settings, prompts, texts, bool(getattr(generation_config, "use_cache", True)))
        self.last = decode(session, self.drafter, bound(rule, settings), streamer, self.trace)
        sequences: Any = torch.from_numpy(self.last.tokens).to(input_ids.device)
        if not generation_config.return_dict_in_generate:
            return sequences
        output = GenerateEncoderDecoderOutput if base.is_encoder_decoder else GenerateDecoderOnlyOutput
        return output(sequences=sequences)


custom_generate = CustomGenerate
"""Public alias, named after the argument of ``generate()``."""


class PreparedSettings(GenerationSettings):
    """A generation config from which ``generate()`` has already built processors, warpers and criteria; ValueError for
    a field that cannot be honoured."""

    def __init__(self, model: PreTrainedModel, config: GenerationConfig) -> None:
        for name in DRAFTING:
            if (value := getattr(config, name, None)) not in (None, getattr(model.generation_config, name, None)):
                raise _unsupported(name, f"{value!r}; it names another drafter: leave one of the two out")
        single = copy.copy(config)
        single.num_return_sequences = 1  # generate() has repeated the prompts
        refuse(single)
        self.target, self.config, self._is_plain = TransformersModel.of(model), config, False
        self.eos_ids = token_ids("eos_token_id", config.eos_token_id)
        self.pad_id = next(iter(token_ids("pad_token_id", config.pad_token_id)), None)

    def processors(
        self, width: int, max_length: int, prompt: Sequence[int], processors: Sequence[Any]
    ) -> LogitsProcessorList:
        return LogitsProcessorList(processors)

    def warpers(self, **arguments: Any) -> LogitsProcessorList:
        """None: they are among the processors."""
        names = ", ".join(sorted(name for name, value in arguments.items() if value is not None))
        expect(not names, "a sampling rule without own settings", names, "pass them to generate()")
        return LogitsProcessorList()

    def criteria(
        self, width: int, criteria: Sequence[Any], tokenizer: PreTrainedTokenizerBase | None
    ) -> StoppingCriteriaList:
        return StoppingCriteriaList(criteria)


def _of_row(function: Any, row: int, rows: int) -> Any:
    """A logits processor or stopping criterion as one row of a batch calls it."""
    by_row = type(function).__name__ in BY_ROW or isinstance(getattr(function, "prompt_ignore_length", None), Tensor)
    alike = type(function).__module__.startswith("transformers.") and not by_row
    return function if rows == 1 or alike else _OneRow(function, row, rows)


class _OneRow:
    """A row's own copy of a processor or criterion, which may remember calls and tell rows apart: it is called with as
    many rows as the batch has, all of them this row."""

    def __init__(self, function: Any, row: int, rows: int) -> None:
        self.name, self.row, self.rows = getattr(function, "__name__", type(function).__name__), row, rows
        owned = getattr(function, "__dict__", {}).values()
        shared: dict[int, Any] = {id(each): each for each in owned if isinstance(each, PreTrainedTokenizerBase)}
        try:
            self.function = copy.deepcopy(function, shared)  # a tokenizer's copy would take a tenth of a second
        except Exception as error:  # each kind of object raises its own
            got = f"{self.name} ({error}); decode prompts one by one"
            raise ValueError(f"expected processors and criteria that can be copied for every row, got {got}") from error

    def __call__(self, input_ids: Tensor, scores: Tensor | None) -> Tensor:
        result = self.function(input_ids.repeat(self.rows, 1), None if scores is None else scores.repeat(self.rows, 1))
        if self.name == HARNESS_CRITERION and isinstance(result, bool):
            return torch.tensor([result])
        if not isinstance(result, Tensor) or result.shape[:1] != (self.rows,):
            got = f"{result!r:.60} by {self.name}; decode prompts one by one"
            raise ValueError(f"expected processors and criteria that give a tensor [rows, ...], got {got}")
        return result[self.row : self.row + 1]


def _arguments_of_generate() -> dict[str, Any]:
    """Arguments of the calling ``generate()`` that ``transformers`` 4.57 and later do not pass to a callable; without
    them a streamer would wait for ever."""
    frame, code = sys._getframe(2), inspect.unwrap(GenerationMixin.generate).__code__
    names = ("streamer", "assistant_model", "synced_gpus", "inputs_tensor") if frame.f_code is code else ()
    return {name: value for name in names if (value := frame.f_locals.get(name)) is not None}


def _rule(acceptance: Acceptance | None, config: GenerationConfig) -> Acceptance:
    if acceptance is None:
        return Sampling() if config.do_sample else Exact()
    decides = acceptance
    while hasattr(decides, "otherwise"):
        decides = decides.otherwise
    samples, wanted = isinstance(decides, Sampling), f"with the rule {type(acceptance).__name__}"
    expect(samples == bool(config.do_sample), f"do_sample={samples} {wanted}", f"do_sample={config.do_sample}")
    return acceptance


def _unsupported(names: str, got: str = "it; leave one of the two out") -> ValueError:
    return ValueError(f"expected generate(custom_generate=...) without {names}, got {got}")


def _remove_unused(config: GenerationConfig, arguments: dict[str, Any]) -> None:
    """Remove arguments that the loop does not need; ValueError for those that it does not support."""
    for name in _OUTPUTS if config.return_dict_in_generate else ():
        if getattr(config, name, False):
            raise _unsupported(name)
    for name in ("cache", "past_key_values", "cache_params"):  # before transformers 5.24, the last are Mamba's
        if (cache := arguments.pop(name, None)) is not None and _holds_tokens(cache):
            raise _unsupported(name, "a cache that holds tokens; leave it out")
    kinds = arguments.get("token_type_ids")
    unused = set(_UNUSED)
    unused |= {"token_type_ids"} if isinstance(kinds, Tensor) and not kinds.any() else set()  # zeros are the default
    unused |= {"synced_gpus"} if not arguments.get("synced_gpus") else set()
    for name in unused:
        arguments.pop(name, None)


def _holds_tokens(cache: Any) -> bool:
    try:
        return bool(cache.get_seq_length())
    except ValueError:  # recurrent layers have no length
        return bool(cache.has_previous_state())


def _prompts(input_ids: Tensor, inputs: Tensor | None, arguments: dict[str, Any]) -> Prompts:
    """A causal LM's prompts; takes the mask and default positions out of ``arguments``."""
    ids = input_ids.cpu()
    mask = arguments.pop("attention_mask", torch.ones_like(ids)).cpu().bool()
    rows, positions = unpadded(ids.numpy(), mask.numpy()), arguments.get("position_ids")
    default = (mask.long().cumsum(dim=1) - 1)[mask]
    if positions is not None and torch.equal(positions.cpu().expand_as(ids)[mask], default):
        del arguments["position_ids"]
    return Prompts(ids.numpy(), rows, [[] for _ in ids], None)


def _encoded_prompts(input_ids: Tensor, inputs: Tensor | None, arguments: dict[str, Any]) -> Prompts:
    """An encoder–decoder's; takes the encoder's output and the masks out of ``arguments``."""
    ids, hidden = input_ids.cpu(), arguments.pop("encoder_outputs").last_hidden_state
    read = arguments.pop("decoder_attention_mask", None)
    wanted = "decoder_input_ids without padding"
    expect(read is None or read.all(), wanted, "a decoder_attention_mask with zeros", "decode texts one by one")
    mask = arguments.pop("attention_mask", torch.ones(hidden.shape[:2], dtype=torch.long, device=hidden.device))
    if inputs is None or inputs.is_floating_point() or len(ids) % len(inputs) or hidden.shape[1] != inputs.shape[1]:
        raise ValueError("expected sources as token ids [rows, n], got others; pass input_ids to generate()")
    repeated = inputs.cpu().repeat_interleave(len(ids) // len(inputs), dim=0)
    sources = unpadded(repeated.numpy(), mask.cpu().bool().numpy())
    return Prompts(ids.numpy(), ids.tolist(), sources, EncodedSource(hidden, mask))
