"""The shell code of the guide's pages, as commands, and the sizes at which tests run them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_CODE = re.compile(r"^```(\w*)\n(.*?)^```$|((?:^    [^\n]*\n)+)", re.DOTALL | re.MULTILINE)
"""A fenced block with its language, or an indented one, which is a formula or commands."""
_FORMULA = re.compile(r"""[^"'\n-]*( = |->|Σ)""")
"""How no command begins."""
SUBSTITUTES = {"\\\n": " ", "2,15,28": "1,2"}
"""Lines that go on; layers of a small model."""
SIZES = {
    "distill": "--prompts 9 --prompt-tokens 6 --max-new-tokens 20 --shard-prompts 4",
    "train all": "--max-new-tokens 12 --steps 3 -o out",
    "train heads": "--steps 3 --batch-size 2 --serving-prompts 1",
    "train block-drafter": "--steps 3 --batch-size 2 --num-layers 1 --block-size 4",
    "train masks": "--steps 3 --batch-tokens 200",
    "train rescorer": "--steps 3 --batch-size 2",
    "train translation": "--steps 3 --batch-tokens 200 --vocab-size 300",
    "lattices": "--max-new-tokens 16 --limit 9",
    "tune": "--examples 3 --grid 0.5,1",
    "profile": "--rounds 1",
    "generate": "--max-new-tokens 9",
    "serve": "--port 0 --json --max-tokens 9",
    "curl": "-sSf",
}
"""Further options, by command: sizes for a test, a folder of its own for ``train all``, what a test has to be told."""


@dataclass(frozen=True)
class Command:
    """A line of shell code. variables: those of the environment that it sets."""

    variables: dict[str, str]
    program: str
    arguments: list[str]

    @property
    def name(self) -> str:
        """The program, but of our own the command."""
        if self.program != "latticebpd":
            return self.program
        return " ".join(self.arguments[: 2 if self.arguments[0] in ("train", "lm", "models") else 1])

    @property
    def small(self) -> list[str]:
        """The arguments at a test's size."""
        return [*self.arguments, *SIZES.get(self.name, "").split()]


def fences(page: str) -> list[str]:
    """The languages of a page's fenced blocks."""
    return [kind for kind, _, indented in _code(page) if not indented]


def blocks(page: str) -> list[str]:
    """A page's blocks of shell code, fenced or indented."""
    return [
        fenced or indented
        for kind, fenced, indented in _code(page)
        if kind == "sh" or (indented and not _FORMULA.match(indented))
    ]


def _code(page: str) -> list[tuple[str, str, str]]:
    return _CODE.findall((DOCS / f"{page}.md").read_text(encoding="utf-8"))


def commands(block: str) -> list[Command]:
    for long, short in SUBSTITUTES.items():
        block = block.replace(long, short)
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    return [_command(words) for words in lines if words]


def _command(words: list[str]) -> Command:
    variables = list(takewhile(re.compile(r"[A-Z_]+=").match, words))
    program, *arguments = words[len(variables) :]
    return Command(dict(each.split("=", 1) for each in variables), program, arguments)
