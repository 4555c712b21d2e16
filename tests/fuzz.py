"""Mutated ARPA and FST files against the readers: ``python -m tests.fuzz --rounds 20000``.

Every file is a good one with bytes flipped, cut out, repeated, overwritten with extreme numbers, or cut short.  The
reader must refuse it with ValueError or load it; what loads must then answer queries and searches, or refuse them
with ValueError.  A crash, a hang, a wild allocation or any other exception ends the run with the file kept.
"""

from __future__ import annotations

import argparse
import resource
import signal
import struct
import tempfile
import warnings
from pathlib import Path

import numpy as np

import fst
from tests.helpers.trigrams import good_model

EXTREMES = [struct.pack("<i", value) for value in (-1, 0, 1, 2**31 - 1, -(2**31))] + [
    struct.pack("<f", value) for value in (np.nan, np.inf, -np.inf)
]
EXTREMES += [struct.pack("<q", value) for value in (-1, 2**62, -(2**63))]
WORDS = [
    b"nan",
    b"inf",
    b"-inf",
    b"1e999",
    b"-99",
    b"\t",
    b"\n",
    b"\\end\\",
    b"\\2-grams:",
    b"ngram 2=999999999999",
    b"</s>",
    b"<s>",
    b"\0",
]


def mutate(data: bytes, rng: np.random.Generator, snippets: list[bytes]) -> bytes:
    """One to four random damages."""
    damaged = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        if not damaged:
            break
        place, length = int(rng.integers(len(damaged))), int(rng.integers(1, 40))
        match int(rng.integers(6)):
            case 0:
                damaged[place] ^= 1 << int(rng.integers(8))
            case 1:
                del damaged[place : place + length]
            case 2:
                damaged[place:place] = damaged[place : place + length]
            case 3:
                snippet = snippets[int(rng.integers(len(snippets)))]
                damaged[place : place + len(snippet)] = snippet
            case 4:
                snippet = snippets[int(rng.integers(len(snippets)))]
                damaged[place:place] = snippet
            case 5:
                del damaged[place:]
    return bytes(damaged)


def exercise(path: Path) -> bool:
    """Load and use a file; whether it loaded and answered everything.  Anything but ValueError is the caller's find."""
    try:
        model = fst.NgramModel.load(path)
        model.log_prob(3, context=[1, 2])
        model.score([1, 2, 3, 4], bos=True, eos=True)
        tokens, log_probs = np.array([[1, 2, 3], [4, 0, 2], [5, 6, 1]]), np.zeros((3, 3))
        fst.nbest_paths(tokens, log_probs, model, p=5, context=[2])
        fst.best_first_tree(tokens, log_probs, model, num_nodes=9, context=[2])
        model.num_ngrams  # noqa: B018 - walks the automaton
        model.to_table()
    except ValueError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20000, help="mutated files in all")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    warnings.simplefilter("ignore")
    rounds_done = loaded = 0
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        model = good_model(arguments.seed)
        model.save(directory / "good.fst")
        model.to_arpa(directory / "good.arpa")
        sources = [(".fst", (directory / "good.fst").read_bytes(), EXTREMES), (".arpa", (directory / "good.arpa").read_bytes(), WORDS)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        while rounds_done < arguments.rounds:
            suffix, data, snippets = sources[rounds_done % 2]
            path = directory / f"mutated{suffix}"
            path.write_bytes(mutate(data, rng, snippets))
            signal.alarm(20)  # a hang ends the process
            try:
                loaded += exercise(path)
            except BaseException:
                kept = Path(tempfile.gettempdir()) / f"fuzz-find-{arguments.seed}-{rounds_done}{suffix}"
                kept.write_bytes(path.read_bytes())
                print(f"round {rounds_done}: file kept as {kept}")
                raise
            finally:
                signal.alarm(0)
            rounds_done += 1
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1024
    assert grown < 512, f"a reader took {grown:.0f} MiB for a file of a few kilobytes"
    print(f"fuzz: {rounds_done} files, {loaded} usable, {rounds_done - loaded} refused, at most {grown:.0f} MiB more memory")


if __name__ == "__main__":
    main()
