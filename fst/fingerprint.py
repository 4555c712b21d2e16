"""Telling vocabularies apart: models that number their tokens differently must not be mixed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping


def vocabulary_fingerprint(vocabulary: Mapping[str, int]) -> str:
    """A short hash of a token -> id table, the same for the same table in any order: ``sha256:`` and 16 hex digits."""
    digest = hashlib.sha256()
    for token, number in sorted(vocabulary.items(), key=lambda item: item[1]):
        digest.update(f"{number}\t{token}\n".encode("utf-8", "surrogatepass"))
    return f"sha256:{digest.hexdigest()[:16]}"
