"""``latticebpd train rescorer``: a small language model that rescores drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from latticebpd.checks import expect
from latticebpd.cli.input_data import require_inputs
from latticebpd.cli.json_option import with_json
from latticebpd.console import load_tokenizer, next_command, quiet_transformers
from lm_training.cli.options import DATA, DEVICE, OUTPUT, VALIDATION, with_options
from lm_training.training.training_options import RescorerTraining


@with_json
@with_options
def rescorer(
    data: list[Path] = DATA,
    validation: Path = VALIDATION,
    output: Path = OUTPUT,
    tokenizer: Path = typer.Option(..., help="tokenizer.json of the target; the data is encoded with it."),
    preset: str | None = typer.Option(None, help="Shape of a new model: tiny, small, or the paper's 32m, 61m, 94m."),
    model: str | None = typer.Option(None, help="Start from this causal LM instead: a directory or Hub id."),
    sequence_length: int = typer.Option(256, min=2, help="Tokens per text of a .npy corpus."),
    *,
    options: RescorerTraining,
    device: str = DEVICE,
) -> dict[str, Any] | None:
    """Train a small causal language model over the target's vocabulary, to rescore drafts with.

    Best on text that the target wrote (`latticebpd distill`). The directory can replace an n-gram model (`--lm`);
    `latticebpd tune` finds its weight.

    Example: [bold]latticebpd train rescorer written --validation held-out --tokenizer model/tokenizer.json --preset
        tiny -o rescorer[/bold]
    """
    require_inputs([*data, validation], model)
    vocabulary = load_tokenizer(tokenizer)
    quiet_transformers()
    from dataclasses import asdict

    import torch

    from fst.fingerprint import vocabulary_fingerprint
    from latticebpd.lattices.texts import Texts
    from latticebpd.models.load_target import load_stock
    from lm_training.cli.training_run import run_record, training_run
    from lm_training.data.corpus import END_OF_TEXT
    from lm_training.data.sequences import load_texts
    from lm_training.families.rescorers import new_rescorer, train_rescorer
    from lm_training.families.shapes import RESCORERS

    if (preset is None) == (model is None):
        raise ValueError("expected --preset for a new model or --model to go on from one, and just one of them")
    expect(preset is None or preset in RESCORERS, f"--preset {', '.join(RESCORERS)}", repr(preset))
    fingerprint = vocabulary_fingerprint(vocabulary.get_vocab())
    learnt = Texts.joined([load_texts(path, sequence_length) for path in data])
    held_out = load_texts(validation, sequence_length)
    torch.manual_seed(options.seed)
    if preset is not None:
        trained = new_rescorer(RESCORERS[preset], vocabulary.get_vocab_size(), vocabulary.token_to_id(END_OF_TEXT))
        initial = {**asdict(RESCORERS[preset]), "vocabulary": fingerprint}
    else:
        trained, initial = load_stock(str(model)), None
    with training_run(output, options, device, [tokenizer], f"{trained.num_parameters():,} parameters, ") as process:
        train_rescorer(trained, learnt, held_out, output, options, fingerprint, process, initial)
    if process.rank:
        return None
    next_command("tune LATTICES --lm {} --write", output)
    return run_record(output)
