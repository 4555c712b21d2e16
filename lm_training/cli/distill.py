"""``latticebpd distill``: a model's own text, for training its heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from latticebpd.cli.input_data import readable, require_inputs
from latticebpd.cli.json_option import with_json
from latticebpd.cli.model_options import WEIGHTS
from latticebpd.console import err, next_command, quiet_transformers, writable_folder
from lm_training.cli.options import BASE_DTYPE, DEVICE, LAYERS, PART, WRITER, base_type

HELD_OUT = "-held-out"
"""How the folder of held-out texts is called, after that of the texts to learn from."""


def heads_command(learnt: Path | str, held_out: Path, model: str) -> None:
    """Name the command that trains heads on written texts."""
    next_command("train heads {} --validation {} --model {} -o heads", learnt, held_out, model)


@with_json
def distill(
    data: list[Path] = typer.Argument(
        ..., callback=readable, help="Prompts (.npz, directory), or text to cut them from (also .npy)."
    ),
    model: str = WRITER,
    output: Path = typer.Option(..., "--output", "-o", callback=writable_folder, help="Directory, new or to resume."),
    prompts: int = typer.Option(16384, min=1, help="Number of prompts to cut from text; given prompts are all used."),
    prompt_tokens: int = typer.Option(64, min=1, help="Length of each prompt cut from text."),
    max_new_tokens: int = typer.Option(96, min=1, help="Maximum number of tokens written after each prompt."),
    num_beams: int = typer.Option(1, min=1, help="1 decodes greedily; with more, the best beam is kept."),
    batch_size: int = typer.Option(64, min=1, help="Prompts decoded together."),
    shard_prompts: int = typer.Option(512, min=1, help="Prompts per shard; a killed run loses one shard."),
    hidden: bool = typer.Option(False, "--hidden", help="Store the text's hidden states, for `train heads`."),
    layers: str | None = LAYERS,
    copies: bool = typer.Option(False, "--copies", help="Draft by prompt lookup; same output."),
    part: str | None = PART,
    tokenizer: str | None = typer.Option(
        None, help="Tokenizer of text: a tokenizer.json, or a model's; by default its own."
    ),
    field: str = typer.Option("text", help="JSONL field that holds the text."),
    seed: int = typer.Option(0, help="Seed of the choice of prompts."),
    base_dtype: str = BASE_DTYPE,
    weights: str | None = WEIGHTS,
    device: str = DEVICE,
) -> dict[str, Any]:
    """Let a model continue prompts, or translate sources; its text is what its heads should learn to predict.

    Sequence-level distillation (Stern 2018). Each sequence is stored with the length of its prompt, so that training
    takes its labels from what the model wrote. A stopped run keeps its finished shards. On a CPU the engine writes
    greedy text; quantized weights write some texts differently, so they are part of the settings.

    Example: [bold]latticebpd distill corpus.npy --model model -o distilled --prompts 16384[/bold]
    Example: [bold]latticebpd distill pairs.npz --model translator -o distilled --num-beams 5[/bold]
    """
    require_inputs(data, model)
    quiet_transformers()
    from latticebpd.console import positive_numbers
    from latticebpd.drafters import PromptNgramDrafter
    from latticebpd.lattices.shards import parse_part, share_size
    from latticebpd.lattices.texts import Texts
    from latticebpd.models.load_target import load_target
    from latticebpd.models.weight_kinds import TORCH
    from lm_training.cli.training_run import device_of, token_progress
    from lm_training.data.corpus import corpus_ids
    from lm_training.data.distill import DistillOptions, corpus_prompts, suits_loop
    from lm_training.data.distill import distill as write
    from lm_training.data.hidden_states import StateOptions
    from lm_training.data.sequences import holds_sequences, load_distilled, load_texts
    from lm_training.data.text_tokenizer import text_tokenizer

    mine = parse_part(part)
    states = StateOptions(positive_numbers("--layers", layers) if layers else ()) if hidden or layers else None
    if num_beams > 1 and weights not in (None, TORCH):
        raise ValueError(f"expected --weights torch for --num-beams {num_beams}, got {weights}; the engine is greedy")
    are_texts = [holds_sequences(path) for path in data]
    if any(are_texts) and not all(are_texts):
        raise ValueError("expected either prompts (.npz) or text to cut them from, got both; distil one by one")
    given = [load_texts(path, 0) for path in data] if all(are_texts) else []
    kind: dict[str, Any] = {"device": device_of(device), "dtype": base_type(base_dtype), "ignore_beams": num_beams == 1}
    target = load_target(model, weights if num_beams == 1 else TORCH, **kind)
    if weights is None and target.weights != TORCH and not suits_loop(target):  # generate() honours its config
        target = load_target(model, TORCH, **kind)
    end_ids = target.eos_ids
    if all(are_texts):
        sequences = Texts.joined(given)
    elif target.is_encoder_decoder:
        raise ValueError(f"{data[0]}: expected sources (.npz) for an encoder-decoder, got text without any")
    else:
        encoded = all(path.suffix == ".npy" for path in data)
        encoder = None if encoded else text_tokenizer(tokenizer or model, str(end_ids[0]) if end_ids else None)
        sequences = corpus_prompts(corpus_ids(data, encoder, field), prompts, prompt_tokens, end_ids, seed)
    options = DistillOptions(max_new_tokens, num_beams, shard_prompts, batch_size)
    with token_progress("prompts", share_size(len(sequences), shard_prompts, mine)) as report:
        write(target, sequences, output, options, mine, report, states, PromptNgramDrafter() if copies else None)
    if mine[1] > 1:
        err.print(f"{output}: part {mine[0]}/{mine[1]} is complete")
        return {"output": str(output), "part": mine[0], "parts": mine[1]}
    text = load_distilled(output)
    err.print(f"{output}: {len(text)} sequences, {text.num_labels} tokens written by the model")
    if output.name.endswith(HELD_OUT):
        learnt = output.with_name(output.name.removesuffix(HELD_OUT))
        heads_command(learnt if learnt.exists() else "WRITTEN", output, model)
    elif (held_out := output.with_name(f"{output.name}{HELD_OUT}")).exists():
        heads_command(output, held_out, model)
    else:
        next_command("distill HELD-OUT --model {} -o {} --prompts 256", model, held_out)
    return {"output": str(output), "sequences": len(text), "tokens": text.num_labels}
