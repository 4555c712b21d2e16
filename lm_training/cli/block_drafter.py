"""``latticebpd train block-drafter``: a block of tokens in one pass over the target's hidden states."""

from __future__ import annotations

from pathlib import Path

import typer

from latticebpd.console import err, quiet_transformers
from lm_training.cli.options import BASE_DTYPE, DEVICE, OUTPUT, VALIDATION, base_type, with_options
from lm_training.training.training_options import BlockDrafterTraining


@with_options
def block_drafter(
    data: list[Path] = typer.Argument(
        ..., help="Texts with the states of `train hidden --whole` beside them: .npz, or directories."
    ),
    validation: Path = VALIDATION,
    model: str = typer.Option(
        ..., help="Target that wrote the texts: a directory, also of a blockwise model, or a hub's name."
    ),
    output: Path = OUTPUT,
    num_layers: int = typer.Option(3, min=1, help="Layers of the drafter."),
    block_size: int = typer.Option(8, min=1, help="Columns of a block, its anchor's included."),
    layers: str | None = typer.Option(
        None, help="The target's layers to read, such as 2,15,28, counted from 1; DFlash's by default."
    ),
    intermediate_size: int | None = typer.Option(
        None, min=1, help="Width of the layers' feed-forward parts; the target's by default."
    ),
    num_kv_heads: int | None = typer.Option(
        None, min=1, help="Heads of keys and values in each layer; as many as the target's by default."
    ),
    causal: bool = typer.Option(
        False, "--causal/--bidirectional", help="Let a block's columns look only up to themselves (JetSpec)."
    ),
    sample_from_anchor: bool = typer.Option(
        True,
        help=(
            "Every column, the anchor's too, says the next token (DSpark); --no-sample-from-anchor: masks say their own"
            " (DFlash)."
        ),
    ),
    shortlist: str | None = typer.Option(
        None,
        help=(
            "Draft these tokens alone: so many, those that the text uses most; or those of a blockwise model's heads,"
            " by its name."
        ),
    ),
    warm_start: bool = typer.Option(
        True,
        "--warm-start/--random-start",
        help="Begin with the target's norms, its deepest state and eyes for what is near.",
    ),
    bigram_rank: int = typer.Option(0, min=0, help="Rank of a bigram that is added to the logits (DSpark); 0 without."),
    bigram_on: Path | None = typer.Option(
        None, help="Teach a bigram alone, on this trained drafter, which stays as it is."
    ),
    mask_token: int | None = typer.Option(
        None, min=0, help="Token that stands for a mask; the tokenizer's mask or padding by default."
    ),
    base_dtype: str = BASE_DTYPE,
    *,
    options: BlockDrafterTraining,
    device: str = DEVICE,
) -> None:
    """Train a drafter that fills a block of tokens in one pass over its target's hidden states (DFlash, JetSpec,
    DSpark).

    On what the target wrote itself (`latticebpd distill`), with states kept by `latticebpd train hidden --whole`; the
    target is not run. The run can be killed at any time; the same command resumes from its last checkpoint. For several
    processes, put `torchrun --nproc_per_node N -m latticebpd` in place of `latticebpd`.

    Example: [bold]latticebpd train block-drafter written --validation written-held-out --model model -o block[/bold]
    Example: [bold]latticebpd train block-drafter written --validation written-held-out --model model -o bigram
        --bigram-on block[/bold]
    """
    quiet_transformers()
    import torch

    from fst.fingerprint import vocabulary_fingerprint
    from latticebpd.console import positive_numbers
    from latticebpd.drafters.block.block_checkpoints import load_block_drafter
    from latticebpd.drafters.block.block_network import BlockDrafter, config_for
    from latticebpd.drafters.pretrained import load_blockwise, load_stock, load_tokenizer
    from latticebpd.target.stock_model import BaseModel
    from lm_training.cli.running import finish
    from lm_training.data.shortlist import coverage, shortlist_of
    from lm_training.families.block import train_block_drafter, with_bigram
    from lm_training.families.heads import load_head_data
    from lm_training.training.training_loop import Process

    for path in (*data, validation):
        if not path.is_dir() and path.suffix != ".npz":
            raise ValueError(f"{path}: expected texts (.npz) or a directory of them, found neither")
    target = torch.nn.Module.to(load_stock(model, base_type(base_dtype)), base_type(base_dtype))
    learnt, held_out = load_head_data(data, [validation], 0)
    torch.manual_seed(options.seed)
    if bigram_on is not None:
        new = with_bigram(load_block_drafter(bigram_on), bigram_rank or 64)
        listed = None if new.draft_tokens is None else new.draft_tokens.numpy()
    else:
        tokenizer = load_tokenizer(model)
        mask = mask_token if mask_token is not None else tokenizer.mask_token_id
        mask = mask if mask is not None else tokenizer.pad_token_id
        if not isinstance(mask, int):
            raise ValueError(
                f"{model}: expected a tokenizer with a mask or padding token, found neither; name one with --mask-token"
            )
        listed = None
        if shortlist is not None and shortlist.isdecimal():
            listed = shortlist_of(learnt.texts, BaseModel.of(target).vocab_size, int(shortlist))
        elif shortlist is not None:
            listed = load_blockwise(shortlist).shortlist
            if listed is None:
                raise ValueError(
                    f"{shortlist}: expected a blockwise model whose heads have a shortlist, found none; give a number"
                )
        if listed is not None and not len(listed):
            raise ValueError(
                f"expected --shortlist >= 1 and written tokens to choose from, got {shortlist} and"
                f" {learnt.texts.num_labels}"
            )
        chosen = [layer - 1 for layer in positive_numbers("--layers", layers)] if layers else []
        parts: dict[str, object] = {"target_layer_ids": tuple(chosen)} if chosen else {}
        config = config_for(
            target, num_layers, block_size, mask, causal_head=causal, sample_from_anchor=sample_from_anchor,
            markov_rank=bigram_rank,
            draft_vocab_size=None if listed is None else len(listed),
            tokenizer_fingerprint=vocabulary_fingerprint(tokenizer.get_vocab()),
            **parts,
        )  # fmt: skip
        config.layers.num_key_value_heads = num_kv_heads or config.layers.num_key_value_heads
        if config.layers.num_attention_heads % config.layers.num_key_value_heads:
            raise ValueError(
                f"expected --num-kv-heads that divide {config.layers.num_attention_heads} (attention heads), got"
                f" {num_kv_heads}"
            )
        config.layers.intermediate_size = intermediate_size or config.layers.intermediate_size
        new = BlockDrafter(config, None if listed is None else torch.from_numpy(listed))
    with Process.join(device) as process:
        if process.rank == 0 and listed is not None:
            shares = (
                f"{coverage(learnt.texts, listed):.2%} of the text, {coverage(held_out.texts, listed):.2%} of held-out"
                " text"
            )
            err.print(f"shortlist: {len(listed)} tokens, {shares}")
        train_block_drafter(
            new, target, learnt, held_out, output, options, process, warm_start=warm_start and bigram_on is None
        )
        finish(output, options, process)
