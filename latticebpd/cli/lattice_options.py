"""Where a command's lattices come from: the heads of its model, or a block drafter beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from latticebpd.cli.decode_options import with_cpu_kernels, without_beams

if TYPE_CHECKING:
    from collections.abc import Callable

    from latticebpd.drafters import BlockLattices, LatticeSource
    from latticebpd.target.stock_model import Model

DRAFTER_MODEL: Any = typer.Option(
    None,
    help=(
        "Draft with this block drafter (`latticebpd train block-drafter`, a DFlash or DSpark checkpoint) instead of"
        " heads."
    ),
)
BIGRAM: Any = typer.Option(
    True,
    "--bigram/--no-bigram",
    help="Use the bigram head and the confidence head of a block drafter that has them (DSpark).",
)


def block_source(
    directory: Path, model: Model, tokenizer: Any, bigram: bool, narrow: bool = False
) -> Callable[..., BlockLattices]:
    """From arcs per slot, and slots where not all are wanted, to the block drafter of a directory beside its target."""
    from fst.fingerprint import vocabulary_fingerprint
    from latticebpd.drafters import BlockLattices, DrafterHeads
    from latticebpd.drafters.block.block_checkpoints import load_block_drafter
    from latticebpd.drafters.block.block_network import check_target

    drafter = with_cpu_kernels(load_block_drafter(directory), narrow)
    check_target(drafter, model, vocabulary_fingerprint(tokenizer.get_vocab()))
    return lambda k, slots=None: BlockLattices(drafter, model, k, slots, DrafterHeads(bigram, bigram))


def model_and_source(
    directory: Path, drafter_model: Path | None, bigram: bool, ignored: bool
) -> tuple[Model, Callable[[int], LatticeSource]]:
    """The model of a directory, and its lattices' source by arcs per slot."""
    from latticebpd.drafters import HeadLattices
    from latticebpd.drafters.pretrained import load_blockwise, load_model, load_tokenizer

    if drafter_model is None:
        blockwise = without_beams(load_blockwise(directory), ignored)
        return blockwise, lambda k: HeadLattices(blockwise, k)
    model = without_beams(load_model(directory), ignored)
    return model, block_source(drafter_model, model, load_tokenizer(directory), bigram)
