"""The examples of README and guides run, their links lead somewhere, the file map is true."""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from transformers import LlamaConfig, LlamaForCausalLM

from latticebpd.cli import COMMANDS
from latticebpd.drafters.bundled import ASSETS
from latticebpd.lattices.texts import Texts
from latticebpd.measuring.collect import CollectOptions, collect
from tests.helpers.page_files import block_drafter, mask_drafter, stock_target, translator

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).with_suffix("").as_posix(): path for path in sorted(DOCS.rglob("*.md"))}


def python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture(scope="module")
def example() -> tuple[dict[str, Any], str]:
    """The names that the README's example leaves, and what it printed."""
    code = python_blocks(README)[0]
    assert len([line for line in code.splitlines() if line.strip() and not line.startswith("#")]) <= 10
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    return names, printed.getvalue()


def test_ten_line_example_runs(example: tuple[dict[str, Any], str]) -> None:
    names, printed = example
    assert names["drafts"].tokens.shape == (4, 2)
    assert len(names["best"]) == 3
    answer, loaded = names["answer"], names["loaded"]
    text = loaded.tokenizer.decode(answer.tokens[0, answer.prompt_length :], skip_special_tokens=True)
    assert json.loads(text).keys() == {"name"}
    assert names["out"].sequences.shape[1] == len(names["loaded"].encode("The history of the city")) + 32
    assert printed.startswith("The history of the city")


def prepare_files(guide: str, names: dict[str, Any]) -> None:
    """What a guide's commands would have made, over the bundled vocabulary, in the working directory."""
    vocab_size = names["loaded"].target.vocab_size
    shutil.copyfile(ASSETS / "lm.fst", "written.fst")
    if guide == "training/rescorers":
        shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, **shape)).save_pretrained("rescorer")
    elif guide == "analysis":
        prompt = names["loaded"].encode("The history of the city")
        options = CollectOptions(max_new_tokens=12)
        collect(names["loaded"].source, Texts.of_rows([prompt], [len(prompt)]), options)[0].save("lattices")
    elif guide in ("drafters", "learned-lattices"):
        stock_target(Path("target"))
        shutil.copytree("target", "small-model")
        block_drafter(Path("drafter"))
        shutil.copyfile(ASSETS / "lm.fst", "lm.fst")
    elif guide == "gad":
        translator(Path("translator"))
        mask_drafter(Path("drafter"))
        names["source_ids"] = [5, 6, 7, 0]


@pytest.mark.parametrize("guide", [name for name, path in PAGES.items() if "```python" in path.read_text("utf-8")])
def test_examples_of_guides_run_on_the_bundled_model(
    guide: str,
    example: tuple[dict[str, Any], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = dict(example[0])
    monkeypatch.chdir(tmp_path)
    prepare_files(guide, names)
    for block in python_blocks(PAGES[guide].read_text(encoding="utf-8")):
        exec(block, names)
    if guide == "acceptance":
        assert "64 tokens of 2 rows, all the base model's own" in capsys.readouterr().out


def test_the_readme_is_short_and_the_page_of_commands_names_them_all() -> None:
    assert len(README.splitlines()) <= 120
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    for name, position in COMMANDS.items():
        module, attribute = position.split(":")
        program = getattr(import_module(module), attribute)
        held = program.registered_commands if isinstance(program, typer.Typer) else []
        for command in [f"{name} {each.name or each.callback.__name__}" for each in held] or [name]:
            assert f"latticebpd {command}" in page or f"`{command}`" in page, command


def test_pictures_and_modules_of_the_architecture_are_those_there_are() -> None:
    """After a module or a room came or went: ``python docs/draw.py``."""
    draw = runpy.run_path(str(ROOT / "docs" / "draw.py"))
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert draw["with_modules"](text) == text
    for name in ("rooms", "flow"):
        assert (ROOT / "docs" / f"{name}.svg").read_text(encoding="utf-8") == draw[name]()
        assert f"({name}.svg)" in text
    drawn = [room.split("/")[1] for room in draw["ROOMS"] if room.startswith("latticebpd/")]
    layers = runpy.run_path(str(ROOT / "tests" / "project" / "test_layers.py"))
    assert drawn == list(layers["ROOMS"])


def test_the_page_of_compiled_code_names_every_file() -> None:
    core, engine = (DOCS / "compiled.md").read_text(encoding="utf-8").split("\n## ")[1:]
    for folder, part in (("fst/_core", core), ("latticebpd/cpu/_engine", engine)):
        files = {path.stem for path in (ROOT / folder).glob("*.[ch]pp")}
        assert len(files) > 15
        assert files <= set(re.findall(r"`(\w+)`", part))
        rows = re.findall(r"^\| (`.*?) \|", part, re.M)
        assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} <= files


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *PAGES.values()],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target
