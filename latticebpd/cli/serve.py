"""``latticebpd serve``: an OpenAI-compatible server."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import typer

from latticebpd.checks import expect
from latticebpd.cli import model_options
from latticebpd.console import err, print_json, quiet_transformers

SIZES = (1, 2, 3, 5, 9, 17, 33, 65)
"""Tokens of the passes that are measured."""


def serve(
    model: Path | None = model_options.MODEL,
    host: str = typer.Option("127.0.0.1", help="Address to listen on; 0.0.0.0 is every address of this machine."),
    port: int = typer.Option(8000, min=0, max=65535, help="Port to listen on; 0 is any free one."),
    api_key: str | None = typer.Option(
        None, envvar="LATTICEBPD_API_KEY", help="Require this key; better set by the environment variable."
    ),
    name: str | None = typer.Option(None, help="Name of the model in requests; by default its own."),
    rows: int = typer.Option(16, min=1, help="Requests that share passes; 1 with --weights torch."),
    queue: int = typer.Option(64, min=0, help="Requests that may wait or be prepared; more get status 429."),
    context: int = typer.Option(4096, min=2, help="Tokens of a prompt and its answer, at most; they cost memory."),
    max_tokens: int = typer.Option(1024, min=1, help="Tokens of an answer, at most."),
    max_seconds: float = typer.Option(300.0, min=0.1, help="Seconds from a request's arrival to its end, at most."),
    prefix_memory: int = typer.Option(512, min=0, help="MB for texts whose beginnings later prompts share; 0: none."),
    history: int = typer.Option(0, min=0, help="Tokens of earlier texts that are drafted from, for one user; 0: none."),
    shutdown_seconds: float = typer.Option(10.0, min=0.0, help="Seconds for answers to finish at a shutdown."),
    temperature: float = typer.Option(0.0, min=0.0, max=2.0, help="Temperature of requests without one; 0 is greedy."),
    system_prompt: str | None = model_options.SYSTEM_PROMPT,
    system: str | None = typer.Option(None, "--system", "-s", help="Drafting system, as for `latticebpd generate`."),
    lm: Path | None = model_options.LM,
    alpha: float | None = model_options.ALPHA,
    k: int | None = model_options.K,
    drafter_model: Path | None = model_options.DRAFTER_MODEL,
    bigram: bool = model_options.BIGRAM,
    ignore_beams: bool = model_options.IGNORE_BEAMS,
    weights: str | None = model_options.WEIGHTS,
    costs: Path | None = typer.Option(None, help="File of `latticebpd profile`; by default costs are measured first."),
    json: bool = typer.Option(False, "--json", help="Print where it listens, as one JSON object, when it does."),
) -> None:
    """Serve a model to OpenAI clients: completions and chats, as one answer or streamed.

    Concurrent requests share the model's passes; each text is that of a separate decode.

    Example: [bold]latticebpd serve --model smollm2-135m[/bold]
    Example: [bold]LATTICEBPD_API_KEY=... latticebpd serve --model smollm2-135m --host 0.0.0.0[/bold]
    """
    try:
        from latticebpd.serving.api import Service, check_key
        from latticebpd.serving.limits import Limits
        from latticebpd.serving.server import is_loopback, listen, server_of
    except ModuleNotFoundError as error:
        wanted = f"expected the packages of the extra serve, lacking {error.name}"
        raise ValueError(f"{wanted}: pip install 'latticebpd[serve]'") from error
    check_key(api_key)
    quiet_transformers()
    from latticebpd.decoding.pass_costs import profile_drafts
    from latticebpd.drafters.copies.text_history import TextHistory, with_history
    from latticebpd.drafters.cost_curve import CostCurve
    from latticebpd.drafters.system_names import size_of, tells_probabilities
    from latticebpd.loading import load
    from latticebpd.models.weight_kinds import TORCH

    curve = None if costs is None else CostCurve.load(costs)
    loaded = load(
        model, lm, drafter=drafter_model, system_prompt=system_prompt, ignore_beams=ignore_beams, weights=weights,
        bigram=bigram,
    )  # fmt: skip
    on_engine = loaded.weights != TORCH
    system = system or loaded.default_system(alpha, by_cost=on_engine)
    wanted = "--history with a system whose trees tell probabilities, such as 16-copies or 64-tree"
    expect(not history or tells_probabilities(system), wanted, system)
    drafter_of: Any = partial(model_options.named_drafter, loaded, system, lm, alpha, k=k)
    if (cuts := on_engine and tells_probabilities(system)) and curve is None:
        err.print("measuring what passes cost; --costs takes a file of `latticebpd profile`", style="dim")
        curve = profile_drafts(loaded.target, SIZES, lambda costs: drafter_of(costs=costs), rounds=2)
    drafter, texts = drafter_of(costs=curve if cuts else None), TextHistory(history) if history else None
    if texts is not None:
        drafter = with_history(drafter, texts, size_of(system))
    limits = Limits(
        rows=rows, queue=queue, context=context, max_tokens=max_tokens, seconds=max_seconds,
        prefix_memory=prefix_memory << 20,
    )  # fmt: skip
    service = Service(loaded, drafter, name or loaded.name, limits, temperature, api_key or None, history=texts)
    with listen(host, port) as listening:
        server = server_of(service, shutdown_seconds)
        if not is_loopback(host) and not api_key:
            err.print("anyone who reaches this address may use the model; --api-key asks for a key", style="yellow")
        at = f"[{host}]" if ":" in host else host
        url = f"http://{at}:{listening.getsockname()[1]}/v1"
        if json:
            print_json({"model": service.name, "url": url, "system": system, "weights": loaded.weights})
            sys.stdout.flush()
        err.print(f"{service.name} at {url}, {system}, weights: {loaded.weights}", style="dim")
        with suppress(KeyboardInterrupt):  # Ctrl-C, which uvicorn raises again when all is closed
            server.run(sockets=[listening])
