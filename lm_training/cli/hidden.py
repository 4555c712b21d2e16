"""``latticebpd train hidden``: a model's hidden states, stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from latticebpd.cli.input_data import require_inputs
from latticebpd.cli.json_option import with_json
from latticebpd.cli.model_options import WEIGHTS
from latticebpd.console import err, next_command, quiet_transformers
from lm_training.cli.options import BASE_DTYPE, DEVICE, LAYERS, PART, WRITER, base_type, require_texts


@with_json
def hidden(
    data: list[Path] = typer.Argument(..., help="Directories made by `distill` or `train encode`, or texts (.npz)."),
    model: str = WRITER,
    layers: str | None = LAYERS,
    whole: bool = typer.Option(False, "--whole", help="Store the prompts' states too, for `train block-drafter`."),
    shard_texts: int = typer.Option(512, min=1, help="Texts per shard; a stopped run loses only its current shard."),
    part: str | None = PART,
    batch_tokens: int = typer.Option(4096, min=1, help="Tokens read at a time, padding included; at least one text."),
    base_dtype: str = BASE_DTYPE,
    weights: str | None = WEIGHTS,
    device: str = DEVICE,
) -> dict[str, Any]:
    """Store a model's hidden states for texts, so that training drafters does not run the model.

    One pass over each text (teacher forcing); half precision, so 2 bytes times the model's width for every written
    token (with --whole, every token) and layer. The same command resumes a stopped run. On a CPU the engine computes
    them, bit-identical to those that drafters get in decodes with the same weights.

    Example: [bold]latticebpd train hidden written --model model[/bold]
    Example: [bold]latticebpd train hidden written --model model --whole --layers 2,15,28[/bold]
    """
    require_inputs(data, model)
    quiet_transformers()
    from latticebpd.console import positive_numbers
    from latticebpd.lattices.shards import parse_part, share_size
    from latticebpd.models.load_target import load_target
    from lm_training.cli.training_run import device_of, token_progress
    from lm_training.data.hidden_states import StateOptions, add_states, states_directory
    from lm_training.data.sequences import load_texts
    from lm_training.training.model_texts import ModelTexts

    dtype, mine = base_type(base_dtype), parse_part(part)
    options = StateOptions(positive_numbers("--layers", layers) if layers else [], whole, shard_texts, batch_tokens)
    require_texts(data)
    texts = [load_texts(path, 0) for path in data]
    target = load_target(model, weights, device=device_of(device), dtype=dtype)
    made = []
    for path, each in zip(data, texts, strict=True):
        ModelTexts.of(target, each, str(path))
        directory = states_directory(path)
        with token_progress(f"{directory.path}", share_size(len(each), shard_texts, mine)) as report:
            add_states(target, each, directory, options, mine, report)
        tokens = len(each.tokens) - len(each) if whole else each.num_labels
        err.print(f"{directory.path}: hidden states of {tokens} tokens{'' if mine[1] == 1 else ', part by part'}")
        made.append({"output": str(directory.path), "tokens": tokens, "part": mine[0], "parts": mine[1]})
    files = data[0], data[1] if len(data) > 1 else "HELD-OUT", model
    if whole:
        next_command("train block-drafter {} --validation {} --model {} -o block", *files)
    else:
        next_command("train heads {} --validation {} --model {} -o heads", *files)
    return {"states": made}
