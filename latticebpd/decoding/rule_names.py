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
"""Pattern of a name -> the rule from its groups."""


def parse_rule(text: str, **sampling: Any) -> Acceptance:
    """The rule of a name; ValueError for another name, a number out of range, or arguments of another rule.

    text: ``exact``, ``top-k:2``, ``distance:2``, ``beta:5,3``, ``sample``, or ``min-block:3``, optionally with the
        rule after the block, as in ``min-block:3,top-k:2``; by default ``exact``.
    sampling: arguments of ``Sampling``, for ``sample``; None leaves one out.
    """
    arguments = {name: value for name, value in sampling.items() if value is not None}
    if (block := re.fullmatch(r"min-block:(\d+)(?:,(.+))?", text)) is not None:
        return MinimumBlock(int(block[1]), parse_rule(block[2] or "exact", **arguments))
    if text == "sample":
        return Sampling(**arguments)
    for form, make in _FORMS.items():
        if (match := re.fullmatch(form, text)) is not None:
            if arguments:
                raise ValueError(f"expected the rule sample with {', '.join(arguments)}, got {text!r}")
            return make(*match.groups())
    raise ValueError(f"expected an acceptance rule {EXPECTED}, got {text!r}")
