"""``latticebpd train blockwise``: a small transformer and its heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from latticebpd.cli.input_data import require_inputs
from latticebpd.cli.json_option import with_json
from latticebpd.console import next_command
from lm_training.cli.options import DEVICE, NUM_HEADS, OUTPUT, with_options
from lm_training.families.shapes import BlockwiseShape
from lm_training.training.training_options import BlockwiseTraining


@with_json
@with_options
def blockwise(
    corpus: list[Path] = typer.Argument(..., help="Token ids (.npy), as written by `latticebpd train encode`."),
    validation: Path = typer.Option(..., help="Token ids of documents that are not in the corpus (.npy)."),
    tokenizer: Path = typer.Option(..., help="tokenizer.json the corpus was encoded with."),
    output: Path = OUTPUT,
    hidden_size: int = typer.Option(BlockwiseShape.hidden_size, min=8, help="Width of the transformer."),
    num_layers: int = typer.Option(BlockwiseShape.num_layers, min=1, help="Layers of the transformer."),
    num_heads: int = typer.Option(BlockwiseShape.num_heads, min=2, help=NUM_HEADS),
    *,
    options: BlockwiseTraining,
    device: str = DEVICE,
) -> dict[str, Any] | None:
    """Train a small transformer and its block heads from scratch.

    Example: [bold]latticebpd train blockwise corpus.npy --validation held-out.npy --tokenizer tokenizer.json -o
        model[/bold]
    """
    from lm_training.data.text_tokenizer import text_tokenizer

    require_inputs([*corpus, validation])
    bpe, end = text_tokenizer(tokenizer)
    from fst.fingerprint import vocabulary_fingerprint
    from lm_training.cli.training_run import run_record, training_run
    from lm_training.data.corpus import load_tokens
    from lm_training.families.heads import train_blockwise

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
        train_blockwise(tokens, held_out, output, shape, options, end, fingerprint, process)
    if process.rank:
        return None
    next_command("generate TEXT --model {}", output)
    return run_record(output)
