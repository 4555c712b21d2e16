"""The decoding dependency graph: which earlier tokens a token had to wait for, found by measuring (Santilli 2023,
section 3.5).

A pass changes the value at place ``i`` because the pass before it changed values before ``i``. Let that earlier pass
have read ``u`` and found ``v``, and the later one have read ``v`` and found ``w`` with ``w_i != v_i``. A set of the
places at which ``u`` and ``v`` differ *suffices* for the change if the model's choice at ``i`` is ``w_i`` where that
set holds ``v`` and everything else ``u``. All of them together suffice, since that is what the later pass read; none of
them does not, since the earlier pass found ``v_i`` there. The change's *causes* are a set that suffices and of which no
single place can be left out. It is found from all of them: one place after the other is left out where the rest still
suffices, values that are not right first, then the nearest first; this is repeated until nothing more can be left out.
Several such sets may exist; the order makes the answer one, and keeps tokens that are right before guesses that are
not.

Place ``i`` *waited for* place ``j`` if ``j``'s becoming right, be it for a while, caused the change that made ``i``
right for good, either directly or through values that were not right themselves but helped. A value that was right at
its first look, and stayed so, waited for nothing. An edge that others imply, because who ``i`` waited for had waited
for ``j`` too, is *redundant*; :attr:`Dependencies.edges` leaves those out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessorList

from latticebpd.decoding.prompts import Prompts
from latticebpd.decoding.session import Ids, Session
from latticebpd.decoding.stopping import Text
from latticebpd.jacobi.trajectory import UNKNOWN, Trajectory
from latticebpd.target.recompute import RecomputingVerifier
from latticebpd.target.stock_model import BaseModel, Model

READ_TOGETHER = 8192
"""Tokens of one pass, about: several texts are read as rows of one batch."""


@dataclass(frozen=True)
class Change:
    """Pass ``number`` (from 1) changed the value at ``place``.

    causes: the places before it whose changes in the pass before were its causes; none if no pass had looked at the
        place before.
    probabilities: for each cause, that of the new value where this cause alone is undone; another value is more
        probable then.
    """

    number: int
    place: int
    causes: list[int]
    probabilities: list[float]


@dataclass(frozen=True)
class Wait:
    """Place ``place`` waited for place ``on``.

    probability: of the right token at ``place`` where ``on`` alone had not become right; None where it waited through
        other values that were not right themselves.
    """

    place: int
    on: int
    probability: float | None


@dataclass(frozen=True)
class Dependencies:
    """What each place of a text waited for.

    waits: for every place, from the first place that it waited for to the last.
    changes: those that made places right for good and those through which they waited, by pass and place.
    """

    waits: list[list[Wait]]
    changes: dict[tuple[int, int], Change]

    @cached_property
    def edges(self) -> list[Wait]:
        """The waits that no others imply, by place."""
        before: list[set[int]] = []  # everything that a place waits for, however indirectly
        kept = []
        for waits in self.waits:
            implied: set[int] = set().union(*(before[wait.on] for wait in waits))
            kept += [wait for wait in waits if wait.on not in implied]
            before.append(implied | {wait.on for wait in waits})
        return kept


def dependencies(
    model: Model,
    input_ids: Ids,
    found: Trajectory,
    *,
    max_new_tokens: int = 256,
    eos_token_id: int | Sequence[int] | None = None,
    logits_processor: LogitsProcessorList | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> Dependencies:
    """Measure one text's dependencies; each possible cause costs a reading of the text up to the place that changed.

    Args:
        model, input_ids, max_new_tokens, eos_token_id, logits_processor: as for the decode; a single prompt or source
            without padding.
        found: the decode's trajectory.
        on_progress: called with the share that is done, now and then.

    Raises:
        ValueError: more than one prompt, or a text that is not what the model writes for this prompt.
    """
    ids = torch.as_tensor(input_ids)
    limits: Any = {"max_new_tokens": max_new_tokens, "eos_token_id": eos_token_id, "stop_strings": []}
    session = Session.begin(model, ids, torch.ones_like(ids), logits_processor=logits_processor, **limits)
    if len(session.prompts) != 1:
        raise ValueError(f"expected a single prompt, got {len(session.prompts)}; measure one text after the other")
    reader = _Reader(session.base, session.prompts, session.texts[0])
    return _measure(reader, found, on_progress or (lambda _: None))


def _measure(reader: _Reader, found: Trajectory, on_progress: Callable[[float], None]) -> Dependencies:
    """Changes are measured from each place's last one backwards, as far as values that were not right lead."""
    changes: dict[tuple[int, int], Change] = {}
    last = [(int(number), place) for place, number in enumerate(found.right_since)]
    asked = [change for change in last if change[0] > 0]
    while asked:
        for change in _causes(reader, found, asked):
            changes[change.number, change.place] = change
        on_progress(len(changes) / (len(changes) + len(asked)))
        guesses = {
            (number - 1, cause)
            for number, place in asked
            for cause in changes[number, place].causes
            if not found.right[number - 1, cause]
        }
        asked = sorted(guesses - changes.keys())

    @cache
    def waited_for(number: int, place: int) -> dict[int, float | None]:
        change = changes[number, place]
        waits: dict[int, float | None] = {}
        for cause, probability in zip(change.causes, change.probabilities, strict=True):
            if found.right[number - 1, cause]:
                waits[cause] = probability
            else:
                for on in waited_for(number - 1, cause):
                    waits.setdefault(on, None)
        return waits

    waits = [waited_for(number, place) if number else {} for number, place in last]
    return Dependencies(
        [[Wait(place, on, each[on]) for on in sorted(each)] for place, each in enumerate(waits)], changes
    )


def _causes(reader: _Reader, found: Trajectory, asked: list[tuple[int, int]]) -> list[Change]:
    """The causes of changes, each given as pass and place; all changes are asked about in one batch of texts."""
    looked = ~np.isnan(found.probabilities)

    def read(trials: list[tuple[tuple[int, int], set[int]]]) -> list[tuple[bool, float]]:
        """For changes and the changes of the pass before that are kept: whether those suffice, and the new value's
        probability."""
        texts = []
        for (number, place), kept in trials:
            former, latter = found.values[number - 2, :place].tolist(), found.values[number - 1, :place].tolist()
            texts.append([latter[j] if j in kept else former[j] for j in range(place)])
        return reader.read(texts, [int(found.values[change]) for change, _ in trials])

    kept: dict[tuple[int, int], set[int]] = {}
    for number, place in asked:
        if number > 1 and looked[number - 2, place]:
            kept[number, place] = set(
                np.flatnonzero(found.values[number - 2, :place] != found.values[number - 1, :place]).tolist()
            )
    if not all(suffices for suffices, _ in read(list(kept.items()))):
        raise ValueError(
            "expected the trajectory of a decode of this prompt by this model, got another's; "
            "in half precision near ties round differently: decode in float32"
        )
    undone: dict[tuple[int, int], dict[int, float]] = {change: {} for change in kept}
    unsettled = list(kept)
    while unsettled:
        smaller = set()
        candidates = {
            change: sorted(kept[change], key=lambda j: (found.right[change[0] - 1, j], -j)) for change in unsettled
        }
        for round_ in range(max(map(len, candidates.values()))):
            trials = [(change, candidates[change][round_]) for change in unsettled if round_ < len(candidates[change])]
            results = read([(change, kept[change] - {cause}) for change, cause in trials])
            for (change, cause), (suffices, probability) in zip(trials, results, strict=True):
                if suffices:
                    kept[change].remove(cause)
                    smaller.add(change)
                else:
                    undone[change][cause] = probability
        unsettled = sorted(smaller)  # a set is done when a whole round found nothing to leave out
    found_causes = [sorted(kept.get(change, ())) for change in asked]
    return [
        Change(*change, causes, [undone[change][cause] for cause in causes])
        for change, causes in zip(asked, found_causes, strict=True)
    ]


@dataclass(frozen=True)
class _Reader:
    """The model's choice behind texts: plain passes without a cache."""

    model: BaseModel
    prompts: Prompts
    text: Text

    def read(self, texts: list[list[int]], expected: list[int]) -> list[tuple[bool, float]]:
        """For each text, new tokens only: whether the model goes on with the expected token, and that token's
        probability."""
        assert not any(UNKNOWN in text for text in texts)
        found: list[tuple[bool, float]] = []
        prompt = self.prompts.tokens[0]
        while len(found) < len(texts):
            start = len(found)
            rows = max(1, READ_TOGETHER // (len(prompt) + max(map(len, texts[start:])) + 1))
            chunk = [[*prompt, *text] for text in texts[start : start + rows]]
            source = self.prompts.encoded
            if source is not None:
                source = source.select(torch.zeros(len(chunk), dtype=torch.long, device=self.model.device))
            logits = (
                RecomputingVerifier(self.model, source).prefill(chunk).logits_of(range(len(chunk)), [0] * len(chunk))
            )
            if self.text.processors:
                pairs = zip(texts[start : start + rows], logits, strict=True)
                logits = torch.stack([self.text.processed(text, one) for text, one in pairs])
            wanted = torch.tensor(expected[start : start + rows], device=logits.device)
            right = logits.argmax(dim=-1) == wanted
            probabilities = logits.float().softmax(dim=-1).gather(-1, wanted[:, None])[:, 0]
            found += zip(right.tolist(), probabilities.tolist(), strict=True)
        return found
