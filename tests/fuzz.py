"""Mutated files against the readers of fst, lattices, GGUF and grammars: ``python -m tests.fuzz --rounds 100000``.

Every file is a small good one of its format, damaged where its structure is (a field of a record, a line, an array's
header, a value of JSON) or anywhere in its bytes.  The reader must refuse it with ValueError or load it; what loads
must then answer queries and searches, or refuse them with ValueError.  A crash, more than ten seconds, a wild
allocation or any other exception ends the run with the file kept.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import gzip
import io
import json
import resource
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pywrapfst

import fst
from fst.const_file import ARC, EXPANDED, STATE, parse_fst
from fst.openfst import to_openfst
from latticebpd import json_schema, lark
from latticebpd.constraints.automata import FstConstraint, fst_constraint
from latticebpd.constraints.grammar import GrammarConstraint
from latticebpd.constraints.model_tokens import model_tokens
from latticebpd.constraints.token_automaton import after
from latticebpd.drafters.bundled import MODEL as MODEL_FOLDER
from latticebpd.lattices.drafts import Drafts
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import SausageLattice, oracle_path
from latticebpd.lattices.shards import lattice_directory
from latticebpd.lattices.texts import Texts
from latticebpd.measuring.lattice_files import blocks
from latticebpd.models.gguf.gguf_file import GgufFile
from latticebpd.models.gguf.gguf_tokenizer import tokenizer_of_gguf
from latticebpd.models.gguf.gguf_weights import dequantized
from latticebpd.models.load_target import load_tokenizer
from latticebpd.scoring.rescoring import draft_tree, rescore
from latticebpd.scoring.weights import Tuning
from tests.helpers.lattices import num_paths, top_arcs
from tests.helpers.trigrams import good_model

SECONDS = 10
INTEGERS = [-1, 0, 1, 2, 255, 2**24, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40 + 3, 2**62, 2**63 - 1, -(2**63)]
FLOATS = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e30, 1e30, 3e38, -3.4028235e38, 1e308, -1.7e308, 1000.0]
WORDS = [
    b"nan", b"inf", b"-inf", b"1e999", b"-1e999", b"-99", b"99", b"434.3", b"\t", b"\n", b"\\end\\", b"\\2-grams:",
    b"\\data\\",
    b"ngram 2=999999999999", b"ngram 9=1", b"</s>", b"<s>", b"<unk>", b"\0", b"\xff", b"4294967295", b"2147483647",
    b"-0", b"1e-400",
]  # fmt: skip
BYTES = [struct.pack("<q", value) for value in INTEGERS] + [
    struct.pack("<f", np.float32(np.clip(value, -3e38, 3e38))) for value in FLOATS
]
TYPES = [
    "<f2",
    "<f4",
    "<f8",
    ">f8",
    "<i1",
    "<u1",
    "<u2",
    "<i4",
    ">i4",
    "<u8",
    "<i8",
    "|b1",
    "<c16",
    "<U3",
    "|S4",
    "<M8[s]",
    "|V8",
]
HEADERS = [
    b"(", b"[" * 200, b"'''", b"{}", b"'shape': (-1, 2, 4)", b"'shape': (9999999999, 2, 4)", b"'shape': ()",
    b"'shape': (10**30,)", b"True",
    b"'descr': '|O'", b"'descr': [('a', '<i4')]", b"\xff", b"# ", b"lambda: 0", b"1j",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, -1, 0, 2**70, 1e308, float("nan"), float("-inf"), "", "x" * 999, [], {}, [[[]]], {"a": 1}, "\ud800",
    1e-320,
]  # fmt: skip

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{2,9}$"},
        "more": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/n"}, {"const": None}]}, "maxItems": 3},
    },
    "required": ["name"],
    "additionalProperties": {"enum": ["a", 2]},
    "$defs": {"n": {"type": "integer", "minimum": -3, "maximum": 99}},
}
GRAMMAR = b"""start: sum
sum: NUMBER | sum " + " sum | "(" sum ")" | call{0,2}
call: /[a-z]+/ "(" sum ")"
NUMBER: /[0-9]{1,3}/
"""
TOKENS = model_tokens(load_tokenizer(MODEL_FOLDER), 8192)

Random = np.random.Generator


@dataclass(frozen=True)
class Format:
    """suffix: of the files.  good: the bytes of a whole one.  damage: mutates them.  read: loads and uses a file."""

    suffix: str
    good: bytes
    damage: Callable[[bytes, Random], bytes]
    read: Callable[[Path], None]


def pick(choices: list[Any], rng: Random) -> Any:
    return choices[int(rng.integers(len(choices)))]


def any_bytes(data: bytes, rng: Random, snippets: list[bytes] = BYTES) -> bytes:
    """One to four damages anywhere."""
    damaged = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        if not damaged:
            break
        position, length = int(rng.integers(len(damaged))), int(rng.integers(1, 40))
        match int(rng.integers(6)):
            case 0:
                damaged[position] ^= 1 << int(rng.integers(8))
            case 1:
                del damaged[position : position + length]
            case 2:
                damaged[position:position] = damaged[position : position + length]
            case 3:
                snippet = pick(snippets, rng)
                damaged[position : position + len(snippet)] = snippet
            case 4:
                damaged[position:position] = pick(snippets, rng)
            case 5:
                del damaged[position:]
    return bytes(damaged)


def lines(data: bytes, rng: Random) -> bytes:
    """ARPA: lines lost, doubled, moved; fields replaced."""
    if rng.random() < 0.3:
        return any_bytes(data, rng, WORDS)
    rows = data.split(b"\n")
    for _ in range(rng.integers(1, 4)):
        at, other = map(int, rng.integers(len(rows), size=2))
        match int(rng.integers(4)):
            case 0:
                rows[at], rows[other] = rows[other], rows[at]
            case 1:
                rows.insert(at, rows[other])
            case 2 if len(rows) > 1:
                del rows[at]
            case _:
                fields = rows[at].replace(b" ", b"\t").split(b"\t")
                fields[int(rng.integers(len(fields)))] = pick(WORDS, rng)
                rows[at] = b"\t".join(fields)
    return b"\n".join(rows)


def zipped_lines(data: bytes, rng: Random) -> bytes:
    """The same, packed; or the packed bytes damaged."""
    return any_bytes(data, rng) if rng.random() < 0.3 else gzip.compress(lines(gzip.decompress(data), rng), 1)


def records(data: bytes, rng: Random) -> bytes:
    """OpenFst: single fields of the header, of states and of arcs, wherever they lie."""
    if rng.random() < 0.3:
        return any_bytes(data, rng)
    damaged = bytearray(data)
    names = data.index(b"standard") + 8
    for _ in range(rng.integers(1, 4)):
        match int(rng.integers(4)):
            case 0:  # version, flags, properties, start, number of states and of arcs
                layout, at = pick([("<i", 0), ("<i", 4), ("<q", 8), ("<q", 16), ("<q", 24), ("<q", 32)], rng)
                at += names
            case 1:  # of a const file's records; elsewhere any number
                kind = pick([STATE, ARC], rng)
                name = pick(list(kind.names), rng)
                layout, offset = (
                    kind[name].str.replace("f4", "f").replace("u4", "i").replace("i4", "i"),
                    kind.fields[name][1],
                )
                last = (len(damaged) - kind.itemsize - offset) // kind.itemsize
                at = len(damaged) - kind.itemsize * int(rng.integers(1, max(2, last))) + offset
            case 2:
                layout, at = "<i", int(rng.integers(len(damaged) // 4)) * 4
            case _:
                layout, at = "<f", int(rng.integers(len(damaged) // 4)) * 4
        value = pick(FLOATS, rng) if layout == "<f" else pick(INTEGERS, rng)
        value = (
            np.float32(np.clip(value, -3e38, 3e38))
            if layout == "<f"
            else value & ((1 << 8 * struct.calcsize(layout)) - 1)
        )
        packed = struct.pack(layout.replace("i", "I").replace("q", "Q"), value)
        if 0 <= at <= len(damaged) - len(packed):
            damaged[at : at + len(packed)] = packed
    return bytes(damaged)


def arrays(data: bytes, rng: Random) -> bytes:
    """``.npz``: values, types, shapes, headers and names of arrays; packing and flags of members."""
    if rng.random() < 0.2:
        return any_bytes(data, rng)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for _ in range(rng.integers(1, 3)):
        name = pick(list(members), rng)
        if rng.random() < 0.3:
            body = members[name]
            text = body.find(b"'shape'")
            at = int(rng.integers(10, max(11, body.find(b"\n")))) if rng.random() < 0.5 or text < 0 else text
            snippet = pick(HEADERS, rng)
            members[name] = body[:at] + snippet + body[at + len(snippet) :]
            continue
        try:
            array = np.load(io.BytesIO(members[name]), allow_pickle=False)
        except Exception:
            continue  # damaged a moment ago
        members[name] = stored(changed(np.atleast_1d(array).copy(), rng))
        if rng.random() < 0.1:
            members[pick(["tokens.npy", "words.npy", "../x.npy", ""], rng) or name] = members.pop(name)
        if rng.random() < 0.05:
            members.pop(name, None)
        if not members:
            break
    packed = io.BytesIO()
    with zipfile.ZipFile(
        packed, "w", pick([zipfile.ZIP_STORED] * 3 + [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2], rng)
    ) as archive:
        for name, body in members.items():
            archive.writestr(name, body)
    damaged = bytearray(packed.getvalue())
    if rng.random() < 0.1 and (entry := damaged.find(b"PK\x01\x02")) >= 0:  # a member's flags, packing, sizes
        damaged[entry + int(rng.integers(6, 30))] ^= 1 << int(rng.integers(8))
    return bytes(damaged)


def changed(array: np.ndarray, rng: Random) -> np.ndarray:
    """Another value, type or shape."""
    match int(rng.integers(5)):
        case 0 | 1 if array.size and array.dtype.kind in "fiu":
            with np.errstate(all="ignore"):
                values = np.array(
                    FLOATS if array.dtype.kind == "f" else INTEGERS, np.float64 if array.dtype.kind == "f" else np.int64
                )
                array.reshape(-1)[int(rng.integers(array.size))] = pick(list(values.astype(array.dtype)), rng)
            return array
        case 2:
            try:
                with np.errstate(all="ignore"):
                    return array.astype(pick(TYPES, rng))
            except (ValueError, TypeError, OverflowError, RuntimeError):
                return array
        case 3:
            cut: np.ndarray = (
                array[: int(rng.integers(len(array) + 1))] if rng.random() < 0.5 else np.concatenate([array, array])
            )
            return cut
        case _:
            return pick(
                [
                    array.T,
                    array.reshape(-1),
                    array[None],
                    array[..., None],
                    array[..., :0],
                    np.zeros((2**20, 0), array.dtype),
                ],
                rng,
            )


def stored(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def values(data: bytes, rng: Random) -> bytes:
    """JSON: a value, anywhere, replaced or lost; nesting; raw bytes."""
    if rng.random() < 0.2:
        return any_bytes(data, rng)
    if rng.random() < 0.05:
        return b"[" * 100_000
    root = [json.loads(data)]
    for _ in range(rng.integers(1, 3)):
        spots = list(containers(root))
        holder = pick(spots, rng)
        key = pick(list(holder) if isinstance(holder, dict) else list(range(len(holder))), rng)
        if rng.random() < 0.2 and holder is not root:
            del holder[key]
        else:
            holder[key] = copy.deepcopy(pick(VALUES, rng))
    return json.dumps(root[0]).encode("utf-8", "surrogatepass")


def containers(value: Any) -> Iterator[Any]:
    """All that hold something, from the outside in."""
    if isinstance(value, dict | list) and value:
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from containers(inner)


def good_lattices(half: bool = False) -> LatticeSet:
    rng = np.random.default_rng(0)
    tokens = np.stack([np.stack([rng.permutation(9)[:4] for _ in range(3)]) for _ in range(5)]).astype(np.int32)
    log_probs = np.log(rng.dirichlet(np.ones(4), (5, 3))).astype(np.float32)
    context = np.array([[-1, -1], [-1, 3], [3, 4], [4, 1], [-1, -1]], np.int32)
    entropy = rng.uniform(0, 2, (5, 4)).astype(np.float32)
    sequence, transitions = (
        np.array([0, 0, 0, 0, 1]),
        rng.normal(0, 1, (5, 2, 4, 4)).astype(np.float16 if half else np.float32),
    )
    return LatticeSet(
        tokens,
        log_probs,
        tokens[:, :, 0],
        context,
        "sha256:0",
        sequence,
        entropy,
        "a model, a text",
        transitions=transitions,
    )


def use_model(path: Path) -> None:
    lm = fst.NgramModel.load(path)
    lm.log_prob(3, context=[1, 2])
    lm.score([1, 2, 3, 4], bos=True, eos=True)
    tokens, log_probs = np.array([[1, 2, 3], [4, 0, 2], [5, 6, 1]]), np.zeros((3, 3))
    for alpha in (1.0, 1e30):
        fst.nbest_paths(tokens, log_probs, lm, p=5, alpha=alpha, context=[2])
        fst.best_first_tree(tokens, log_probs, lm, num_nodes=9, alpha=alpha, context=[2])
    lm.to_fst(tokens)
    lm.num_ngrams  # noqa: B018 - walks the automaton
    lm.to_table()
    for write, name in ((lm.save, "again.fst"), (lm.to_arpa, "again.arpa")):
        write(path.with_name(name))
        try:
            fst.NgramModel.load(path.with_name(name))
        except ValueError as error:
            raise AssertionError("expected what was written to be read back") from error


MODEL = good_model()


def use_lattices(path: Path) -> None:
    loaded = LatticeSet.load(path)
    streamed = LatticeSet.joined(list(blocks([path])))
    assert loaded == streamed
    for index in range(min(len(loaded), 8)):
        use_lattice(loaded[index], loaded.context_of(index), loaded.continuation[index])
    loaded.save(path.with_name("again.npz"))
    assert LatticeSet.load(path.with_name("again.npz")) == loaded


def use_lattice(lattice: SausageLattice, context: list[int], continuation: np.ndarray) -> None:
    for lm in (None, MODEL):
        paths, scores = fst.nbest_paths(
            lattice.tokens, lattice.log_probs, lm, p=3, context=context, transitions=lattice.transitions
        )
        assert len(paths) == min(3, num_paths(lattice))
        assert np.isfinite(scores).all()
        fst.best_first_tree(
            lattice.tokens, lattice.log_probs, lm, num_nodes=5, context=context, transitions=lattice.transitions
        )
        fst.arc_posteriors(lattice.tokens, lattice.log_probs, lm, context=context, transitions=lattice.transitions)
    assert (oracle_path(lattice, continuation) >= 0).all()
    top_arcs(lattice, 2).to_fst()


def use_object(path: Path) -> None:
    """The automaton in a file as an object in memory, read as a constraint, as a model and as a lattice."""
    file = parse_fst(path.read_bytes(), path.name)
    automaton = to_openfst(file.states, file.arcs, file.start, None, EXPANDED)
    with suppress(ValueError):
        use_acceptor(fst_constraint(automaton, over_tokens=True))
    for read, use in ((fst.NgramModel.from_fst, search_model), (fst.Lattice.from_fst, use_word_lattice)):
        try:
            use(read(automaton))
        except ValueError as error:
            assert str(error), error  # noqa: PT017
            assert "\n" not in str(error), error  # noqa: PT017
            refused = error
        else:
            return
    raise refused


def use_acceptor(constraint: FstConstraint) -> None:
    tokens: Any = SimpleModelTokens()
    automaton = constraint.automaton(tokens, [0])
    lattice = SausageLattice([[1, 2], [4, 0]], np.zeros((2, 2)))
    for drafts in (rescore(lattice, None, 5, constraint=automaton), draft_tree(lattice, None, 5, constraint=automaton)):
        assert not np.isnan(drafts.scores if isinstance(drafts, Drafts) else drafts.log_probs).any()  # type: ignore[arg-type]
    state = automaton.start
    for _ in range(20):
        if not len(legal := np.flatnonzero(automaton.legal(state))):
            break
        assert not np.isnan(automaton.costs(state, legal)).any()
        state = int(automaton.successors(state, legal)[-1])
        automaton.forced(state)


class SimpleModelTokens:
    """As much of `ModelTokens` as constraints over token ids need."""

    vocab_size = 1000


def search_model(lm: fst.NgramModel) -> None:
    fst.nbest_paths([[1, 2], [4, 0]], np.zeros((2, 2)), lm, p=5, context=[2])
    fst.NgramModel.from_fst(lm.to_fst())


def use_word_lattices(path: Path) -> None:
    for _, lattice in fst.read_lattices(path):
        use_word_lattice(lattice)


def use_word_lattice(lattice: fst.Lattice) -> None:
    for lm in (None, MODEL):
        paths, scores = lattice.nbest_paths(lm, 5, context=[3])
        assert len(paths)
        assert np.isfinite(scores).all()
        assert np.exp(lattice.arc_posteriors(lm)).max(initial=0) <= 1 + 1e-6
    lattice.oracle([3, 1, 4])
    again = fst.Lattice.from_fst(lattice.to_fst())
    np.testing.assert_allclose(again.nbest_paths(p=1)[1], lattice.nbest_paths(p=1)[1], rtol=1e-5, atol=1e-4)


LATTICES = b"""first
0 1 3 0.5,1.25,1_2
0 2 4 1,0.5,
1 2 0 0.25,0,
1 3 5 2,1,
2 3 6 0.5,0.5,7
3 0.125,0,

second
0 1 2 0.5
0 1 3 1
1 2 4 0.25
1
2 1.5
"""


def use_texts(path: Path) -> None:
    texts = Texts.load(path)
    texts.fingerprint()
    list(texts.items())


def use_settings(path: Path) -> None:
    path.rename(path.with_name("lattices.json"))
    directory = lattice_directory(path.parent)
    assert len(directory.files()) == directory.settings()["num_shards"]


def use_weights(path: Path) -> None:
    fst.nbest_paths([[1, 2]], [[0.0, -1.0]], MODEL, alpha=Tuning.load(path)[0].alpha)


def write_gguf(path: Path) -> None:
    """A tokenizer of six tokens, and tensors of several types."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<s>", "a", "b", "Ġ", "ab", "Ġab"])
    writer.add_token_merges(["a b", "Ġ ab"])
    writer.add_token_types([3, 1, 1, 1, 1, 1])
    writer.add_bos_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_tensor("norm.weight", np.ones(6, np.float32))
    for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q6_K):
        size = 2 * gguf.GGML_QUANT_SIZES[kind][1]
        writer.add_tensor(kind.name, np.arange(3 * size, dtype=np.uint8).reshape(3, size), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def use_gguf(path: Path) -> None:
    file = GgufFile.open(path)
    for tensor in file.tensors.values():
        assert dequantized(tensor).shape == tensor.shape
    tokenizer = tokenizer_of_gguf(file)
    tokenizer.decode(tokenizer("ab <s>ba")["input_ids"])


def use_schema(path: Path) -> None:
    use_constraint(json_schema(path.read_text(encoding="utf-8")))


def use_grammar(path: Path) -> None:
    use_constraint(lark(path.read_text(encoding="utf-8")))


def use_constraint(constraint: GrammarConstraint) -> None:
    """A text of legal tokens."""
    automaton = constraint.automaton(TOKENS, [0])
    state = automaton.start
    for number in range(8):
        assert len(automaton.forced(state)) < 1000
        choices = np.flatnonzero(automaton.legal(state))
        if not len(choices):
            return
        state = after(automaton, state, int(choices[number % len(choices)]))
        automaton.release(state)


def formats(folder: Path) -> list[Format]:
    """One of each."""
    MODEL.save(folder / "good.fst")
    MODEL.to_arpa(folder / "good.arpa")
    MODEL.to_arpa(folder / "good.arpa.gz")
    fst.NgramModel(MODEL.automaton, [*"abcdefg", "h\u00a0i", "j"]).save(folder / "words.fst")
    pywrapfst.convert(pywrapfst.Fst.read(str(folder / "good.fst")), "vector").write(str(folder / "vector.fst"))
    write_gguf(folder / "good.gguf")
    (folder / "lattices").write_bytes(LATTICES)
    lattice = next(fst.read_lattices(folder / "lattices"))[1]
    pywrapfst.convert(lattice.to_fst(), "const").write(str(folder / "lattice.fst"))
    good_lattices().save(folder / "good.npz")
    good_lattices(half=True).save(folder / "half.npz")
    Texts.of_rows([[1, 2, 3], [4, 5], [6]], [1, 2, 1]).save(folder / "texts.npz")
    tuning = {
        "alpha": 0.5, "system": "16-best", "alphas": [0.0, 0.5, 1.0], "block_efficiency": [1.0, 2.0, 1.5],
        "unit": "text",
        "examples": [0, 3], "seed": 1, "lattices": "sha256:0",
    }  # fmt: skip
    settings = {"num_shards": 1, "model": "m", "k": 16}

    def good(name: str) -> bytes:
        return (folder / name).read_bytes()

    return [
        Format(".fst", good("good.fst"), records, use_model),
        Format(".arpa", good("good.arpa"), lines, use_model),
        Format(".npz", good("good.npz"), arrays, use_lattices),
        Format(".fst", good("vector.fst"), records, use_model),
        Format(".npz", good("half.npz"), arrays, use_lattices),
        Format(".npz", good("texts.npz"), arrays, use_texts),
        Format(".fst", good("words.fst"), records, use_model),
        Format(".alpha.json", json.dumps({"format_version": 2, "tunings": [tuning]}).encode(), values, use_weights),
        Format(".arpa.gz", good("good.arpa.gz"), zipped_lines, use_model),
        Format(".json", json.dumps(settings).encode(), values, use_settings),
        Format(".lat", LATTICES, lines, use_word_lattices),
        Format(".lat.gz", gzip.compress(LATTICES, 1), zipped_lines, use_word_lattices),
        Format(".fst", good("good.fst"), records, use_object),
        Format(".fst", good("lattice.fst"), records, use_object),
        Format(".gguf", good("good.gguf"), any_bytes, use_gguf),
        Format(".schema", json.dumps(SCHEMA).encode(), values, use_schema),
        Format(".lark", GRAMMAR, lines, use_grammar),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100_000, help="mutated files in all")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    warnings.simplefilter("ignore")
    kept = Path(tempfile.mkdtemp(prefix="fuzz-"))
    usable: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        sources = formats(Path(name))
        (kept / "shard-00000.npz").write_bytes(sources[2].good)
        for source in sources:  # the good ones load
            usable[source.read.__name__] = 0
            path = kept / f"good{source.suffix}"
            path.write_bytes(source.good)
            source.read(path)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(arguments.rounds):
            source = sources[number % len(sources)]
            path = kept / f"mutated{source.suffix}"
            path.write_bytes(source.damage(source.good, rng))
            faulthandler.dump_traceback_later(SECONDS, exit=True)  # the file stays where it is
            try:
                source.read(path)
                usable[source.read.__name__] += 1
            except (ValueError, FileNotFoundError) as error:
                assert str(error) and "\n" not in str(error), f"expected one line, got {error!r}"  # noqa: PT017, PT018
            except BaseException:
                print(f"round {number}, seed {arguments.seed}: the file is kept in {kept}")
                raise
            finally:
                faulthandler.cancel_dump_traceback_later()
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1024
    assert grown < 512, f"a reader took {grown:.0f} MiB for a file of a few kilobytes"
    assert all(usable.values()), f"expected files of every format that load although they are damaged, got {usable}"
    for path in kept.iterdir():
        path.unlink()
    kept.rmdir()
    loaded = sum(usable.values())
    print(
        f"fuzz: {arguments.rounds} files, {loaded} usable, {arguments.rounds - loaded} refused, at most "
        f"{grown:.0f} MiB more memory"
    )


if __name__ == "__main__":
    main()
