"""``latticebpd train masks``: mask-filling drafters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from latticebpd.cli.input_data import require_inputs
from latticebpd.cli.json_option import with_json
from latticebpd.console import err, next_command, quiet_transformers
from lm_training.cli.options import DEVICE, OUTPUT, VALIDATION, require_texts, with_options
from lm_training.training.training_options import MaskFillerTraining


@with_json
@with_options
def masks(
    data: list[Path] = typer.Argument(..., help="Directories made by `latticebpd distill`, or sentence pairs (.npz)."),
    validation: Path = VALIDATION,
    model: Path = typer.Option(..., help="Directory of the verifier, whose weights initialise the drafter."),
    from_scratch: bool = typer.Option(False, "--from-scratch", help="Begin with random weights instead."),
    output: Path = OUTPUT,
    block_size: int = typer.Option(25, min=1, help="Masks that are filled at once, the most that a draft may have."),
    anchored: bool = typer.Option(True, help="Predict the first token at the last text position, not at a mask."),
    bidirectional: bool = typer.Option(
        False, "--bidirectional-text/--causal-text", help="Text attends to masks, as in the paper; slower to decode."
    ),
    decoder_layers: int | None = typer.Option(None, min=1, help="Decoder layers; the verifier's number by default."),
    dropout: float | None = typer.Option(None, min=0.0, max=0.99, help="Dropout; the verifier's by default."),
    *,
    options: MaskFillerTraining,
    device: str = DEVICE,
) -> dict[str, Any] | None:
    """Train a drafter that fills a block of masks in one pass (GAD).

    Best on text of the verifier, or of a teacher that drafter and verifier share (`latticebpd distill`).

    Example: [bold]latticebpd train masks written --validation written-held-out --model translator -o drafter[/bold]
    """
    require_inputs([*data, validation], model)
    quiet_transformers()
    import torch

    from fst.files import replacing_files
    from fst.fingerprint import vocabulary_fingerprint
    from latticebpd.drafters.masks.mask_network import NonAutoregressiveModel, load_verifier
    from latticebpd.lattices.texts import Texts
    from latticebpd.models.load_target import load_tokenizer
    from lm_training.cli.training_run import is_new_run, mask_token_id, run_record, training_run
    from lm_training.data.sequences import load_texts
    from lm_training.families.masks import train_mask_filler

    require_texts((*data, validation), "pairs (.npz) or a directory of distilled text")
    verifier, tokenizer = load_verifier(model), load_tokenizer(model)
    mask, fingerprint = mask_token_id(tokenizer, model), vocabulary_fingerprint(tokenizer.get_vocab())
    learnt, held_out = Texts.joined([load_texts(path, 0) for path in data]), load_texts(validation, 0)
    torch.manual_seed(options.seed)
    chosen = (block_size, decoder_layers, fingerprint, anchored, dropout, bidirectional)
    new = NonAutoregressiveModel.like(verifier, mask, *chosen)
    if from_scratch:
        new.reset()
    layers = min(new.base.config.decoder_layers, verifier.config.decoder_layers)
    with training_run(output, options, device) as process:
        if is_new_run(output, process):
            start = f"the verifier's encoder, embeddings and first {layers} decoder layers"
            err.print(f"{output}: begins with {'random weights' if from_scratch else start}")
            with replacing_files(output) as folder:
                tokenizer.save_pretrained(folder)
        train_mask_filler(new, verifier, learnt, held_out, output, options, process)
    if process.rank:
        return None
    next_command("generate TEXT --model {} --drafter-model {}", model, output)
    return run_record(output)
