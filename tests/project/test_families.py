"""No file names a drafter family but its own: all others reach its drafters by the registry."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from latticebpd.drafters.registry import FAMILIES

ROOT = Path(__file__).parents[2]
TABLES = {f"{package}/__init__.pyi" for package in ("latticebpd", "latticebpd/drafters")}
"""What is public: they say where each public name is, also those of families."""
TRAINING = {
    "heads": {"families/heads.py", "families/head_batches.py", "cli/heads.py", "cli/blockwise.py"},
    "block": {"families/block.py", "families/transition_losses.py", "cli/block_drafter.py"},
    "masks": {"families/masks.py", "cli/masks.py"},
}
"""Files of ``lm_training`` that train a family."""


def sources() -> list[Path]:
    packages = [ROOT / package for package in ("latticebpd", "lm_training")]
    return [path for package in packages for kind in ("py", "pyi") for path in package.rglob(f"*.{kind}")]


def public_modules() -> dict[str, str]:
    """Where a public name of a package is, both with dots."""
    modules = {}
    for table in TABLES:
        package = table.removesuffix("/__init__.pyi").replace("/", ".")
        for module, name in re.findall(r"^from \.(\S+) import (\w+)", (ROOT / table).read_text(), re.MULTILINE):
            modules[f"{package}.{name}"] = f"{package}.{module}.{name}"
    return modules


PUBLIC = public_modules()


def imported(source: str) -> Iterator[str]:
    """The modules and names that a source imports, also inside functions and for type checkers; public names as where
    they are."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                while name in PUBLIC:
                    name = PUBLIC[name]
                yield name


def named(family: str, source: str) -> bool:
    """Whether a source imports the family, or what trains it; ``latticebpd train`` lists commands as the registry lists
    families."""
    training = (name for name in TRAINING.get(family, ()) if name.startswith("families/"))
    modules = {f"lm_training.{name.removesuffix('.py').replace('/', '.')}" for name in training}
    modules.add(f"latticebpd.drafters.{family}")
    return any(f"{name}.".startswith(f"{module}.") for name in imported(source) for module in modules)


@pytest.mark.parametrize("family", [name.split(".")[0] for name in FAMILIES])
def test_no_file_imports_a_family_but_its_own(family: str) -> None:
    own = {f"lm_training/{name}" for name in TRAINING.get(family, ())}
    assert all((ROOT / name).exists() for name in own)
    importers = {str(path.relative_to(ROOT)) for path in sources() if named(family, path.read_text(encoding="utf-8"))}
    others = {name for name in importers if not name.startswith(f"latticebpd/drafters/{family}/")}
    assert others - own - TABLES == set()


@pytest.mark.parametrize(
    "line",
    [
        "from latticebpd.drafters.heads.blockwise import BlockwiseLM",
        "import latticebpd.drafters.heads.blockwise",
        "from latticebpd.drafters import heads",
        "from latticebpd.drafters import HeadLattices",
        "from lm_training.families.heads import train_heads",
        "from latticebpd import BlockwiseLM",
        "def f():\n    from latticebpd.drafters.heads import medusa",
    ],
)
def test_the_reader_of_imports_sees_every_way_to_a_family(line: str) -> None:
    assert named("heads", line)
    assert not named("block", line)
    assert not named("head", line)
