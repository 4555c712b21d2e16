"""The decoding dependency graph: which earlier tokens a token waited for, measured (Santilli 2023, section 3.5).

A pass changes the value at position ``i`` because the pass before it changed values before ``i``. Let the earlier pass
have read ``u`` and computed ``v``, and the later one have read ``v`` and computed ``w`` with ``w_i != v_i``. A subset
of the positions at which ``u`` and ``v`` differ *suffices* for the change if the model's choice at ``i`` is ``w_i``
with ``v`` in that subset and ``u`` everywhere else. The full set suffices, since the later pass read it; the empty set
does not, since the earlier pass computed ``v_i`` from it. The change's *causes* are a minimal set that suffices:
starting from all positions, each is removed if the rest still suffices, wrong values first, then the nearest first,
until none can be removed. Several minimal sets may exist; the order makes the answer unique and prefers right tokens.

Position ``i`` *waited for* position ``j`` if ``j``'s becoming right, even for a while, caused the change that made
``i`` right for good, directly or through wrong values. A value that was right from its first pass on waited for
nothing. An edge is *redundant* if others imply it, because a position that ``i`` waited for had itself waited for
``j``; :attr:`Dependencies.edges` leaves those out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Unpack

import numpy as np
import torch

from fst.processors import ignore
from latticebpd.checks import expect
from latticebpd.decoding.decode_rows import Ids
from latticebpd.decoding.session import Session, SessionOptions
from latticebpd.jacobi.solution import UNKNOWN, Trajectory
from latticebpd.models.transformers.transformers_model import Model, TransformersModel
from latticebpd.verification.recompute import RecomputingVerifier

TOKENS_PER_PASS = 8192  # approximately

_Change = tuple[int, int]  # number of a pass, from 1, and a position


@dataclass(frozen=True)
class Change:
    """Pass ``number`` (from 1) changed the value at ``position``.

    causes: earlier positions, changed by the pass before; none if no earlier pass computed the position.
    probabilities: of the new value, with one cause undone; another value is then more probable.
    """

    number: int
    position: int
    causes: list[int]
    probabilities: list[float]


@dataclass(frozen=True)
class Wait:
    """Position ``position`` waited for position ``on``.

    probability: of the right token at ``position`` with only ``on`` undone; None if it waited through wrong values.
    """

    position: int
    on: int
    probability: float | None


@dataclass(frozen=True)
class Dependencies:
    """What each position of a text waited for.

    waits: for every position, from the first position that it waited for to the last.
    changes: those that made positions right for good and those through which they waited, by pass and position.
    """

    waits: list[list[Wait]]
    changes: dict[_Change, Change]

    @cached_property
    def edges(self) -> list[Wait]:
        """The waits that no others imply, by position."""
        reachable: list[set[int]] = []  # everything that a position waits for, directly or not
        edges = []
        for waits in self.waits:
            implied: set[int] = set().union(*(reachable[wait.on] for wait in waits))
            edges += [wait for wait in waits if wait.on not in implied]
            reachable.append(implied | {wait.on for wait in waits})
        return edges


def dependencies(
    model: Model,
    input_ids: Ids,
    trajectory: Trajectory,
    *,
    on_progress: Callable[[float], object] = ignore,
    **options: Unpack[SessionOptions],
) -> Dependencies:
    """Measure one text's dependencies; each possible cause costs a reading of the text up to the changed position.

    model, input_ids, options: as for the decode; a single prompt or source without padding. on_progress: called with
    the finished share. Raises ValueError for more than one prompt, or a text that the model does not write for it.
    """
    ids = torch.as_tensor(input_ids)
    options = {"max_new_tokens": 256, **options, "attention_mask": torch.ones_like(ids), "stop_strings": []}
    session = Session.begin(model, ids, **options)
    expect(len(session.texts) == 1, "a single prompt", len(session.texts), "measure one text after the other")
    # From each position's last change backwards, as far as wrong values lead
    changes: dict[_Change, Change] = {}
    last = [(int(number), position) for position, number in enumerate(trajectory.right_since)]
    pending = [change for change in last if change[0] > 0]
    while pending:
        changes |= _measure(session, trajectory, pending)
        on_progress(len(changes) / (len(changes) + len(pending)))
        guesses = {
            (number - 1, cause)
            for number, position in pending
            for cause in changes[number, position].causes
            if not trajectory.right[number - 1, cause]
        }
        pending = sorted(guesses - changes.keys())

    @cache
    def waits_of(number: int, position: int) -> dict[int, float | None]:
        change = changes[number, position]
        waits: dict[int, float | None] = {}
        for cause, probability in zip(change.causes, change.probabilities, strict=True):
            if trajectory.right[number - 1, cause]:
                waits[cause] = probability
            else:
                for on in waits_of(number - 1, cause):
                    waits.setdefault(on, None)
        return waits

    waits = [sorted(waits_of(*change).items()) if change[0] else [] for change in last]
    named = [[Wait(position, on, probability) for on, probability in each] for position, each in enumerate(waits)]
    return Dependencies(named, changes)


def _measure(session: Session, trajectory: Trajectory, pending: list[_Change]) -> dict[_Change, Change]:
    """The causes of changes; the texts of all changes are read in the same batches."""

    def test(trials: list[tuple[_Change, set[int]]]) -> list[tuple[bool, float]]:
        """Whether each change's subset suffices, and the new value's probability."""
        texts = []
        for (number, position), subset in trials:
            before, after = trajectory.values[number - 2 : number, :position].tolist()
            texts.append([after[j] if j in subset else before[j] for j in range(position)])
        return _read(session, texts, [int(trajectory.values[change]) for change, _ in trials])

    causes: dict[_Change, set[int]] = {}
    for number, position in pending:
        if number > 1 and not np.isnan(trajectory.probabilities[number - 2, position]):
            before, after = trajectory.values[number - 2 : number, :position]
            causes[number, position] = set(np.flatnonzero(before != after).tolist())
    remedy = "in half precision near ties round differently: decode in float32"
    same = all(suffices for suffices, _ in test(list(causes.items())))
    expect(same, "the trajectory of a decode of this prompt by this model", "another's", remedy)
    undone: dict[_Change, dict[int, float]] = {change: {} for change in causes}
    open_changes = list(causes)
    while open_changes:
        order = {
            change: sorted(causes[change], key=lambda j: (trajectory.right[change[0] - 1, j], -j))
            for change in open_changes
        }
        reduced = set()
        for i in range(max(map(len, order.values()))):
            trials = [(change, order[change][i]) for change in open_changes if i < len(order[change])]
            results = test([(change, causes[change] - {cause}) for change, cause in trials])
            for (change, cause), (suffices, probability) in zip(trials, results, strict=True):
                if suffices:
                    causes[change].remove(cause)
                    reduced.add(change)
                else:
                    undone[change][cause] = probability
        open_changes = sorted(reduced)  # a set is minimal once a full round has removed nothing
    minimal = {change: sorted(causes.get(change, ())) for change in pending}
    return {change: Change(*change, each, [undone[change][j] for j in each]) for change, each in minimal.items()}


def _read(session: Session, texts: list[list[int]], expected: list[int]) -> list[tuple[bool, float]]:
    """For each text, new tokens only: whether the model continues with the expected token, and its probability; by
    plain passes without a cache."""
    assert not any(UNKNOWN in text for text in texts)
    results: list[tuple[bool, float]] = []
    prompt, source, text = session.prompts.tokens[0], session.prompts.encoded, session.texts[0]
    while len(results) < len(texts):
        start = len(results)
        rows = max(1, TOKENS_PER_PASS // (len(prompt) + max(map(len, texts[start:])) + 1))
        chunk = texts[start : start + rows]
        target = TransformersModel.of(session.target)
        repeated = torch.zeros(len(chunk), dtype=torch.long, device=target.device)
        verifier = RecomputingVerifier(target, None if source is None else source.select(repeated))
        verified = verifier.prefill([[*prompt, *tokens] for tokens in chunk])
        logits = verified.logits_of(range(len(chunk)), [0] * len(chunk))
        if text.processors:
            logits = torch.stack([text.processed(tokens, line) for tokens, line in zip(chunk, logits, strict=True)])
        wanted = torch.tensor(expected[start : start + rows], device=logits.device)
        right = logits.argmax(dim=-1) == wanted
        probabilities = logits.float().softmax(dim=-1).gather(-1, wanted[:, None])[:, 0]
        results += zip(right.tolist(), probabilities.tolist(), strict=True)
    return results
