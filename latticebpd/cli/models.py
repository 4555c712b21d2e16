"""``latticebpd models``: pretrained models that one command gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from latticebpd.cli.json_option import with_json
from latticebpd.console import err, out, print_json, quiet_transformers

app = typer.Typer(help="Download pretrained models.", no_args_is_help=True)


@app.command("list")
def list_(json: bool = typer.Option(False, "--json", help="Print the list as JSON.")) -> None:
    """List the available models, and where downloaded ones are stored.

    The speed is that of greedy decoding without drafts on this machine, where a decode has measured it.

    Example: [bold]latticebpd models list[/bold]
    """
    from latticebpd.decoding.pass_costs import last_costs
    from latticebpd.models.catalogue import CATALOGUE, model_folder

    rows = []
    for entry in CATALOGUE.values():
        folder = model_folder(entry.name)
        costs = last_costs(folder)
        rows.append({
            "name": entry.name,
            "title": entry.title,
            "licence": entry.licence,
            "parameters": f"{entry.parameters}M",
            "megabytes": entry.megabytes,
            "memory_megabytes": entry.memory,
            "tokens_per_second": None if costs is None else round(1 / costs.seconds[0][0], 1),
            "folder": str(folder) if folder.is_dir() else None,
        })  # fmt: skip
    if json:
        print_json(rows)
        return
    for row in rows:
        about = f" {row['title']}; {row['parameters']} parameters, {row['licence']}, {row['megabytes']} MB"
        speed = row["tokens_per_second"]
        about += f", {row['memory_megabytes']} MB of memory" + (f", {speed} tokens/s here" if speed else "")
        out.print(Text(str(row["name"]), style="bold"), about)
        out.print("    " + str(row["folder"] or f"not here yet: latticebpd models get {row['name']}"), soft_wrap=True)


@app.command()
@with_json
def get(
    name: str = typer.Argument(..., help="A name that `latticebpd models list` shows."),
    file: Path | None = typer.Option(None, help="What would be downloaded, if it is already here."),
) -> dict[str, Any]:
    """Download a pretrained model, check it, and make it ready for `--model NAME`.

    The same command resumes an interrupted download or conversion. The model is kept in the user's cache folder, or
    below $LATTICEBPD_CACHE.

    Example: [bold]latticebpd models get smollm2-135m[/bold]
    """
    quiet_transformers()
    from latticebpd.models.catalogue import get_model

    return _ready(get_model(name, file, lambda stage: err.print(stage, style="dim")))


@app.command()
@with_json
def add(file: Path = typer.Argument(..., help="A GGUF file of one of the listed models.")) -> dict[str, Any]:
    """Make a GGUF file that is here already ready for `--model NAME`, with the n-gram model that belongs to it.

    Which model it is shows its hash. The file stays where it is.

    Example: [bold]latticebpd models add qwen2.5-coder-0.5b-instruct-q4_k_m.gguf[/bold]
    """
    from latticebpd.models.catalogue import add_model

    return _ready(add_model(file, lambda stage: err.print(stage, style="dim")))


def _ready(folder: Path) -> dict[str, Any]:
    out.print(str(folder), soft_wrap=True)
    return {"name": folder.name, "folder": str(folder)}
