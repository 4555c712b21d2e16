"""A million lattices in one streaming pass: speed of the oracle and of comparisons, and peak memory against the
number of files.

    python -m benchmarks.bench_analysis --lm latticebpd/assets/lm.fst

Lattices are synthetic: 9 slots x 16 arcs, tokens of a vocabulary of 8,192, falling log-probabilities, texts of 128
positions; the right token of a slot is its r-th arc with probability 0.36 * 0.6^r, or is missing. They are written as
a directory of shards first (`--lattices` in all, in `--files` files), then read back by the same functions that
`latticebpd oracle` and `compare` call, each pass in a process of its own, whose peak memory is the operating system's
figure. Every pass must count every lattice, and passes over other numbers of files must count the same, or the run
ends with an error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

SLOTS, ARCS, VOCABULARY, TEXT = 9, 16, 8192, 128
KS, HEADS = [1, 2, 4, 8, 16], [3, 6, 10]
RANKS = 0.36 * 0.6 ** np.arange(ARCS)
"""Probabilities that the arc of a rank is right."""


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
    rank = rng.choice(ARCS + 1, (TEXT, SLOTS), p=np.append(RANKS, 1 - RANKS.sum()))
    offset = np.arange(ARCS) - rank[:, :, None]
    tokens = (
        continuation[:, :, None] + stride * np.where(rank[:, :, None] < ARCS, offset, offset + 2 * ARCS)
    ) % VOCABULARY
    log_probs = np.cumsum(-rng.exponential(0.6, (TEXT, SLOTS, ARCS)), axis=2) - 0.5
    context = words[np.maximum(at + np.arange(-3, 1), 0)]
    return tokens.astype(np.int32), log_probs.astype(np.float32), continuation, context


def work(name: str, directory: Path, limit: int | None, lm: Path | None, threads: int) -> dict[str, Any]:
    """One pass in this process: counts, seconds, peak memory.  Nothing else is imported: PyTorch would count."""
    import fst
    from latticebpd.measuring import blocks, compare, tally

    model = fst.NgramModel.load(lm) if lm else None
    before = peak_memory()

    def read() -> Iterator[Any]:
        seen = 0
        for block in blocks([directory]):
            if limit is not None and seen >= limit:
                return
            seen += len(block)
            yield block

    begin = time.perf_counter()
    found: Any = tally(read(), KS, HEADS) if name == "oracle" else compare(read(), [name], model, 1.0, threads=threads)
    seconds = time.perf_counter() - begin
    counted = [found.counts.tolist(), (found.walked if name == "oracle" else found.nodes).tolist()]
    times = {"lattices": found.num_lattices, "seconds": seconds}
    return {**times, "before": before, "peak": peak_memory(), "counted": counted}


def peak_memory() -> float:
    """MiB that this process has held at most; the figure of ``getrusage`` would count what its parent held, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measured(name: str, directory: Path, lm: Path | None, threads: int, limit: int | None = None) -> dict[str, Any]:
    """`work` in a process of its own."""
    call = "import json; from pathlib import Path, PosixPath; from benchmarks.bench_analysis import work; "
    call += f"print(json.dumps(work({name!r}, {directory!r}, {limit!r}, {lm!r}, {threads})))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", call]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"{name}: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    from benchmarks.common import options, signature, table

    parser = options(__doc__, whole=True)
    parser.add_argument("--lattices", type=int, default=1_000_000)
    about = "numbers of files to split the lattices into"
    parser.add_argument("--files", type=int, nargs="+", default=[4, 16, 256], help=about)
    parser.add_argument("--lm", type=Path, help="n-gram model, FST; without one, comparisons are of 0-grams")
    parser.add_argument("--compared", type=int, help="lattices of the comparisons; all by default")
    parser.add_argument("--keep", type=Path, help="directory to keep the lattices in, or to find them in")
    parser.add_argument("--threads", type=int, default=2, help="of the comparisons' searches")
    args = parser.parse_args()
    signature(numpy=np.__version__, lattices=f"{args.lattices:,} of {SLOTS} x {ARCS}")
    rows: list[list[Any]] = []

    def measure(title: str, name: str, files: int, threads: int, limit: int | None = None) -> Any:
        found = measured(name, directory, args.lm, threads, limit)
        speed = f"{found['lattices'] / found['seconds']:,.0f}"
        memory = (f"{found[each]:.0f}" for each in ("peak", "before"))
        rows.append([title, files, threads, f"{found['lattices']:,}", f"{found['seconds']:.1f}", speed, *memory])
        return found["counted"]

    with tempfile.TemporaryDirectory() as scratch:
        expected = None
        for files in args.files:
            directory = (args.keep or Path(scratch)) / f"{args.lattices}-in-{files}"
            if not directory.exists():
                write(directory, args.lattices, files)
            counted = measure("oracle, 5 widths x 3 numbers of heads", "oracle", files, 1)
            if counted != (expected := expected or counted):
                sys.exit(f"{files} files: the counts are not those of {args.files[0]}")
        for name in (f"{kind}{'' if args.lm else ':0-gram'}" for kind in ("16-best", "64-tree")):
            measure(f"vanilla, {name}, oracle", name, files, args.threads, args.compared)
    counted = ("files", "threads", "lattices", "seconds", "lattices/s", "peak MiB", "of it before the first lattice")
    table("", ("pass", *counted), rows)


if __name__ == "__main__":
    main()
