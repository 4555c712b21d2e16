"""How a command's help is laid out: of many options those first that are used most, the others in a panel of their own.

``typer`` takes a panel where an option is declared. Commands share declarations (``--lm``, ``--weights``), and what one
command needs first is one option of many in another, so panels are named here, command by command. ``typer`` also gives
each part of an option a column, which in a narrow terminal cuts names; here an option has two, its names and the rest.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from latticebpd.console import out

LONG = 8
"""More options than these stand in two panels."""
REST = "More options"
FIRST = {
    "demo": "model every prompts max_new_tokens threads json",
    "generate": "model system max_new_tokens show_blocks trace",
    "chat": "model system system_prompt max_new_tokens show_blocks",
    "lattices": "output prompts model k max_new_tokens",
    "oracle": "k heads model json plot",
    "compare": "lm system model json",
    "report": "output lm model title",
    "serve": "model host port api_key rows queue max_tokens",
    "jacobi": "model algorithm source target json",
    "ddg": "model output limit json",
    "distill": "model output prompts max_new_tokens batch_size weights",
    "profile": "model output columns weights threads json",
    "lm train": "output order smoothing tokenizer max_ngrams",
    "lm kenlm": "output order prune tokenizer",
    "train block-drafter": "model output validation num_layers block_size shortlist steps",
    "train masks": "model output validation block_size steps batch_tokens",
    "train encode": "tokenizer output task prompt_template answer_field chat",
    "train rescorer": "tokenizer output validation preset steps batch_size",
    "train translation": "source target output validation shape steps",
    "train blockwise": "tokenizer output validation steps batch_size",
    "train all": "model output prompts max_new_tokens steps",
    "train hidden": "model whole layers weights",
    "train heads": "model output validation num_heads shortlist steps batch_size",
}
"""Of every command with many options, those used most, by their names in Python."""
UNBROKEN = "\ue000"
"""Stands for a space at which no line may end, until the lines are made."""


def laid_out(command: Any, words: str) -> Any:
    """The command, or group of them, with its options in panels."""
    for name, each in getattr(command, "commands", {}).items():
        laid_out(each, f"{words} {name}")
    if words in FIRST:
        first = FIRST[words].split()
        command.params.sort(key=lambda each: first.index(each.name) if each.name in first else len(first))  # stable
        for each in command.params:
            if each.param_type_name == "option" and each.name not in first:
                each.rich_help_panel = REST
    command.format_help = partial(write_help, command)
    return command


def write_help(command: Any, context: Any, formatter: Any) -> None:
    """Write the help of a command, or of a group, as wide as the terminal, into a pipe 80 columns wide."""
    width = shutil.get_terminal_size().columns
    with out.capture() as shown:
        for part in _parts(command, context, width):
            out.print(part, width=width)
    formatter.write(shown.get().replace(UNBROKEN, " "))


def _parts(command: Any, context: Any, width: int) -> Iterator[Padding | Panel]:
    paragraphs = [" ".join(each.split()) for each in re.split(r"\n\s*\n|\n(?=Example: )", command.help or "")]
    texts = [Text(command.get_usage(context), "yellow"), Text(paragraphs[0])]
    texts += [Text(each, "dim") for each in paragraphs[1:] if not each.startswith("Example: ")]
    examples = [_example(each, width - 2) for each in paragraphs if each.startswith("Example: ")]
    for text in [*texts, *([Text("\n").join(examples)] if examples else [])]:
        yield Padding(text, (0, 1, 1, 1))
    panels: dict[str, list[tuple[Text, Text]]] = {}
    for each in sorted(command.get_params(context), key=lambda each: each.param_type_name):  # stable
        if row := _parameter(each, context):
            usual = "Arguments" if each.param_type_name == "argument" else "Options"
            panels.setdefault(getattr(each, "rich_help_panel", None) or usual, []).append(row)
    for name in getattr(command, "commands", ()):
        each = command.commands[name]
        about = Text(" ".join(each.help.split("\n\n")[0].split()))
        panels.setdefault(each.rich_help_panel or "Commands", []).append((Text(name, "bold cyan"), about))
    for title, rows in panels.items():
        yield Panel(_two_columns(rows), title=title, title_align="left", border_style="dim")


def _example(paragraph: str, width: int) -> Text:
    """An example on lines that end in a backslash, so that a shell takes all of them as one command."""
    begin, command = "Example: ", re.sub(r"\[/?bold\]", "", paragraph.removeprefix("Example: "))
    whole = re.sub(r"""'[^']*'|"[^"]*\"""", lambda quoted: quoted[0].replace(" ", UNBROKEN), command)
    lines = textwrap.wrap(
        begin + whole, width - 2, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    return Text.assemble((begin, "dim"), (" \\\n".join(lines).removeprefix(begin), "bold"))


def _parameter(each: Any, context: Any) -> tuple[Text, Text] | None:
    """The names of an option or argument, and what it is; None for a hidden one."""
    if (record := each.get_help_record(context)) is None:
        return None
    shown, about = record[0], record[1].replace("\\[", "[")  # some versions of typer escape it as markup
    kind, names = shown, Text()
    if each.param_type_name == "option":
        every = {*each.opts, *each.secondary_opts}
        kind = " ".join(word for word in shown.split() if word.rstrip(",") not in every | {"/"})
        names.append(", ".join(sorted(each.opts, key=len, reverse=True)), "bold cyan")
    kind = re.sub(r"(?i) range\b", "", kind)  # the extras say which
    kind = re.sub(r"<list\[(\w+)\]>", lambda of: f"<{of[1].lower()}>", kind)
    about, *extras = about.split("  [")
    if "|" in kind:
        about += f" One of: {kind.strip('<[]>').replace('|', ', ')}."
    elif kind:
        names.append(f" {kind}" if names else kind, "yellow")
    if each.secondary_opts:
        names.append("\n" + ", ".join(each.secondary_opts), "bold magenta")
    text = Text(about)
    text.highlight_regex(r"(?<![\w-])--?[a-z][\w-]*", "cyan")
    for extra in extras:
        text.append(" [" + re.sub(r"(?<=[:;]) ", UNBROKEN, extra), "dim")
    return names, text


def _two_columns(rows: Iterable[tuple[Text, Text]]) -> Table:
    """Names, and what is said about them."""
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
