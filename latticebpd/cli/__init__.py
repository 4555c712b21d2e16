"""The command line: one program, one file per group of commands.

Results go to standard output, progress and messages to standard error.  Bad input ends with one line that says
what was expected and what came, and exit status 2.
"""

from __future__ import annotations

import sys

import typer

from latticebpd._version import __version__
from latticebpd.cli import analysis, compare, ddg, demo, generate, jacobi, lattices, models, report, spec_bench, tune
from lm_training.cli import distill, lm, train

app = typer.Typer(
    help="Lattice rescoring with a finite-state backend for blockwise parallel decoding.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(show: bool) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version and leave.")) -> None:
    pass


app.command("demo")(demo.demo)
app.command("generate")(generate.generate)
app.command("lattices")(lattices.lattices)
app.command("rescore")(lattices.rescore)
app.command("oracle")(analysis.oracle)
app.command("merge")(analysis.merge)
app.command("compare")(compare.compare)
app.command("report")(report.report)
app.command("tune")(tune.tune)
app.command("spec-bench")(spec_bench.spec_bench)
app.command("jacobi")(jacobi.jacobi)
app.command("ddg")(ddg.ddg)
app.command("distill")(distill.distill)
app.add_typer(lm.app, name="lm")
app.add_typer(train.app, name="train")
app.add_typer(models.app, name="models")


def main() -> None:
    """Run the program; users' mistakes become one line and exit status 2."""
    try:
        app()
    except BrokenPipeError:
        # The reader (`head`, say) has what it wanted; closing standard error keeps the interpreter quiet about it.
        sys.stderr.close()
        sys.exit(0)
    except FileNotFoundError as error:
        _fail(f"{error.filename}: expected a file, found none" if error.filename else str(error))
    except (ValueError, OSError) as error:
        _fail(str(error))


def _fail(message: str) -> None:
    first_line = " ".join(message.split())
    print(f"latticebpd: error: {first_line}", file=sys.stderr)
    sys.exit(2)
