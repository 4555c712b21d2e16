"""``latticebpd train``: tokenizers, models and heads."""

from __future__ import annotations

from pathlib import Path

import typer

from latticebpd.cli.input_data import readable
from latticebpd.cli.model_options import WEIGHTS
from latticebpd.console import err, load_tokenizer, quiet_transformers, writable_file
from lm_training.cli import block_drafter, drafter, encode, rescorer, translation
from lm_training.cli import options as shared
from lm_training.families.shapes import BlockwiseShape
from lm_training.training.training_options import BlockwiseTraining, HeadTraining

app = typer.Typer(help="Train tokenizers, models, heads and drafters.", no_args_is_help=True)
app.command("block-drafter")(block_drafter.block_drafter)
app.command("drafter")(drafter.drafter)
app.command("encode")(encode.encode)
app.command("rescorer")(rescorer.rescorer)
app.command("translation")(translation.translation)

TOKENIZER_FILES = ("tokenizer_config.json", "chat_template.jinja")
"""Further files of a tokenizer.json."""
NUM_HEADS = "Predictions per position, the base model's own included."


@app.command()
def tokenizer(
    inputs: list[Path] = typer.Argument(..., callback=readable, help="Text (.txt) or JSONL files, plain, .gz or .xz."),
    output: Path = typer.Option(..., "--output", "-o", callback=writable_file, help="tokenizer.json to write."),
    vocab_size: int = typer.Option(8192, min=257, max=1 << 24, help="Tokens, the end-of-text token included."),
    field: str = typer.Option("text", help="JSONL field that holds the text."),
) -> None:
    """Train a byte-level BPE tokenizer.

    Example: [bold]latticebpd train tokenizer corpus.jsonl -o tokenizer.json[/bold]
    """
    from fst.files import write_text
    from lm_training.data.corpus import read_documents, train_tokenizer

    texts = (document.text for document in read_documents(inputs, field))
    trained = train_tokenizer(texts, vocab_size, progress=err.is_terminal)
    write_text(output, trained.to_str(pretty=True))
    err.print(f"{output}: {trained.get_vocab_size()} tokens")


@app.command()
@shared.with_options
def blockwise(
    corpus: list[Path] = typer.Argument(..., help="Token ids (.npy), as written by `latticebpd train encode`."),
    validation: Path = typer.Option(..., help="Token ids of documents that are not in the corpus (.npy)."),
    tokenizer: Path = typer.Option(..., help="tokenizer.json the corpus was encoded with."),
    output: Path = shared.OUTPUT,
    hidden_size: int = typer.Option(BlockwiseShape.hidden_size, min=8, help="Width of the transformer."),
    num_layers: int = typer.Option(BlockwiseShape.num_layers, min=1, help="Layers of the transformer."),
    num_heads: int = typer.Option(BlockwiseShape.num_heads, min=2, help=NUM_HEADS),
    *,
    options: BlockwiseTraining,
    device: str = shared.DEVICE,
) -> None:
    """Train a small transformer and its block heads from scratch.

    Example: [bold]latticebpd train blockwise corpus.npy --validation held-out.npy --tokenizer tokenizer.json -o
        model[/bold]
    """
    from fst.fingerprint import vocabulary_fingerprint
    from lm_training.cli.training_run import training_run
    from lm_training.data.corpus import end_of_text_id, load_tokens
    from lm_training.families.heads import train_blockwise

    bpe = load_tokenizer(tokenizer)
    tokens, held_out = load_tokens(corpus), load_tokens([validation])
    shape = BlockwiseShape(
        vocab_size=bpe.get_vocab_size(),
        hidden_size=hidden_size,
        num_layers=num_layers,
        attention_heads=max(1, hidden_size // 64),
        intermediate_size=(hidden_size * 11 // 4) // 8 * 8,
        num_heads=num_heads,
    )
    fingerprint = vocabulary_fingerprint(bpe.get_vocab())
    with training_run(output, options, device, [tokenizer]) as process:
        train_blockwise(tokens, held_out, output, shape, options, end_of_text_id(bpe), fingerprint, process)


@app.command()
@shared.with_options
def heads(
    data: list[Path] = shared.DATA,
    validation: Path = shared.VALIDATION,
    model: str = typer.Option(..., help="Base model: a directory, also of a blockwise model, or Hub id."),
    output: Path = shared.OUTPUT,
    num_heads: int = typer.Option(9, min=2, help=NUM_HEADS),
    kind: str = typer.Option(
        "feed-forward", help="feed-forward (Kim), conditioned (on the next token), stern (shared layer), or medusa."
    ),
    intermediate_size: int | None = typer.Option(None, min=1, help="Hidden width of a head; the model's by default."),
    num_layers: int = typer.Option(1, min=1, help="Residual blocks of each medusa head."),
    shortlist: int | None = typer.Option(None, min=1, help="Restrict the heads to so many most frequent tokens."),
    layers: str | None = typer.Option(None, help="Read these layers' states too, such as 26; counted from 1."),
    warm_start: bool = typer.Option(False, "--warm-start", help="Begin with the heads that the model already has."),
    transitions: int | None = typer.Option(
        None, min=1, help="Add transitions of this width: they score a token after the one drafted before it."
    ),
    sequence_length: int = typer.Option(256, min=3, help="Tokens per text of a .npy corpus."),
    base_dtype: str = shared.BASE_DTYPE,
    tokenizer: Path | None = typer.Option(None, help="tokenizer.json; the model directory's by default."),
    *,
    options: HeadTraining,
    device: str = shared.DEVICE,
) -> None:
    """Attach block heads to a causal language model and train them.

    Best on text that the model wrote itself (`latticebpd distill`), which decides acceptance. If hidden states of all
    texts are stored (`distill --hidden`, `train hidden`), the frozen base model is not run.

    Example: [bold]latticebpd train heads distilled --validation distilled-held-out --model model -o with-heads[/bold]
    Example: [bold]latticebpd train heads distilled --validation distilled-held-out --model with-heads -o tied
        --warm-start --freeze-heads --transitions 256[/bold]
    """
    quiet_transformers()
    import torch

    from fst.fingerprint import vocabulary_fingerprint
    from latticebpd.console import positive_numbers
    from latticebpd.drafters.heads.blockwise import BlockwiseLM, is_blockwise, new_heads
    from latticebpd.models.catalogue import resolved
    from latticebpd.models.load_target import load_stock
    from latticebpd.models.transformers.transformers_model import TransformersModel
    from lm_training.cli.training_run import report_shortlist, training_run
    from lm_training.data.shortlist import shortlist_of
    from lm_training.data.training_data import load_head_data
    from lm_training.families.heads import train_heads

    dtype = shared.base_type(base_dtype)
    if base_dtype != "float32" and options.fine_tune:
        reason = "small updates would round to nothing"
        raise ValueError(f"expected --base-dtype float32 with --fine-tune, got {base_dtype}: {reason}")
    if warm_start and not is_blockwise(resolved(model)):
        raise ValueError(f"{model}: expected a blockwise model for --warm-start, found no heads; leave the option out")
    if warm_start and shortlist is not None:
        raise ValueError("expected --shortlist for new heads only, got --warm-start too; existing heads keep their own")
    warm = BlockwiseLM.from_pretrained(resolved(model)) if warm_start else None
    base = torch.nn.Module.to(warm.base if warm is not None else load_stock(model, dtype), dtype)
    windows = [path for path in (*data, validation) if path.suffix == ".npy"]
    if TransformersModel.of(base).is_encoder_decoder and windows:
        wanted = "sources and texts (.npz, or distilled) for an encoder-decoder"
        raise ValueError(f"{windows[0]}: expected {wanted}, got a corpus")
    learnt, held_out = load_head_data(data, [validation], sequence_length, with_states=not options.fine_tune)
    vocabulary = tokenizer or Path(resolved(model)) / "tokenizer.json"
    torch.manual_seed(options.seed)
    tokens = None if shortlist is None else shortlist_of(learnt.texts, TransformersModel.of(base).vocab_size, shortlist)
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
        report_shortlist(process, tokens, learnt, held_out)
        if process.rank == 0 and learnt.states is not None:
            err.print("hidden states are read from their files; the base model is not run for them")
        train_heads(blockwise, learnt, held_out, output, options, process)


@app.command()
def hidden(
    data: list[Path] = typer.Argument(..., help="Directories made by `distill` or `train encode`, or texts (.npz)."),
    model: str = shared.WRITER,
    layers: str | None = shared.LAYERS,
    whole: bool = typer.Option(False, "--whole", help="Store the prompts' states too, for `train block-drafter`."),
    shard_texts: int = typer.Option(512, min=1, help="Texts per shard; a stopped run loses only its current shard."),
    part: str | None = shared.PART,
    batch_tokens: int = typer.Option(4096, min=1, help="Tokens read at a time, padding included; at least one text."),
    base_dtype: str = shared.BASE_DTYPE,
    weights: str | None = WEIGHTS,
    device: str = shared.DEVICE,
) -> None:
    """Store a model's hidden states for texts, so that training drafters does not run the model.

    One pass over each text (teacher forcing); half precision, so 2 bytes times the model's width for every written
    token (with --whole, every token) and layer. The same command resumes a stopped run. On a CPU the engine computes
    them, bit-identical to those that drafters get in decodes with the same weights.

    Example: [bold]latticebpd train hidden written --model model[/bold]
    Example: [bold]latticebpd train hidden written --model model --whole --layers 2,15,28[/bold]
    """
    quiet_transformers()
    from latticebpd.console import positive_numbers
    from latticebpd.lattices.shards import parse_part, share_size
    from latticebpd.models.catalogue import resolved
    from latticebpd.models.engine.engine_copy import engine_for
    from latticebpd.models.load_target import load_stock
    from lm_training.cli.training_run import move, token_progress
    from lm_training.data.hidden_states import StateOptions, add_states, states_directory
    from lm_training.data.training_data import load_texts
    from lm_training.training.labels import ModelTexts

    dtype, mine = shared.base_type(base_dtype), parse_part(part)
    options = StateOptions(positive_numbers("--layers", layers) if layers else [], whole, shard_texts, batch_tokens)
    shared.require_texts(data)
    texts = [load_texts(path, 0) for path in data]
    base = load_stock(model, dtype)
    move(base, device)
    engine_for(base, Path(resolved(model)), weights)
    for path, each in zip(data, texts, strict=True):
        ModelTexts.of(base, each, str(path))
        directory = states_directory(path)
        with token_progress(f"{directory.path}", share_size(len(each), shard_texts, mine)) as report:
            add_states(base, each, directory, options, mine, report)
        tokens = len(each.tokens) - len(each) if whole else each.num_labels
        err.print(f"{directory.path}: hidden states of {tokens} tokens{'' if mine[1] == 1 else ', part by part'}")
