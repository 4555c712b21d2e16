"""Imports run one way: read from the source of every module, those inside functions and for type checkers included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = (
    "lattices", "constraints", "cpu", "models", "verification", "scoring", "drafters", "decoding", "jacobi",
    "measuring", "report", "hosts", "serving", "cli",
)  # fmt: skip
"""Of ``latticebpd``, from the lowest; below them all is ``fst``, above them ``lm_training``."""
BETWEEN = ("loading", "conversation")
"""Modules of ``latticebpd`` itself that stand above ``decoding`` and below the rooms after it, the lower one first."""
STORIES = (*ROOMS[: ROOMS.index("decoding") + 1], *BETWEEN, *ROOMS[ROOMS.index("decoding") + 1 :])


@dataclass(frozen=True)
class Import:
    """That one module imports another; ``lazy`` where a function does when it is called, or a type checker."""

    importer: str
    imported: str
    lazy: bool

    def __str__(self) -> str:
        return f"{self.importer} -> {self.imported}"


def modules() -> dict[str, Path]:
    """The source of every module of the three packages, by name."""
    paths = [path for package in ("fst", "latticebpd", "lm_training") for path in (ROOT / package).rglob("*.py")]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def imports_of(name: str, path: Path, known: set[str]) -> Iterator[Import]:
    """What a module imports of ``known`` ones; relative imports do not occur."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    eager = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: relative import"
            named = [f"{node.module}.{alias.name}" for alias in node.names]
            modules = [full if full in known else str(node.module) for full in named]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        yield from (Import(name, other, id(node) not in eager) for other in modules if other in known and other != name)


def all_imports() -> list[Import]:
    paths = modules()
    known = {*paths, "fst._core"}
    return [each for name, path in paths.items() for each in imports_of(name, path, known)]


def height(module: str) -> int | None:
    """How high a module stands; None for ``latticebpd`` itself, which names what is public of all its rooms."""
    package, *rest = module.split(".")
    if package == "latticebpd" and rest == ["console"]:
        return 0
    if package == "latticebpd":
        return 1 + STORIES.index(rest[0]) if rest and rest[0] in STORIES else None
    return 0 if package == "fst" else 1 + len(STORIES)


def runs_upwards(imported: Import) -> bool:
    """Whether something imports what stands above it; only ``latticebpd.cli``'s functions may, from ``lm_training``."""
    lower, upper = height(imported.importer), height(imported.imported)
    if lower is None or upper is None or upper <= lower:
        return False
    return not (imported.importer.startswith("latticebpd.cli") and imported.lazy)


def test_imports_run_one_way_from_room_to_room() -> None:
    assert {room.name for room in (ROOT / "latticebpd").iterdir() if (room / "__init__.py").exists()} == set(ROOMS)
    assert [str(each) for each in all_imports() if runs_upwards(each)] == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph: dict[str, set[str]] = {}
    for imported in all_imports():
        graph.setdefault(imported.importer, set()).add(imported.imported)
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from None
    assert order.index("fst._core") < order.index("latticebpd.console") < order.index("lm_training.cli.lm")


def test_the_reader_of_imports_sees_every_kind(tmp_path: Path) -> None:
    """Of a module, of a name in one, inside functions and for type checkers."""
    source = tmp_path / "m.py"
    source.write_text(
        "import a.b\nfrom a import c, name\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from a import b\ndef f():\n    import a\n    def g():\n        from a.c import x\n"
    )
    names = {(one.imported, one.lazy) for one in imports_of("m", source, {"a", "a.b", "a.c"})}
    assert names == {("a.b", False), ("a.c", False), ("a", False), ("a.b", True), ("a", True), ("a.c", True)}
    assert runs_upwards(Import("fst.model", "latticebpd.lattices.lattice", True))
    assert runs_upwards(Import("latticebpd.cli.input_data", "lm_training.data.corpus", False))
    assert not runs_upwards(Import("latticebpd.cli.input_data", "lm_training.data.corpus", True))
    assert runs_upwards(Import("latticebpd.decoding.loop", "latticebpd.loading", True))
    assert not runs_upwards(Import("latticebpd.conversation", "latticebpd.loading", False))
