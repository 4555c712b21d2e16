"""``latticebpd generate``: continue a text, or translate one, with any model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from latticebpd.cli.accepted_blocks import BlockWriter
from latticebpd.cli.decode_options import IGNORE_BEAMS, NARROW, with_cpu_kernels, without_beams
from latticebpd.cli.lattice_options import BIGRAM, block_source
from latticebpd.cli.lm_option import check_asked
from latticebpd.console import err, out, print_json, quiet_transformers, writable_file

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from latticebpd.decoding.loop import Generated
    from latticebpd.drafters import LatticeSource
    from latticebpd.drafters.heads.blockwise import BlockwiseLM


def generate(
    prompt: str | None = typer.Argument(None, help="Text to continue; - reads standard input."),
    file: Path | None = typer.Option(None, "--file", "-f", help="Read the text from this file instead."),
    model: Path | None = typer.Option(
        None,
        help=(
            "Any transformers model: directory, .gguf file, name of `latticebpd models` or of a hub; the bundled one by"
            " default."
        ),
    ),
    chat: bool | None = typer.Option(
        None,
        "--chat/--no-chat",
        help="The text is a user's turn, in the tokenizer's chat template; by default where it has one.",
    ),
    system_prompt: str | None = typer.Option(None, help="System prompt of the chat; by default the template's own."),
    system: str | None = typer.Option(
        None,
        "--system",
        "-s",
        help=(
            "Drafting system: vanilla, P-best, N-tree, N-calibrated or copies+N-tree (append :0-gram for no language"
            " model), N-copies (any model), greedy. By default 16-calibrated with heads and a calibrated model, else"
            " copies+16-tree; 16-copies without heads, 16-tree with a block drafter, 16-calibrated with --lm that was"
            " calibrated for it, vanilla with one that fills masks."
        ),
    ),
    accept: str | None = typer.Option(
        None,
        help=(
            "What is accepted: exact (the default), top-k:2, distance:2, min-block:3, beta:5,3 or sample (with"
            " --temperature)."
        ),
    ),
    lm: Path | None = typer.Option(
        None,
        help="Language model, FST or ARPA or a neural rescorer's directory; the bundled one with the bundled model.",
    ),
    alpha: float | None = typer.Option(
        None, min=0.0, help="Its weight; by default what is stored with it for such a system, else 1."
    ),
    k: int | None = typer.Option(
        None, "-k", "--k", min=1, help="Arcs per slot; 16 by default, for calibrated trees what they were fitted to."
    ),
    drafter_model: Path | None = typer.Option(
        None,
        help=(
            "Draft with this model: a block drafter (`latticebpd train block-drafter`, a DFlash or DSpark checkpoint),"
            " or, for an encoder–decoder, one that fills masks (`latticebpd train drafter`)."
        ),
    ),
    block_size: int | None = typer.Option(
        None,
        min=1,
        help="Tokens per draft: heads, masks or slots to use; by default all, or what calibrated trees need.",
    ),
    bigram: bool = BIGRAM,
    max_new_tokens: int = typer.Option(128, min=1, help="Length limit."),
    ignore_beams: bool = IGNORE_BEAMS,
    stop: list[str] = typer.Option([], help="Stop after this string; may be repeated."),
    temperature: float | None = typer.Option(None, min=0.0, help="Sample at this temperature; 0 is greedy."),
    top_k: int | None = typer.Option(None, min=1, help="Sample among this many best tokens."),
    top_p: float | None = typer.Option(
        None, min=0.0, max=1.0, help="Sample among the best tokens of this probability together."
    ),
    seed: int | None = typer.Option(None, help="Seed of the sampling."),
    narrow: bool = NARROW,
    costs: Path | None = typer.Option(
        None, help="Costs by `latticebpd profile`: trees are cut to the size that promises most tokens a second."
    ),
    show_blocks: bool = typer.Option(
        False, "--show-blocks", help="Mark which tokens each call of the model committed."
    ),
    trace: Path | None = typer.Option(
        None,
        callback=writable_file,
        help="Write a page that shows the decode call by call: lattices, trees, verdicts, why drafts ended.",
    ),
    json: bool = typer.Option(False, "--json", help="Print the text and its cost as one JSON object."),
) -> None:
    """Continue a text, or answer it; under exact acceptance the output is what the base model alone would write,
    whatever the drafts.

    The text appears as it is written.  A chat model answers; an encoder–decoder translates, by itself or with a
    non-autoregressive drafter.

    Example: [bold]latticebpd generate "The history of the city" --system 16-best --show-blocks[/bold]
    Example: [bold]latticebpd generate "What is a lattice?" --model smollm2-135m[/bold]
    Example: [bold]latticebpd generate "A dog runs." --model translator --drafter-model drafter --accept beta:3,1[/bold]
    """
    text = _text(prompt, file)
    if drafter_model is not None and model is None:
        raise ValueError(
            "expected --model with --drafter-model, got none; give the verifier that the drafter was trained for"
        )
    quiet_transformers()
    import torch
    from transformers import TextStreamer

    from latticebpd.decoding.loop import generate as decode
    from latticebpd.decoding.rule_names import parse_rule
    from latticebpd.drafters import MaskLattices, bundled, drafter_named
    from latticebpd.drafters.block.block_checkpoints import is_block_drafter
    from latticebpd.drafters.cost_curve import CostCurve
    from latticebpd.drafters.default_systems import default_block_system, default_system, lattice_shape
    from latticebpd.drafters.heads.blockwise import BlockwiseLM
    from latticebpd.drafters.masks.mask_network import refuse_drafter
    from latticebpd.drafters.pretrained import lm_beside, load_model, load_tokenizer
    from latticebpd.target.chat import prompt_format
    from latticebpd.target.stock_model import BaseModel

    generator = None if seed is None else torch.Generator().manual_seed(seed)
    sampling = {"temperature": temperature or None, "top_k": top_k, "top_p": top_p, "generator": generator}
    rule = parse_rule(accept or ("sample" if temperature else "exact"), **sampling)
    directory = model or bundled.MODEL
    refuse_drafter(directory)
    served = with_cpu_kernels(without_beams(load_model(directory), ignore_beams), narrow)
    base = BaseModel.of(served)
    tokenizer: Any = load_tokenizer(directory)
    prompts = prompt_format(tokenizer, served, chat, system_prompt)
    in_chat = prompts.eos_ids is not None
    ids = prompts.prompt([text]) if in_chat else prompts.document(text)
    rescored = lm or (bundled.LM if model is None else lm_beside(directory))
    if drafter_model is None:
        system = system or default_system(
            rescored, alpha, by_cost=costs is not None, has_heads=isinstance(served, BlockwiseLM)
        )
    elif is_block_drafter(drafter_model):
        system = system or default_block_system(lm, alpha)
    else:
        system = system or ("vanilla" if lm is None else "16-tree")
    source = _source(served, tokenizer, drafter_model, *lattice_shape(k, block_size, system, rescored), bigram, narrow)
    if source is None and lm is not None:
        raise ValueError(
            "expected a model with heads for --lm to rescore, got one without; leave --lm out or train heads"
        )
    check_asked(system, lm, alpha)
    drafter = drafter_named(system, source, rescored, alpha, costs=None if costs is None else CostCurve.load(costs))
    if isinstance(source, MaskLattices):
        source.read([ids])
    streamer: Any = None
    if show_blocks and not json:
        streamer = BlockWriter(out, tokenizer.decode, "" if base.is_encoder_decoder or in_chat else text)
    elif not json:
        streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    found = decode(
        served,
        ids,
        drafter,
        rule,
        max_new_tokens,
        prompts.eos_ids,
        attention_mask=[[1] * len(ids)],  # no token of a text is padding, whatever its id
        streamer=streamer,
        stop_strings=stop or None,
        tokenizer=tokenizer,
        trace=trace is not None,
    )
    if json:
        print_json(_record(found, tokenizer))
    if trace is not None:
        from latticebpd.measuring.call_records import read_calls, scorer_of
        from latticebpd.report import TracedDecode, write_trace

        calls = read_calls(served, ids, found, scorer_of(drafter))
        shown = TracedDecode("The decode", text, [token for block in found.blocks() for token in block], calls)
        how = (
            f"{'bundled model' if model is None else directory.name} · {system} ·"
            f" {accept or ('sample' if temperature else 'exact')}"
        )
        write_trace(trace, "A decode, call by call", how, [shown], tokenizer)
    if not json:
        err.print(
            f"{found.num_tokens} tokens in {found.num_calls} calls{' after the prefill' * all(found.prefilled)}",
            style="dim",
        )


def _text(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise ValueError("expected a text, - for standard input, or --file, and just one of them; see --help")
    if file is not None:
        return file.read_text(encoding="utf-8")
    return sys.stdin.read() if prompt == "-" else str(prompt)


def _source(
    model: BlockwiseLM | PreTrainedModel,
    tokenizer: Any,
    drafter_model: Path | None,
    k: int,
    block_size: int | None,
    bigram: bool,
    narrow: bool,
) -> LatticeSource | None:
    """Where lattices come from: the model's heads, a block drafter, or another model's masks; None where there are
    none."""
    from fst.fingerprint import vocabulary_fingerprint
    from latticebpd.drafters import HeadLattices, MaskLattices
    from latticebpd.drafters.block.block_checkpoints import is_block_drafter
    from latticebpd.drafters.heads.blockwise import BlockwiseLM
    from latticebpd.drafters.masks.mask_network import NonAutoregressiveModel, check_pair
    from latticebpd.target.stock_model import BaseModel

    if drafter_model is None:
        return HeadLattices(model, k, block_size) if isinstance(model, BlockwiseLM) else None
    if is_block_drafter(drafter_model):
        return block_source(drafter_model, model, tokenizer, bigram, narrow)(k, block_size)
    verifier = BaseModel.of(model)
    if not verifier.is_encoder_decoder:
        raise ValueError(
            "expected an encoder–decoder as --model with --drafter-model, got a decoder-only model, "
            f"and in {drafter_model} no block drafter, which would fit it"
        )
    masks = NonAutoregressiveModel.from_pretrained(drafter_model)
    check_pair(verifier.model, masks, vocabulary_fingerprint(tokenizer.get_vocab()))
    return MaskLattices(masks, k, block_size)


def _record(found: Generated, tokenizer: Any) -> dict[str, Any]:
    return {
        "text": tokenizer.decode(found.sequences[0, found.prompt_length :].tolist(), skip_special_tokens=True),
        "tokens": found.num_tokens,
        "calls": found.num_calls,
        "block_efficiency": found.block_efficiency if found.num_calls else None,
        "accept_counts": found.accept_counts.tolist(),
        "verified_tokens": found.verified_tokens,
    }
