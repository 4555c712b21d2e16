"""What the training commands share: the directory of a run, its start and its end; progress in tokens."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fst.files import copy
from latticebpd import load
from latticebpd.checks import expect
from latticebpd.console import err, progress
from latticebpd.lattices.texts import Texts
from lm_training.data.shortlist import coverage, shortlist_of
from lm_training.data.training_data import HeadData
from lm_training.training.training_loop import LOG, STATE_WEIGHTS, Process
from lm_training.training.training_options import LoopOptions


@contextmanager
def training_run(
    output: Path, options: LoopOptions, device: str, files: Sequence[Path] = (), about: str = ""
) -> Iterator[Process]:
    """Join the training processes and copy files to a new run's directory; report its end."""
    with Process.join(device) as process:
        if is_new_run(output, process):
            output.mkdir(parents=True, exist_ok=True)
            for file in files:
                if file.exists() and file.resolve() != (output / file.name).resolve():
                    copy(file, output / file.name)
        yield process
        if process.rank == 0:
            err.print(f"{output}: {about}trained for {options.steps} steps; {output / LOG}")


def run_record(output: Path) -> dict[str, Any]:
    """Of a run that ended: its directory, and what its log says of the last step."""
    lines = (output / LOG).read_text(encoding="utf-8").splitlines()
    return {"output": str(output), **(json.loads(lines[-1]) if lines else {})}


def is_new_run(output: Path, process: Process) -> bool:
    """Whether this process is the first one of a run without a checkpoint."""
    return not process.rank and not (output / STATE_WEIGHTS).exists()


def drafted_tokens(shortlist: str | None, texts: Texts, vocab_size: int) -> np.ndarray | None:
    """``[n]`` ascending: so many frequent tokens of the texts, or those of a model's heads; None: all.

    ValueError for a number below 1, texts without written tokens, and a model without such heads or with others'.
    """
    if shortlist is None:
        return None
    if shortlist.isdecimal():
        tokens = shortlist_of(texts, vocab_size, int(shortlist))
        wanted = "--shortlist >= 1 and written tokens to choose from"
        expect(len(tokens), wanted, f"{shortlist} and {texts.num_labels}")
        return tokens
    known: np.ndarray | None = load(shortlist).lattice_source().shortlist
    if known is None:
        wanted = "a model whose heads know a shortlist"
        raise ValueError(f"{shortlist}: expected {wanted}, found none; give a number")
    expect(int(known.max()) < vocab_size, f"tokens below {vocab_size}", int(known.max()), of=shortlist)
    return known


def report_shortlist(process: Process, shortlist: np.ndarray | None, learnt: HeadData, held_out: HeadData) -> None:
    """Print how much of both texts a shortlist covers."""
    if process.rank == 0 and shortlist is not None:
        shares = [f"{coverage(data.texts, shortlist):.2%}" for data in (learnt, held_out)]
        err.print(f"shortlist: {len(shortlist)} tokens, {shares[0]} of the text, {shares[1]} of held-out text")


def mask_token_id(tokenizer: Any, model: str | Path, remedy: str = "") -> int:
    """The tokenizer's mask token, else its padding token, else its unknown token; ValueError without any."""
    for name in ("mask", "pad", "unk"):
        if isinstance(mask := getattr(tokenizer, f"{name}_token_id"), int):
            return mask
    raise ValueError(f"{model}: expected a tokenizer with a mask, padding or unknown token, found none{remedy}")


def device_of(name: str) -> str:
    """The device of ``--device``."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


@contextmanager
def token_progress(what: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """A progress bar with the token rate; yields a function of the items and tokens just done."""
    started, tokens = time.monotonic(), 0
    with progress() as bar:
        task = bar.add_task(what, total=total)

        def report(items: int, new_tokens: int) -> None:
            nonlocal tokens
            tokens += new_tokens
            rate = tokens / max(1e-9, time.monotonic() - started)
            bar.update(task, advance=items, description=f"{what} ({tokens:,} tokens, {rate:,.0f} a second)")

        yield report
