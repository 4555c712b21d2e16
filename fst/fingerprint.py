"""Telling vocabularies apart: models that number their tokens differently must not be mixed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from operator import itemgetter


def vocabulary_fingerprint(vocabulary: Mapping[str, int]) -> str:
    """A short hash of a token -> id table, the same for the same table in any order: ``sha256:`` and 16 hex digits."""
    lines = [f"{number}\t{token}\n" for token, number in sorted(vocabulary.items(), key=itemgetter(1))]
    return f"sha256:{hashlib.sha256(''.join(lines).encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
