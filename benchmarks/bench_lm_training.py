"""Tokens to a 4-gram automaton: `latticebpd lm train`, against KenLM's lmplz, on the same text.

    python -m benchmarks.bench_lm_training corpus.npy -o benchmarks/results/lm_training.csv
    python -m benchmarks.bench_lm_training --table benchmarks/results/lm_training.csv

Every program runs as a process of its own, from its input file to its output file. The programs take turns; memory is
the most that the process ever had (its own, not the page cache's). lmplz, which must be on the PATH, gets ready-made
text of ids in decimal, which is not timed, and ends with an ARPA file; it estimates modified Kneser-Ney with its own
cutoffs, so compare times only. Our model is checked: it sums to 1 after sampled contexts.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fst
from benchmarks.common import columns, grouped, options, recorded, run, signature, table, usage
from latticebpd.checks import expect
from lm_training.ngram.counts import TokenStream
from lm_training.ngram.kenlm import write_sentences

OURS, THEIRS = "`lm train`", "lmplz"
ORDER, MIN_COUNT, MEMORY = 4, "1,1,2,4", "4G"
HEAD = ("tokens", "program", "seconds", "CPU seconds", "tokens/s", "peak memory, MB", "n-grams")


def check_sums(path: Path, contexts: int = 20) -> None:
    """Probabilities sum to 1 over the vocabulary after sampled contexts of all lengths."""
    model, rng = fst.NgramModel.load(path), np.random.default_rng(0)
    for rows in model.to_table().ngrams[:-1]:
        for row in rows[rng.integers(0, len(rows), contexts)] if len(rows) else []:
            total = math.fsum(math.exp(model.log_prob(token, row)) for token in range(model.vocab_size))
            expect(abs(total - 1) <= 1e-4, "contexts that sum to 1 within 1e-4", f"one of {total}", of=path)


def compare(args: argparse.Namespace, size: int, scratch: Path) -> list[dict[str, Any]]:
    """The runs of all programs on so many tokens."""
    tokens = np.load(args.corpus, mmap_mode="r")[:size]
    expect(len(tokens) >= size, f"{size} tokens", len(tokens), of=args.corpus)
    corpus, text, ours, theirs = (scratch / name for name in ("corpus.npy", "corpus.txt", "ours.fst", "lmplz.arpa"))
    np.save(corpus, tokens)
    with text.open("wb") as file:
        write_sentences(TokenStream.of(tokens, 0), None, file)
    settings = f"--order {ORDER} --min-count {MIN_COUNT} --memory {MEMORY} --threads {args.threads}"
    estimate = [sys.executable, "-m", "latticebpd", "lm", "train", corpus, *settings.split(), "-o", ours]
    programs = {OURS: (estimate, ours)}
    if not args.alone:
        prune = [str(int(count) - 1) for count in MIN_COUNT.split(",")]
        settings = f"-o {ORDER} -S {MEMORY} -T {scratch} --discount_fallback --arpa {theirs} --prune"
        programs[THEIRS] = (["lmplz", *settings.split(), *prune], theirs)
    rows = []
    for repeat in range(args.repeats):
        for name, (command, output) in programs.items():
            used = usage(command, text if name == THEIRS else None)
            if name == OURS:
                check_sums(output)
            ngrams = sum(fst.NgramModel.load(output).num_ngrams)
            rows.append({"tokens": size, "program": name, "repeat": repeat, **used, "ngrams": ngrams})
    return rows


def lines_of(rows: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """The table's lines: the fastest of a program's runs, and the most memory."""
    lines = []
    for (tokens, program), own in grouped(rows, "tokens", "program").items():
        best, memory = min(own, key=lambda row: float(row["seconds"])), columns(own, "mb").max()
        seconds, cpu = float(best["seconds"]), float(best["cpu"])
        speed = f"{int(tokens) / seconds:,.0f}"
        cells = (f"{seconds:.2f}", f"{cpu:.2f}", speed, f"{memory:,.0f}", f"{int(best['ngrams']):,}")
        lines.append([f"{int(tokens):,}", program, *cells])
    return lines


def measured(args: argparse.Namespace) -> list[dict[str, Any]]:
    expect(args.corpus, "a corpus")
    if not args.alone and shutil.which("lmplz") is None:
        raise ValueError("expected lmplz on the PATH, found none; build KenLM, or leave it out with --alone")
    signature(memory=MEMORY, order=ORDER)
    with tempfile.TemporaryDirectory() as scratch:
        return [row for size in args.sizes for row in compare(args, size, Path(scratch))]


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("corpus", type=Path, nargs="?", help="token ids (.npy), end of text 0")
    about = "tokens, from the corpus' beginning"
    parser.add_argument("--sizes", type=int, nargs="+", default=[73_000, 730_000, 7_300_000], help=about)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="without lmplz")
    table("", HEAD, lines_of(recorded(parser, measured)))


if __name__ == "__main__":
    run(main)
