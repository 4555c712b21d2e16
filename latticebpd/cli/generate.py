"""``latticebpd generate``: continue a text, or translate one, with any model."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import typer

from fst.files import read_text
from latticebpd.checks import expect
from latticebpd.cli import model_options
from latticebpd.cli.accepted_blocks import streamer_for
from latticebpd.console import err, print_json, quiet_transformers, writable_file


def generate(
    prompt: str | None = typer.Argument(None, help="Text to continue; - reads standard input."),
    file: Path | None = typer.Option(None, "--file", "-f", help="Read the text from this file instead."),
    model: Path | None = model_options.MODEL,
    chat: bool | None = model_options.CHAT,
    system_prompt: str | None = model_options.SYSTEM_PROMPT,
    system: str | None = model_options.SYSTEM,
    accept: str | None = typer.Option(
        None, help="Acceptance rule: exact (default), top-k:2, distance:2, min-block:3, beta:5,3, or sample."
    ),
    lm: Path | None = model_options.LM,
    alpha: float | None = model_options.ALPHA,
    k: int | None = model_options.K,
    drafter_model: Path | None = model_options.DRAFTER_MODEL,
    block_size: int | None = typer.Option(None, min=1, help="Tokens per draft; by default all, or what trees need."),
    bigram: bool = model_options.BIGRAM,
    max_new_tokens: int = typer.Option(128, min=1, help="Length limit."),
    ignore_beams: bool = model_options.IGNORE_BEAMS,
    stop: list[str] = typer.Option([], help="Stop after this string; may be repeated."),
    temperature: float | None = model_options.TEMPERATURE,
    top_k: int | None = model_options.TOP_K,
    top_p: float | None = model_options.TOP_P,
    seed: int | None = model_options.SEED,
    json_schema: Path | None = model_options.JSON_SCHEMA,
    json_object: bool = model_options.JSON_OBJECT,
    regex: str | None = model_options.REGEX,
    choice: list[str] = model_options.CHOICE,
    grammar: Path | None = model_options.GRAMMAR,
    weights: str | None = model_options.WEIGHTS,
    costs: Path | None = typer.Option(None, help="File of `latticebpd profile`: trees are cut to what pays off."),
    show_blocks: bool = model_options.SHOW_BLOCKS,
    trace: Path | None = typer.Option(None, callback=writable_file, help="Write a page that explains every call."),
    json: bool = typer.Option(False, "--json", help="Print text and counts as one JSON object."),
) -> None:
    """Continue a text, or answer a question; with exact acceptance the output is the base model's own greedy text,
    whatever the drafts.

    The text appears as it is written.  A chat model answers; an encoder–decoder translates, by itself or with a
    non-autoregressive drafter. Structured output (JSON of a schema, a regular expression, a choice, a grammar) takes
    the best of the tokens that it allows.

    Example: [bold]latticebpd generate "The history of the city" --system 16-best --show-blocks[/bold]
    Example: [bold]latticebpd generate "What is photosynthesis?" --model smollm2-135m[/bold]
    Example: [bold]latticebpd generate "A dog runs." --model translator --drafter-model drafter --accept beta:3,1[/bold]
    Example: [bold]latticebpd generate "Is Paris a city?" --choice yes --choice no[/bold]
    """
    text = _text(prompt, file)
    remedy = "give the verifier that the drafter was trained for"
    expect(drafter_model is None or model is not None, "--model with --drafter-model", remedy=remedy)
    quiet_transformers()
    from latticebpd.drafters.cost_curve import CostCurve
    from latticebpd.loading import load
    from latticebpd.models.catalogue import BUNDLED

    constraint = model_options.constraint_of(json_schema, json_object, regex, choice, grammar)
    rule = model_options.sampling_rule(accept, temperature, top_k, top_p, seed)
    loaded = load(
        model, lm, drafter=drafter_model, chat=chat, system_prompt=system_prompt, ignore_beams=ignore_beams,
        weights=weights, bigram=bigram,
    )  # fmt: skip
    cost_curve = None if costs is None else CostCurve.load(costs)
    drafter = model_options.named_drafter(loaded, system, lm, alpha, k=k, slots=block_size, costs=cost_curve)
    tokenizer: Any = loaded.tokenizer
    answers = loaded.in_chat or loaded.target.is_encoder_decoder
    streamer = None if json else streamer_for(tokenizer, show_blocks, "" if answers else text)
    ids = loaded.encode(text)
    begun = time.perf_counter()
    result = loaded.generate(
        ids, drafter, acceptance=rule, max_new_tokens=max_new_tokens, streamer=streamer, stop_strings=stop or None,
        trace=trace is not None, constraint=constraint,
    )  # fmt: skip
    seconds = time.perf_counter() - begun
    written = result.tokens[0, result.prompt_length :].tolist()
    cut = result.cut[0]
    if json:
        record = {
            "text": tokenizer.decode(written, skip_special_tokens=True),
            "finish_reason": "length" if cut else "stop",
            "tokens": result.num_tokens,
            "calls": result.num_calls,
            "block_efficiency": result.block_efficiency if result.num_calls else None,
            "accept_counts": result.accept_counts.tolist(),
            "verified_tokens": result.verified_tokens,
            "seconds": seconds,
            "tokens_per_second": result.num_tokens / seconds,
        }
        print_json(record)
    if trace is not None:
        from latticebpd.measuring.call_records import read_calls, scorer_of
        from latticebpd.report import TracedDecode, write_trace

        shown = TracedDecode("The decode", text, written, read_calls(loaded.target, ids, result, scorer_of(drafter)))
        name = system or loaded.default_system(alpha, by_cost=costs is not None)
        how = f"{'bundled model' if loaded.name == BUNDLED else loaded.name} · {name}"
        how += f" · {accept or ('sample' if temperature else 'exact')}"
        write_trace(trace, "A decode, call by call", how, [shown], tokenizer)
    if not json:
        calls = f"{result.num_calls} calls{' after the prefill' * all(result.prefilled)}"
        speed = f"{result.num_tokens / seconds:.1f} tokens/s"
        err.print(f"{result.num_tokens} tokens in {calls}, {speed}, weights: {loaded.weights}", style="dim")
        if cut and constraint is not None:
            err.print(f"cut off by --max-new-tokens {max_new_tokens}: the text is no complete one", style="dim")


def _text(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise ValueError("expected a text, - for standard input, or --file, and just one of them; see --help")
    if file is not None:
        return read_text(file)
    return sys.stdin.read() if prompt == "-" else str(prompt)
