"""What readers of the guide bring, under the names that its pages give it: texts and tiny models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import fst
from latticebpd.drafters.block.block_checkpoints import save_block_drafter
from latticebpd.drafters.block.block_network import BlockDrafter, config_for
from latticebpd.drafters.bundled import LM, MODEL
from latticebpd.drafters.masks.mask_network import NonAutoregressiveModel
from latticebpd.lattices.texts import Texts
from latticebpd.models.load_target import load_stock, load_tokenizer
from lm_training.data.pairs import save_tokenizer, train_pair_tokenizer
from lm_training.families.shapes import TranslationShape
from lm_training.families.translators import new_translator
from tests.helpers.chat_models import save_chat_model
from tests.helpers.mtp_models import save_with_mtp
from tests.helpers.own_models import own_gguf, own_llama
from tests.helpers.sentence_models import estimate
from tests.helpers.sentences import sentence_file
from tests.helpers.tiny_families import VOCABULARY
from tests.helpers.tokenizers import INFILL

TEXT = "The history of the city and of the river is the history of the people who built the bridge. "
LETTERS = np.arange(200) ** 2 % VOCABULARY
TURNS = [{"role": "user", "content": "Which city?"}, {"role": "assistant", "content": "The city of the river."}]


def stock_target(path: Path) -> None:
    """The bundled model without what drafts for it."""
    load_stock(MODEL).save_pretrained(path)
    load_tokenizer(MODEL).save_pretrained(path)


def block_drafter(path: Path) -> None:
    """Of DFlash 2's parts, with random weights, for the bundled model."""
    parts = {"conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 4, "selector_top_k": 8}
    save_block_drafter(BlockDrafter(config_for(load_stock(MODEL), 1, 4, mask_token_id=1, **parts)), path)


def _translator(vocab_size: int) -> Any:
    sizes = {"hidden_size": 16, "encoder_layers": 1, "decoder_layers": 1, "attention_heads": 2, "intermediate_size": 32}
    return new_translator(TranslationShape(**sizes), vocab_size, eos_id=0, pad_id=1)


def translator(path: Path) -> None:
    """With random weights and the bundled vocabulary."""
    tokenizer = load_tokenizer(MODEL)
    _translator(len(tokenizer)).save_pretrained(path)
    tokenizer.save_pretrained(path)


def _teacher(path: Path) -> None:
    """With a vocabulary as ``latticebpd train translation`` makes it."""
    tokenizer = train_pair_tokenizer([TEXT], 300)
    _translator(tokenizer.get_vocab_size()).save_pretrained(path)
    save_tokenizer(tokenizer, path)


def mask_drafter(path: Path) -> None:
    """For such a translator."""
    NonAutoregressiveModel.like(
        _translator(len(load_tokenizer(MODEL))), mask_token_id=2, block_size=12
    ).save_pretrained(path)


def _sequences(path: Path) -> None:
    """Prompts, or sources, as ids of the bundled vocabulary."""
    rows = [[*range(20 + n, 28 + n), 0] for n in range(6)]
    Texts.of_rows(rows, list(map(len, rows))).save(path)


def _text(repeats: int, path: Path) -> None:
    path.write_text(TEXT * repeats)


def _records(record: dict[str, Any], path: Path) -> None:
    path.write_text(f"{json.dumps(record)}\n" * 3)


FILES: dict[str, Callable[[Path], Any]] = {
    "text.txt": partial(_text, 40),
    "held-out.txt": partial(_text, 20),
    "train.jsonl": partial(sentence_file, count=30, seed=0),
    "val.jsonl": partial(sentence_file, count=8, seed=1),
    "questions.jsonl": partial(_records, {"messages": TURNS[:1]}),
    "chats.jsonl": partial(_records, {"messages": TURNS}),
    "squad.jsonl": partial(_records, {"question": "Which city?", "context": TEXT, "answers": {"text": ["The city"]}}),
    "dialogues.jsonl": partial(_records, {"document": TEXT, "summary": "A history."}),
    "others.jsonl": partial(_records, {"text": TEXT}),
    **dict.fromkeys(("prompts.npz", "pairs.npz", "held-out.npz"), _sequences),
    **dict.fromkeys(("lm.fst", "written.fst"), partial(shutil.copyfile, LM)),
    "mtp/lm.fst": lambda path: fst.NgramModel.from_table(estimate(LETTERS, vocab_size=VOCABULARY)).save(path),
    **dict.fromkeys(("MODEL", "smollm2-135m"), partial(save_chat_model, heads=True)),
    "qwen2.5-coder-0.5b": partial(own_llama, text=TEXT, further=INFILL),
    "model": partial(own_llama, text=TEXT),
    "model.gguf": own_gguf,
    "target": stock_target,
    "mtp/target": partial(save_with_mtp, "glm4_moe"),
    "drafters/drafter": block_drafter,
    "drafter": mask_drafter,
    "teacher": _teacher,
    "translator": translator,
}
"""How each is made; under ``page/name`` what only that page means by the name."""


def bring(words: Sequence[str], page: str = "") -> None:
    """Make what a command names but does not write, where it is not there yet: in the working directory."""
    for before, word in pairwise(["", *words]):
        make = FILES.get(f"{page}/{word}", FILES.get(word))
        if make is not None and before != "-o" and not Path(word).exists():
            make(Path(word))
