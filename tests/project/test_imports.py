"""Import hygiene: what is public, what stays light, and a shadowed package named."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import fst
import latticebpd

ROOT = Path(latticebpd.__file__).parent.parent


def python(code: str, *, path: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": path} if path else None
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd or ROOT, env=environment, check=False
    )


@pytest.mark.parametrize(
    "module",
    [
        "fst",
        "latticebpd",
        "latticebpd.measuring",
        "latticebpd.cli",
        "latticebpd.drafters",
        "latticebpd.scoring.rescoring",
    ],
)
def test_import_leaves_torch_out(module: str) -> None:
    done = python(f"import sys, {module}; assert not {{'torch', 'transformers'}} & set(sys.modules)")
    assert done.returncode == 0, done.stderr


def test_listing_all_commands_leaves_torch_out_and_parsing_one_leaves_the_others_out() -> None:
    call = "import sys; from latticebpd.cli import app; app({0}, standalone_mode=False); loaded = set(sys.modules); "
    listed = python(
        call.format(["--help"]) + "assert 'lm_training.cli.lm' in loaded and not {'torch', 'transformers'} & loaded"
    )
    assert listed.returncode == 0, listed.stderr
    assert "distill" in listed.stdout
    one = python(call.format(["demo", "--help"]) + "assert not any(name.startswith('lm_training') for name in loaded)")
    assert one.returncode == 0, one.stderr


@pytest.mark.parametrize("module", [fst, latticebpd])
def test_every_public_name_exists(module: object) -> None:
    names = module.__all__
    assert len(names) == len(set(names)) > 5
    for name in names:
        assert getattr(module, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="No latticebpd attribute rescoer"):
        latticebpd.rescoer  # noqa: B018


def test_a_foreign_fst_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "fst.py").write_text("")
    done = python("import latticebpd", path=f"{tmp_path}:{ROOT}", cwd=tmp_path)
    assert done.returncode == 1
    assert "expected latticebpd's own package 'fst', but" in done.stderr
    assert str(tmp_path / "fst.py") in done.stderr


@pytest.mark.parametrize("folder", ["benchmarks", "docs", "latticebpd", "lm_training", "fst"])
def test_every_name_that_is_imported_exists(folder: str) -> None:
    """Also those inside functions, which a test may never call."""
    missing = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if module.split(".")[0] not in ("benchmarks", "fst", "latticebpd", "lm_training"):
                continue
            for alias in node.names:
                if not exists(module, alias.name):
                    missing.append(f"{path.relative_to(ROOT)}: {module}.{alias.name}")
    assert missing == []


def exists(module: str, name: str) -> bool:
    try:
        return hasattr(import_module(module), name) or find_spec(f"{module}.{name}") is not None
    except ModuleNotFoundError:
        return False


def test_what_tests_share_lives_in_helpers() -> None:
    """No test module, and no conftest, imports another: helpers are found in one place."""
    shared = {}
    for path in (ROOT / "tests").rglob("*.py"):
        lines = re.findall(
            r"^ *(?:from|import) (tests\.(?!helpers\b)\S+)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
        if lines:
            shared[path.name] = lines
    assert shared == {}
