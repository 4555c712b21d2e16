"""The command line: one program, one file per group of commands.

Results go to standard output, progress and messages to standard error.  Bad input ends with one line that says
what was expected and what came, and exit status 2; anything unforeseen with one line and exit status 1.
"""

from __future__ import annotations

import math
import os
import sys
import textwrap
import traceback
from collections import UserDict
from importlib import import_module
from io import TextIOWrapper
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from fst.printable import expect_utf8, printable
from latticebpd._version import __version__
from latticebpd.cli.help_panels import laid_out, write_help
from latticebpd.console import err

_UsageError: Any = typer.BadParameter.__base__

PANELS = {
    "Try": {"demo": "latticebpd.cli.demo:demo", "models": "latticebpd.cli.models:app"},
    "Decode": {
        "generate": "latticebpd.cli.generate:generate",
        "chat": "latticebpd.cli.chat:chat",
        "jacobi": "latticebpd.cli.jacobi:jacobi",
        "serve": "latticebpd.cli.serve:serve",
    },
    "Measure": {
        "lattices": "latticebpd.cli.lattices:lattices",
        "compare": "latticebpd.cli.compare:compare",
        "oracle": "latticebpd.cli.oracle:oracle",
        "tune": "latticebpd.cli.tune:tune",
        "calibrate": "latticebpd.cli.calibrate:calibrate",
        "profile": "latticebpd.cli.profile:profile",
        "report": "latticebpd.cli.report:report",
        "rescore": "latticebpd.cli.lattices:rescore",
        "merge": "latticebpd.cli.merge:merge",
        "ddg": "latticebpd.cli.ddg:ddg",
    },
    "Train": {"distill": "lm_training.cli.distill:distill", "train": "lm_training.cli.train:app"},
    "n-gram models": {"lm": "lm_training.cli.lm:app"},
}
"""By what they are for: each command's function, or group of commands, imported when it is first asked for."""
COMMANDS = {name: target for commands in PANELS.values() for name, target in commands.items()}


class _LazyCommands(UserDict[str, Any]):
    """Commands by name, of the functions or groups that the values name."""

    def __getitem__(self, name: str) -> Any:
        module, attribute = self.data[name].split(":")
        command = getattr(import_module(module), attribute)
        panel = next(panel for panel, commands in PANELS.items() if name in commands)
        holder = typer.Typer(callback=lambda: None, add_completion=False, rich_markup_mode="rich")
        if isinstance(command, typer.Typer):
            holder.add_typer(command, name=name, rich_help_panel=panel)
        else:
            holder.command(name, rich_help_panel=panel)(command)
        group: Any = typer.main.get_command(holder)
        return laid_out(_reject_nonfinite(group.commands[name]), name)


def _reject_nonfinite(command: Any) -> Any:
    """The command, or group of them, without what no option has a use for: nan, infinity, more than 64 bits, text that
    is not UTF-8."""
    if subcommands := getattr(command, "commands", None):
        for each in subcommands.values():
            _reject_nonfinite(each)
        return command
    act = command.callback
    longest = {each.name: max(each.opts, key=len) for each in command.params}
    names = {name: text if text.startswith("-") else text.upper() for name, text in longest.items()}

    def checked(**values: Any) -> None:
        for name, value in values.items():
            is_odd = isinstance(value, float) and not math.isfinite(value)
            if is_odd or (isinstance(value, int) and not -(2**63) <= value < 2**63):
                raise ValueError(f"expected {names[name]} as a number of ordinary size, got {value}")
            for text in value if isinstance(value, list) else [value]:
                expect_utf8(names[name], text)
        act(**values)

    command.callback = checked
    return command


class _Program(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _LazyCommands(COMMANDS)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        write_help(self, ctx, formatter)


app = typer.Typer(
    cls=_Program,
    help="Faster, lossless decoding of language models: block drafts, rescored as lattices and verified in one pass.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(show: bool) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and leave."
    ),
    debug: bool = typer.Option(False, "--debug", help="Before the command: show the traceback of an error."),
) -> None:
    pass


def main() -> None:
    """Run the program; whatever goes wrong becomes one line: users' mistakes with exit status 2, the unforeseen with
    1."""
    _open_standard_streams()
    try:
        status = app(prog_name="latticebpd", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(status)
    except BrokenPipeError:
        _leave_quietly()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # which the command line's library ends with 1
            _leave_quietly()
        raise
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            sys.exit(2)
        where = f"; see `{error.ctx.command_path} --help`" if error.ctx else ""
        _fail(f"{error.format_message().rstrip('.')}{where}", 2)
    except FileNotFoundError as error:
        _fail(f"{error.filename}: expected a file, found none" if error.filename else str(error), 2)
    except (ValueError, OSError) as error:
        _fail(str(error), 2)
    except Exception as error:
        # The command line's library turns an EOFError into one without a message.
        cause = error.__cause__ if isinstance(error, typer.Abort) and error.__cause__ else error
        remedy = "`latticebpd --debug COMMAND ...` shows where it comes from"
        _fail(f"unforeseen {type(cause).__name__}: {cause}; {remedy}", 1)


def _open_standard_streams() -> None:
    """Open those that the shell closed (``<&-``, ``>&-``) on the null device, before a file gets their numbers."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # whoever reads it says what was not UTF-8


def _leave_quietly() -> NoReturn:
    """End with 0: the reader (`head`, say) has what it wanted. What is left in buffers goes nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(null, stream.fileno())
    sys.exit(0)


def _fail(message: str, status: int) -> NoReturn:
    if "--debug" in sys.argv[1:]:
        print(printable(traceback.format_exc()), end="", file=sys.stderr)
    err.print(textwrap.shorten(printable(f"latticebpd: error: {message}"), 2000, placeholder=" ..."))
    sys.exit(status)
