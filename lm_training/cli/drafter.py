"""``latticebpd train drafter``: non-autoregressive drafters."""

from __future__ import annotations

from pathlib import Path

import typer

from latticebpd.cli.console import err, quiet_transformers, writable_folder


def drafter(
    data: list[Path] = typer.Argument(..., help="Sources and translations: directories made by `latticebpd distill`, or pairs (.npz)."),
    validation: Path = typer.Option(..., help="The same kind of data, not among what is learnt."),
    model: Path = typer.Option(..., help="Directory of the verifier, an encoder–decoder; the drafter begins with its weights."),
    output: Path = typer.Option(
        ..., "--output", "-o", callback=writable_folder, help="Directory of the drafter; an interrupted run in it goes on."
    ),
    block_size: int = typer.Option(25, min=1, help="Masks that are filled at once, the most that a draft may have."),
    smallest_block: int | None = typer.Option(None, min=1, help="Draw every update's number of masks from here to the block size."),
    windows: int = typer.Option(8, min=1, help="Prefixes drawn of each target; they share what is read of it."),
    anchored: bool = typer.Option(
        True, help="Have the text's last column say the first token, as the verifier's does; --no-anchored: a mask, as in the paper."
    ),
    decoder_layers: int | None = typer.Option(None, min=1, help="Layers of the drafter's decoder; the verifier's number by default."),
    dropout: float | None = typer.Option(
        None, min=0.0, max=0.99, help="In training, after every layer's parts; by default the verifier's."
    ),
    steps: int = typer.Option(2000, min=1, help="Updates in all."),
    batch_tokens: int = typer.Option(4096, min=64, help="Source and target tokens per update, padding included."),
    learning_rate: float = typer.Option(1e-3, min=0.0, help="AdamW's peak rate: embedding, norms and biases."),
    muon_learning_rate: float = typer.Option(2e-3, min=0.0, help="Muon's peak rate: the layers' matrices."),
    label_smoothing: float = typer.Option(0.0, min=0.0, max=0.99, help="Share of the probability that is spread over all tokens."),
    slot_decay: float = typer.Option(1.0, max=1.0, help="What each token of a block weighs in the loss, of what the one before it does."),
    reveal: tuple[float, float] = typer.Option((0.5, 0.3), help="Glancing's ratio at the first and the last update; 0 0 is without."),
    validation_every: int = typer.Option(250, min=1, help="Updates between measurements."),
    checkpoint_every: int = typer.Option(100, min=1, help="Updates between checkpoints."),
    serving_sources: int = typer.Option(32, min=0, help="Validation sources that are translated to measure tokens per call."),
    seed: int = typer.Option(0, help="Seed of everything random."),
    device: str = typer.Option("auto", help="Where to compute: cpu, cuda, ...; auto takes a GPU where there is one."),
) -> None:
    """Train a drafter that fills a block of masks in one pass (GAD).

    Best on what the verifier wrote itself, or a teacher that drafter and verifier share (`latticebpd distill`). The run
    can be killed at any time; the same command goes on from its last checkpoint. For several processes, put
    `torchrun --nproc_per_node N -m latticebpd` in place of `latticebpd`.

    Example: [bold]latticebpd train drafter written --validation written-held-out --model translator -o drafter[/bold]
    """
    quiet_transformers()
    import torch

    from fst.fingerprint import vocabulary_fingerprint
    from latticebpd.lattices.texts import Texts
    from latticebpd.models.mask_filling import NonAutoregressiveModel, load_verifier
    from latticebpd.models.pretrained import load_tokenizer
    from lm_training.data.loading import load_texts
    from lm_training.neural.mask_filling import DrafterTraining, train_drafter
    from lm_training.neural.plots import CSV, PNG, write_plots
    from lm_training.neural.training import LOG, Process

    for path in (*data, validation):
        if not path.is_dir() and path.suffix != ".npz":
            raise ValueError(f"{path}: expected pairs (.npz) or a directory of distilled text, found neither")
    verifier, tokenizer = load_verifier(model), load_tokenizer(model)
    mask = tokenizer.mask_token_id if tokenizer.mask_token_id is not None else tokenizer.pad_token_id
    if not isinstance(mask, int):
        raise ValueError(f"{model}: expected a tokenizer with a mask or padding token, found neither")
    fingerprint = vocabulary_fingerprint(tokenizer.get_vocab())
    learnt = Texts.joined([load_texts(path, 0) for path in data])
    options = DrafterTraining(
        steps=steps,
        batch_tokens=batch_tokens,
        learning_rate=learning_rate,
        muon_learning_rate=muon_learning_rate,
        label_smoothing=label_smoothing,
        validation_every=validation_every,
        checkpoint_every=checkpoint_every,
        seed=seed,
        windows=windows,
        smallest_block=smallest_block,
        slot_decay=slot_decay,
        reveal_first=reveal[0],
        reveal_last=reveal[1],
        serving_sources=serving_sources,
    )
    torch.manual_seed(seed)
    new = NonAutoregressiveModel.like(verifier, mask, block_size, decoder_layers, fingerprint, anchored, dropout)
    layers = min(new.base.config.decoder_layers, verifier.config.decoder_layers)
    with Process.join(device) as process:
        if process.rank == 0:
            err.print(f"{output}: begins with the verifier's encoder, embeddings and first {layers} decoder layers")
            output.mkdir(parents=True, exist_ok=True)
            tokenizer.save_pretrained(output)
        train_drafter(new, verifier, learnt, load_texts(validation, 0), output, options, process, progress=err.is_terminal)
        if process.rank == 0:
            write_plots(output)
            err.print(f"{output}: trained for {steps} steps; {LOG}, {CSV}, {PNG}")
