"""How a command's help is laid out: of many options those first that are used most, the others in a panel of their own.

``typer`` takes a panel where an option is declared. Commands share declarations (``--lm``, ``--weights``), and what one
command needs first is one option of many in another, so panels are named here, command by command.
"""

from __future__ import annotations

import re
from typing import Any

LONG = 8
"""More options than these stand in two panels."""
REST = "More options"
FIRST = {
    "demo": "model every prompts max_new_tokens threads json",
    "generate": "model system max_new_tokens show_blocks trace",
    "chat": "model system system_prompt max_new_tokens show_blocks",
    "lattices": "output prompts model k max_new_tokens",
    "oracle": "k heads model json plot",
    "compare": "lm system model json",
    "report": "output lm model title",
    "serve": "model host port api_key rows queue max_tokens",
    "jacobi": "model algorithm source target json",
    "ddg": "model output limit json",
    "distill": "model output prompts max_new_tokens batch_size corpus_output weights",
    "profile": "model output columns weights threads json",
    "lm train": "output order smoothing tokenizer max_ngrams",
    "lm kenlm": "output order prune tokenizer",
    "train block-drafter": "model output validation num_layers block_size shortlist steps",
    "train masks": "model output validation block_size steps batch_tokens",
    "train encode": "tokenizer output task prompt_template answer_field chat",
    "train rescorer": "tokenizer output validation preset steps batch_size",
    "train translation": "source target output validation shape steps",
    "train blockwise": "tokenizer output validation steps batch_size",
    "train hidden": "model whole layers weights",
    "train heads": "model output validation num_heads shortlist steps batch_size",
}
"""Of every command with many options, those used most, by their names in Python."""


def laid_out(command: Any, words: str) -> Any:
    """The command, or group of them, with its options in panels."""
    command.help = re.sub(r"(?<=\S)\n(?=\w)(?!Example: )", " ", command.help or "")  # paragraphs, whatever the width
    for name, each in getattr(command, "commands", {}).items():
        laid_out(each, f"{words} {name}")
    if words in FIRST:
        first = FIRST[words].split()
        command.params.sort(key=lambda each: first.index(each.name) if each.name in first else len(first))  # stable
        for each in command.params:
            if each.param_type_name == "option" and each.name not in first:
                each.rich_help_panel = REST
    return command
