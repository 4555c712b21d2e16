"""Jacobi decoding against greedy and beam search: iterations, time, operations.

    python -m benchmarks.bench_jacobi test_2016_flickr.jsonl --model translator [--heads HEADS --lm LM] -o rows.csv
    python -m benchmarks.bench_jacobi --table rows.csv

The model is one of `latticebpd train translation`, or any other encoder-decoder or causal LM.  As in Santilli 2023,
texts are decoded one by one, and the algorithms that need the target's length are given that of greedy decoding,
unless a row says that it is estimated (here: one and a half times the source, and five).  Systems take turns text by
text, so that a drift of the machine's speed meets all alike.  Every text is compared with greedy decoding's, token
for token, and the program ends with an error if one differs.  Intervals, 95 %, draw texts anew.

Every decode is a line of the CSV file as soon as all systems have decoded its text; the same command resumes after the
last such text.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import Progress

import fst
from benchmarks.common import err, options, read_csv, run, set_up, signature, table, with_interval, write_csv
from latticebpd import Loaded, drafter_named, load
from latticebpd import jacobi as algorithms
from latticebpd.cli.jacobi_inputs import read_texts
from latticebpd.decoding.generation_config import GenerationSettings
from latticebpd.jacobi.jacobi_comparison import GREEDY, Batch, BatchRun, System, SystemRun, compare, parallel, stock
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.models.weight_kinds import TORCH

BEAM = "beam 5"
ESTIMATE = algorithms.LengthRatio(1.5, 5.0)
HEAD = ("system", "iterations", "over greedy", "seconds", "over greedy", "over beam 5", "FLOPs", "FLOPs / speedup")


def system(algorithm: Callable[..., Any], model: Any, new: int, settings: Callable[[Batch], tuple[Any, ...]]) -> System:
    """An algorithm; settings: what it takes between a batch's ids and mask."""

    def decode(batch: Batch) -> Any:
        return algorithm(model, batch.ids, *settings(batch), attention_mask=batch.mask, max_new_tokens=new)

    return parallel(model, decode)


def whole(model: Any, new: int, initial: Any = None, known: bool = True) -> System:
    """PJ, of a known or estimated length."""
    return system(algorithms.jacobi, model, new, lambda batch: (initial, batch.lengths if known else ESTIMATE))


def blocks(model: Any, new: int, size: int) -> System:
    """PGJ."""
    return system(algorithms.gauss_seidel_jacobi, model, new, lambda batch: (size, None, batch.lengths))


def hybrid(model: Any, new: int, size: int, initial: Any = None) -> System:
    """HGJ."""
    return system(algorithms.hybrid_jacobi, model, new, lambda _: (size, initial))


def systems(model: Any, heads: Loaded | None, lm: Path | None, max_new_tokens: int) -> dict[str, System]:
    """All systems by name; greedy decoding comes first and gives the lengths.

    heads: the same model with heads.
    """
    pj, pgj, hgj = (partial(make, model, max_new_tokens) for make in (whole, blocks, hybrid))
    chosen = {
        GREEDY: stock(model, max_new_tokens),
        BEAM: stock(model, max_new_tokens, num_beams=5),
        "PJ": pj(),
        "PJ, length estimated": pj(known=False),
        "PGJ, b = 5": pgj(5),
        "PGJ, b = 3": pgj(3),
        "HGJ, b = 3": hgj(3),
        "HGJ, b = 1": hgj(1),
        "HGJ, b = 3, random": hgj(3, algorithms.RandomTokens(TransformersModel.of(model).vocab_size)),
        "HGJ, b = 3, source": hgj(3, algorithms.SourceCopy()),
    }
    if lm is not None:
        chosen["HGJ, b = 3, n-gram"] = hgj(3, algorithms.NgramContinuation(fst.NgramModel.load(lm)))
    if heads is None:
        return chosen
    lattices = heads.lattice_source()
    for name, path in (("0-gram", None), ("n-gram", lm)):
        if name == "0-gram" or path is not None:
            initial = algorithms.DraftedInitial(drafter_named("1-best", lattices, path))
            for size in (3, lattices.num_slots + 1):
                chosen[f"HGJ, b = {size}, lattice, {name}"] = hybrid(heads.target, max_new_tokens, size, initial)
            chosen[f"PJ, lattice, {name}"] = whole(heads.target, max_new_tokens, initial)
    return chosen


def runs_of(rows: Iterable[Mapping[str, str]]) -> dict[str, SystemRun]:
    """The decodes of a CSV file's rows, by system."""
    runs: dict[str, SystemRun] = {}
    for row in rows:
        decoded = BatchRun([[int(token) for token in row["tokens"].split()]], [int(row["passes"])], [int(row["flops"])])
        runs.setdefault(row["system"], SystemRun(row["system"])).add(decoded, float(row["seconds"]))
    return runs


def lines_of(rows: Iterable[Mapping[str, str]]) -> list[list[str]]:
    """The table's lines: sums over all texts, their ratios, and intervals of these."""
    runs = runs_of(rows)
    greedy, beam = runs[GREEDY], runs[BEAM]

    def over(each: SystemRun, what: str) -> str:
        value = sum(getattr(greedy, what)) / sum(getattr(each, what))
        return with_interval(value, *each.interval(greedy, what))

    return [
        [name, str(sum(each.passes)), over(each, "passes"), f"{sum(each.seconds):.1f}", over(each, "seconds"),
         f"{each.time_speedup(beam):.2f}", f"{sum(each.flops):.3g}", f"{each.flops_per_speed(greedy):.3g}"]
        for name, each in runs.items()
    ]  # fmt: skip


class Results:
    """Decodes, text by text, of all systems.

    path: the CSV file that keeps them; what it holds at first is taken up, a text that was cut short left out.
    data: the name of the texts.
    """

    COLUMNS = ("data", "threads", "text", "system", "seconds", "passes", "flops", "tokens")

    def __init__(self, path: Path, systems: Sequence[str], data: str) -> None:
        kept = read_csv(path) if path.exists() else []
        self.path, self.data, self.done = path, data, len(kept) // len(systems)
        self.rows: list[dict[str, Any]] = [*kept[: self.done * len(systems)]]

    def add(self, text: int, runs: dict[str, SystemRun]) -> None:
        """A text's decodes by all systems."""
        for name, each in runs.items():
            cost = (each.seconds[0], each.passes[0], (each.flops or [0])[0], " ".join(map(str, each.tokens[0])))
            self.rows.append(dict(zip(self.COLUMNS, (self.data, 1, text, name, *cost), strict=True)))
        write_csv(self.path, self.rows, digits=6)


def in_turns(
    base: TransformersModel,
    chosen: dict[str, System],
    spelled: Sequence[Sequence[int]],
    results: Results,
    lenient: Container[str] = (BEAM,),
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, SystemRun]:
    """Decode the texts that are not decoded yet; ValueError where a system that must be exact writes another text."""
    fill, done = GenerationSettings(base).fill_id, results.done
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(results.data, total=len(spelled), completed=done)
        for number, text in enumerate(spelled[done:], done):
            warm_ups, left = int(number == done), not base.is_encoder_decoder
            runs = compare(chosen, [text], fill, left, warm_ups=warm_ups, clock=clock)
            for name, each in runs.items():
                if name not in lenient and each.differing(runs[GREEDY]):
                    raise ValueError(f"text {number}: {name}: expected greedy decoding's text, got another")
            results.add(number, runs)
            progress.advance(task)
    return runs_of(results.rows)


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("texts", type=Path, nargs="?", help=".jsonl with sources, or plain text, one a line")
    parser.add_argument("--model", type=Path, help="directory of the model")
    parser.add_argument("--heads", type=Path, help="the same model with heads, for lattices as initial values")
    parser.add_argument("--lm", type=Path, help="n-gram model over its tokens")
    parser.add_argument("--source", default="en", help="field of the sentences")
    parser.add_argument("--limit", type=int, help="texts, at most")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("-o", "--output", type=Path, help="CSV file of all decodes")
    parser.add_argument("--table", type=Path, help="print the table of such a file, and decode nothing")
    args = parser.parse_args()
    if args.table is None:
        if None in (args.texts, args.model, args.output):
            parser.error("expected texts, --model and -o, or --table")
        measure(args)
    table("", HEAD, lines_of(read_csv(args.table or args.output)))


def measure(args: argparse.Namespace) -> None:
    """Decode what is not decoded yet."""
    set_up()
    loaded = load(args.model, weights=TORCH)
    base, tokenizer = TransformersModel.of(loaded.target), loaded.tokenizer
    heads = load(args.heads, weights=TORCH) if args.heads is not None else None
    chosen = systems(base, heads, args.lm, args.max_new_tokens)
    results = Results(args.output, [*chosen], args.texts.stem)
    texts, _ = read_texts(args.texts, args.source, None, None, args.limit)
    spelled = [tokenizer(text)["input_ids"] for text in texts]  # type: ignore[operator]
    in_turns(base, chosen, spelled, results)
    signature(texts=len(texts))


if __name__ == "__main__":
    run(main)
