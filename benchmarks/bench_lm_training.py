"""Tokens to a 4-gram automaton: `latticebpd lm train`, by each engine, against KenLM's lmplz and OpenGrm NGram, on the same text.

    python -m benchmarks.bench_lm_training corpus.npy --sizes 73000,730000,7300000,73000000
    python -m benchmarks.bench_lm_training corpus.npy --sizes 73000000 --min-count 1 --only sort

Every program runs as a process of its own, from its input file to its output file; wall time is the least of the
repeats, which take turns, memory the most that the process ever had (its own, not the page cache's). lmplz gets the text
ready-made as words, ids in decimal, which is not timed, and ends with an ARPA file; it estimates modified Kneser-Ney with
its own cutoffs, so compare times only. It is built from the source that PyPI has (CMake and Boost are needed), unless it
is on the PATH. OpenGrm is timed where ngramcount is on the PATH. Models are checked: they sum to 1 after sampled contexts,
and the engines must agree to the byte.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import fst
from lm_training.ngram.counts import TokenStream
from lm_training.ngram.kenlm import write_sentences


@dataclass(frozen=True)
class Run:
    """seconds: wall; cpu: seconds on all cores; memory: bytes."""

    seconds: float
    cpu: float
    memory: int


LAUNCHER = """
import json, os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10]))
"""
"""Starts a program from a small process: a child's peak memory begins with that of the process that started it."""


def measured(commands: list[list[str]], stdin: Path | None = None) -> Run:
    """Run commands one after another; the largest takes the memory."""
    start, cpu, memory = time.perf_counter(), 0.0, 0
    for command in commands:
        with open(stdin or os.devnull, "rb") as file:
            done = subprocess.run(
                [sys.executable, "-c", LAUNCHER, *command], stdin=file, capture_output=True, text=True, check=True
            )
        status, seconds, peak = json.loads(done.stdout)
        if status:
            raise SystemExit(f"{' '.join(command)}: failed\n{done.stderr}")
        cpu, memory = cpu + seconds, max(memory, peak)
    return Run(time.perf_counter() - start, cpu, memory)


def built_lmplz(directory: Path) -> str | None:
    """lmplz from the PATH, or built in ``directory``; None where its source or tools are not to be had."""
    if found := shutil.which("lmplz"):
        return found
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "build" / "bin" / "lmplz"
    if program.exists():
        return str(program)
    fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation", "--no-binary", "kenlm"]
    steps = [
        [*fetch, "-d", str(directory), "kenlm"],
        ["sh", "-c", f"cd {directory} && mkdir -p source && tar xzf kenlm-*.tar.gz -C source --strip-components 1"],
        ["cmake", "-S", str(directory / "source"), "-B", str(directory / "build"), "-DCMAKE_BUILD_TYPE=Release"],
        ["cmake", "--build", str(directory / "build"), "--target", "lmplz"],
    ]  # fmt: skip
    for step in steps:
        try:
            done = subprocess.run(step, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            print(f"lmplz left out: {error}", file=sys.stderr)
            return None
        if done.returncode:
            print(
                f"lmplz left out, `{' '.join(step)}` failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr
            )
            return None
    return str(program)


def check_sums(path: Path, contexts: int = 20) -> float:
    """The largest distance from 1 of the sum over the vocabulary after sampled contexts of all lengths."""
    model = fst.NgramModel.load(path)
    rng = np.random.default_rng(0)
    worst = 0.0
    ngrams = model.to_table().ngrams
    for rows in ngrams[:-1]:
        for row in rows[rng.integers(0, len(rows), contexts)] if len(rows) else []:
            total = math.fsum(math.exp(model.log_prob(token, row)) for token in range(model.vocab_size))
            worst = max(worst, abs(total - 1))
    if worst > 1e-4:
        raise SystemExit(f"{path}: expected contexts that sum to 1 within 1e-4, got one off by {worst}")
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="token ids (.npy), end of text 0")
    parser.add_argument("--sizes", default="73000,730000,7300000,73000000", help="tokens, from the corpus' beginning")
    parser.add_argument("--order", type=int, default=4)
    parser.add_argument("--min-count", default="1,1,2,4")
    parser.add_argument("--memory", default="4G", help="the option of `lm train`, and lmplz's -S")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="sort,duckdb,lmplz,opengrm", help="what to run")
    parser.add_argument(
        "--build", type=Path, default=Path(tempfile.gettempdir()) / "latticebpd-kenlm", help="where to build lmplz"
    )
    parser.add_argument("--work", type=Path, help="where to put files, by default a temporary directory")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    lmplz = built_lmplz(arguments.build) if "lmplz" in wanted else None
    if "opengrm" in wanted and not shutil.which("ngramcount"):
        print(
            "OpenGrm left out: ngramcount is not on the PATH (it is no wheel; build it from its source)",
            file=sys.stderr,
        )
        wanted.remove("opengrm")
    print(
        f"{platform.processor() or platform.machine()}, {arguments.threads} threads, memory {arguments.memory}, order {arguments.order}\n"
    )
    print("| tokens | program | seconds | CPU seconds | tokens/s | peak memory, MB | n-grams |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=arguments.work) as scratch:
        for size in map(int, arguments.sizes.split(",")):
            compare(arguments, wanted, lmplz, size, Path(scratch))


def compare(arguments: argparse.Namespace, wanted: list[str], lmplz: str | None, size: int, scratch: Path) -> None:
    tokens = np.load(arguments.corpus, mmap_mode="r")[:size]
    if len(tokens) < size:
        raise SystemExit(f"{arguments.corpus}: expected {size} tokens, got {len(tokens)}")
    corpus, text = scratch / "corpus.npy", scratch / "corpus.txt"
    np.save(corpus, tokens)
    with open(text, "wb") as file:
        write_sentences(TokenStream.of(tokens, 0), None, file)
    programs: dict[str, tuple[list[list[str]], Path | None, Path]] = {}
    for engine in ("sort", "duckdb"):
        if engine in wanted:
            output = scratch / f"{engine}.fst"
            train = [
                sys.executable,
                "-m",
                "latticebpd",
                "lm",
                "train",
                str(corpus),
                "-o",
                str(output),
                "--order",
                str(arguments.order),
            ]
            train += [
                "--min-count",
                arguments.min_count,
                "--engine",
                engine,
                "--memory",
                arguments.memory,
                "--threads",
                str(arguments.threads),
            ]
            programs[engine] = [train], None, output
    if lmplz:
        prune = [str(int(part) - 1) for part in arguments.min_count.split(",")]
        output = scratch / "lmplz.arpa"
        command = [
            lmplz,
            "-o",
            str(arguments.order),
            "-S",
            arguments.memory,
            "-T",
            str(scratch),
            "--discount_fallback",
            "--arpa",
            str(output),
        ]
        programs["lmplz"] = [[*command, "--prune", *prune]], text, output
    if "opengrm" in wanted:
        symbols, far, counts, output = (scratch / name for name in ("syms", "far", "counts.fst", "opengrm.fst"))
        programs["opengrm"] = [
            ["sh", "-c", f"ngramsymbols < {text} > {symbols}"],
            ["farcompilestrings", f"--symbols={symbols}", "--keep_symbols=1", str(text), str(far)],
            ["ngramcount", f"--order={arguments.order}", str(far), str(counts)],
            ["ngrammake", "--method=katz", str(counts), str(output)],
        ], None, output  # fmt: skip
    runs: dict[str, list[Run]] = {name: [] for name in programs}
    for _ in range(arguments.repeats):
        for name, (commands, stdin, _) in programs.items():
            runs[name].append(measured(commands, stdin))
    digests = set()
    for name, (_, _, output) in programs.items():
        best = min(runs[name], key=lambda run: run.seconds)
        memory = max(run.memory for run in runs[name]) / 1e6
        model = fst.NgramModel.load(output)
        speed, count = size / best.seconds, sum(model.num_ngrams)
        print(
            f"| {size:,} | {name} | {best.seconds:.2f} | {best.cpu:.2f} | {speed:,.0f} | {memory:,.0f} | {count:,} |",
            flush=True,
        )
        if name in ("sort", "duckdb"):
            digests.add(hashlib.sha256(output.read_bytes()).digest())
            check_sums(output)
    if len(digests) > 1:
        raise SystemExit("expected the same model from both engines, got different bytes")


if __name__ == "__main__":
    main()
