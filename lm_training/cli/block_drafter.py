"""``latticebpd train block-drafter``: a block of tokens in one pass over the target's hidden states."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import typer

from latticebpd.checks import expect
from latticebpd.cli.input_data import require_inputs
from latticebpd.cli.json_option import with_json
from latticebpd.console import err, next_command, quiet_transformers
from lm_training.cli.options import BASE_DTYPE, DEVICE, OUTPUT, VALIDATION, base_type, require_texts, with_options
from lm_training.training.training_options import BlockDrafterTraining


@with_json
@with_options
def block_drafter(
    data: list[Path] = typer.Argument(..., help="Directories made by `latticebpd distill`, or texts (.npz)."),
    validation: Path = VALIDATION,
    model: str = typer.Option(..., help="Target that wrote the texts: directory, .gguf file, Hub id or name."),
    output: Path = OUTPUT,
    num_layers: int = typer.Option(3, min=1, help="Layers of the drafter."),
    block_size: int = typer.Option(8, min=1, help="Columns of a block, its anchor's included."),
    layers: str | None = typer.Option(None, help="Target layers to read, such as 2,15,28; DFlash's by default."),
    intermediate_size: int | None = typer.Option(None, min=1, help="Feed-forward width; the target's by default."),
    num_kv_heads: int | None = typer.Option(None, min=1, help="Key and value heads; the target's number by default."),
    causal: bool = typer.Option(False, "--causal/--bidirectional", help="Causal attention in a block (JetSpec)."),
    sample_from_anchor: bool | None = typer.Option(
        None, help="Columns predict the next token (DSpark), not their own; by default without selector or reranker."
    ),
    shortlist: str | None = typer.Option(None, help="Draft only so many frequent tokens; or those of a model's heads."),
    warm_start: bool = typer.Option(True, "--warm-start/--random-start", help="Initialise weights from the target."),
    bigram_rank: int = typer.Option(0, min=0, help="Rank of a bigram added to the logits (DSpark); 0: none."),
    selector: bool = typer.Option(False, "--selector", help="Add DFlash 2's convolutions and candidate selector."),
    selector_rank: int = typer.Option(256, min=1, help="Rank of the selector."),
    reranker: bool = typer.Option(False, "--reranker", help="Add LiLiCorr's reranker of the lattice."),
    reranker_size: int = typer.Option(0, min=0, help="Width of the reranker and its factors; 0: the target's."),
    reranker_heads: int = typer.Option(8, min=1, help="Attention heads of the reranker."),
    candidates: int | None = typer.Option(None, min=1, help="Arcs per slot that are scored; 16, or 8 to rerank."),
    head_on: Path | None = typer.Option(None, "--head-on", "--bigram-on", help="Add a head to this trained drafter."),
    whole: bool = typer.Option(False, "--whole/--head-only", help="With --head-on: train all of the drafter further."),
    mask_token: int | None = typer.Option(None, min=0, help="The mask's id; else the tokenizer's mask or padding."),
    base_dtype: str = BASE_DTYPE,
    *,
    options: BlockDrafterTraining,
    device: str = DEVICE,
) -> dict[str, Any] | None:
    """Train a drafter that fills a block of tokens in one pass over its target's hidden states (DFlash, JetSpec,
    DSpark, DFlash 2, LiLiCorr).

    The data are text that the target wrote (`latticebpd distill`). If its states are stored for all of them
    (`latticebpd train hidden --whole`), the target is not run.

    Example: [bold]latticebpd train block-drafter written --validation written-held-out --model model -o block[/bold]
    Example: [bold]latticebpd train block-drafter written --validation written-held-out --model model -o bigram
        --head-on block[/bold]
    Example: [bold]latticebpd train block-drafter written --validation written-held-out --model model -o selected
        --selector[/bold]
    """
    require_inputs([*data, validation], model)
    quiet_transformers()
    import torch

    from fst.fingerprint import vocabulary_fingerprint
    from latticebpd.console import positive_numbers
    from latticebpd.drafters.block.block_checkpoints import load_block_drafter
    from latticebpd.drafters.block.block_network import BlockDrafter, config_for
    from latticebpd.drafters.block.lattice_reranker import RerankerConfig
    from latticebpd.models.load_target import load_stock, load_tokenizer
    from latticebpd.models.transformers.transformers_model import TransformersModel
    from lm_training.cli.training_run import drafted_tokens, mask_token_id, report_shortlist, run_record, training_run
    from lm_training.data.training_data import load_head_data
    from lm_training.families.block import train_block_drafter, with_head

    require_texts((*data, validation))
    target = torch.nn.Module.to(load_stock(model, base_type(base_dtype)), base_type(base_dtype))
    learnt, held_out = load_head_data(data, [validation], 0)
    torch.manual_seed(options.seed)
    rank = bigram_rank or 64 * (head_on is not None and not (selector or reranker or whole))
    head: dict[str, Any] = {"markov_rank": rank} if rank else {}
    width = TransformersModel.of(target).hidden_size
    if selector:
        head |= {"conv_kernel_size": 2, "conv_group_size": math.gcd(16, width)}
        head |= {"selector_rank": selector_rank, "selector_top_k": candidates or 16}
    if reranker:
        shape = {"hidden_size": reranker_size, "factor_dim": reranker_size or width, "num_heads": reranker_heads}
        head["reranker"] = RerankerConfig(candidates or 8, **shape)
    if head_on is not None:
        new = with_head(load_block_drafter(head_on), not whole, **head)
        listed = None if new.draft_tokens is None else new.draft_tokens.numpy()
    else:
        tokenizer = load_tokenizer(model)
        if mask_token is None:
            mask_token = mask_token_id(tokenizer, model, "; name one with --mask-token")
        listed = drafted_tokens(shortlist, learnt.texts, TransformersModel.of(target).vocab_size)
        chosen = tuple(layer - 1 for layer in positive_numbers("--layers", layers)) if layers else ()
        config = config_for(
            target,
            num_layers,
            block_size,
            mask_token,
            causal_head=causal,
            sample_from_anchor=not (selector or reranker) if sample_from_anchor is None else sample_from_anchor,
            **head,
            draft_vocab_size=None if listed is None else len(listed),
            tokenizer_fingerprint=vocabulary_fingerprint(tokenizer.get_vocab()),
            **({"target_layer_ids": chosen} if chosen else {}),
        )
        sizes = config.layers
        sizes.num_key_value_heads = num_kv_heads or sizes.num_key_value_heads
        wanted = f"--num-kv-heads that divide {sizes.num_attention_heads} (attention heads)"
        expect(not sizes.num_attention_heads % sizes.num_key_value_heads, wanted, num_kv_heads)
        sizes.intermediate_size = intermediate_size or sizes.intermediate_size
        new = BlockDrafter(config, None if listed is None else torch.from_numpy(listed))
    with training_run(output, options, device) as process:
        report_shortlist(process, listed, learnt, held_out)
        if process.rank == 0 and learnt.states is None:
            err.print("no stored hidden states for all texts: the target reads them anew for each update")
        warm_start = warm_start and head_on is None
        train_block_drafter(new, target, learnt, held_out, output, options, process, warm_start, model)
    if process.rank:
        return None
    next_command("generate TEXT --model {} --drafter-model {}", model, output)
    return run_record(output)
