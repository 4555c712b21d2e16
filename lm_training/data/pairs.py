"""Sentence pairs into token sequences, and the tokenizer that they share.

A pair becomes one of `Texts`: the source is the prompt and its translation follows; both end with the end-of-text
token. An encoder-decoder reads the prompt with its encoder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from fst.files import replacing_files
from latticebpd.lattices.texts import Texts
from lm_training.data.batching import token_dtype
from lm_training.data.corpus import END_OF_TEXT, train_tokenizer
from lm_training.data.records import open_bytes
from lm_training.data.text_tokenizer import end_of_text_id

PADDING = "<|pad|>"
MASK = "<|mask|>"
Pair = tuple[str, str]
"""A sentence and its translation."""


def read_pairs(paths: Iterable[Path], source: str, target: str) -> Iterator[Pair]:
    """The pairs in the given fields of JSONL files, plain or compressed; ValueError for a line without a sentence."""
    for path in paths:
        with open_bytes(path) as file:
            for number, line in enumerate(file, 1):
                try:
                    record = json.loads(line)
                    pair: Pair = record[source], record[target]
                    # JSON allows half of a surrogate pair; tokenizers do not, and no encoding has it.
                    are_texts = all(side.strip().encode() for side in pair)
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    are_texts = False
                if not are_texts:
                    wanted = f"a JSON object with text under {source!r} and {target!r}"
                    raise ValueError(f"{path}:{number}: expected {wanted}, got {line[:60]!r}")
                yield pair


def train_pair_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer for both languages that ends every sentence with the end of text, as encoders expect.

    End of text is id 0, then padding and the mask.
    """
    tokenizer = train_tokenizer(texts, vocab_size, special_tokens=(END_OF_TEXT, PADDING, MASK), add_prefix_space=True)
    end = [(END_OF_TEXT, 0)]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END_OF_TEXT}", special_tokens=end)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write the files that ``AutoTokenizer.from_pretrained`` reads."""
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=PADDING,
        mask_token=MASK,
        add_prefix_space=True,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
    with replacing_files(directory) as folder:
        wrapped.save_pretrained(folder)


def encode_pairs(pairs: Iterable[Pair], tokenizer: Tokenizer) -> Texts:
    """Token ids of the pairs, in order, each side with its end of text."""
    listed, end = list(pairs), end_of_text_id(tokenizer)
    sides = ([pair[side] for pair in listed] for side in (0, 1))
    sources, targets = (tokenizer.encode_batch_fast(side, add_special_tokens=False) for side in sides)
    rows = [np.array([*source.ids, end, *target.ids, end]) for source, target in zip(sources, targets, strict=True)]
    return Texts.of_rows(rows, [len(source.ids) + 1 for source in sources], token_dtype(tokenizer.get_vocab_size()))
