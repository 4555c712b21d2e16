"""How tests call the program: the fixture ``run`` of conftest."""

from __future__ import annotations

from collections.abc import Callable

Run = Callable[..., tuple[int, str, str]]
"""Arguments -> exit status, standard output, standard error."""
