"""``latticebpd train rescorer``: a small language model that rescores drafts."""

from __future__ import annotations

from pathlib import Path

import typer

from latticebpd.cli.console import err, load_tokenizer, quiet_transformers, writable_folder


def rescorer(
    data: list[Path] = typer.Argument(
        ..., help="What to learn: directories made by `latticebpd distill`, sequences (.npz), or token ids (.npy)."
    ),
    validation: Path = typer.Option(..., help="The same kind of data, not among what is learnt."),
    output: Path = typer.Option(
        ..., "--output", "-o", callback=writable_folder, help="Directory of the rescorer; an interrupted run in it goes on."
    ),
    tokenizer: Path = typer.Option(..., help="tokenizer.json of the base model; the data is encoded with it."),
    preset: str | None = typer.Option(None, help="Shape of a new model: tiny, small, or the paper's 32m, 61m, 94m."),
    model: str | None = typer.Option(None, help="Go on from this causal LM instead: a directory or a hub's name."),
    steps: int = typer.Option(2000, min=1, help="Updates in all."),
    batch_size: int = typer.Option(32, min=1, help="Texts per update, over all processes."),
    sequence_length: int = typer.Option(256, min=2, help="Tokens per sequence of a .npy corpus."),
    learning_rate: float = typer.Option(2e-3, min=0.0, help="AdamW's peak rate: embeddings, norms and biases."),
    muon_learning_rate: float = typer.Option(5e-3, min=0.0, help="Muon's peak rate, for the other matrices; 0 leaves all to AdamW."),
    warmup_steps: int = typer.Option(100, min=0, help="Updates until the rates peak; then they follow a cosine to zero."),
    accumulate: int = typer.Option(1, min=1, help="Parts into which each process cuts its share of a batch, to save memory."),
    precision: str = typer.Option("float32", help="float32, or bfloat16: mixed precision."),
    validation_every: int = typer.Option(250, min=1, help="Updates between measurements."),
    checkpoint_every: int = typer.Option(250, min=1, help="Updates between checkpoints."),
    seed: int = typer.Option(0, help="Seed of everything random."),
    device: str = typer.Option("auto", help="Where to compute: cpu, cuda, ...; auto takes a GPU where there is one."),
    compile: bool = typer.Option(False, "--compile", help="Use torch.compile; needs a C++ compiler at run time."),
) -> None:
    """Train a small causal language model over the base model's vocabulary, to rescore drafts with.

    Best on text that the base model wrote itself (`latticebpd distill`). The directory serves wherever an n-gram model does
    (`--lm`); `latticebpd tune` finds its weight. The run can be killed at any time; the same command goes on from its last
    checkpoint. For several processes, put `torchrun --nproc_per_node N -m latticebpd` in place of `latticebpd`.

    Example: [bold]latticebpd train rescorer written --validation held-out --tokenizer model/tokenizer.json --preset tiny -o rescorer[/bold]
    """
    quiet_transformers()
    import shutil

    import torch

    from fst.fingerprint import vocabulary_fingerprint
    from latticebpd.lattices.texts import Texts
    from latticebpd.models.loading import load_base
    from lm_training.data.corpus import END_OF_TEXT
    from lm_training.data.loading import load_texts
    from lm_training.neural.plots import CSV, PNG, write_plots
    from lm_training.neural.rescorers import PRESETS, RescorerTraining, new_rescorer, train_rescorer
    from lm_training.neural.training import LOG, Process

    precisions = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if precision not in precisions:
        raise ValueError(f"expected --precision {', '.join(precisions)}, got {precision!r}")
    if (preset is None) == (model is None):
        raise ValueError("expected --preset for a new model or --model to go on from one, and just one of them")
    if preset is not None and preset not in PRESETS:
        raise ValueError(f"expected --preset {', '.join(PRESETS)}, got {preset!r}")
    options = RescorerTraining(
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        muon_learning_rate=muon_learning_rate or None,
        warmup_steps=warmup_steps,
        accumulate=accumulate,
        precision=precisions[precision],
        validation_every=validation_every,
        checkpoint_every=checkpoint_every,
        seed=seed,
        compile=compile,
    )
    vocabulary = load_tokenizer(tokenizer)
    learnt = Texts.joined([load_texts(path, sequence_length) for path in data])
    held_out = load_texts(validation, sequence_length)
    torch.manual_seed(seed)
    with Process.join(device) as process:
        if preset is not None:
            trained = new_rescorer(PRESETS[preset], vocabulary.get_vocab_size(), vocabulary.token_to_id(END_OF_TEXT))
        else:
            trained = load_base(str(model))
        if process.rank == 0:
            output.mkdir(parents=True, exist_ok=True)
            if tokenizer.resolve() != (output / "tokenizer.json").resolve():
                shutil.copyfile(tokenizer, output / "tokenizer.json")
        fingerprint = vocabulary_fingerprint(vocabulary.get_vocab())
        train_rescorer(trained, learnt, held_out, output, options, fingerprint, process, progress=err.is_terminal)
        if process.rank == 0:
            write_plots(output)
            err.print(f"{output}: {trained.num_parameters():,} parameters, trained for {steps} steps; {LOG}, {CSV}, {PNG}")
