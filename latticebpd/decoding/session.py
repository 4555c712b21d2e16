"""One decode: the prompts, the texts that grow from them under their rules, and the verifier.

The decoding loop, Jacobi iteration, the check of finished texts and the dependency graphs all begin here, so that
prompts, limits, ends of texts and processors mean the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, TypedDict

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedTokenizerBase, StoppingCriteriaList

from latticebpd.decoding.generation_config import GenerationSettings
from latticebpd.decoding.prompts import Prompts, prepare
from latticebpd.decoding.stopping import Text, begin_texts
from latticebpd.lattices.drafts import DraftTree
from latticebpd.target.forward import Verified
from latticebpd.target.stock_model import BaseModel, Model
from latticebpd.target.verifier import Verifier
from latticebpd.target.verifier_choice import verifier_for

Ids: TypeAlias = Tensor | Sequence[int] | Sequence[Sequence[int]]


class SessionOptions(TypedDict, total=False):
    """What any decode may be asked for; names, defaults and meanings are those of ``latticebpd.generate``."""

    attention_mask: Tensor | Sequence[Sequence[int]] | None
    max_new_tokens: int | None
    eos_token_id: int | Sequence[int] | None
    pad_token_id: int | None
    logits_processor: LogitsProcessorList | None
    stopping_criteria: StoppingCriteriaList | None
    stop_strings: str | Sequence[str] | None
    tokenizer: PreTrainedTokenizerBase | None
    use_cache: bool


@dataclass(eq=False)
class Session:
    """A decode at work.

    base: the model.  settings: its generation config and the caller's arguments.
    prompts: what it starts from.  texts: what has been written, a row each.
    use_cache: whether the verifier may keep what it has read.
    layers: the model's layers whose states are kept, from 0; to be set before the verifier is asked for.
    """

    base: BaseModel
    settings: GenerationSettings
    prompts: Prompts
    texts: list[Text]
    use_cache: bool = True
    layers: tuple[int, ...] = ()

    @classmethod
    def begin(
        cls,
        model: Model,
        input_ids: Ids,
        attention_mask: Tensor | Sequence[Sequence[int]] | None = None,
        *,
        max_new_tokens: int | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
        stop_strings: str | Sequence[str] | None = None,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        use_cache: bool = True,
    ) -> Session:
        """Check everything that a decode is asked for; arguments are those of ``latticebpd.generate``.

        Raises:
            ValueError: prompts, limits, processors, a generation config or a model that cannot be used.
        """
        base = BaseModel.of(model)
        settings = GenerationSettings(
            base,
            max_new_tokens=max_new_tokens,
            eos_token_id=eos_token_id,
            pad_token_id=pad_token_id,
            stop_strings=stop_strings,
        )
        prompts = prepare(base, input_ids, attention_mask, settings)
        texts = begin_texts(base, settings, prompts, logits_processor, stopping_criteria, tokenizer)
        return cls(base, settings, prompts, texts, use_cache)

    @cached_property
    def verifier(self) -> Verifier:
        """The quickest one that is right for the model."""
        return verifier_for(self.base, self.prompts.encoded, self.use_cache, self.layers)

    @property
    def sequences(self) -> Tensor:
        """``[rows, length]``: the prompts as they were given, then each row's new tokens, padded on the right."""
        new, fill = [text.new_tokens for text in self.texts], self.settings.fill_id
        width = max(map(len, new))
        return torch.cat(
            [self.prompts.given, torch.tensor([tokens + [fill] * (width - len(tokens)) for tokens in new])], dim=1
        )


class UnreadTokens:
    """Where the rows of a decode stand: what of their texts the model has read, and what is certain but unread.

    At first that is the whole prompt, later the one token that the model chose last. A pass reads the unread tokens and
    a draft behind them together; without any draft for any row, the first pass is a plain reading of the prompts.

    Args:
        verifier: of the model, new.
        prompts: each row's tokens.
    """

    def __init__(self, verifier: Verifier, prompts: Sequence[Sequence[int]]) -> None:
        self.verifier = verifier
        self.unread = [list(prompt) for prompt in prompts]
        self._plain = True  # so far
        verifier.begin(len(prompts))

    @property
    def max_nodes(self) -> int | None:
        """The most drafted nodes that the next pass has room for; None if there is no limit."""
        room = self.verifier.max_nodes
        return None if room is None else max(0, room - max(map(len, self.unread)) + 1)

    def verify(self, trees: Sequence[DraftTree]) -> Verified:
        """One pass; column 0 is what follows a row's last unread token, column ``i + 1`` what follows node ``i`` of its
        tree."""
        if self._plain and not any(map(len, trees)):
            return self.verifier.prefill(self.unread)
        self._plain = False
        return self._read(trees)

    def keep(self, paths: Sequence[Sequence[int]], next_tokens: Sequence[int]) -> None:
        """The accepted nodes belong to the texts now, and so does a further token of each row, unread."""
        if not self._plain:
            behind = [len(tokens) - 1 for tokens in self.unread]
            self.verifier.keep(
                [[*range(n), *(n + node for node in path)] for n, path in zip(behind, paths, strict=True)]
            )
        self._plain = False
        self.unread = [[token] for token in next_tokens]

    def read_again(
        self, trees: Sequence[DraftTree], paths: Sequence[Sequence[int]], next_tokens: Sequence[int]
    ) -> Verified:
        """``keep`` by a pass of its own: drop what the last one computed, and read the accepted tokens anew as
        chains."""
        self.verifier.forget()
        accepted = [
            DraftTree.from_paths([tree.tokens[list(path)].tolist()]) for tree, path in zip(trees, paths, strict=True)
        ]
        verified = self._read(accepted)
        self.keep([range(len(tree)) for tree in accepted], next_tokens)
        return verified

    def layer_states(self, row: int) -> Tensor | None:
        """``[tokens, layers * hidden]`` what the session's layers handed on of a row's text, so far as it was read;
        None without any."""
        return self.verifier.layer_states(row)

    def select(self, rows: Sequence[int]) -> None:
        """Go on with these rows only."""
        self.verifier.select(rows)
        self.unread = [self.unread[row] for row in rows]

    def _read(self, trees: Sequence[DraftTree]) -> Verified:
        found = self.verifier.verify(
            [tokens[0] for tokens in self.unread],
            [_behind(tokens[1:], tree) for tokens, tree in zip(self.unread, trees, strict=True)],
        )
        before = [len(tokens) - 1 for tokens in self.unread]
        if not any(before):
            return found
        columns = torch.tensor(before)[:, None] + torch.arange(max(map(len, trees)) + 1)
        hidden = found.hidden[torch.arange(len(before))[:, None], columns.clamp(max=found.hidden.shape[1] - 1)]
        return Verified(
            hidden,
            lambda rows, at: found.logits_of(
                rows, [before[row] + column for row, column in zip(rows, at, strict=True)]
            ),
        )


def _behind(tokens: Sequence[int], tree: DraftTree) -> DraftTree:
    """A chain of certain tokens, and the tree behind its end."""
    if not tokens:
        return tree
    chain = np.arange(-1, len(tokens) - 1, dtype=np.int32)
    return DraftTree(
        np.concatenate([np.array(tokens, np.int32), tree.tokens]), np.concatenate([chain, tree.parents + len(tokens)])
    )
