"""``latticebpd generate``: continue a text, or translate one, with any model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from latticebpd.cli.blocks import blocks_text
from latticebpd.cli.console import err, out, print_json, quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from latticebpd.decoding.loop import Generated
    from latticebpd.drafting import Drafter, GadDrafter, GadTreeDrafter
    from latticebpd.models.blockwise import BlockwiseLM


def generate(
    prompt: str | None = typer.Argument(None, help="Text to continue; - reads standard input."),
    file: Path | None = typer.Option(None, "--file", "-f", help="Read the text from this file instead."),
    model: Path | None = typer.Option(None, help="Directory of any transformers model, with heads or without; the bundled one by default."),
    lm: Path | None = typer.Option(None, help="n-gram model, FST or ARPA; the bundled one with the bundled model."),
    nodes: int = typer.Option(16, min=0, help="Nodes of the draft tree; 0 decodes greedily, one token a call."),
    copy: bool = typer.Option(True, help="Draft by copying from the text so far as well; without heads, by that alone."),
    alpha: float | None = typer.Option(None, min=0.0, help="Weight of the n-gram model; the bundled model has a tuned one, else 1."),
    k: int = typer.Option(16, "-k", "--k", min=1, help="Arcs per slot."),
    drafter: str = typer.Option("auto", help="auto: heads and copies, whichever there are; gad: a non-autoregressive --drafter-model."),
    drafter_model: Path | None = typer.Option(None, help="Directory made by `latticebpd train drafter`, for --drafter gad."),
    block_size: int | None = typer.Option(None, min=1, help="Masks per draft; as many as the drafter was trained for by default."),
    beta: int = typer.Option(1, min=1, help="GAD++: a drafted token may stay among so many best ones ..."),
    tau: float = typer.Option(0.0, min=0.0, help="... whose log-probability is at most this far from the best; 0 is exact."),
    max_new_tokens: int = typer.Option(128, min=1, help="Length limit."),
    stop: list[str] = typer.Option([], help="End the text behind this string; may be given several times."),
    temperature: float = typer.Option(0.0, min=0.0, help="Sample at this temperature; 0 is greedy."),
    top_k: int | None = typer.Option(None, min=1, help="Sample among this many best tokens."),
    top_p: float | None = typer.Option(None, min=0.0, max=1.0, help="Sample among the best tokens of this probability together."),
    seed: int | None = typer.Option(None, help="Seed of the sampling."),
    show_blocks: bool = typer.Option(False, "--show-blocks", help="Mark which tokens each call of the model committed."),
    json: bool = typer.Option(False, "--json", help="Print the text and its cost as one JSON object."),
) -> None:
    """Continue a text; the output is what the base model alone would write, whatever the drafts.

    The text appears as it is written.  A model without heads drafts by copying; an encoder–decoder translates, by itself
    or with a drafter, whose drafts are its best tokens or, with --lm, a tree.

    Example: [bold]latticebpd generate "The history of the city" --show-blocks[/bold]
    Example: [bold]latticebpd generate "A dog runs." --model translator --drafter gad --drafter-model drafter[/bold]
    """
    text = _text(prompt, file)
    if drafter not in ("auto", "gad"):
        raise ValueError(f"expected --drafter auto or gad, got {drafter!r}")
    if drafter == "gad" and (model is None or drafter_model is None):
        missing = "--model" if model is None else "--drafter-model"
        raise ValueError(f"expected {missing} with --drafter gad, got none; give a verifier and a drafter trained for it")
    if drafter != "gad" and (drafter_model is not None or block_size is not None or beta != 1 or tau):
        raise ValueError("expected --drafter gad with --drafter-model, --block-size, --beta or --tau, got none")
    if temperature and (beta != 1 or tau):
        raise ValueError("expected either --temperature or --beta and --tau, got both")
    quiet_transformers()
    import torch
    from transformers import TextStreamer

    from latticebpd.decoding.acceptance import Exact, Sampling, TopBeta
    from latticebpd.decoding.loop import generate as decode
    from latticebpd.models import bundle
    from latticebpd.models.base import BaseModel
    from latticebpd.models.mask_filling import refuse_drafter
    from latticebpd.models.pretrained import load_model, load_tokenizer

    directory = model or bundle.MODEL
    refuse_drafter(directory)
    served = load_model(directory)
    base = BaseModel.of(served)
    tokenizer: Any = load_tokenizer(directory)
    ids = tokenizer(text)["input_ids"]
    bundled = model is None and lm is None
    weight = alpha if alpha is not None else bundle.settings()["alpha"] if bundled else None
    drafting: Drafter
    if drafter_model is not None:
        drafting = _gad(base.model, tokenizer, drafter_model, lm, nodes, weight, k, block_size)
        drafting.read([ids])
    else:
        drafting = _drafter(served, lm or (bundle.LM if model is None else None), nodes, copy, weight, k)
    rule: Any = TopBeta(beta, tau) if drafter_model is not None else Exact()
    if temperature:
        generator = torch.Generator().manual_seed(seed) if seed is not None else None
        rule = Sampling(temperature, top_k, top_p, generator)
    streaming = not (json or show_blocks)
    found = decode(
        served,
        ids,
        drafting,
        rule,
        max_new_tokens,
        attention_mask=[[1] * len(ids)],  # no token of a text is padding, whatever its id
        streamer=TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True) if streaming else None,
        stop_strings=stop or None,
        tokenizer=tokenizer,
        trace=show_blocks,
    )
    if json:
        print_json(_record(found, tokenizer))
    elif show_blocks:
        shown = "" if base.encodes else text
        out.print(blocks_text(shown, found.blocks(), lambda tokens: tokenizer.decode(tokens)))
    if not json:
        err.print(f"{found.num_tokens} tokens in {found.num_calls} calls after the prefill", style="dim")


def _text(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise ValueError("expected a text, - for standard input, or --file, and just one of them; see --help")
    if file is not None:
        return file.read_text(encoding="utf-8")
    return sys.stdin.read() if prompt == "-" else str(prompt)


def _drafter(model: BlockwiseLM | PreTrainedModel, lm: Path | None, nodes: int, copy: bool, alpha: float | None, k: int) -> Drafter:
    """Copies and heads together where the model has heads, copies alone where it has none."""
    from latticebpd.drafting import MixtureDrafter, NoDrafter, PromptNgramDrafter, TreeDrafter
    from latticebpd.models.blockwise import BlockwiseLM
    from latticebpd.scoring.rescoring import as_rescorer

    if not nodes:
        return NoDrafter()
    copying = PromptNgramDrafter(block_size=nodes, num_nodes=nodes)
    if not isinstance(model, BlockwiseLM):
        if lm is not None:
            raise ValueError("expected a model with heads for --lm to rescore, got one without; leave --lm out or train heads")
        return copying if copy else NoDrafter()
    heads = TreeDrafter(model, as_rescorer(lm), num_nodes=nodes, alpha=alpha, k=k)
    return MixtureDrafter(copying, heads, num_nodes=nodes) if copy else heads


def _gad(
    verifier: PreTrainedModel,
    tokenizer: Any,
    directory: Path,
    lm: Path | None,
    nodes: int,
    alpha: float | None,
    k: int,
    block_size: int | None,
) -> GadDrafter | GadTreeDrafter:
    """The best token of every mask or, with an n-gram model, the best tree."""
    from fst.fingerprint import vocabulary_fingerprint
    from latticebpd.drafting import GadDrafter, GadTreeDrafter
    from latticebpd.models.base import BaseModel
    from latticebpd.models.mask_filling import NonAutoregressiveModel, check_pair

    if not BaseModel.of(verifier).encodes:
        raise ValueError("expected an encoder–decoder as --model with --drafter gad, got a decoder-only model")
    model = NonAutoregressiveModel.from_pretrained(directory)
    check_pair(verifier, model, vocabulary_fingerprint(tokenizer.get_vocab()))
    if lm is None:
        return GadDrafter(model, block_size)
    return GadTreeDrafter(model, lm, max(nodes, 1), alpha, k, block_size)


def _record(found: Generated, tokenizer: Any) -> dict[str, Any]:
    return {
        "text": tokenizer.decode(found.sequences[0, found.prompt_length :].tolist(), skip_special_tokens=True),
        "tokens": found.num_tokens,
        "calls": found.num_calls,
        "block_efficiency": found.block_efficiency if found.num_calls else None,
        "accept_counts": found.accept_counts.tolist(),
        "verified_tokens": found.verified_tokens,
    }
