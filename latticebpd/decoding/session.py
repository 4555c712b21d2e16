"""One decode: the prompts, the texts that grow from them, and the verifier.

The decoding loop, Jacobi iteration, ``check_lossless`` and the dependency graphs all begin here, so that prompts,
limits, stop rules and processors mean the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from latticebpd.constraints.constraint import Constraints
from latticebpd.decoding.decode_rows import Ids, Mask, Prompts, SequenceState, begin_texts, prepare
from latticebpd.decoding.generation_config import GenerationSettings
from latticebpd.lattices.drafts import DraftTree
from latticebpd.lattices.texts import padded
from latticebpd.models.target_model import AnyModel, TargetModel, target_model
from latticebpd.verification.asked_columns import Wanted
from latticebpd.verification.engine_verifier import PREFILL_CHUNK, EngineVerifier
from latticebpd.verification.verifier import Verified, Verifier
from latticebpd.verification.verifiers import verifier_of

if TYPE_CHECKING:
    from transformers import LogitsProcessorList, PreTrainedTokenizerBase, StoppingCriteriaList


class SessionOptions(TypedDict, total=False):
    """The options of every decode; names, defaults and meanings are those of ``latticebpd.generate``."""

    attention_mask: Mask | None
    max_new_tokens: int | None
    eos_token_id: int | Sequence[int] | None
    pad_token_id: int | None
    stop_strings: str | Sequence[str] | None
    logits_processor: LogitsProcessorList | None
    stopping_criteria: StoppingCriteriaList | None
    tokenizer: PreTrainedTokenizerBase | None
    use_cache: bool
    text_cache: TextCache | None


class TextCache:
    """What a model has read of one text, kept from decode to decode: of a prompt that begins with it, only the rest is
    read. A model with changed weights needs another one.

    tokens: of the text, as far as they are known to be read.
    shared: how many tokens of the last prompt were not read again.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.shared = 0
        self._verifier: Verifier | None = None
        self._owner: tuple[object, ...] = ()

    def verifier(
        self, target: TargetModel, prompt: Sequence[int], use_cache: bool, layers: tuple[int, ...]
    ) -> Verifier:
        """One that has read the first ``shared`` tokens of a prompt, never all of them; new if that is none."""
        owner: tuple[object, ...] = (getattr(target, "model", target), use_cache, layers)
        same = takewhile(lambda pair: pair[0] == pair[1], zip(self.tokens, prompt[:-1], strict=False))
        self.shared = sum(1 for _ in same) if owner == self._owner else 0
        self.tokens, self._owner = [], owner  # an interrupted decode leaves nothing to build on
        if self._verifier is None or not self.shared:
            self._verifier = verifier_of(target, None, use_cache, layers)
        else:
            self._verifier.cut([self.shared])
        return self._verifier


@dataclass(eq=False)
class Session:
    """A decode in progress.

    settings: the target's generation config with the caller's options.
    use_cache: whether the verifier may keep a key-value cache.
    layers: the model's layers whose states are kept, from 0; set before the first use of ``verifier``.
    text_cache: what earlier decodes have read.
    """

    target: TargetModel
    settings: GenerationSettings
    prompts: Prompts
    texts: list[SequenceState]
    use_cache: bool = True
    layers: tuple[int, ...] = ()
    text_cache: TextCache | None = None

    @classmethod
    def begin(
        cls, model: AnyModel, input_ids: Ids, constraint: Constraints = None, **options: Unpack[SessionOptions]
    ) -> Session:
        """Prepare a decode; ValueError for unusable prompts, limits, processors, constraints, generation config or
        model."""
        fields = ("max_new_tokens", "eos_token_id", "pad_token_id", "stop_strings")
        target = target_model(model)
        settings = GenerationSettings(target, **{name: options.get(name) for name in fields})
        prompts = prepare(target, input_ids, options.get("attention_mask"), settings)
        processors, criteria = options.get("logits_processor"), options.get("stopping_criteria")
        texts = begin_texts(target, settings, prompts, processors, criteria, options.get("tokenizer"), constraint)
        cache = options.get("text_cache")
        if cache is not None and (len(texts) > 1 or target.is_encoder_decoder):
            got = "an encoder–decoder" if target.is_encoder_decoder else f"{len(texts)} prompts"
            raise ValueError(f"expected one prompt of a causal model with text_cache, got {got}; leave text_cache out")
        return cls(target, settings, prompts, texts, options.get("use_cache", True), text_cache=cache)

    @cached_property
    def verifier(self) -> Verifier:
        """The fastest verifier that is correct for the model."""
        if self.text_cache is not None:
            return self.text_cache.verifier(self.target, self.prompts.tokens[0], self.use_cache, self.layers)
        return verifier_of(self.target, self.prompts.encoded, self.use_cache, self.layers)

    @property
    def read(self) -> int:
        """Tokens of the prompt that ``verifier`` has read."""
        return self.text_cache.shared if self.verifier and self.text_cache else 0

    @property
    def sequences(self) -> np.ndarray:
        """``[rows, length]`` int64: the prompts as passed in, then each row's new tokens, padded on the right."""
        new, _ = padded([text.new_tokens for text in self.texts], self.settings.fill_id)
        return np.hstack([self.prompts.prefix, new])


class PendingTokens:
    """Each row's tokens that are final but not yet read by the model: the full prompt, later the token chosen last.

    A pass reads them together with the draft that follows them; the first one is a prefill if no row has a draft.
    ``verifier`` must be new, but for ``read`` tokens of a single prompt.
    """

    def __init__(self, verifier: Verifier, prompts: Sequence[Sequence[int]], read: int = 0) -> None:
        self.verifier = verifier
        self.tokens = [list(prompt)[read:] for prompt in prompts]
        self._prefill = not read  # whether the next pass may be one
        if not read:
            verifier.begin(len(prompts))

    @property
    def max_nodes(self) -> int | None:
        """The most drafted nodes that the next pass has room for; None if there is no limit."""
        room = self.verifier.max_nodes
        return None if room is None else max(0, room - max(map(len, self.tokens)) + 1)

    def verify(self, trees: Sequence[DraftTree]) -> Verified:
        """One pass; column 0 is what follows a row's last unread token, column ``i + 1`` what follows node ``i`` of its
        tree."""
        self._prefill = self._prefill and not any(map(len, trees))
        if self._prefill:
            return self.verifier.prefill(self.tokens)
        self._read_beginnings()
        chains = [_append(tokens[1:], tree) for tokens, tree in zip(self.tokens, trees, strict=True)]
        verified = self.verifier.verify([tokens[0] for tokens in self.tokens], chains)
        before = [len(tokens) - 1 for tokens in self.tokens]
        if not any(before):
            return verified
        states = verified.hidden
        columns = np.array(before)[:, None] + np.arange(max(map(len, trees)) + 1)
        hidden = states[np.arange(len(before))[:, None], np.minimum(columns, states.shape[1] - 1)]
        return _shifted(verified, before, hidden)

    def _read_beginnings(self) -> None:
        """Read long prompts up to their last part, as a prefill does: one pass over such a prompt and its draft, all of
        it a tree, would take longer."""
        if isinstance(self.verifier, EngineVerifier):
            for row, tokens in enumerate(self.tokens):
                count = (len(tokens) - 1) // PREFILL_CHUNK * PREFILL_CHUNK
                self.tokens[row] = tokens[count:]
                for _ in self.verifier.read(row, tokens[:count]):
                    pass

    def keep(self, paths: Sequence[Sequence[int]], next_tokens: Sequence[int]) -> None:
        """Add the accepted nodes to each row's text, and the next token, which is unread."""
        if not self._prefill:
            before = [len(tokens) - 1 for tokens in self.tokens]
            kept = [[*range(n), *(n + node for node in path)] for n, path in zip(before, paths, strict=True)]
            self.verifier.keep(kept)
        self._prefill = False
        self.tokens = [[token] for token in next_tokens]

    def read_ahead(self, most: int) -> bool:
        """Read up to ``most`` tokens of a single row's prompt in a pass of their own; whether more than one is left.

        Engine only: on PyTorch the first pass reads the whole prompt."""
        (tokens,) = self.tokens
        if isinstance(self.verifier, EngineVerifier) and len(tokens) > 1:
            count = min(most, len(tokens) - 1)
            self.verifier.extend(0, tokens[:count])
            self.tokens, self._prefill = [tokens[count:]], False
            return len(tokens) - count > 1
        return False

    def join(self, other: PendingTokens) -> None:
        """Go on with another's rows too, after these; ValueError unless both are on an engine."""
        if not (isinstance(self.verifier, EngineVerifier) and isinstance(other.verifier, EngineVerifier)):
            raise ValueError("expected rows on the CPU engine to join, got PyTorch's; decode them one after another")
        self.verifier.join(other.verifier)
        self.tokens, self._prefill = [*self.tokens, *other.tokens], False

    def select(self, rows: Sequence[int]) -> None:
        """Go on with these rows only."""
        self.verifier.select(rows)
        self.tokens = [self.tokens[row] for row in rows]


def _shifted(verified: Verified, before: Sequence[int], hidden: Any) -> Verified:
    """The output of which column 0 is, for each row, the one after ``before`` others.  hidden: of these columns."""

    def of(compute: Callable[..., Any] | None) -> Any:
        if compute is None:
            return None
        return lambda rows, columns, *others: compute(
            rows, [before[row] + column for row, column in zip(rows, columns, strict=True)], *others
        )

    def only(wanted: Wanted) -> Verified:
        assert verified.only is not None
        return _shifted(verified.only(lambda row, column: wanted(row, column - before[row])), before, hidden)

    return Verified(
        hidden, of(verified.logits_of), None, of(verified.best_of), of(verified.some_logits_of),
        None if verified.only is None else only,
    )  # fmt: skip


def _append(tokens: Sequence[int], tree: DraftTree) -> DraftTree:
    """A chain of tokens with the tree below its end."""
    if not tokens:
        return tree
    parents = np.concatenate([np.arange(-1, len(tokens) - 1), tree.parents + len(tokens)])
    return DraftTree(np.concatenate([np.array(tokens), tree.tokens]), parents)
