"""The decoding loop: draft, verify, accept, commit.

Everything in blockwise parallel decoding is a drafter and an acceptance rule around this one loop.  It is the
merged form (Stern 2018, section 4): the pass that verifies one draft also yields the hidden states from which the
heads draft the next, so each step costs one call of the base model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedTokenizerBase, StoppingCriteriaList

from latticebpd.decoding.acceptance import Acceptance, Adjust, Exact, bound, walk
from latticebpd.decoding.session import Session, UnreadTokens
from latticebpd.decoding.stopping import Text
from latticebpd.drafters.drafter import Drafter, State, needs_hidden, needs_layers
from latticebpd.lattices.drafts import DraftTree
from latticebpd.target.stock_model import Model

EXACT = Exact()


@dataclass(frozen=True)
class Step:
    """What one call did for one row.

    call: number of the pass, from 0.
    row: index in the batch.
    tree: the drafts that were verified; ``tree.lattice`` is what they were drawn from.
    accepted: ``tree``'s accepted nodes, a path from the root.
    committed: the tokens added to the text: those of the accepted nodes and the one behind them, up to the text's end.
    """

    call: int
    row: int
    tree: DraftTree
    accepted: list[int]
    committed: list[int]


@dataclass(frozen=True, eq=False)
class Generated:
    """What a decode produced and cost.

    sequences: ``[rows, length]`` int64, prompt included, as ``generate()`` returns it: finished rows are padded on the
        right.  Of an encoder–decoder, the decoder's text.
    prompt_length: columns of the prompts, padding included; new tokens follow.
    accept_counts: histogram over calls of the tokens committed per call; index is the number of tokens, up to the
        deepest draft's and one more.
    num_calls: forward passes that committed tokens, each counted once for every row that it served; so the numbers
        do not depend on how prompts are batched. A *prefill*, which reads a row's prompt without a draft and commits
        one token, is counted apart. A drafter that needs no hidden state drafts before the prompt is read: the pass
        that reads prompt and draft together is a call like any other, and the row has no prefill.
    num_passes: the same passes, each counted once.
    num_tokens: new tokens of all rows, those of prefills included.
    verified_tokens: drafted nodes over all calls; the next token itself is not counted.
    prefilled: for each row, whether it had a prefill.
    trace: what every call did for every row, in order; None if no trace was asked for.
    """

    sequences: Tensor
    prompt_length: int
    accept_counts: np.ndarray
    num_calls: int
    num_passes: int
    num_tokens: int
    verified_tokens: int
    prefilled: tuple[bool, ...]
    trace: list[Step] | None

    @property
    def block_efficiency(self) -> float:
        """Tokens committed per call; NaN where the prefill alone sufficed."""
        committed = float(np.arange(len(self.accept_counts)) @ self.accept_counts)
        return committed / self.num_calls if self.num_calls else float("nan")

    @property
    def block_efficiency_with_prefill(self) -> float:
        """Tokens committed per pass, every pass being counted for every row that it served: greedy decoding's is 1.

        It compares drafters that have a prefill with those that have none, and with Jacobi's ``iteration_speedup``.
        """
        return self.num_tokens / (self.num_calls + sum(self.prefilled))

    def blocks(self, row: int = 0) -> list[list[int]]:
        """A row's new tokens, grouped by the pass that committed them; the first group may be the prefill's token.

        Raises:
            ValueError: no trace was asked for.
        """
        if self.trace is None:
            raise ValueError("expected a decode with a trace, got one without; pass trace=True")
        first = [[int(self.sequences[row, self.prompt_length])]] if self.prefilled[row] else []
        return first + [step.committed for step in self.trace if step.row == row]

    def _repr_html_(self) -> str:
        """As notebooks show it, tokens as numbers; `latticebpd.show` has words."""
        from latticebpd.decoding.decode_html import decode_html

        return decode_html(self)


def generate(
    model: Model,
    input_ids: Tensor | Sequence[int] | Sequence[Sequence[int]],
    drafter: Drafter,
    acceptance: Acceptance = EXACT,
    max_new_tokens: int | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    attention_mask: Tensor | Sequence[Sequence[int]] | None = None,
    logits_processor: LogitsProcessorList | None = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    streamer: Any = None,
    *,
    stop_strings: str | Sequence[str] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    pad_token_id: int | None = None,
    trace: bool = False,
    merged: bool = True,
    use_cache: bool = True,
) -> Generated:
    """Decode a batch; under exact acceptance the text is that of ``generate(do_sample=False)``.

    Args:
        model: a blockwise model, or any causal LM or encoder–decoder of ``transformers``.
        input_ids: prompts, or an encoder–decoder's sources: ``[rows, n]`` or, for a single one, ``[n]``.
        drafter: proposes what is verified.
        acceptance: which drafted tokens stay.
        max_new_tokens: length limit, >= 1; by default the generation config's, which may be a ``max_length``, else 256.
            No text grows beyond the model's own maximum.
        eos_token_id: token or tokens that end a text; by default the model's own.
        attention_mask: ``[rows, n]``, 0 at padding, on either side; by default, as for ``generate()``, tokens equal to
            the padding token are padding if that does not also end texts.
        logits_processor: applied to every node's logits with the node's own prefix.
        stopping_criteria: asked after every token of every row. Processors and criteria take the place of the
            generation config's of the same kind, as in ``generate()``.
        streamer: as for ``generate()``; a single prompt only.
        stop_strings, tokenizer: strings that end a text, by default the generation config's, and the tokenizer to find
            them with.
        pad_token_id: fills up rows that end early; by default the model's own, else the first that ends texts, else 0.
        trace: keep what every call did.
        merged: False spends a call of its own on the heads' input, as in Stern's two-call form; same text.
        use_cache: False reads the whole texts at every call: slow, the same for every model; for comparison.

    Raises:
        ValueError: prompts, limits, processors, a generation config or a model that cannot be used; the message says
            why and what to do.
    """
    check_drafter(drafter)
    session = Session.begin(
        model, input_ids, attention_mask, max_new_tokens=max_new_tokens, eos_token_id=eos_token_id,
        pad_token_id=pad_token_id,
        stop_strings=stop_strings, logits_processor=logits_processor, stopping_criteria=stopping_criteria,
        tokenizer=tokenizer,
        use_cache=use_cache,
    )  # fmt: skip
    stream = Stream(streamer, len(session.prompts))
    if streamer is not None:
        streamer.put(session.prompts.given)
    return decode(session, drafter, bound(acceptance, session.settings), stream, trace, merged)


def check_drafter(drafter: Drafter) -> None:
    """ValueError for anything but a drafter."""
    if isinstance(drafter, type) or not (
        callable(getattr(drafter, "propose", None)) and callable(getattr(drafter, "observe", None))
    ):
        what = f"the class {drafter.__name__}" if isinstance(drafter, type) else type(drafter).__name__
        raise ValueError(f"expected a drafter, an object with the methods propose and observe, got {what}")


def decode(
    session: Session, drafter: Drafter, acceptance: Acceptance, stream: Stream, trace: bool = False, merged: bool = True
) -> Generated:
    """The loop itself, from the prompts of a new session to the end of its texts; arguments as for :func:`generate`."""
    session.layers = needs_layers(drafter)
    frontier = UnreadTokens(session.verifier, session.prompts.tokens)

    texts = session.texts
    rows = list(range(len(texts)))  # those that have not ended
    early = merged and not needs_hidden(drafter)
    trees = _draft(drafter, rows, session, [None] * len(rows), frontier) if early else [DraftTree.empty()] * len(rows)
    prefilled = tuple(not len(tree) for tree in trees)
    called = [not prefill for prefill in prefilled]  # whether the pass is a call for a row
    heard = early  # whether the drafter was asked
    steps: list[Step] = []
    counts: list[int] = []
    passes = drafted = deepest = 0
    while True:
        verified = frontier.verify(trees)
        unfinished = [texts[row] for row in rows]
        paths, following = walk(acceptance, trees, verified, _adjust(unfinished, trees))
        if merged or not heard:
            ends = [path[-1] + 1 if path else 0 for path in paths]  # the column of each row's last accepted node
            frontier.keep(paths, following)
        else:
            ends = list(map(len, paths))
            verified = frontier.read_again(trees, paths, following)
        blocks = [
            [*tree.tokens[path].tolist(), token] for tree, path, token in zip(trees, paths, following, strict=True)
        ]
        committed = [text.commit(block) for text, block in zip(unfinished, blocks, strict=True)]
        if heard:
            drafter.observe(rows, committed)
        stream.put(committed)
        calls = [Step(passes, *each) for each in compress(zip(rows, trees, paths, committed, strict=True), called)]
        steps += calls if trace else []
        counts += [len(call.committed) for call in calls]
        drafted += sum(len(call.tree) for call in calls)
        deepest = max(deepest, *(int(tree.depths.max(initial=0)) for tree in trees))
        passes += bool(calls)

        going_on = [place for place, text in enumerate(unfinished) if not text.finished]
        if not going_on:
            break
        hidden = [verified.hidden[place, ends[place]] for place in going_on]
        if len(going_on) < len(rows):  # rows that have ended cost nothing more
            frontier.select(going_on)
            rows = [rows[place] for place in going_on]
        trees = _draft(drafter, rows, session, hidden, frontier)
        called, heard = [True] * len(rows), True
    stream.end()

    return Generated(
        sequences=session.sequences,
        prompt_length=session.prompts.given.shape[1],
        accept_counts=np.bincount(np.array(counts, dtype=np.int64), minlength=deepest + 2),
        num_calls=len(counts) * (1 if merged else 2),
        num_passes=passes * (1 if merged else 2),
        num_tokens=sum(len(text.new_tokens) for text in texts),
        verified_tokens=drafted,
        prefilled=prefilled,
        trace=steps if trace else None,
    )


def _draft(
    drafter: Drafter, rows: list[int], session: Session, hidden: Sequence[Tensor | None], frontier: UnreadTokens
) -> list[DraftTree]:
    """One tree per row, none beyond its text's limit; rows with room for the model's own token alone are not drafted
    for."""
    prompts, texts = session.prompts, [session.texts[row] for row in rows]
    trees = [DraftTree.empty()] * len(rows)
    places = [place for place, text in enumerate(texts) if text.max_depth]
    if not places:
        return trees
    states = [
        State(
            rows[at],
            texts[at].tokens,
            texts[at].prompt_length,
            hidden[at],
            texts[at].max_depth,
            prompts.sources[rows[at]],
            frontier.layer_states(at),
        )
        for at in places
    ]
    proposed = drafter.propose(states)
    if not isinstance(proposed, Sequence) or not all(isinstance(tree, DraftTree) for tree in proposed):
        raise ValueError(f"expected a list of draft trees, got {proposed!r:.60} from {type(drafter).__name__}")
    if len(proposed) != len(states):
        raise ValueError(
            f"expected one tree for each of {len(states)} states, got {len(proposed)} from {type(drafter).__name__}"
        )
    for place, tree in zip(places, proposed, strict=True):
        trees[place] = tree.pruned(texts[place].max_depth).first(frontier.max_nodes)
        if len(tree) and int(tree.tokens.max()) >= prompts.vocab_size:
            raise ValueError(
                f"expected drafted tokens below {prompts.vocab_size} (the model's vocabulary), got"
                f" {int(tree.tokens.max())} from {type(drafter).__name__}; is it made for this model?"
            )
    return trees


def _adjust(texts: list[Text], trees: list[DraftTree]) -> Adjust | None:
    """The processors with each node's own prefix; None where there are none."""
    if not any(text.processors for text in texts):
        return None

    def adjust(row: int, path: list[int], logits: Tensor) -> Tensor:
        return texts[row].processed(trees[row].tokens[path].tolist(), logits)

    return adjust


class Stream:
    """A streamer that has been given the prompt, and is given every committed token.

    Args:
        streamer: as for ``transformers``' ``generate()``, or None.
        rows: of the batch, which must be 1 where there is a streamer.
    """

    def __init__(self, streamer: Any, rows: int) -> None:
        if streamer is not None and rows > 1:
            raise ValueError(f"expected a single prompt with a streamer, got {rows}")
        self.streamer = streamer

    def put(self, committed: list[list[int]]) -> None:
        if self.streamer is not None:
            self.streamer.put(torch.tensor(committed[0]))

    def end(self) -> None:
        if self.streamer is not None:
            self.streamer.end()
