"""JSON files of settings and records: damage is a ``ValueError`` that names the file; writes are atomic.

A dataclass is the schema of its record: `from_record` checks every value against the type of its field.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from fst.files import PathLike, write_text
from fst.printable import plain_words

T = TypeVar("T")

DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError)
"""What reading, parsing and checking raise; invalid JSON and UTF-8 are ValueErrors."""


def read_json(path: PathLike, parse: Callable[[Any], T], problem: str, remedy: str) -> T:
    """What ``parse`` makes of a file's record.

    problem, remedy: begin and end the message of the ValueError for a missing or damaged file, the cause between them.
    """
    try:
        return parse(json.loads(Path(path).read_text(encoding="utf-8")))
    except DAMAGE as error:
        raise ValueError(f"{os.fspath(path)}: {problem} {plain_words(error)}; {remedy}") from error


def read_json_lines(path: PathLike, parse: Callable[[Any], T], expected: str) -> Iterator[T]:
    """What ``parse`` makes of the record in each line that is not blank; the ValueError for a line names file and
    line, and says what was ``expected``."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    record = json.loads(line.strip().decode("utf-8"))
                    json.dumps(record, ensure_ascii=False).encode("utf-8")  # escapes of half a character
                    parsed = parse(record)
                except DAMAGE as error:
                    where = f"{os.fspath(path)}, line {number}"
                    raise ValueError(f"{where}: expected {expected}: {plain_words(error)}") from error
                yield parsed


def from_record(cls: type[T], record: Any, version: int | None = None) -> T:
    """An instance of a dataclass from a JSON object of its fields: numbers, words, truth values, lists, objects, None,
    records.

    version: what the object has for ``format_version``. Raises ValueError for missing or further fields, for values of
    other types, and for numbers that are not finite or too large.
    """
    if not isinstance(record, dict):
        raise ValueError(f"expected an object {{...}}, got {record!r:.60}")
    values = record.copy()
    if version is not None and (got := values.pop("format_version", None)) != version:
        raise ValueError(f"expected format {version}, got {got!r:.60}; update latticebpd")
    schema: Any = cls
    required = {each.name for each in fields(schema) if each.default is each.default_factory is MISSING}
    hints = {each.name: get_type_hints(cls)[each.name] for each in fields(schema)}
    if wrong := sorted(required - values.keys()) or sorted(values.keys() - hints.keys()):
        got = f"{'no' if wrong[0] in hints else 'also'} {wrong[0]!r:.60}"
        raise ValueError(f"expected fields {', '.join(hints)}, got {got}")
    return cls(**{name: _typed(name, hints[name], value) for name, value in values.items()})


def _typed(name: str, hint: Any, value: Any) -> Any:
    kinds = get_args(hint)
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_typed(f"{name}[{i}]", kinds[0], item) for i, item in enumerate(value))
    if get_origin(hint) is dict and isinstance(value, dict):
        return {key: _typed(f"{name}[{key!r:.60}]", kinds[1], item) for key, item in value.items()}
    if type(None) in kinds:
        return None if value is None else _typed(name, kinds[0], value)
    if isinstance(hint, type) and is_dataclass(hint):
        return from_record(hint, value)
    limit = {int: 2**63, float: 1e300}.get(hint)  # no number is beyond it, nor NaN within
    if type(value) in ((int, float) if hint is float else (hint,)) and (limit is None or abs(value) < limit):
        return hint(value)
    words = {int: "an integer of 64 bits", float: "a finite number", str: "text", bool: "true or false"}
    raise ValueError(f"expected {name} as {words.get(hint, 'a list')}, got {value!r:.60}")


def write_json(path: PathLike, record: Any, indent: int | None = None) -> None:
    write_text(path, json.dumps(record, indent=indent) + "\n")
