"""Decodes with a model: what a replay of lattices predicts, done.

Walking through the lattices of a text predicts the calls of a decode.  Where the model itself is at hand the decode can
be run; it also shows whether the text is still the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fst.processors import ignore
from latticebpd.checks import expect
from latticebpd.decoding.acceptance import Acceptance, Exact
from latticebpd.decoding.loop import generate
from latticebpd.drafters import Drafter, NoDrafter, drafter_named
from latticebpd.drafters.family import LatticeSource
from latticebpd.drafters.lattice_drafter import OracleDrafter
from latticebpd.drafters.system_names import ORACLE, Models
from latticebpd.measuring.mergeable_counts import ratio
from latticebpd.measuring.quality import MEASURES, References, perplexity
from latticebpd.models.target_model import AnyModel, target_model

EXACT_ALONE: Mapping[str, Acceptance] = {"exact": Exact()}
PERPLEXITY, OF_REFERENCES = "perplexity", "reference-perplexity"
"""The model's of what was written, which rises where a lenient rule strays; and of what should follow the prompts, the
task's (Kim, table 10), which is the model's, whatever drafts."""

Factory = Callable[[Sequence[int]], Drafter]
"""From the base model's own continuation of a prompt, which only an oracle looks at, to a drafter."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """Decodes of the same prompts by several drafters.

    counts: ``[drafters, n]`` calls by tokens committed, from 0 to the most that any committed.
    verified: ``[drafters]`` drafted tokens in all passes.
    texts: how many prompts. differing: ``[drafters]`` texts that are not the given ones: under exact acceptance the
        lattices are another model's, or were computed in another precision.
    written: ``[drafters][texts]`` prompt and new tokens, and the prompt's length.
    """

    names: tuple[str, ...]
    counts: np.ndarray
    verified: np.ndarray
    texts: int
    differing: np.ndarray
    written: tuple[tuple[tuple[list[int], int], ...], ...]

    @property
    def calls(self) -> np.ndarray:
        """``[drafters]``"""
        return self.counts.sum(axis=1)

    @property
    def tokens(self) -> np.ndarray:
        """``[drafters]`` tokens that calls committed; the prefill's are in no count."""
        return self.counts @ np.arange(self.counts.shape[1])

    @property
    def block_efficiency(self) -> np.ndarray:
        """``[drafters]`` tokens a call; NaN where the prefill sufficed."""
        return ratio(self.tokens, self.calls)

    @property
    def block_efficiency_with_prefill(self) -> np.ndarray:
        """``[drafters]`` the same with every prompt's prefill as a call, and the token that it yields."""
        return ratio(self.tokens + self.texts, self.calls + self.texts)


def decode(
    model: AnyModel,
    texts: Iterable[tuple[Sequence[int], int]],
    drafters: Mapping[str, Factory],
    on_decode: Callable[[], object] = ignore,
    given_text: bool = False,
    rules: Mapping[str, Acceptance] = EXACT_ALONE,
    eos_ids: Sequence[int] | None = None,
) -> Decoded:
    """Write the texts again with every drafter.

    texts: tokens, prompt included, and length of the prompt, as ``latticebpd.lattices.shards.texts_of`` yields
        them; the model's own greedy texts.
    given_text: the texts are a data set's instead; of each, the model first writes as much by itself.
    rules: acceptance rules by name; every drafter decodes under each.
    eos_ids: tokens that end a text; None for the model's own.
    """
    ways = [
        (name, factory, rule, acceptance) for rule, acceptance in rules.items() for name, factory in drafters.items()
    ]
    counts = np.zeros((len(ways), 1), np.int64)
    verified, differing = np.zeros(len(ways), np.int64), np.zeros(len(ways), np.int64)
    written: list[list[tuple[list[int], int]]] = [[] for _ in ways]
    number, is_encoder_decoder = 0, target_model(model).is_encoder_decoder
    for text, prompt_length in texts:
        # An encoder–decoder's output begins with its start token instead of the prompt.
        begin = 1 if is_encoder_decoder else prompt_length
        prompt, continuation = list(text[:prompt_length]), list(text[prompt_length:])
        number += 1
        # Every token of a prompt is read, also one that has the padding's id
        options: Any = {
            "max_new_tokens": len(continuation), "eos_token_id": eos_ids, "attention_mask": [[1] * prompt_length],
        }  # fmt: skip
        if given_text:
            own = generate(model, prompt, NoDrafter(), **options)
            continuation = own.tokens[0, begin:].tolist()
        for row, (_, drafter_of, _, acceptance) in enumerate(ways):
            out = generate(model, prompt, drafter_of(continuation), acceptance, **options)
            new = out.tokens[0, begin:].tolist()
            counts = np.pad(counts, ((0, 0), (0, max(0, len(out.accept_counts) - counts.shape[1]))))
            counts[row, : len(out.accept_counts)] += out.accept_counts
            verified[row] += out.verified_tokens
            differing[row] += new != continuation
            written[row].append(([*prompt, *new], prompt_length))
            on_decode()
    expect(number, "at least one text")
    names = tuple(name if rule == "exact" else f"{name}, {rule}" for name, _, rule, _ in ways)
    return Decoded(names, counts, verified, number, differing, tuple(map(tuple, written)))


def system_drafters(
    source: LatticeSource, systems: Sequence[str], lm: Models, alpha: float | None, prompt_context: bool = True
) -> dict[str, Factory]:
    """Systems on a source's lattices by name, see ``latticebpd.drafters.system_names``, the oracle among them."""

    def factory(system: str) -> Factory:
        if system == ORACLE:
            return partial(OracleDrafter, source)
        return lambda _: drafter_named(system, source, lm, alpha, prompt_context)

    return {system: factory(system) for system in systems}


def check_measures(names: Sequence[str]) -> None:
    """Raises ValueError for an unknown measure."""
    known = (PERPLEXITY, OF_REFERENCES, *MEASURES)
    for name in names:
        expect(name in known, f"measures among {', '.join(known)}", repr(name))


def qualities(
    decoded: Decoded,
    model: AnyModel,
    words: Callable[[list[int]], str],
    measures: Sequence[str],
    references: References = (),
    right: Sequence[tuple[Sequence[int], int]] = (),
) -> dict[str, list[float]]:
    """Of every measure, what the texts of each drafter and rule are worth.

    measures: ``perplexity``, ``reference-perplexity`` and names of ``quality.MEASURES``. references: of every text, for
    all but perplexity. right: tokens of each prompt and of what should follow it, and the prompt's length, for
    ``reference-perplexity``. Raises ValueError for an unknown measure, or missing references.
    """
    check_measures(measures)
    fits = len(references) == decoded.texts or set(measures) <= {PERPLEXITY}
    expect(fits, f"references of {decoded.texts} texts", len(references))
    values: dict[str, list[float]] = {}
    for name in measures:
        if name == PERPLEXITY:
            values[name] = [perplexity(model, texts) for texts in decoded.written]
        elif name == OF_REFERENCES:
            values[name] = [perplexity(model, right)] * len(decoded.names)
        else:
            written = ([words(text[length:]) for text, length in texts] for texts in decoded.written)
            values[name] = [MEASURES[name](texts, references) for texts in written]
    return values
