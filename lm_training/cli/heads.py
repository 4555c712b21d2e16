"""``latticebpd train heads``: heads for a model that stays as it is."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from latticebpd.cli.input_data import require_inputs
from latticebpd.cli.json_option import with_json
from latticebpd.console import err, load_tokenizer, next_command, quiet_transformers
from lm_training.cli.options import BASE_DTYPE, DATA, DEVICE, NUM_HEADS, OUTPUT, VALIDATION, base_type, with_options
from lm_training.training.training_options import HeadTraining

TOKENIZER_FILES = ("tokenizer_config.json", "chat_template.jinja")
"""Further files of a tokenizer.json."""


def _complete(model: str, output: Path, fine_tuned: bool) -> None:
    """Write the tokenizer of a model that has no tokenizer.json, if it has one. Of a model in a GGUF file that stays as
    it is, copy the file: decodes then compute from its weights, as `latticebpd distill` does."""
    from fst.files import copy, replacing_files
    from latticebpd.models.catalogue import GGUF_NAME, model_source
    from latticebpd.models.gguf.gguf_file import is_gguf
    from latticebpd.models.model_tokenizer import ModelTokenizer
    from lm_training.data.text_tokenizer import tokenizer_of

    path = Path(model_source(model))
    if not path.is_dir():
        with suppress(ValueError), replacing_files(output) as folder:
            tokenizer = tokenizer_of(model_source(model))
            saved = tokenizer.for_transformers() if isinstance(tokenizer, ModelTokenizer) else tokenizer
            saved.save_pretrained(folder)
    file = path / GGUF_NAME if path.is_dir() else path
    if not fine_tuned and is_gguf(file):
        copy(file, output / GGUF_NAME)


@with_json
@with_options
def heads(
    data: list[Path] = DATA,
    validation: Path = VALIDATION,
    model: str = typer.Option(..., help="Base model, with heads or without: directory, .gguf file, Hub id or name."),
    output: Path = OUTPUT,
    num_heads: int = typer.Option(9, min=2, help=NUM_HEADS),
    kind: str = typer.Option(
        "conditioned", help="conditioned (on the next token), feed-forward (Kim), stern (shared layer), or medusa."
    ),
    intermediate_size: int | None = typer.Option(None, min=1, help="Hidden width of a head; the model's by default."),
    num_layers: int = typer.Option(1, min=1, help="Residual blocks of each medusa head."),
    shortlist: str | None = typer.Option(
        None, help="Restrict the heads to so many most frequent tokens; or to those of a model's heads."
    ),
    layers: str | None = typer.Option(None, help="Read these layers' states too, such as 26; counted from 1."),
    warm_start: bool = typer.Option(False, "--warm-start", help="Begin with the heads that the model already has."),
    transitions: int | None = typer.Option(
        None, min=1, help="Add transitions of this width: they score a token after the one drafted before it."
    ),
    sequence_length: int = typer.Option(256, min=3, help="Tokens per text of a .npy corpus."),
    base_dtype: str = BASE_DTYPE,
    tokenizer: Path | None = typer.Option(None, help="tokenizer.json; the model directory's by default."),
    *,
    options: HeadTraining,
    device: str = DEVICE,
) -> dict[str, Any] | None:
    """Attach block heads to a causal language model and train them.

    Best on text that the model wrote itself (`latticebpd distill`), which decides acceptance. If hidden states of all
    texts are stored (`distill --hidden`, `train hidden`), the frozen base model is not run.

    Example: [bold]latticebpd train heads distilled --validation distilled-held-out --model model -o with-heads[/bold]
    Example: [bold]latticebpd train heads distilled --validation distilled-held-out --model with-heads -o tied
        --warm-start --freeze-heads --transitions 256[/bold]
    """
    require_inputs([*data, validation, *([tokenizer] if tokenizer else [])], model)
    quiet_transformers()
    import torch

    from fst.fingerprint import vocabulary_fingerprint
    from latticebpd.console import positive_numbers
    from latticebpd.drafters.heads.blockwise import BlockwiseLM, new_heads
    from latticebpd.drafters.heads.head_files import has_heads
    from latticebpd.models.catalogue import resolved
    from latticebpd.models.load_target import load_stock
    from latticebpd.models.transformers.transformers_model import TransformersModel
    from lm_training.cli.training_run import drafted_tokens, is_new_run, report_shortlist, run_record, training_run
    from lm_training.data.training_data import load_head_data
    from lm_training.families.heads import train_heads

    dtype = base_type(base_dtype)
    if base_dtype != "float32" and options.fine_tune:
        reason = "small updates would round to nothing"
        raise ValueError(f"expected --base-dtype float32 with --fine-tune, got {base_dtype}: {reason}")
    if warm_start and not has_heads(resolved(model)):
        raise ValueError(f"{model}: expected a blockwise model for --warm-start, found no heads; leave the option out")
    if warm_start and shortlist is not None:
        raise ValueError("expected --shortlist for new heads only, got --warm-start too; existing heads keep their own")
    learnt, held_out = load_head_data(data, [validation], sequence_length, with_states=not options.fine_tune)
    warm = BlockwiseLM.from_pretrained(resolved(model)) if warm_start else None
    base = torch.nn.Module.to(warm.base if warm is not None else load_stock(model, dtype), dtype)
    windows = [path for path in (*data, validation) if path.suffix == ".npy"]
    if TransformersModel.of(base).is_encoder_decoder and windows:
        wanted = "sources and texts (.npz, or distilled) for an encoder-decoder"
        raise ValueError(f"{windows[0]}: expected {wanted}, got a corpus")
    vocabulary = tokenizer or Path(resolved(model)) / "tokenizer.json"
    torch.manual_seed(options.seed)
    tokens = drafted_tokens(shortlist, learnt.texts, TransformersModel.of(base).vocab_size)
    files = [vocabulary, *(vocabulary.with_name(name) for name in TOKENIZER_FILES)]
    shape = (kind, num_heads, intermediate_size, num_layers, tokens)
    blockwise = warm or BlockwiseLM(base, new_heads(base, *shape).float())
    if layers is not None:
        blockwise.add_layers(positive_numbers("--layers", layers))
    if transitions is not None:
        blockwise.heads.add_transitions(transitions)
    if tokenizer is not None or vocabulary.exists():
        blockwise.tokenizer_fingerprint = vocabulary_fingerprint(load_tokenizer(vocabulary).get_vocab())
    with training_run(output, options, device, files) as process:
        if is_new_run(output, process):
            _complete(model, output, options.fine_tune)
        report_shortlist(process, tokens, learnt, held_out)
        if process.rank == 0 and learnt.states is not None:
            err.print("hidden states are read from their files; the base model is not run for them")
        train_heads(blockwise, learnt, held_out, output, options, process, model)
    if process.rank:
        return None
    if transitions is None and blockwise.heads.kind != "medusa" and blockwise.heads.transitions is None:
        tied = "--warm-start --freeze-heads --transitions 256"
        learnt_from = ("train heads {} --validation {} --model {} -o {} " + tied, data[0], validation, output)
        next_command(*learnt_from, output.with_name("with-heads"))
    else:
        next_command("lm train {} --tokenizer {} -o {}", data[0], output, output / "lm.fst")
    return run_record(output)
