"""Frozen dataclasses that hold arrays: comparing or hashing one never asks an array for its truth."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import latticebpd

ROOT = Path(latticebpd.__file__).parent.parent
HOLDS_ARRAYS = re.compile(r"\b(ndarray|NDArray|Tensor|Records|Ints|Floats|NgramTable|Texts)\b")


def test_dataclasses_with_arrays_compare_by_identity_or_by_a_rule_of_their_own() -> None:
    looked_at, wrong = 0, []
    for package in ("fst", "latticebpd", "lm_training", "benchmarks"):
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.ClassDef):
                    continue
                options = [
                    set(map(ast.unparse, call.keywords)) for call in node.decorator_list if isinstance(call, ast.Call)
                ]
                annotations = [ast.unparse(field.annotation) for field in node.body if isinstance(field, ast.AnnAssign)]
                if not any("frozen=True" in kept for kept in options) or not any(
                    HOLDS_ARRAYS.search(text) and "Callable" not in text for text in annotations
                ):
                    continue
                looked_at += 1
                if not any("eq=False" in kept for kept in options):
                    wrong.append(f"{file.relative_to(ROOT)}: {node.name}")
    assert looked_at > 40
    assert wrong == [], "give these eq=False, or the equality of latticebpd.lattices.values"
