"""``latticebpd train``: tokenizers, models and heads."""

from __future__ import annotations

from pathlib import Path

import typer

from latticebpd.cli.console import err, load_tokenizer, quiet_transformers, writable_file, writable_folder
from lm_training.cli import drafter, encode, rescorer, translation

app = typer.Typer(help="Train tokenizers, models, heads and drafters.", no_args_is_help=True)
app.command("drafter")(drafter.drafter)
app.command("encode")(encode.encode)
app.command("rescorer")(rescorer.rescorer)
app.command("translation")(translation.translation)


@app.command()
def tokenizer(
    inputs: list[Path] = typer.Argument(..., help="Text (.txt) or JSONL files, plain, .gz or .xz."),
    output: Path = typer.Option(..., "--output", "-o", callback=writable_file, help="tokenizer.json to write."),
    vocab_size: int = typer.Option(8192, min=257, max=1 << 24, help="Tokens, the end-of-text token included."),
    field: str = typer.Option("text", help="JSONL field that holds the text."),
) -> None:
    """Train a byte-level BPE tokenizer.

    Example: [bold]latticebpd train tokenizer corpus.jsonl -o tokenizer.json[/bold]
    """
    from fst.files import replacing
    from lm_training.data.corpus import read_documents, train_tokenizer

    trained = train_tokenizer((document.text for document in read_documents(inputs, field)), vocab_size, progress=err.is_terminal)
    with replacing(output) as temporary:
        trained.save(str(temporary))
    err.print(f"{output}: {trained.get_vocab_size()} tokens")


@app.command()
def blockwise(
    corpus: list[Path] = typer.Argument(..., help="Token ids (.npy), as written by `latticebpd train encode`."),
    validation: Path = typer.Option(..., help="Token ids of documents that are not in the corpus (.npy)."),
    tokenizer: Path = typer.Option(..., help="tokenizer.json the corpus was encoded with."),
    output: Path = typer.Option(
        ..., "--output", "-o", callback=writable_folder, help="Directory of the model; an interrupted run in it goes on."
    ),
    steps: int = typer.Option(6000, min=1, help="Updates in all."),
    batch_size: int = typer.Option(8, min=1, help="Texts per update."),
    sequence_length: int = typer.Option(256, min=16, help="Tokens per sequence."),
    learning_rate: float = typer.Option(2e-3, min=0.0, help="AdamW's peak rate: embedding, norms, heads."),
    muon_learning_rate: float = typer.Option(5e-3, min=0.0, help="Muon's peak rate: the transformer's matrices."),
    hidden_size: int = typer.Option(256, min=8, help="Width of the transformer."),
    num_layers: int = typer.Option(4, min=1, help="Layers of the transformer."),
    num_heads: int = typer.Option(9, min=2, help="Predictions per position, the base model's own included."),
    seed: int = typer.Option(0, help="Seed of everything random."),
    device: str = typer.Option("auto", help="Where to compute: cpu, cuda, ...; auto takes a GPU where there is one."),
    compile: bool = typer.Option(False, "--compile", help="Use torch.compile; faster, needs a C++ compiler at run time."),
) -> None:
    """Train a small transformer and its block heads from scratch.

    The run can be killed at any time; the same command goes on from its last checkpoint. For several processes, put
    `torchrun --nproc_per_node N -m latticebpd` in place of `latticebpd`.

    Example: [bold]latticebpd train blockwise corpus.npy --validation held-out.npy --tokenizer tokenizer.json -o model[/bold]
    """
    import shutil

    from fst.fingerprint import vocabulary_fingerprint
    from lm_training.data.corpus import end_of_text_id, load_tokens
    from lm_training.neural.blockwise import ModelShape, TrainingOptions, train_blockwise
    from lm_training.neural.plots import CSV, PNG, write_plots
    from lm_training.neural.training import LOG, Process

    bpe = load_tokenizer(tokenizer)
    tokens, held_out = load_tokens(corpus), load_tokens([validation])
    shape = ModelShape(
        vocab_size=bpe.get_vocab_size(),
        hidden_size=hidden_size,
        num_layers=num_layers,
        attention_heads=max(1, hidden_size // 64),
        intermediate_size=(hidden_size * 11 // 4) // 8 * 8,
        num_heads=num_heads,
    )
    options = TrainingOptions(
        steps=steps,
        batch_size=batch_size,
        sequence_length=sequence_length,
        learning_rate=learning_rate,
        muon_learning_rate=muon_learning_rate,
        seed=seed,
        compile=compile,
    )
    with Process.join(device) as process:
        if process.rank == 0:
            output.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(tokenizer, output / "tokenizer.json")
        train_blockwise(
            tokens,
            held_out,
            output,
            shape,
            options,
            eos_id=end_of_text_id(bpe),
            tokenizer_fingerprint=vocabulary_fingerprint(bpe.get_vocab()),
            process=process,
            progress=err.is_terminal,
        )
        if process.rank == 0:
            write_plots(output)
            err.print(f"{output}: trained for {steps} steps; {LOG}, {CSV}, {PNG}")


@app.command()
def heads(
    data: list[Path] = typer.Argument(..., help="What to learn: directories made by `latticebpd distill`, or token ids (.npy)."),
    validation: Path = typer.Option(..., help="The same kind of data, not among what is learnt."),
    model: str = typer.Option(..., help="Base model: a directory, also of a blockwise model, or a hub's name."),
    output: Path = typer.Option(
        ..., "--output", "-o", callback=writable_folder, help="Directory of the blockwise model; an interrupted run in it goes on."
    ),
    num_heads: int = typer.Option(9, min=2, help="Predictions per position, the base model's own included."),
    kind: str = typer.Option("feed-forward", help="feed-forward (Kim), stern (one shared hidden layer), or medusa (own projections)."),
    intermediate_size: int | None = typer.Option(None, min=1, help="Width of a head's hidden layer; the model's own width by default."),
    num_layers: int = typer.Option(1, min=1, help="Residual blocks of each medusa head."),
    warm_start: bool = typer.Option(False, "--warm-start", help="Begin with the heads that the model already has."),
    fine_tune: bool = typer.Option(False, "--fine-tune/--freeze-base", help="Teach the base model too; frozen, its output never changes."),
    steps: int = typer.Option(2000, min=1, help="Updates in all."),
    batch_size: int = typer.Option(32, min=1, help="Texts per update, over all processes."),
    sequence_length: int = typer.Option(256, min=3, help="Tokens per sequence of a .npy corpus."),
    learning_rate: float = typer.Option(1e-3, min=0.0, help="Peak rate of the heads."),
    base_learning_rate: float = typer.Option(1e-4, min=0.0, help="Peak rate of the base model, with --fine-tune."),
    warmup_steps: int = typer.Option(100, min=0, help="Updates until the rates peak; then they follow a cosine to zero."),
    objective: str = typer.Option(
        "position", help="position: one head at each position; batch: one head per update (Stern); joint: every head everywhere (Kim)."
    ),
    head_weights: str | None = typer.Option(None, help="Relative weights of heads 2, 3, ..., such as 1,0.8,0.6; equal by default."),
    accumulate: int = typer.Option(1, min=1, help="Parts into which each process cuts its share of a batch, to save memory."),
    precision: str = typer.Option("float32", help="float32, or bfloat16: mixed precision."),
    base_dtype: str = typer.Option("float32", help="Type in which the base model is kept and written: float32, bfloat16 or float16."),
    fsdp: bool = typer.Option(False, "--fsdp", help="Deal the weights out over the processes, for bases that do not fit on one device."),
    validation_every: int = typer.Option(250, min=1, help="Updates between measurements."),
    checkpoint_every: int = typer.Option(250, min=1, help="Updates between checkpoints."),
    serving_prompts: int = typer.Option(8, min=0, help="Validation prompts that are decoded to measure block efficiency."),
    tokenizer: Path | None = typer.Option(None, help="tokenizer.json; the model directory's by default."),
    seed: int = typer.Option(0, help="Seed of everything random."),
    device: str = typer.Option("auto", help="Where to compute: cpu, cuda, ...; auto takes a GPU where there is one."),
    compile: bool = typer.Option(False, "--compile", help="Use torch.compile; needs a C++ compiler at run time."),
) -> None:
    """Attach block heads to a causal language model and train them.

    Best on text that the model wrote itself (`latticebpd distill`), since that is what decides acceptance. The run can
    be killed at any time; the same command goes on from its last checkpoint. For several processes, put
    `torchrun --nproc_per_node N -m latticebpd` in place of `latticebpd`.

    Example: [bold]latticebpd train heads distilled --validation distilled-held-out --model model -o with-heads[/bold]
    """
    quiet_transformers()
    import shutil

    import torch

    from fst.fingerprint import vocabulary_fingerprint
    from latticebpd.lattices.texts import Texts
    from latticebpd.models.base import BaseModel
    from latticebpd.models.blockwise import BlockwiseLM, is_blockwise, new_heads
    from latticebpd.models.loading import load_base
    from lm_training.data.loading import load_texts
    from lm_training.neural.heads import HeadTraining, train_heads
    from lm_training.neural.plots import CSV, PNG, write_plots
    from lm_training.neural.selection import EveryHead, OneHeadPerBatch, OneHeadPerPosition, Selection
    from lm_training.neural.training import LOG, Process

    selections: dict[str, Selection] = {"position": OneHeadPerPosition(), "batch": OneHeadPerBatch(), "joint": EveryHead()}
    precisions = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    dtypes = precisions | {"float16": torch.float16}
    if objective not in selections:
        raise ValueError(f"expected --objective {', '.join(selections)}, got {objective!r}")
    if precision not in precisions:
        raise ValueError(f"expected --precision {', '.join(precisions)}, got {precision!r}")
    if base_dtype not in dtypes:
        raise ValueError(f"expected --base-dtype {', '.join(dtypes)}, got {base_dtype!r}")
    if base_dtype != "float32" and fine_tune:
        raise ValueError(f"expected --base-dtype float32 with --fine-tune, got {base_dtype}: small updates would round to nothing")
    if warm_start and not is_blockwise(model):
        raise ValueError(f"{model}: expected a blockwise model for --warm-start, found no heads; leave the option out")
    options = HeadTraining(
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        base_learning_rate=base_learning_rate if fine_tune else None,
        warmup_steps=warmup_steps,
        selection=selections[objective],
        head_weights=_weights(head_weights),
        accumulate=accumulate,
        precision=precisions[precision],
        validation_every=validation_every,
        checkpoint_every=checkpoint_every,
        serving_prompts=serving_prompts,
        seed=seed,
        compile=compile,
        fsdp=fsdp,
    )
    warm = BlockwiseLM.from_pretrained(model) if warm_start else None
    base = torch.nn.Module.to(warm.base if warm is not None else load_base(model, dtypes[base_dtype]), dtypes[base_dtype])
    windows = [path for path in (*data, validation) if path.suffix == ".npy"]
    if BaseModel.of(base).encodes and windows:
        raise ValueError(f"{windows[0]}: expected sources and texts (.npz, or distilled) for an encoder-decoder, got a corpus")
    learnt = Texts.joined([load_texts(path, sequence_length) for path in data])
    held_out = load_texts(validation, sequence_length)
    vocabulary = tokenizer or Path(model) / "tokenizer.json"
    torch.manual_seed(seed)
    with Process.join(device) as process:
        blockwise = warm or BlockwiseLM(base, new_heads(base, kind, num_heads, intermediate_size, num_layers).float())
        if tokenizer is not None or vocabulary.exists():
            blockwise.tokenizer_fingerprint = vocabulary_fingerprint(load_tokenizer(vocabulary).get_vocab())
        first = process.rank == 0
        if first and vocabulary.exists():
            output.mkdir(parents=True, exist_ok=True)
            for file in (vocabulary, vocabulary.with_name("tokenizer_config.json")):
                if file.exists() and file.resolve() != (output / file.name).resolve():
                    shutil.copyfile(file, output / file.name)
        train_heads(blockwise, learnt, held_out, output, options, process, progress=err.is_terminal)
        if first:
            write_plots(output)
            err.print(f"{output}: trained for {steps} steps; {LOG}, {CSV}, {PNG}")


@app.command()
def plot(directory: Path = typer.Argument(..., help="Directory of any training run, finished or not.")) -> None:
    """Draw a run's losses, accuracies and block efficiency (training.png), and write its log as a table (training.csv).

    Example: [bold]latticebpd train plot with-heads[/bold]
    """
    from lm_training.neural.plots import CSV, PNG, write_plots

    write_plots(directory)
    err.print(f"{directory / PNG}, {directory / CSV}")


def _weights(text: str | None) -> tuple[float, ...] | None:
    """The numbers of ``--head-weights``; ValueError where it holds anything else."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"expected --head-weights as numbers separated by commas, such as 1,0.8,0.6, got {text!r}") from None
