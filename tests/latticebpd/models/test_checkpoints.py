"""Models' folders whose config.json is not what it should be: one kind of error, whatever the value, and no random
weights."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from latticebpd.drafters.bundled import MODEL
from latticebpd.models.transformers.checkpoints import load_base
from tests.helpers.forked_commands import run_forked

CONFIG = json.loads((MODEL / "config.json").read_text())
SHAPE = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size", "model_type")
"""Without these being right the weights cannot fit."""
VALUES = (None, -1, 0, 3, "x", 1e308, 10**12, [], {}, True, 3.5, "gpt2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(MODEL / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("field", sorted(CONFIG))
def test_damaged_values_are_one_kind_of_error_or_do_not_matter(folder: Path, field: str) -> None:
    named = f"^{re.escape(str(folder))}(/config.json)?: "
    for value in VALUES:
        (folder / "config.json").write_text(json.dumps({**CONFIG, field: value}))
        with nullcontext() if loads(folder) else pytest.raises(ValueError, match=named):
            load_base(folder)
        fewer = field == "num_hidden_layers" and value in (3, True)  # what is too much in a file is never read
        assert not loads(folder) or fewer or field not in SHAPE or value == CONFIG[field]


def loads(folder: Path) -> bool:
    try:
        load_base(folder)
    except ValueError:
        return False
    return True


def test_weights_that_are_missing_are_never_made_up(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"1 are missing, such as model\.layers\.1\.mlp\.up_proj\.weight"):
        load_base(folder)


def test_whoever_is_no_drafter_is_refused(model: Any) -> None:
    from latticebpd import NoDrafter, generate

    class Silent(NoDrafter):
        def propose(self, states: Any) -> Any:
            return None

    for drafter, message in (
        (NoDrafter, "got the class NoDrafter"),
        (None, "got NoneType"),
        (Silent(), "expected a list of draft trees, got None from Silent"),
    ):
        with pytest.raises(ValueError, match=message):
            generate(model, [1, 2], drafter, max_new_tokens=4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected a model of transformers"):
        generate(None, [1], NoDrafter())  # type: ignore[arg-type]


def test_files_that_this_user_may_not_read_are_no_missing_ones(tmp_path: Path) -> None:
    shutil.copytree(MODEL, tmp_path / "model")
    for file in sorted(path for path in (tmp_path / "model").rglob("*") if path.is_file()):
        file.chmod(0)
        ended = run_forked(["generate", "a", "--model", tmp_path / "model", "--max-new-tokens", 2], ordinary_user=True)
        file.chmod(0o644)
        assert ended.status == 2, file
        assert f"Permission denied: '{file}'" in ended.errors
        assert ended.errors.count("\n") == 1
