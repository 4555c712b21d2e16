"""A million lattices in one streaming pass: speed of the oracle and of comparisons, and peak memory against the number of files.

    python -m benchmarks.bench_analysis --lm latticebpd/assets/lm.fst

Lattices are synthetic: 9 slots x 16 arcs, tokens of a vocabulary of 8,192, falling log-probabilities, texts of 128 positions; the
right token of a slot is its r-th arc with probability 0.36 * 0.6^r, or is missing. They are written as a directory of shards
first (`--lattices` in all, in `--files` files), then read back by the same functions that `latticebpd oracle` and `compare` call,
each pass in a process of its own, whose peak memory is the operating system's figure. Every pass must count every lattice, and
passes over other numbers of files must count the same, or the run ends with an error.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

SLOTS, ARCS, VOCABULARY, TEXT = 9, 16, 8192, 128
KS, HEADS = [1, 2, 4, 8, 16], [3, 6, 10]


def write(directory: Path, count: int, files: int, seed: int = 0) -> None:
    """``count`` lattices in ``files`` shards; the same lattices whatever the number of shards."""
    from latticebpd.lattices.lattice_set import LatticeSet

    texts = np.arange(count) // TEXT
    edges = np.linspace(0, texts[-1] + 1, files + 1).astype(int)
    directory.mkdir(parents=True)
    for number, (first, last) in enumerate(pairwise(edges.tolist())):
        parts = [text(seed, index) for index in range(first, last)]
        arrays = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
        LatticeSet(*arrays, sequence=np.repeat(np.arange(last - first), TEXT)).save(directory / f"{number:05d}.npz")


def text(seed: int, index: int) -> tuple[np.ndarray, ...]:
    """Tokens, log-probabilities, continuations and contexts of one text's lattices."""
    rng = np.random.default_rng((seed, index))
    words = rng.integers(0, VOCABULARY, TEXT + SLOTS + 1).astype(np.int32)
    at = np.arange(TEXT)[:, None]
    continuation = words[at + 1 + np.arange(SLOTS)]
    # A stride that is odd, and so prime to the vocabulary's size, keeps the tokens of a slot apart.
    stride = 2 * rng.integers(0, VOCABULARY // 2, (TEXT, SLOTS, 1)) + 1
    rank = rng.choice(ARCS + 1, (TEXT, SLOTS), p=_ranks())
    place = np.arange(ARCS) - rank[:, :, None]
    tokens = (
        continuation[:, :, None] + stride * np.where(rank[:, :, None] < ARCS, place, place + 2 * ARCS)
    ) % VOCABULARY
    log_probs = np.cumsum(-rng.exponential(0.6, (TEXT, SLOTS, ARCS)), axis=2) - 0.5
    context = words[np.maximum(at + np.arange(-3, 1), 0)]
    return tokens.astype(np.int32), log_probs.astype(np.float32), continuation, context


def _ranks() -> np.ndarray:
    p = 0.36 * 0.6 ** np.arange(ARCS)
    return np.append(p, 1 - p.sum())


def work(name: str, directory: Path, limit: int | None, lm: Path | None, threads: int) -> None:
    """One pass, in this process; prints what it counted, seconds and peak memory."""
    import fst
    from latticebpd.measuring import blocks, compare, tally

    model = fst.NgramModel.load(lm) if lm else None
    before = peak_memory()

    def read():
        seen = 0
        for block in blocks([directory]):
            if limit is not None and seen >= limit:
                return
            seen += len(block)
            yield block

    begin = time.perf_counter()
    if name == "oracle":
        found = tally(read(), KS, HEADS)
        counted = [found.counts.tolist(), found.walked.tolist()]
    else:
        compared = compare(read(), [name], model, 1.0, threads=threads)
        found, counted = compared, [compared.counts.tolist(), compared.nodes.tolist()]
    seconds = time.perf_counter() - begin
    peak = peak_memory()
    print(
        json.dumps(
            {"lattices": found.num_lattices, "seconds": seconds, "before": before, "peak": peak, "counted": counted}
        )
    )


def peak_memory() -> float:
    """MiB that this process has held at most; the figure of ``getrusage`` would count what its parent held, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measured(name: str, directory: Path, args: argparse.Namespace, threads: int, limit: int | None = None) -> dict:
    command = [
        sys.executable,
        "-m",
        "benchmarks.bench_analysis",
        "--work",
        name,
        "--directory",
        str(directory),
        "--threads",
        str(threads),
    ]
    command += ["--limit", str(limit)] if limit is not None else []
    command += ["--lm", str(args.lm)] if args.lm else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"{name}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lattices", type=int, default=1_000_000)
    parser.add_argument(
        "--files", type=int, nargs="+", default=[4, 16, 256], help="numbers of files to spread the lattices over"
    )
    parser.add_argument("--lm", type=Path, help="n-gram model, FST; without one, comparisons are of 0-grams")
    parser.add_argument("--compared", type=int, help="lattices of the comparisons; all by default")
    parser.add_argument("--keep", type=Path, help="directory to keep the lattices in, or to find them in")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=2, help="of the comparisons' searches")
    args = parser.parse_args()
    if args.work:
        work(args.work, args.directory, args.limit, args.lm, args.threads)
        return
    with tempfile.TemporaryDirectory() as scratch:
        root = args.keep or Path(scratch)
        print(
            f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}, numpy {np.__version__}"
        )
        print(f"{args.lattices:,} lattices of {SLOTS} x {ARCS}\n")
        print(
            "| pass | files | threads | lattices | seconds | lattices/s | peak MiB | of it before the first lattice |"
        )
        print("|---|---|---|---|---|---|---|---|", flush=True)
        expected = None
        for files in args.files:
            directory = root / f"{args.lattices}-in-{files}"
            if not directory.exists():
                write(directory, args.lattices, files)
            found = measured("oracle", directory, args, 1)
            row("oracle, 5 widths x 3 numbers of heads", files, 1, found)
            expected = expected or found["counted"]
            if found["counted"] != expected:
                sys.exit(f"{files} files: the counts are not those of {args.files[0]}")
        names = [f"{kind}{'' if args.lm else ':0-gram'}" for kind in ("16-best", "64-tree")]
        for name in names:
            row(
                f"vanilla, {name}, oracle",
                args.files[-1],
                args.threads,
                measured(name, directory, args, args.threads, args.compared),
            )


def row(name: str, files: int, threads: int, found: dict) -> None:
    speed = found["lattices"] / found["seconds"]
    cells = [
        name,
        files,
        threads,
        f"{found['lattices']:,}",
        f"{found['seconds']:.1f}",
        f"{speed:,.0f}",
        f"{found['peak']:.0f}",
    ]
    print(f"| {' | '.join(map(str, cells))} | {found['before']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
