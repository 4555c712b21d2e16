"""The rows of a decode: prompts without their padding, and the texts that grow from them.

Padding never reaches the model: each row is its own tokens, on whichever side it was padded. Only
``SequenceState.commit`` adds tokens. A text ends with an end-of-text token, by a stopping criterion (stop strings are
one), or at its length limit; tokens are committed one by one, so nothing after the end is ever part of the text or of a
count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from latticebpd.checks import expect
from latticebpd.constraints.constraint import Constraints, of_rows
from latticebpd.constraints.model_tokens import model_tokens
from latticebpd.constraints.token_automaton import ILLEGAL, TokenAutomaton, after
from latticebpd.lattices.values import array_for, as_numpy, as_tensor
from latticebpd.models.target_model import TargetModel

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from latticebpd.decoding.generation_config import GenerationSettings
    from latticebpd.verification.forward import EncodedSource

Ids: TypeAlias = "Tensor | np.ndarray | Sequence[int] | Sequence[Sequence[int]]"
Mask: TypeAlias = "Tensor | np.ndarray | Sequence[Sequence[int]]"


@dataclass(frozen=True, eq=False)
class Prompts:
    """A batch of prompts.

    prefix: ``[rows, n]`` int64, what the output's rows begin with: the padded prompts, or the decoder's start tokens.
    tokens: each row's tokens, at least one, without padding.
    sources: each row's source tokens without padding; empty for a causal LM.
    encoded: the encoder's output; None for a causal LM.
    """

    prefix: np.ndarray
    tokens: list[list[int]]
    sources: list[list[int]]
    encoded: EncodedSource | None


def prepare(target: TargetModel, input_ids: Ids, attention_mask: Mask | None, settings: GenerationSettings) -> Prompts:
    """Check the prompts, remove their padding and, for an encoder–decoder, encode them.

    settings: for the target.
    Without a mask the rule is ``generate()``'s: padding tokens are padding unless they also end texts. ValueError for
    wrong shapes, ids outside the vocabulary, empty prompts, sources too long for the encoder, or no start token.
    """
    ids, pad = _check_ids(input_ids, target.source_vocab_size), settings.pad_id
    if attention_mask is None:
        attention_mask = np.ones_like(ids) if pad is None or pad in settings.eos_ids else ids != pad
    mask = as_numpy(attention_mask).astype(bool)
    mask = mask[None] if mask.ndim == 1 else mask
    rows = unpadded(ids, mask)
    if not target.is_encoder_decoder:
        return Prompts(ids, rows, [[] for _ in rows], None)
    from latticebpd.models.transformers.transformers_model import TransformersModel
    from latticebpd.verification.forward import EncodedSource

    assert isinstance(target, TransformersModel)
    target.check_sources(ids.shape[1])
    starts = np.array(settings.start_ids(len(rows)))[:, None]
    source = EncodedSource.encode(target, *(as_tensor(each.astype(np.int64)).to(target.device) for each in (ids, mask)))
    return Prompts(starts, starts.tolist(), rows, source)


def _check_ids(input_ids: Ids, vocab_size: int) -> np.ndarray:
    """The prompts as an array ``[rows, n]``."""
    try:
        ids = as_numpy(input_ids)
    except (ValueError, TypeError) as error:
        what = "expected prompts of equal length [rows, n]; pad them and pass an attention_mask"
        raise ValueError(f"{what} ({error})") from error
    expect(ids.dtype.kind not in "US", "prompts as token ids", "text", "encode it, or use load(...).generate(text)")
    ids = ids[None] if ids.ndim == 1 else ids
    if ids.ndim != 2 or not ids.size:
        raise ValueError(f"expected prompts [rows, n] or one prompt [n] of at least one token, got shape {ids.shape}")
    low, high = ids.min(), ids.max()
    if ids.dtype.kind not in "iu" or low < 0 or high >= vocab_size:
        raise ValueError(f"expected token ids from 0 to {vocab_size - 1}, got {ids.dtype} from {low} to {high}")
    return ids.astype(np.int64, copy=False)


def unpadded(ids: np.ndarray, mask: np.ndarray) -> list[list[int]]:
    """Each row's tokens under the mask, both ``[rows, n]``; ValueError for another shape or a row without tokens."""
    expect(mask.shape == ids.shape, f"an attention_mask of the prompts' shape {ids.shape}", mask.shape)
    rows = [line[read].tolist() for line, read in zip(ids, mask, strict=True)]
    if not all(rows):
        empty = f"none in row {rows.index([])}; is the attention mask all zero?"
        raise ValueError(f"expected at least one token in every prompt, got {empty}")
    return rows


@dataclass
class SequenceState:
    """One growing row.

    tokens: the prompt and the committed tokens.
    max_length: of ``tokens``.
    eos_ids: tokens that end the text and stay in it.
    criteria: stopping criteria as of ``transformers``, called after every token with this row's text only.
    automaton: of the text's constraint, which every committed token obeys; None without one.
    shown: what criteria and processors see in place of the prompt, by default the prompt.
    automaton_state: after ``tokens``.
    cut: whether the text has ended at its length limit only.
    unread: tokens at its end that no pass has read: the one that a pass chose last, and a certain end after it.
    """

    tokens: list[int]
    max_length: int
    eos_ids: frozenset[int]
    criteria: Sequence[Any]
    processors: Any
    automaton: TokenAutomaton | None = None
    shown: list[int] = field(init=False)
    finished: bool = field(default=False, init=False)
    cut: bool = field(default=False, init=False)
    unread: int = field(default=1, init=False)
    prompt_length: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_length, self.shown = len(self.tokens), list(self.tokens)
        self.automaton_state = 0 if self.automaton is None else self.automaton.start

    @property
    def new_tokens(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def max_depth(self) -> int:
        """How many tokens may be drafted: the model itself adds one after them."""
        return self.max_length - len(self.tokens) - 1

    def commit(self, tokens: Iterable[int]) -> list[int]:
        """Append tokens until the text ends, then its end where a constraint determines it; return those appended.

        ValueError for a token that the constraint does not allow."""
        committed: list[int] = []
        for token in tokens:
            if self.finished:
                break
            self._append(token)
            committed.append(token)
        if self.automaton is not None and not self.finished:
            self.automaton.release(self.automaton_state)
            committed += self._commit_certain_end(self.automaton)
        return committed

    def _append(self, token: int) -> None:
        self.tokens.append(token)
        if self.automaton is not None:
            self.automaton_state = after(self.automaton, self.automaton_state, token)
            expect(self.automaton_state != ILLEGAL, "a token that the constraint allows", token)
        ended = token in self.eos_ids or self._meets_criteria()
        self.cut = not ended and len(self.tokens) >= self.max_length
        self.finished = ended or self.cut

    def _commit_certain_end(self, automaton: TokenAutomaton) -> list[int]:
        """Append what follows if each token of it is the only legal one and the last one ends the text."""
        rest, state = list[int](), self.automaton_state
        while len(rest) < self.max_length - len(self.tokens):
            legal = np.flatnonzero(automaton.legal(state))
            self.finished = not len(legal) and not rest
            if len(legal) != 1:
                return []
            rest.append(int(legal[0]))
            if rest[-1] in self.eos_ids:
                self.unread += len(rest)
                return self.commit(rest)
            state = after(automaton, state, rest[-1])
        return []

    def _meets_criteria(self) -> bool:
        if not self.criteria:
            return False
        ids = np.array([[*self.shown, *self.new_tokens]], np.int64)
        met = [bool(as_numpy(each(array_for(each, ids), None)).all()) for each in self.criteria]
        return any(met)

    def processed(self, drafted: list[int], logits: Tensor) -> Tensor:
        """``[vocab]`` logits after the text and ``drafted`` tokens, as the processors leave them."""
        if not self.processors:
            return logits
        import torch

        ids: Any = torch.tensor([[*self.shown, *self.new_tokens, *drafted]], device=logits.device)
        own = logits[None].to(dtype=torch.float32, copy=True)  # processors may write in place
        return self.processors(ids, own)[0]


def begin_texts(
    target: TargetModel,
    settings: GenerationSettings,
    prompts: Prompts,
    logits_processor: Sequence[Any] | None = None,
    stopping_criteria: Sequence[Any] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    constraint: Constraints = None,
) -> list[SequenceState]:
    """The texts of a decode: their prompts, stop rules, processors and constraints.

    The caller's processors and criteria replace those of the same kind from the generation config. ValueError for a
    prompt that fills all positions, texts that cross LongRoPE's boundary, an inapplicable processor, stop strings or a
    constraint without a tokenizer, or a constraint that does not fit it or allows no text.
    """
    width = prompts.prefix.shape[1]
    eos_ids, columns, others = settings.stops(width, stopping_criteria or [], tokenizer)
    lengths, positions = list(map(len, prompts.tokens)), target.max_positions
    limits = [length + max(columns - width, 1) for length in lengths]
    if positions is not None:  # no bound with relative positions, as T5's
        most = f"prompts of fewer than {positions} tokens (the model's positions)"
        expect(max(lengths) < positions, most, max(lengths), "cut it")
        limits = [min(limit, positions) for limit in limits]
    target.check_rope_limit(min(lengths) - 1, max(limits))  # the first pass may leave out a prompt's last token
    limited = zip(prompts.tokens, prompts.sources, limits, strict=True)
    rows = [(width - len(tokens), limit, source or tokens) for tokens, source, limit in limited]
    processors = settings.row_processors(width, rows, logits_processor or [])
    ends = [*dict.fromkeys([*(token for token in settings.eos_ids if token in eos_ids), *sorted(eos_ids)])]
    automata = [
        None if each is None else each.automaton(model_tokens(tokenizer, target.vocab_size), ends)
        for each in of_rows(constraint, len(rows))
    ]
    for automaton in automata:
        allows = automaton is None or automaton.legal(automaton.start).any()
        expect(allows, "a constraint that allows some text", "one that allows none")
    texts = zip(prompts.tokens, limits, processors, automata, strict=True)
    return [
        SequenceState(list(tokens), limit, eos_ids, others, own, automaton) for tokens, limit, own, automaton in texts
    ]


def accepts_numpy(criterion: Any) -> Any:
    """A stopping criterion marked to receive a text's tokens ``[1, n]`` as an array; it reads no scores."""
    criterion.accepts_numpy = True
    return criterion


def until_end(tokens: list[int], eos_ids: frozenset[int]) -> list[int]:
    """The tokens up to and with the first that ends a text; all without one."""
    end = next((i for i, token in enumerate(tokens) if token in eos_ids), len(tokens))
    return tokens[: end + 1]
