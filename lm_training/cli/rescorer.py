"""``latticebpd train rescorer``: a small language model that rescores drafts."""

from __future__ import annotations

from pathlib import Path

import typer

from latticebpd.console import load_tokenizer, quiet_transformers
from lm_training.cli.options import DATA, DEVICE, OUTPUT, VALIDATION, with_options
from lm_training.training.training_options import RescorerTraining


@with_options
def rescorer(
    data: list[Path] = DATA,
    validation: Path = VALIDATION,
    output: Path = OUTPUT,
    tokenizer: Path = typer.Option(..., help="tokenizer.json of the base model; the data is encoded with it."),
    preset: str | None = typer.Option(None, help="Shape of a new model: tiny, small, or the paper's 32m, 61m, 94m."),
    model: str | None = typer.Option(None, help="Start from this causal LM instead: a directory or a hub's name."),
    sequence_length: int = typer.Option(256, min=2, help="Tokens per text of a .npy corpus."),
    *,
    options: RescorerTraining,
    device: str = DEVICE,
) -> None:
    """Train a small causal language model over the base model's vocabulary, to rescore drafts with.

    Best on text that the base model wrote itself (`latticebpd distill`). The directory serves wherever an n-gram model
    does (`--lm`); `latticebpd tune` finds its weight. The run can be killed at any time; the same command goes on from
    its last checkpoint. For several processes, put `torchrun --nproc_per_node N -m latticebpd` in place of
    `latticebpd`.

    Example: [bold]latticebpd train rescorer written --validation held-out --tokenizer model/tokenizer.json --preset
        tiny -o rescorer[/bold]
    """
    quiet_transformers()
    from dataclasses import asdict

    import torch

    from fst.fingerprint import vocabulary_fingerprint
    from latticebpd.drafters.pretrained import load_stock
    from latticebpd.lattices.texts import Texts
    from lm_training.cli.running import bring, finish
    from lm_training.data.corpus import END_OF_TEXT
    from lm_training.data.loading import load_texts
    from lm_training.families.rescorers import PRESETS, new_rescorer, train_rescorer
    from lm_training.training.training_loop import Process

    if (preset is None) == (model is None):
        raise ValueError("expected --preset for a new model or --model to go on from one, and just one of them")
    if preset is not None and preset not in PRESETS:
        raise ValueError(f"expected --preset {', '.join(PRESETS)}, got {preset!r}")
    vocabulary = load_tokenizer(tokenizer)
    fingerprint = vocabulary_fingerprint(vocabulary.get_vocab())
    learnt = Texts.joined([load_texts(path, sequence_length) for path in data])
    held_out = load_texts(validation, sequence_length)
    torch.manual_seed(options.seed)
    with Process.join(device) as process:
        if preset is not None:
            end = vocabulary.token_to_id(END_OF_TEXT)
            trained = new_rescorer(PRESETS[preset], vocabulary.get_vocab_size(), end)
            begins_with = {**asdict(PRESETS[preset]), "vocabulary": fingerprint}
        else:
            trained, begins_with = load_stock(str(model)), None
        bring([tokenizer], output, process)
        train_rescorer(trained, learnt, held_out, output, options, fingerprint, process, begins_with=begins_with)
        finish(output, options, process, f"{trained.num_parameters():,} parameters, ")
