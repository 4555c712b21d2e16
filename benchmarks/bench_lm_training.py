"""Tokens to a 4-gram automaton: `latticebpd lm train`, against KenLM's lmplz, on the same text.

    python -m benchmarks.bench_lm_training corpus.npy --sizes 73000,730000,7300000,73000000
    python -m benchmarks.bench_lm_training corpus.npy --sizes 73000000 --min-count 1 --only sort

Every program runs as a process of its own, from its input file to its output file. Wall time is the least of the
repeats, which take turns; memory is the most that the process ever had (its own, not the page cache's). lmplz, which
must be on the PATH, gets ready-made text of ids in decimal, which is not timed, and ends with an ARPA file; it
estimates modified Kneser-Ney with its own cutoffs, so compare times only. Our model is checked: it sums to 1 after
sampled contexts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import fst
from benchmarks.common import options, signature, table
from lm_training.ngram.counts import TokenStream
from lm_training.ngram.kenlm import write_sentences

PROGRAMS = ("sort", "lmplz")
LAUNCHER = """
import json, os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10]))
"""
"""Starts a program from a small process: a child's peak memory begins with that of the process that started it."""


class Run(NamedTuple):
    """seconds: wall; cpu: seconds on all cores; memory: bytes."""

    seconds: float
    cpu: float
    memory: int


def measured(command: list[str], stdin: Path | None) -> Run:
    start = time.perf_counter()
    with open(stdin or os.devnull, "rb") as file:
        launched = [sys.executable, "-c", LAUNCHER, *command]
        done = subprocess.run(launched, stdin=file, capture_output=True, text=True, check=True)
    status, cpu, memory = json.loads(done.stdout)
    if status:
        raise SystemExit(f"{' '.join(command)}: failed\n{done.stderr}")
    return Run(time.perf_counter() - start, cpu, memory)


def check_sums(path: Path, contexts: int = 20) -> None:
    """Probabilities sum to 1 over the vocabulary after sampled contexts of all lengths."""
    model, rng = fst.NgramModel.load(path), np.random.default_rng(0)
    for rows in model.to_table().ngrams[:-1]:
        for row in rows[rng.integers(0, len(rows), contexts)] if len(rows) else []:
            total = math.fsum(math.exp(model.log_prob(token, row)) for token in range(model.vocab_size))
            if abs(total - 1) > 1e-4:
                raise SystemExit(f"{path}: expected contexts that sum to 1 within 1e-4, got one of {total}")


def compare(arguments: argparse.Namespace, wanted: list[str], size: int, scratch: Path) -> list[list[str]]:
    """The table's rows for so many tokens."""
    tokens = np.load(arguments.corpus, mmap_mode="r")[:size]
    if len(tokens) < size:
        raise SystemExit(f"{arguments.corpus}: expected {size} tokens, got {len(tokens)}")
    corpus, text = scratch / "corpus.npy", scratch / "corpus.txt"
    np.save(corpus, tokens)
    with open(text, "wb") as file:
        write_sentences(TokenStream.of(tokens, 0), None, file)
    programs: dict[str, tuple[str, Path | None, Path]] = {}
    limits = f"--memory {arguments.memory} --threads {arguments.threads}"
    if "sort" in wanted:
        output = scratch / "sort.fst"
        options = f"--order {arguments.order} --min-count {arguments.min_count} --engine sort {limits}"
        programs["sort"] = f"{sys.executable} -m latticebpd lm train {corpus} -o {output} {options}", None, output
    if "lmplz" in wanted:
        prune = " ".join(str(int(part) - 1) for part in arguments.min_count.split(","))
        output = scratch / "lmplz.arpa"
        options = f"-o {arguments.order} -S {arguments.memory} -T {scratch} --discount_fallback --arpa {output}"
        programs["lmplz"] = f"lmplz {options} --prune {prune}", text, output
    runs: dict[str, list[Run]] = {name: [] for name in programs}
    for _ in range(arguments.repeats):
        for name, (command, stdin, _) in programs.items():
            runs[name].append(measured(command.split(), stdin))
    rows = []
    for name, (_, _, output) in programs.items():
        best, memory = min(runs[name]), max(run.memory for run in runs[name]) / 1e6
        if name == "sort":
            check_sums(output)
        figures = (f"{best.seconds:.2f}", f"{best.cpu:.2f}", f"{size / best.seconds:,.0f}", f"{memory:,.0f}")
        rows.append([f"{size:,}", name, *figures, f"{sum(fst.NgramModel.load(output).num_ngrams):,}"])
    return rows


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("corpus", type=Path, help="token ids (.npy), end of text 0")
    parser.add_argument("--sizes", default="73000,730000,7300000,73000000", help="tokens, from the corpus' beginning")
    parser.add_argument("--order", type=int, default=4)
    parser.add_argument("--min-count", default="1,1,2,4")
    parser.add_argument("--memory", default="4G", help="the option of `lm train`, and lmplz's -S")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default=",".join(PROGRAMS), help="programs to run")
    parser.add_argument("--work", type=Path, help="where to put files, by default a temporary directory")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    if "lmplz" in wanted and shutil.which("lmplz") is None:
        parser.error("expected lmplz on the PATH, found none; build KenLM, or leave it out with --only")
    signature(memory=arguments.memory, order=arguments.order)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(dir=arguments.work) as scratch:
        for size in map(int, arguments.sizes.split(",")):
            rows += compare(arguments, wanted, size, Path(scratch))
    table("", ("tokens", "program", "seconds", "CPU seconds", "tokens/s", "peak memory, MB", "n-grams"), rows)


if __name__ == "__main__":
    main()
