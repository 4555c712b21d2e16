"""The drafter families, in the order in which they are asked whether they recognise a path. No other file names one."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import cast

from latticebpd.drafters.drafter_files import DrafterFiles
from latticebpd.drafters.family import DrafterLattices, Family, LoadOptions, Target
from latticebpd.models.catalogue import resolved

BESIDE_TARGET = ("heads.head_family", "mtp.mtp_family")
"""Families whose drafters lie in their target's own folder. Their modules import no PyTorch."""
FAMILIES = (
    "heads.head_family", "block.block_family", "masks.mask_family", "mtp.speculators_family",
    "assistant.assistant_family",
)  # fmt: skip
"""Families whose drafters have a path of their own, and heads, which say that theirs is the target's."""


def families(names: tuple[str, ...]) -> Iterator[Family]:
    """The modules, imported one by one."""
    return (cast("Family", import_module(f"latticebpd.drafters.{name}")) for name in names)


def family_of(path: Path) -> Family | None:
    """The first family that recognises a path."""
    return next((family for family in families(FAMILIES) if family.recognises(path)), None)


def family_beside(folder: Path) -> Family | None:
    """The family of the drafter that lies in a target's own folder, if there is one."""
    return next((family for family in families(BESIDE_TARGET) if family.recognises(folder)), None)


def load_source(path: Path, loaded: Target, options: LoadOptions) -> DrafterLattices:
    """The lattices of a drafter's path, next to its target; ValueError where no family recognises the path, or its
    drafter cannot be read or does not fit."""
    family = (family_beside(path) if path == loaded.folder else None) or family_of(path)
    if family is None:
        wanted = "a drafter (block drafter, mask-filling model, MTP drafter or small causal LM)"
        raise ValueError(f"{path}: expected {wanted}, found none")
    source = family.load(path, loaded, options)
    folder, beside = Path(resolved(path)), family_beside(path) is family
    source.files = DrafterFiles.of(family.__name__.split(".")[-2], folder, beside)
    return source


def check_decodes(path: Path) -> None:
    """ValueError where a path that should hold a target holds a drafter that cannot decode."""
    family = family_of(path)
    if family is not None and family.DRAFTS_ONLY is not None:
        got = f"{family.DRAFTS_ONLY}; give the two the other way round"
        raise ValueError(f"{path}: expected an autoregressive model as verifier, found {got}")
