"""Mutations that the tests must notice: ``python -m tests.mutate [part of a file's name ...]``, an hour for all.

``mutations.toml`` lists them by file. One after another, each is made in a copy of the tree, and the file's tests run
until one fails: the mutation is killed. One that is listed with an explanation changes no result, and must survive.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TIMEOUT = 900
"""Seconds that the tests of one mutation may take: a search that does not end is killed."""
MEMORY = 12 << 30
"""Bytes that they may take."""


EXTENSIONS = {
    "fst/_core": ["-O1"],
    "latticebpd/cpu/_engine": ["-O1", "-ffp-contract=off", "-Wno-psabi"],
}
"""Folders of compiled modules, and how they are compiled: quickly rather than fast."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
INSTRUCTIONS = PROJECT["tool"]["latticebpd"]["instructions"]
"""By file, the processor's instructions that it is compiled for."""


class Tree:
    """A copy of the tree."""

    def __init__(self, root: Path) -> None:
        self.root, self.objects = root, root / "objects"
        listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True)
        built = [str(path.relative_to(ROOT)) for path in [*ROOT.glob("fst/*.so"), *ROOT.glob("latticebpd/cpu/*.so")]]
        for name in [*listed.splitlines(), *built]:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, root / name)
        self.objects.mkdir()

    def compiler(self, *arguments: object) -> str:
        import pybind11  # what changes no compiled file needs none

        includes = (self.root / "fst/include", sysconfig.get_path("include"), pybind11.get_include())
        flags = ("-std=c++20", "-fPIC", "-fvisibility=hidden", "-pthread", *(f"-I{each}" for each in includes))
        done = subprocess.run(["g++", *flags, *map(str, arguments)], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"expected code that compiles, got\n{done.stderr}")
        return done.stdout

    def build(self, changed: Path) -> None:
        """Compile what depends on a changed file, and what was never compiled."""
        folder = next(self.root / name for name in EXTENSIONS if changed.is_relative_to(self.root / name))
        compiled = {source: self.objects / f"{folder.name}-{source.stem}.o" for source in sorted(folder.glob("*.cpp"))}
        for source, file in compiled.items():
            if not file.exists() or str(changed) in self.compiler("-MM", *INSTRUCTIONS.get(source.name, []), source):
                flags = [*EXTENSIONS[str(folder.relative_to(self.root))], *INSTRUCTIONS.get(source.name, [])]
                self.compiler(*flags, "-c", source, "-o", file)
        extension = folder.with_name(folder.name + sysconfig.get_config_var("EXT_SUFFIX"))
        extension.unlink(missing_ok=True)
        self.compiler("-shared", *compiled.values(), "-o", extension)

    def test(self, names: list[str]) -> bool:
        """Whether the tests pass."""
        files = [f"tests/{name}" for name in names]
        command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider"]
        command += ["-m", "not slow and not nightly and not real_model", *files]
        try:
            done = subprocess.run(
                command, cwd=self.root, capture_output=True, text=True, timeout=TIMEOUT, check=False,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
                     "PYTHONPATH": str(self.root)},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            print(f"no end within {TIMEOUT} seconds:", end=" ")
            return False
        return done.returncode == 0


def selected(parts: list[str]) -> dict[str, dict[str, Any]]:
    """The files to mutate, of whose names a part is given; all without one."""
    listed = tomllib.loads((ROOT / "tests/mutations.toml").read_text(encoding="utf-8"))
    for name, entry in listed.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        for old, *_ in entry["mutations"]:
            if text.count(old) != 1:
                sys.exit(f"expected {old!r} once in {name}, found it {text.count(old)} times; change mutations.toml")
    return {name: entry for name, entry in listed.items() if not parts or any(part in name for part in parts)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="parts of the names of the files to mutate; default: all")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    entries = selected(parser.parse_args().parts)
    wrong = total = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder))
        for name, entry in entries.items():
            path = tree.root / name
            original, is_compiled = path.read_text(encoding="utf-8"), path.suffix in (".cpp", ".hpp", ".inc")
            if is_compiled:
                tree.build(path)
            if not tree.test(entry["tests"]):
                sys.exit(f"expected tests that pass without a mutation of {name}, got one that fails")
            for old, new, *explanation in entry["mutations"]:
                mutated = original.replace(old, new)
                path.write_text(mutated, encoding="utf-8")
                if is_compiled:
                    tree.build(path)
                else:
                    compile(mutated, name, "exec")
                survived = tree.test(entry["tests"])
                total, wrong = total + 1, wrong + (survived != bool(explanation))
                outcome = "survived" if survived else "killed  "
                print(f"{outcome} {name}: {old!r} -> {new!r}", *explanation, sep="; ", flush=True)
            path.write_text(original, encoding="utf-8")
            if is_compiled:
                tree.build(path)
    sys.exit(f"{wrong} of {total} outcomes are not the expected ones" if wrong else 0)


if __name__ == "__main__":
    main()
