"""``latticebpd train``: its commands, each in a file of its own name, and ``all``, in ``every_step``."""

from __future__ import annotations

import typer

from lm_training.cli.block_drafter import block_drafter
from lm_training.cli.blockwise import blockwise
from lm_training.cli.encode import encode
from lm_training.cli.every_step import every_step
from lm_training.cli.heads import heads
from lm_training.cli.hidden import hidden
from lm_training.cli.masks import masks
from lm_training.cli.rescorer import rescorer
from lm_training.cli.tokenizer import tokenizer
from lm_training.cli.translation import translation

COMMANDS = (tokenizer, encode, hidden, heads, block_drafter, masks, rescorer, blockwise, translation)

app = typer.Typer(help="Train tokenizers, models, heads and drafters.", no_args_is_help=True)
app.command("all")(every_step)
for command in COMMANDS:
    app.command(command.__name__.replace("_", "-"))(command)
