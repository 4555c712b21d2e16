"""Shared by ``jacobi`` and ``ddg``: a file of texts, initial values by name, the line of settings, tables."""

from __future__ import annotations

from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fst.files import read_text
from latticebpd.checks import expect
from latticebpd.drafters import bundled
from latticebpd.lattices.json_files import read_json_lines

if TYPE_CHECKING:
    from latticebpd.jacobi import Initial
    from latticebpd.loading import Loaded
    from latticebpd.models.transformers.transformers_model import TransformersModel

FILE: Any = typer.Argument(
    None, help="Texts to translate or continue: one a line, or a .jsonl file; by default the bundled prompts."
)
LM: Any = typer.Option(
    None, help="n-gram model, FST or ARPA, for --initial ngram (by default lm.fst next to the model) or heads."
)


class InitialName(StrEnum):
    """Initial values that a command can make."""

    padding = "padding"
    random = "random"
    source = "source"
    previous = "previous"
    heads = "heads"
    ngram = "ngram"


def read_texts(
    path: Path | None, source: str, target: str | None, references: Path | None, limit: int | None
) -> tuple[list[str], list[str] | None]:
    """The texts of a file, one a line, and references if any; of a ``.jsonl`` file two fields of its objects. Without
    a file those are the bundled prompts.

    ValueError for a line without text, no text at all, or another number of references.
    """
    if path is None:
        path, source = bundled.PROMPTS, "text"
    if path.suffix == ".jsonl":
        inputs, targets = _fields(path, source, limit), _fields(path, target, limit) if target is not None else None
    else:
        if target is not None:
            advice = "of plain text, give --references a file of lines"
            raise ValueError(f"{path}: expected --target with a .jsonl file only; {advice}")
        inputs, targets = _lines(path, limit), None
    if not inputs:
        raise ValueError(f"{path}: expected at least one text, found none")
    if references is not None:
        targets = _lines(references, limit)
        wanted = f"{len(inputs)} references, one a line as in {path}"
        expect(len(targets) == len(inputs), wanted, len(targets), of=references)
    return inputs, targets


def _lines(path: Path, limit: int | None) -> list[str]:
    lines = read_text(path).splitlines()
    empty = next((number for number, line in enumerate(lines[:limit], 1) if not line.strip()), None)
    expect(empty is None, "a text on every line", "an empty one", of=f"{path}:{empty}")
    return lines[:limit]


def _fields(path: Path, field: str, limit: int | None) -> list[str]:
    def parse(record: Any) -> str:
        text = record[field]
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"it is {text!r:.60}")
        return text

    return list(islice(read_json_lines(path, parse, f"an object with text under {field!r}"), limit))


def initial_values(
    name: InitialName, loaded: Loaded, lm: Path | None, alpha: float | None, k: int, seed: int
) -> Initial:
    """The initialisation of a name, padding for ``previous``; ValueError where it lacks its heads or its n-gram model.

    lm, alpha, k: the n-gram model, for ``ngram`` and ``heads``, its weight, and arcs per slot.
    """
    from latticebpd.drafters import drafter_named
    from latticebpd.jacobi import DraftedInitial, NgramContinuation, Padding, RandomTokens, SourceCopy
    from latticebpd.scoring.ngram import NgramScorer
    from latticebpd.scoring.rescoring import as_scorer, check_vocabulary

    if (lm is not None or alpha is not None) and name not in (InitialName.heads, InitialName.ngram):
        raise ValueError(f"expected --lm and --alpha with --initial ngram or heads, got {name.value}; leave them out")
    if name is InitialName.heads:
        if loaded.source is None:
            advice = "see `latticebpd train heads`"
            raise ValueError(f"expected a model with heads for --initial heads, got one without; {advice}")
        return DraftedInitial(drafter_named("1-best", loaded.lattice_source(k), lm, alpha))
    if name is InitialName.ngram:
        scorer = as_scorer(loaded.lm if lm is None else lm)
        if not isinstance(scorer, NgramScorer) or scorer.lm is None:
            raise ValueError("expected an n-gram model for --initial ngram, got none; name one with --lm")
        fingerprint = None if loaded.source is None else loaded.source.fingerprint
        check_vocabulary(scorer, fingerprint, loaded.target.vocab_size)
        return NgramContinuation(scorer.lm)
    if name is InitialName.random:
        return RandomTokens(loaded.target.vocab_size, seed)
    return SourceCopy() if name is InitialName.source else Padding()


def settings_line(served: TransformersModel, **settings: Any) -> str:
    """What the numbers depend on, in one line: the settings, the model's size, the machine."""
    from latticebpd._version import __version__
    from latticebpd.machine import machine_settings

    all_settings = {
        "version": __version__,
        **settings,
        "parameters": served.num_parameters,
        "dtype": str(served.dtype).removeprefix("torch."),
        "device": served.device,
        **machine_settings(),
    }
    return " | ".join(f"{name} {value}" for name, value in all_settings.items())
