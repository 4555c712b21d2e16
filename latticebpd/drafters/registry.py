"""The drafter families, in the order in which they are asked whether they recognise a path."""

from __future__ import annotations

from pathlib import Path

from latticebpd.drafters.assistant import assistant_family
from latticebpd.drafters.block import block_family
from latticebpd.drafters.family import Family, FamilySource, LoadOptions, Target
from latticebpd.drafters.heads import head_family
from latticebpd.drafters.masks import mask_family

FAMILIES: tuple[Family, ...] = (head_family, block_family, mask_family, assistant_family)


def family_of(path: Path) -> Family | None:
    """The first family that recognises a path."""
    return next((family for family in FAMILIES if family.recognises(path)), None)


def load_source(path: Path, target: Target, options: LoadOptions) -> FamilySource:
    """The lattices of a drafter's path, next to its target; ValueError where no family recognises the path, or its
    drafter cannot be read or does not fit."""
    family = family_of(path)
    if family is None:
        wanted = "a drafter (block drafter, mask-filling model or small causal LM)"
        raise ValueError(f"{path}: expected {wanted}, found none")
    return family.load(path, target, options)


def check_decodes(path: Path) -> None:
    """ValueError where a path that should hold a target holds a drafter that cannot decode."""
    family = family_of(path)
    if family is not None and family.DRAFTS_ONLY is not None:
        got = f"{family.DRAFTS_ONLY}; give the two the other way round"
        raise ValueError(f"{path}: expected an autoregressive model as verifier, found {got}")
