"""A model's cost curve, measured: the shortest time of passes of several sizes, and of drafting, in turn."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import numpy as np

from fst.processors import ignore
from latticebpd.decoding.acceptance import accepted_paths
from latticebpd.decoding.loop import EXACT
from latticebpd.drafters.cost_curve import CostCurve
from latticebpd.drafters.drafter import Drafter, State, needs_layers
from latticebpd.lattices.drafts import DraftTree
from latticebpd.lattices.values import as_tensor
from latticebpd.machine import machine_settings, processor
from latticebpd.models.catalogue import cache_folder
from latticebpd.models.engine.engine_model import EngineModel
from latticebpd.models.target_model import AnyModel, TargetModel, target_model
from latticebpd.verification.engine_verifier import EngineVerifier
from latticebpd.verification.verifiers import verifier_of

DAY = 24 * 3600
FEW_SECONDS = 0.3
"""After which a decode that waits for costs has no further round measured."""
PASS_WIDTHS = (1, 2, 3, 5, 9, 13, 17, 25, 33, 49, 65)


def profile(
    model: AnyModel,
    columns: Sequence[int] = PASS_WIDTHS,
    rows: Sequence[int] = (1,),
    context: int = 200,
    rounds: int = 5,
    drafter: Drafter | None = None,
    on_pass: Callable[[], object] = ignore,
    most_seconds: float = math.inf,
) -> CostCurve:
    """How long passes over ``columns`` tokens of ``rows`` texts take, after ``context`` tokens of a random text;
    ValueError for an encoder-decoder, or a size below 1.

    Sizes take turns, so that a drift of the machine's speed affects all alike; the shortest time counts, since other
    programs only lengthen them, and costs are compared with each other. Exact acceptance walks down the trees, which
    are random and claim to be certain: on a CPU it computes the output of the nodes that a likely tree has computed.

    What a further accepted node costs is measured where the target's next tokens are computed one after another.

    most_seconds: after so many no round is begun, but for the first.
    drafter: drafts for these texts, from random hidden states, and those of the layers that it needs; None for costs
        without drafting.
    """
    target = target_model(model)
    mode, synchronize = _computing(target)
    if target.is_encoder_decoder:
        raise ValueError("expected a decoder-only model to profile, got an encoder-decoder")
    widths, batches = sorted(set(columns)), sorted(set(rows))
    if not widths or not batches or min(*widths, *batches, context, rounds) < 1:
        raise ValueError("expected rows, columns, context and rounds of at least 1")
    rng = Random(0)  # NumPy's takes longer to load than all passes over one token
    times: dict[tuple[int, int], list[float]] = {(batch, width): [] for batch in batches for width in widths}
    drafting: dict[int, list[float]] = {batch: [] for batch in batches}
    accepted: list[float] = []

    with mode:
        for batch in batches:
            verifier = verifier_of(target, layers=needs_layers(*filter(None, [drafter])))
            texts = [rng.choices(range(target.vocab_size), k=context) for _ in range(batch)]
            verifier.prefill(texts)
            hidden: Any = np.array([[rng.gauss() for _ in range(target.hidden_size)] for _ in range(batch)], np.float32)
            if not isinstance(target, EngineModel):
                hidden = as_tensor(hidden).to(target.device, target.dtype)
            layers = [None if each is None else each[:-1] for each in map(verifier.layer_states, range(batch))]
            states = [State(row, text, 1, hidden[row], context, (), layers[row]) for row, text in enumerate(texts)]
            begun = time.perf_counter()
            for turn in range(rounds + 1):
                if turn > 1 and time.perf_counter() - begun > most_seconds:
                    break
                for width in widths:
                    tokens = np.array(rng.sample(range(target.vocab_size), width - 1), np.int32)
                    tree = DraftTree(tokens, (np.arange(width - 1, dtype=np.int32) - 1) // 2, np.zeros(width - 1))
                    started = time.perf_counter()
                    verified = verifier.verify([1] * batch, [tree] * batch)
                    accepted_paths(EXACT, [tree] * batch, verified)
                    synchronize()
                    if turn:  # the first one warms up
                        times[batch, width].append(time.perf_counter() - started)
                    if width > 1 and verified.best_of is not None:
                        started = time.perf_counter()
                        verified.best_of(range(batch), [1] * batch)
                        accepted.append((time.perf_counter() - started) / batch)
                    verifier.cut([context] * batch)
                    on_pass()
                started = time.perf_counter()
                if drafter is not None:
                    drafter.propose(states)
                    synchronize()
                if turn:
                    drafting[batch].append(time.perf_counter() - started)
    seconds = tuple(tuple(min(times[batch, width]) for width in widths) for batch in batches)
    path = str(getattr(getattr(target, "config", None), "_name_or_path", ""))  # of a stock model
    about = {
        "model": path.rsplit("/", 1)[-1],
        "context": context,
        "dtype": str(target.dtype).removeprefix("torch."),
        "device": str(target.device).partition(":")[0],
        **machine_settings(),
    }
    drafts = () if drafter is None else tuple(min(drafting[batch]) for batch in batches)
    words = {name: str(value) for name, value in about.items()}
    packed = isinstance(verifier, EngineVerifier)
    return CostCurve(tuple(batches), tuple(widths), seconds, words, drafts, packed, min(accepted, default=0.0))


def profile_drafts(
    model: AnyModel,
    columns: Sequence[int],
    drafter_of: Callable[[CostCurve], Any],
    context: int = 200,
    rounds: int = 3,
) -> CostCurve:
    """Costs of passes as of `profile`, and of drafting with as many slots as pay off by them.

    drafter_of: pass costs -> a `CostAwareDrafter`.
    """
    costs = profile(model, columns, context=context, rounds=rounds, most_seconds=FEW_SECONDS)
    drafts = profile(model, (1,), (1,), 8, rounds, drafter_of(costs).drafter, most_seconds=FEW_SECONDS)
    return replace(costs, drafting=drafts.drafting)


def kept_costs(file: Path, measure: Callable[[], CostCurve]) -> CostCurve:
    """Costs from a file that is younger than a day; else they are measured, and kept in it where it may be written.

    A file from the future, before the clock was set back, counts by its distance.
    """
    with suppress(ValueError, OSError):
        if abs(time.time() - file.stat().st_mtime) < DAY:
            return CostCurve.load(file)
    costs = measure()
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        costs.save(file)
    return costs


def costs_file(folder: Path, *settings: Any) -> Path:
    """The file in the cache folder that keeps the costs of a model's folder or file, by what they depend on."""
    key = repr((folder.resolve(), folder.stat().st_mtime_ns, *settings, processor(), machine_settings()))
    return cache_folder() / "costs" / f"{crc32(str(folder.resolve()).encode()):08x}-{crc32(key.encode()):08x}.json"


def last_costs(folder: Path) -> CostCurve | None:
    """The costs of a model's folder or file that were measured last; None if there are none."""
    files = cache_folder().glob(f"costs/{crc32(str(folder.resolve()).encode()):08x}-*.json")
    for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True):
        with suppress(ValueError, OSError):
            return CostCurve.load(file)
    return None


def _computing(target: TargetModel) -> tuple[AbstractContextManager[object], Callable[[], None]]:
    """The mode in which a target computes, and what waits for its results."""
    if isinstance(target, EngineModel):
        return nullcontext(), ignore
    import torch

    synchronize = partial(torch.cuda.synchronize, target.device) if target.device.type == "cuda" else ignore
    return torch.inference_mode(), synchronize
