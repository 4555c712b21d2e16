"""OpenFst's own objects, of pynini and pywrapfst, to records and back.

Records travel through the bytes of a ``const`` file in memory: OpenFst writes and reads them in C++, and
`fst.const_file` checks what comes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pynini
import pywrapfst

from fst.const_file import FstFile, Records, SymbolTable, const_blocks, parse_fst
from fst.printable import expect


def is_openfst(candidate: object) -> bool:
    """Whether it is an automaton of pynini or pywrapfst."""
    return isinstance(candidate, pywrapfst.Fst)


def records_of(automaton: Any) -> FstFile:
    """The states and arcs of an automaton; ValueError for other objects and semirings, NaN and negative labels."""
    expect(is_openfst(automaton), "an FST of pynini or pywrapfst", type(automaton).__name__)
    wanted, kind = "tropical weights (arc type standard)", automaton.arc_type()
    expect(kind == "standard", wanted, f"arc type {kind}", "use arcmap to convert them")
    expect(automaton.start() >= 0, "an automaton with paths", "one without a start state")
    file = parse_fst(pywrapfst.convert(automaton, "const").write_to_string(), "FST")
    arcs, states = file.arcs, file.states
    _refuse(file, arcs["ilabel"] < 0, "expected labels of 0 and above, got {arc[ilabel]} at state {state}")
    infinite = np.isnan(arcs["weight"]) | (arcs["weight"] == -np.inf)
    _refuse(file, infinite, "expected weights above -inf, got {arc[weight]} at state {state}")
    if (bad := np.isnan(states["final"]) | (states["final"] == -np.inf)).any():
        got = f"{states['final'][bad][0]} at state {int(np.argmax(bad))}"
        raise ValueError(f"expected final weights above -inf, got {got}")
    return file


def refuse_transducer(file: FstFile) -> None:
    """ValueError unless every arc has one label."""
    got = "an arc {arc[ilabel]}:{arc[olabel]} at state {state}; project it"
    _refuse(file, file.arcs["ilabel"] != file.arcs["olabel"], f"expected an acceptor, got {got}")


def _refuse(file: FstFile, bad: np.ndarray, message: str) -> None:
    """ValueError for the first of the ``bad`` arcs, ``[arcs]`` bool."""
    if bad.any():
        arc = int(np.argmax(bad))
        state = int(np.searchsorted(file.states["pos"], arc, side="right")) - 1
        raise ValueError(message.format(arc=file.arcs[arc], state=state))


def to_openfst(
    states: Records, arcs: Records, start: int, symbols: SymbolTable | None, properties: int | None = None
) -> Any:
    """A ``pynini.Fst`` of what `const_blocks` takes."""
    ends = states["pos"].astype(np.int64) + states["narcs"]
    if ends.max(initial=0) > len(arcs) or not 0 <= start < len(states):
        got = f"one whose arcs end at {ends.max()}; the file is damaged"
        raise ValueError(f"expected states of at most {len(arcs)} arcs, got {got}")
    if ((arcs["nextstate"] < 0) | (arcs["nextstate"] >= len(states))).any():
        raise ValueError(f"expected arcs to states below {len(states)}, got others; the file is damaged")
    return pynini.Fst.read_from_string(b"".join(const_blocks(states, arcs, start, symbols, properties)))
