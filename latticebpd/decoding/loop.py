"""The decoding loop: draft, verify, accept, commit.

Blockwise parallel decoding is a drafter and an acceptance rule around this loop. The pass that verifies one draft also
yields the hidden states from which the next is drafted (the merged form of Stern 2018, section 4), so each step costs
one pass of the target model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from latticebpd.checks import expect
from latticebpd.constraints.constraint import Constraints
from latticebpd.decoding.acceptance import Acceptance, Exact, accepted_paths, bound
from latticebpd.decoding.decode_rows import Ids, SequenceState
from latticebpd.decoding.log_probs import TokenLogProb, log_probs_of_paths, of_committed
from latticebpd.decoding.session import PendingTokens, Session, TextCache
from latticebpd.drafters.drafter import Drafter, State, drafts_forced, needs_hidden, needs_layers
from latticebpd.drafters.legal_drafts import legal_tree, with_forced
from latticebpd.lattices.drafts import DraftTree
from latticebpd.lattices.values import array_for, as_numpy
from latticebpd.models.target_model import AnyModel
from latticebpd.verification.verifier import Verifier

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import LogitsProcessorList, PreTrainedTokenizerBase, StoppingCriteriaList

EXACT = Exact()


@dataclass(frozen=True)
class Step:
    """What one call did for one row.

    call: number of the pass, from 0.
    tree: the drafts that were verified; ``tree.lattice`` is what they were drawn from.
    accepted: ``tree``'s accepted nodes, a path from the root.
    committed: the tokens added to the text: those of the accepted nodes and the one after them, up to the text's end,
        and what follows if a constraint determines all of it.
    prefill: whether the pass read the row's prompt without a draft, and so is no call.
    """

    call: int
    row: int
    tree: DraftTree
    accepted: list[int]
    committed: list[int]
    prefill: bool = False


@dataclass(frozen=True, eq=False)
class Generated:
    """What a decode produced and cost.

    sequences: ``[rows, length]`` int64, prompt included, as ``generate()`` returns it: finished rows are padded on the
        right. Of an encoder–decoder, the decoder's text. An array of the CPU engine, a tensor of PyTorch.
    prompt_length: columns of the prompts, padding included; new tokens follow.
    accept_counts: histogram over calls of the tokens committed per call; index is the number of tokens, up to the
        deepest draft's and one more.
    num_calls: forward passes that committed tokens, each counted once for every row that it served; so the numbers do
        not depend on how prompts are batched. A *prefill*, which reads a row's prompt without a draft and commits one
        token, is counted apart. A drafter that needs no hidden state drafts before the prompt is read: the pass that
        reads prompt and draft together is a call like any other, and the row has no prefill.
    num_passes: the same passes, each counted once.
    num_tokens: new tokens of all rows, those of prefills included.
    verified_tokens: drafted nodes over all calls; the next token itself is not counted.
    prefilled: tokens that each row's prefill committed: 1, or the whole text if a constraint determines all that
        follows; 0 without a prefill.
    trace: what every call did for every row, in order; None if no trace was asked for.
    cut: for each row whether its text ended at its length limit only. Such a text may be no complete one of a
        constraint.
    log_probs: for each row those of its new tokens; None if they were not asked for.
    """

    sequences: Any
    prompt_length: int
    accept_counts: np.ndarray
    num_calls: int
    num_passes: int
    num_tokens: int
    verified_tokens: int
    prefilled: tuple[int, ...]
    trace: list[Step] | None
    cut: tuple[bool, ...] = ()
    log_probs: list[list[TokenLogProb]] | None = None

    @property
    def tokens(self) -> np.ndarray:
        """``sequences`` as an array."""
        return as_numpy(self.sequences)

    @property
    def block_efficiency(self) -> float:
        """Tokens committed per call; NaN if the prefill was the only pass."""
        committed = float(np.arange(len(self.accept_counts)) @ self.accept_counts)
        return committed / self.num_calls if self.num_calls else float("nan")

    @property
    def block_efficiency_with_prefill(self) -> float:
        """Tokens committed per pass, every pass being counted for every row that it served: greedy decoding's is 1.

        It compares drafters that have a prefill with those that have none, and with Jacobi's ``iteration_speedup``.
        """
        return self.num_tokens / (self.num_calls + sum(map(bool, self.prefilled)))

    def blocks(self, row: int = 0) -> list[list[int]]:
        """A row's new tokens, grouped by the pass that committed them; the first group may be the prefill's token;
        ValueError if no trace was asked for."""
        if self.trace is None:
            raise ValueError("expected a decode with a trace, got one without; pass trace=True")
        end = self.prompt_length + self.prefilled[row]
        first = [self.tokens[row, self.prompt_length : end].tolist()] if self.prefilled[row] else []
        return first + [step.committed for step in self.trace if step.row == row]

    def _repr_html_(self) -> str:
        """For notebooks, with token ids; `latticebpd.show` prints words."""
        from latticebpd.decoding.decode_html import decode_html

        return decode_html(self)


def generate(
    model: AnyModel,
    input_ids: Ids,
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
    use_cache: bool = True,
    text_cache: TextCache | None = None,
    constraint: Constraints = None,
    log_probs: int | None = None,
) -> Generated:
    """Decode a batch; under exact acceptance the text is that of ``generate(do_sample=False)``.

    model: a target model; a blockwise model, or any causal LM or encoder–decoder of ``transformers``, decodes on
        PyTorch.
    input_ids: prompts, or an encoder–decoder's sources: ``[rows, n]`` or, for a single one, ``[n]``.
    drafter, acceptance: propose drafts, and decide which drafted tokens stay.
    max_new_tokens: length limit, >= 1; by default the generation config's, which may be a ``max_length``, else 256. No
        text grows beyond the model's own maximum.
    eos_token_id: token or tokens that end a text; by default the model's own.
    attention_mask: ``[rows, n]``, 0 at padding, on either side. By default, as for ``generate()``, tokens equal to the
        padding token are padding unless that token also ends texts.
    logits_processor: applied to every node's logits with the node's own prefix.
    stopping_criteria: called after every token of every row. Processors and criteria replace the generation config's of
        the same kind, as in ``generate()``.
    streamer: as for ``generate()``; a single prompt only.
    stop_strings, tokenizer: strings that end a text, by default the generation config's, and their tokenizer.
    pad_token_id: fills rows that end early; by default the model's own, else the first that ends texts, else 0.
    trace: keep a :class:`Step` for every call and row.
    use_cache: False reads the entire texts in every pass: slow; for comparison.
    text_cache: of a single prompt; what an earlier decode with it has read of the same text is not read again.
    constraint: what the texts may be, such as ``json_schema(...)``: one for all rows, or one for each. The next token
        is then the best legal one, or drawn from the legal ones; needs ``tokenizer``. Of processors that rule out all
        legal tokens the result is ignored. A text that the length limit cuts off may be no text of the constraint.
    log_probs: keep every new token's log-probability, and those of so many most probable tokens, 0 or more: the target
        model's own before processors and sampling's filters, over the legal tokens where there is a constraint.
    Raises ValueError: unusable prompts, limits, processors, constraints, generation config or model; the message says
        what to do.
    """
    check_drafter(drafter)
    expect(log_probs is None or log_probs >= 0, "log_probs >= 0", log_probs)
    session = Session.begin(
        model, input_ids, attention_mask=attention_mask, max_new_tokens=max_new_tokens, eos_token_id=eos_token_id,
        pad_token_id=pad_token_id, stop_strings=stop_strings, tokenizer=tokenizer, logits_processor=logits_processor,
        stopping_criteria=stopping_criteria, use_cache=use_cache, text_cache=text_cache, constraint=constraint,
    )  # fmt: skip
    if streamer is not None:
        check_streamer(len(session.texts))
        streamer.put(array_for(streamer, session.prompts.prefix))
    return decode(session, drafter, bound(acceptance, session.settings), streamer, trace, log_probs)


def check_drafter(drafter: Drafter) -> None:
    """ValueError for anything but a drafter."""
    methods = (callable(getattr(drafter, name, None)) for name in ("propose", "observe"))
    if isinstance(drafter, type) or not all(methods):
        what = f"the class {drafter.__name__}" if isinstance(drafter, type) else type(drafter).__name__
        raise ValueError(f"expected a drafter, an object with the methods propose and observe, got {what}")


def check_streamer(rows: int) -> None:
    """ValueError for more than one row: a streamer takes a single text."""
    expect(rows <= 1, "a single prompt with a streamer", rows)


def decode(
    session: Session,
    drafter: Drafter,
    acceptance: Acceptance,
    streamer: Any = None,
    trace: bool = False,
    log_probs: int | None = None,
) -> Generated:
    """The loop itself, from a new session to the end of its texts; a streamer already has the prompt."""
    batch, texts = RowBatch.begin(session, drafter, acceptance, log_probs=log_probs), session.texts
    rows = batch.rows
    prefilled = [0] * len(texts)
    steps: list[Step] = []
    sizes: list[tuple[int, int, int]] = []  # of each call: committed tokens, drafted nodes, depth of the tree
    while batch.rows:
        done = batch.step()
        if streamer is not None:
            streamer.put(array_for(streamer, np.array(done[0].committed, np.int64)))
        for step in done:
            prefilled[step.row] += len(step.committed) if step.prefill else 0
        calls = [step for step in done if not step.prefill]
        steps += calls if trace else []
        sizes += [(len(call.committed), len(call.tree), int(call.tree.depths.max(initial=0))) for call in calls]
    if session.text_cache is not None:
        session.text_cache.tokens = texts[0].tokens[: -texts[0].unread]
    if streamer is not None:
        streamer.end()

    committed_counts, nodes, depths = np.array(sizes, dtype=np.int64).reshape(-1, 3).T
    return Generated(
        sequences=session.target.array(session.sequences),
        prompt_length=session.prompts.prefix.shape[1],
        accept_counts=np.bincount(committed_counts, minlength=int(depths.max(initial=0)) + 2),
        num_calls=len(sizes),
        num_passes=batch.num_passes,
        num_tokens=sum(len(text.new_tokens) for text in texts),
        verified_tokens=int(nodes.sum()),
        prefilled=tuple(prefilled),
        trace=steps if trace else None,
        cut=tuple(text.cut for text in texts),
        log_probs=None if log_probs is None else [row.log_probs for row in rows],
    )


@dataclass(eq=False)
class Row:
    """One text of a batch.

    index: by which its drafter and its steps know it, one of its own in the batch.
    rule: bound to the text's settings.
    source: an encoder–decoder's source tokens, else empty.
    hidden: ``[hidden]``, the state that predicted the last token, an array or a tensor; None before the prompt is read.
    top: most probable tokens that ``log_probs`` have at each position; None: there are no ``log_probs``.
    asked: whether the drafter was asked for drafts of it.
    """

    index: int
    text: SequenceState
    rule: Acceptance
    source: Sequence[int] = ()
    hidden: Any = None
    top: int | None = None
    log_probs: list[TokenLogProb] = field(default_factory=list)
    asked: bool = False


class RowBatch:
    """Texts that share passes. A row leaves when its text ends; on the CPU engine, rows join between passes.

    rows: unfinished ones, in the verifier's order.
    num_passes: those that were a call for some row.
    leaves: called with each row that leaves, the verifier and the row's number in it; None: nobody asks.
    """

    leaves: Callable[[Row, Verifier, int], None] | None = None

    def __init__(self, unread: PendingTokens, drafter: Drafter, vocabulary: int, rows: list[Row]) -> None:
        self.unread, self.drafter, self.vocabulary, self.rows, self.num_passes = unread, drafter, vocabulary, rows, 0

    @classmethod
    def begin(
        cls,
        session: Session,
        drafter: Drafter,
        acceptance: Acceptance,
        first: int = 0,
        log_probs: int | None = None,
    ) -> RowBatch:
        """The rows of a new session, with indices from ``first``; ``log_probs`` as for `generate`."""
        session.layers = needs_layers(drafter)
        unread = PendingTokens(session.verifier, session.prompts.tokens, session.read)
        texts = zip(session.texts, session.prompts.sources, strict=True)
        rows = [
            Row(index, text, acceptance, source, top=log_probs) for index, (text, source) in enumerate(texts, first)
        ]
        return cls(unread, drafter, session.target.vocab_size, rows)

    def step(self) -> list[Step]:
        """Draft, verify, accept, commit: one pass, and what it did for each row."""
        rows = self.rows
        drafting = [i for i, row in enumerate(rows) if row.hidden is not None or not needs_hidden(self.drafter)]
        trees = self._draft(drafting)
        verified = self.unread.verify(trees)
        texts = [row.text for row in rows]
        adjust = [text.processed if text.processors else None for text in texts]
        automata = [None if text.automaton is None else (text.automaton, text.automaton_state) for text in texts]
        paths, next_tokens = accepted_paths([row.rule for row in rows], trees, verified, adjust, automata)
        chosen = zip(trees, paths, next_tokens, strict=True)
        tokens = [[*tree.tokens[path].tolist(), token] for tree, path, token in chosen]
        tops = [row.top for row in rows]
        asked = any(top is not None for top in tops)
        log_probs = log_probs_of_paths(tops, paths, tokens, verified, automata) if asked else []
        self.unread.keep(paths, next_tokens)
        steps, hidden = [], verified.hidden
        for i, (row, tree, path) in enumerate(zip(rows, trees, paths, strict=True)):
            committed = row.text.commit(tokens[i])
            if row.top is not None:
                row.log_probs += of_committed(log_probs[i], committed, row.top)
            prefill = row.hidden is None and not len(tree)
            steps.append(Step(self.num_passes, row.index, tree, path, committed, prefill))
            row.hidden = hidden[i, path[-1] + 1 if path else 0]
        if drafting:
            self.drafter.observe([rows[i].index for i in drafting], [steps[i].committed for i in drafting])
        self.num_passes += not all(step.prefill for step in steps)
        self.keep([i for i, text in enumerate(texts) if not text.finished])
        return steps

    def join(self, other: RowBatch) -> None:
        """Take in another batch's rows, after this one's; both have unfinished rows of one engine."""
        self.unread.join(other.unread)
        self.rows = [*self.rows, *other.rows]

    def keep(self, positions: Sequence[int]) -> None:
        """Go on with the rows at these positions only, in ascending order; the others cost nothing more."""
        if self.leaves is not None:
            for i in sorted({*range(len(self.rows))}.difference(positions)):
                self.leaves(self.rows[i], self.unread.verifier, i)
        if 0 < len(positions) < len(self.rows):
            self.unread.select(positions)
        self.rows = [self.rows[i] for i in positions]

    def _draft(self, drafting: Sequence[int]) -> list[DraftTree]:
        """One tree for each row, legal and cut at its text's limit; empty where a row has nothing to draft from, or
        only the model's own token fits into the text."""
        trees = [DraftTree.empty()] * len(self.rows)
        drafted = [i for i in drafting if self.rows[i].text.max_depth]
        proposed = propose(self.drafter, [self._state(i) for i in drafted]) if drafted else []
        for i, tree in zip(drafted, proposed, strict=True):
            if len(tree) and (largest := int(tree.tokens.max())) >= self.vocabulary:
                got = f"{largest} from {type(self.drafter).__name__}; is it made for this model?"
                raise ValueError(f"expected drafted tokens below {self.vocabulary} (the model's vocabulary), got {got}")
            trees[i], self.rows[i].asked = tree, True
        most = self.unread.max_nodes
        return [self._legal(tree, row.text).first(most) for row, tree in zip(self.rows, trees, strict=True)]

    def _legal(self, drafted: DraftTree, text: SequenceState) -> DraftTree:
        """What a text's constraint and limit leave of its tree, with what must follow."""
        if text.automaton is not None:
            drafted = legal_tree(drafted, text.automaton, text.automaton_state)
            if drafts_forced(self.drafter):
                drafted = with_forced(drafted, text.automaton, text.automaton_state)
        return drafted.pruned(text.max_depth)

    def _state(self, i: int) -> State:
        """What the drafter sees of a row."""
        row, layers = self.rows[i], self.unread.verifier.layer_states(i)
        text = row.text
        return State(
            row.index, text.tokens, text.prompt_length, row.hidden, text.max_depth, row.source, layers, text.automaton,
            text.automaton_state, row.asked,
        )  # fmt: skip


def propose(drafter: Drafter, states: Sequence[State]) -> list[DraftTree]:
    """The drafter's trees; ValueError unless there is one for each state."""
    trees, name = drafter.propose(states), type(drafter).__name__
    if not isinstance(trees, Sequence) or not all(isinstance(tree, DraftTree) for tree in trees):
        raise ValueError(f"expected a list of draft trees, got {trees!r:.60} from {name}")
    expect(len(trees) == len(states), f"one tree for each of {len(states)} states", f"{len(trees)} from {name}")
    return trees
