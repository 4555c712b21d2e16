"""Acceptance rules by name: the one parser of ``exact``, ``top-k:2``, ``distance:2``, ``min-block:3``, ``beta:5,3`` and
``sample``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from latticebpd.decoding.acceptance import Acceptance, Distance, Exact, MinimumBlock, Sampling, TopBeta, TopK

EXPECTED = "exact, top-k:K, distance:EPSILON, beta:BETA,TAU, min-block:LENGTH, min-block:LENGTH,RULE or sample"

_FORMS: dict[str, Callable[..., Acceptance]] = {
    r"exact": Exact,
    r"top-k:(\d+)": lambda k: TopK(int(k)),
    r"distance:(\d+(?:\.\d+)?)": lambda epsilon: Distance(float(epsilon)),
    r"beta:(\d+),(\d+(?:\.\d+)?)": lambda beta, tau: TopBeta(int(beta), float(tau)),
}
"""What a name looks like -> the rule, made of the groups."""


def parse_rule(text: str, **sampling: Any) -> Acceptance:
    """The rule that a name stands for.

    Args:
        text: ``exact``, ``top-k:2``, ``distance:2``, ``beta:5,3``, ``sample``, or ``min-block:3``, which may name the
            rule that decides behind its tokens, as in ``min-block:3,top-k:2``; else that is ``exact``.
        sampling: arguments of ``Sampling``, for ``sample``; those that are None are as if not given.

    Raises:
        ValueError: another name, a number out of its range, or arguments of ``Sampling`` with a rule that does not
            sample.
    """
    given = {name: value for name, value in sampling.items() if value is not None}
    if (block := re.fullmatch(r"min-block:(\d+)(?:,(.+))?", text)) is not None:
        return MinimumBlock(int(block[1]), parse_rule(block[2] or "exact", **given))
    if text == "sample":
        return Sampling(**given)
    for form, make in _FORMS.items():
        if (found := re.fullmatch(form, text)) is not None:
            if given:
                raise ValueError(f"expected the rule sample with {', '.join(given)}, got {text!r}")
            return make(*found.groups())
    raise ValueError(f"expected an acceptance rule {EXPECTED}, got {text!r}")
