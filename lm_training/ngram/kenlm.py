"""Modified Kneser-Ney models by KenLM's ``lmplz``, if that program is installed.

Its input is text, one sentence a line; for token ids, one document a line, ids in decimal, its end-of-text token
included.  ``lmplz`` adds ``<s>`` and ``</s>`` around every line.  Its output is an ARPA file.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from fst.table import UNK
from lm_training.ngram.counts import DEFAULT_MEMORY, PIECE, TokenStream

HOW_TO_GET = (
    "KenLM's wheel has no programs; with CMake, a C++ compiler and Boost, build them from its source: "
    "pip download --no-deps --no-binary kenlm kenlm; tar xf kenlm-*.tar.gz; cmake -S kenlm-*/ -B build; "
    "cmake --build build --target lmplz build_binary; and put build/bin on the PATH"
)


def program(name: str) -> str:
    """The path of one of KenLM's programs; ValueError, with instructions, if it is not installed."""
    path = shutil.which(name)
    if path is None:
        raise ValueError(f"expected KenLM's program {name} on the PATH, found none. {HOW_TO_GET}")
    return path


def estimate_arpa(
    stream: TokenStream,
    symbols: Sequence[str] | None,
    arpa: Path,
    scratch: Path,
    order: int,
    prune: Sequence[int],
    memory: int = DEFAULT_MEMORY,
) -> None:
    """Run ``lmplz`` on a stream's texts, with its temporary files in ``scratch``.

    prune: of each order the count up to which n-grams are dropped, the last also of higher orders; 0 for none.
    memory: bytes for sorting. Raises ValueError where the program is missing, or fails, with its last line.
    """
    counts = [*prune, *[prune[-1]] * order][:order]
    command = [program("lmplz"), "-o", str(order), "-S", f"{memory}b", "-T", str(scratch / "lmplz")]
    # Subword corpora have too few rare unigrams for its discounts; without the fallback it fails on them.
    command += ["--arpa", str(arpa), "--discount_fallback", "--prune", *map(str, counts)]
    _run(command, lambda file: write_sentences(stream, symbols, file))


def build_binary(arpa: Path, binary: Path) -> None:
    """Convert an ARPA file to KenLM's binary format."""
    _run([program("build_binary"), str(arpa), str(binary)], lambda file: None)


def _run(command: Sequence[str], write: Callable[[IO[bytes]], object]) -> None:
    with tempfile.TemporaryFile() as messages:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=messages)
        assert process.stdin is not None
        try:
            with process.stdin as file:
                write(file)
        except BrokenPipeError:
            pass  # the program failed; its messages say why
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.wait() != 0:
            messages.seek(0)
            lines = [line for line in messages.read().decode(errors="replace").split("\n") if line.strip()]
            last = lines[-1].strip() if lines else "no message"
            raise ValueError(f"{Path(command[0]).name} failed with status {process.returncode}: {last}")


def write_sentences(stream: TokenStream, symbols: Sequence[str] | None, file: IO[bytes]) -> None:
    """Write a stream's texts, one a line, words between spaces."""
    for begin in range(0, len(stream.ids), PIECE):
        ids = np.asarray(stream.ids[begin : begin + PIECE]).tolist()
        if symbols is not None:
            markers = {stream.separator: "\n", UNK: "<unk> "}
            text = "".join([markers[token] if token < 0 else symbols[token] + " " for token in ids])
        else:
            text = "".join([f"{token}\n" if token == stream.separator else f"{token} " for token in ids])
        file.write(text.encode())
