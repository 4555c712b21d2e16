"""The README's example runs, its commands exist, its file map is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def test_ten_line_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    example, *others = python_blocks(README)
    assert len([line for line in example.splitlines() if line.strip() and not line.startswith("#")]) <= 10
    names: dict[str, object] = {}
    exec(example, names)
    assert names["drafts"].tokens.shape == (4, 2)  # type: ignore[attr-defined]
    assert len(names["tree"]) == 3  # type: ignore[arg-type]
    assert names["out"].sequences.shape[1] == len(names["prompt"]) + 32  # type: ignore[attr-defined,arg-type]
    assert capsys.readouterr().out.startswith("The history of the city")
    for other in others:  # they go on from the first one's names
        exec(other, names)
    assert "64 tokens of 2 rows, all the base model's own" in capsys.readouterr().out


def test_contributing_example_drafts_losslessly() -> None:
    import torch

    from latticebpd import generate
    from tests.conftest import tiny_model

    (example,) = python_blocks((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    names: dict[str, type] = {}
    exec(example, names)
    model = tiny_model()
    out = generate(model, [3, 1, 4], names["RepeatDrafter"](), max_new_tokens=20)
    reference = model.base.generate(torch.tensor([[3, 1, 4]]), do_sample=False, max_new_tokens=20, pad_token_id=0)
    assert torch.equal(out.sequences, reference)


def test_every_file_on_the_map_exists() -> None:
    section = README.split("## Where things are")[1]
    package = ""
    for line in section.splitlines():
        if match := re.match(r"    (\w+)/", line):
            package = match[1]
            assert (ROOT / package).is_dir()
        for name in re.findall(r"(\w+\.py)\b", line):
            assert (ROOT / package / name).is_file(), f"{package}/{name}"


def test_every_module_is_on_the_map_or_private() -> None:
    section = README.split("## Where things are")[1]
    for package in ("fst", "lm_training", "latticebpd"):
        modules = {path.name for path in (ROOT / package).glob("*.py") if not path.name.startswith("_")}
        missing = {name for name in modules if name not in section}
        assert not missing, f"{package}: {missing}"
