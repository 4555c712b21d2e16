"""Word lattices as text: Kaldi's archives (``lattice-copy ark:lat ark,t:-``) and OpenFst's ``fstprint``, plain or gzip.

An entry is a line with its name, which may be missing where there is one entry, and a line for each arc and final
state, the first for an arc of the start state; a blank line ends it.

    0 1 word weight         an arc of an acceptor (CompactLattice); without a weight it costs nothing
    0 1 label word weight   an arc of a transducer (Lattice)
    2 weight                a final state

A weight is one cost, or a graph and an acoustic cost and perhaps an alignment: ``4.5,2.25,7_7_9``.  A word is its
number in ``words.txt`` (0 is epsilon, and token = number - 1, as on the arcs of an FST) or, with ``symbols``, the
word itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fst.confusion import EPSILON
from fst.files import GZIP_DAMAGE, PathLike, unpacked
from fst.model import Vocabulary
from fst.word_lattices import Lattice

EPSILON_NAMES = ("<eps>", "<epsilon>")


def read_lattices(
    path: PathLike, symbols: Sequence[str] | None = None, acoustic_scale: float = 1.0, graph_scale: float = 1.0
) -> Iterator[tuple[str, Lattice]]:
    """The name and the lattice of each entry, one after another.

    symbols: the words of a language model (`fst.NgramModel.symbols`), where lattices hold words; others get ids of
        their own.
    acoustic_scale, graph_scale: an arc's log-probability is minus the sum of its costs times these.
    Raises ValueError: with the number of the line, for anything else.
    """
    name, entry, number = "", _Entry(symbols, acoustic_scale, graph_scale), 0
    try:
        for number, line in enumerate(_lines(path), 1):  # noqa: B007  (errors name the line)
            fields = line.split()
            if not fields and (name or not entry.is_empty):
                yield name, entry.lattice()
            if not fields:
                name, entry = "", _Entry(symbols, acoustic_scale, graph_scale)
            elif len(fields) == 1 and not name and entry.is_empty:
                name = fields[0]
            else:
                entry.read(fields)
        if name or not entry.is_empty:
            yield name, entry.lattice()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected text in UTF-8 ({error})") from None
    except GZIP_DAMAGE as error:
        raise ValueError(f"{path}: expected a complete gzip stream, got a damaged one ({error})") from None
    except ValueError as error:
        raise ValueError(f"{path}: line {number}{f', entry {name}' if name else ''}: {error}") from None


class _Entry:
    """The arcs and final states of one lattice."""

    def __init__(self, symbols: Sequence[str] | None, acoustic_scale: float, graph_scale: float) -> None:
        self.scales = graph_scale, acoustic_scale
        self.vocabulary = None if symbols is None else Vocabulary(symbols)
        self.arcs: list[tuple[int, int, int, float]] = []
        self.finals: list[tuple[int, float]] = []

    @property
    def is_empty(self) -> bool:
        return not self.arcs and not self.finals

    def read(self, fields: list[str]) -> None:
        if len(fields) > 5:
            raise ValueError(f"expected an arc or a final state, at most 5 fields, got {len(fields)}")
        if len(fields) <= 2:
            self.finals.append((_integer("a state", fields[0]), -self._cost(fields[1:])))
            return
        word = fields[3] if len(fields) == 5 else fields[2]
        source, target = (_integer("a state", field) for field in fields[:2])
        self.arcs.append((source, target, self._token(word), -self._cost(fields[3:][-1:])))

    def lattice(self) -> Lattice:
        words = None if self.vocabulary is None else self.vocabulary.words
        start, *_ = (*(arc[0] for arc in self.arcs[:1]), *(state for state, _ in self.finals[:1]), 0)
        return Lattice.from_arcs(self.arcs, self.finals, start, words)

    def _token(self, word: str) -> int:
        if self.vocabulary is not None:
            return EPSILON if word in EPSILON_NAMES else self.vocabulary.token(word)
        return _integer("a word's number (or pass symbols=model.symbols for words)", word) - 1

    def _cost(self, weights: list[str]) -> float:
        if not weights:
            return 0.0
        costs = weights[0].split(",")[:2]
        scales = self.scales if len(costs) == 2 else (1.0,)
        try:
            return sum(scale * float(cost) for scale, cost in zip(scales, costs, strict=True))
        except ValueError:
            got = f"got {weights[0][:40]!r}"
            raise ValueError(f"expected a weight as cost or graph,acoustic[,alignment], {got}") from None


def _integer(what: str, field: str) -> int:
    if not (field.isascii() and field.isdecimal() and len(field) <= 10 and int(field) < 2**31):
        raise ValueError(f"expected {what} from 0 to 2^31 - 1, got {field[:40]!r}")
    return int(field)


def _lines(path: PathLike) -> Iterator[str]:
    rest = b""
    for piece in unpacked(path):
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line.decode() for line in lines)
    if rest:
        yield rest.decode()
