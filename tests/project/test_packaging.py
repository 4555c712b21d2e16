"""What a wheel needs: one version, extras that are complete, kernels that other processors can compile."""

from __future__ import annotations

import configparser
import re
import tomllib
import zlib
from pathlib import Path

from latticebpd import __version__
from latticebpd._version import __version__ as only_version

ROOT = Path(__file__).parents[2]
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg", encoding="utf-8")
X86 = re.compile(r"__builtin_ia32|__builtin_cpu_supports|gnu::target|immintrin|_mm\d*_")


def unguarded(source: str) -> list[str]:
    """Lines that only x86 processors understand and that no ``#if defined(__x86_64__)`` encloses."""
    depth: list[bool] = []
    lines = []
    for line in source.splitlines():
        directive = line.strip()
        if directive.startswith("#if"):
            depth.append("defined(__x86_64__)" in directive)
        elif directive.startswith(("#else", "#elif")):
            depth[-1] = False
        elif directive.startswith("#endif"):
            depth.pop()
        elif X86.search(line) and not any(depth):
            lines.append(line)
    return lines


def test_the_version_stands_in_one_place() -> None:
    assert __version__ == only_version
    assert SETUP["metadata"]["version"] == "attr: latticebpd._version.__version__"


def test_all_extras_are_in_all_but_those_of_developers() -> None:
    extras = SETUP["options.extras_require"]
    assert set(re.findall(r"%\((\w+)\)s", extras.get("all", raw=True))) == set(extras) - {"all", "docs", "test", "dev"}
    assert "kenlm" in re.findall(r"%\((\w+)\)s", extras.get("test", raw=True))


def test_the_oldest_versions_that_are_tested_are_the_lower_bounds() -> None:
    listed = (ROOT / ".ci/oldest.txt").read_text(encoding="utf-8")
    tested = dict(re.findall(r"^([\w-]+)==([\d.]+)$", listed, re.MULTILINE))
    required = SETUP["options"]["install_requires"]
    bounds = dict(re.findall(r"([\w-]+)>=([\d.]+)", required))
    extras = re.findall(r"([\w-]+)>=([\d.]+)", SETUP["options.extras_require"].get("all"))
    assert bounds.keys() <= tested.keys()
    for name, bound in [*bounds.items(), *extras]:
        assert f"{tested.get(name, bound)}.".startswith(f"{bound}."), name


def test_workflows_run_steps_that_exist() -> None:
    steps = re.findall(r"^    (\w+)\) ", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)
    workflows = (path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").glob("*.yml"))
    run = [words.split() for text in workflows for words in re.findall(r"bash \.ci/run(.*)", text)]
    assert {"lint", "tests", "long"} <= {step for words in run for step in words} <= set(steps)


def test_wheels_are_built_for_every_python_that_the_package_names_and_kept_for_a_tag() -> None:
    wheels = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]
    named = re.findall(r"Python :: 3\.(\d+)", SETUP["metadata"]["classifiers"])
    assert wheels["build"] == [f"cp3{minor}-*" for minor in named]
    assert wheels["linux"]["archs"] == ["x86_64", "aarch64"]
    workflow = (ROOT / ".github/workflows/wheels.yml").read_text(encoding="utf-8")
    assert {"cibuildwheel --output-dir dist", "python -m build --sdist"} <= set(re.findall(r"- run: (.*)", workflow))
    assert "gh release create" in workflow.split("refs/tags/v")[1]


def test_what_only_x86_understands_is_guarded() -> None:
    """The path for all other processors is the last of the kernels' kinds, which their tests run everywhere."""
    for folder in ("fst/_core", "latticebpd/cpu/_engine"):
        for path in sorted((ROOT / folder).glob("*.?pp")):
            assert unguarded(path.read_text(encoding="utf-8")) == [], path.name
    assert unguarded("#if defined(__linux__)\n  __builtin_ia32_pause();\n#endif") == ["  __builtin_ia32_pause();"]
    assert unguarded("#if defined(__x86_64__)\n_mm_pause();\n#else\n_mm_pause();\n#endif") == ["_mm_pause();"]


def test_the_size_that_pages_say_is_that_of_the_wheel() -> None:
    """Nearly all of it are models, which are compressed one by one; code and compiled modules have about 2 MB."""
    assets = [path for path in (ROOT / "latticebpd" / "assets").rglob("*") if path.is_file()]
    megabytes = sum(len(zlib.compress(path.read_bytes(), 6)) for path in assets) / 1e6
    for page in ("README.md", "latticebpd/assets/README.md"):
        (stated,) = re.findall(r"wheel (?:of|has) (\d+) MB", (ROOT / page).read_text(encoding="utf-8"))
        assert 1 < int(stated) - megabytes < 4, page
