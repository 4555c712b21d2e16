"""Jacobi decoding against greedy and beam search: iterations, time, BLEU, operations; on one thread and on more.

    python -m benchmarks.bench_jacobi test_2016_flickr.jsonl --model translator
    python -m benchmarks.bench_jacobi test_2016_flickr.jsonl --model translator --heads HEADS --lm written.fst
    python -m benchmarks.bench_jacobi --data DIR --model translator --threads 1 2 -o jacobi   # whole test sets

The model is one of `latticebpd train translation`, or any other encoder-decoder or causal LM.  As in Santilli 2023,
texts are decoded one by one, and the algorithms that need the target's length are given that of greedy decoding,
unless a row says that it is estimated (here: one and a half times the source, and five).  Systems take turns text by
text, so that a drift of the machine's speed meets all alike.  Every text is compared with greedy decoding's, token
for token, and the program ends with an error if one differs.  The output is Markdown; intervals, 95 %, draw texts
anew.

With `-o` every decode is a line of `decodes.csv` in that directory as soon as all systems have decoded its text; the
same command resumes after the last such text, and tables are always those of the file.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from benchmarks.common import claim, err, markdown, options, pair_options, run, set_up, signature, write_json
from fst.files import replacing
from latticebpd import load
from latticebpd.cli.jacobi_inputs import JacobiInputs, read_texts
from latticebpd.decoding.generation_config import GenerationSettings
from latticebpd.drafters import PathsDrafter
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.jacobi import (
    DraftedInitial,
    LengthRatio,
    NgramContinuation,
    RandomTokens,
    SourceCopy,
    gauss_seidel_jacobi,
    hybrid_jacobi,
    jacobi,
)
from latticebpd.jacobi.jacobi_comparison import GREEDY, Batch, System, SystemRun, compare, parallel, stock
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.rescoring import as_scorer
from latticebpd.target.checkpoints import weights_fingerprint
from latticebpd.target.stock_model import BaseModel

BEAM = "beam 5"
ESTIMATE = LengthRatio(1.5, 5.0)
DATA = ("translation/multi30k-test_2016_flickr.jsonl", "translation/newstest2021-en-de.jsonl")


def common(batch: Batch, max_new_tokens: int) -> dict[str, Any]:
    return {"attention_mask": batch.mask, "max_new_tokens": max_new_tokens}


def whole(model: Any, new: int, initial: Any = None, known: bool = True) -> System:
    """PJ, of a known or estimated length."""

    def decode(batch: Batch) -> Any:
        return jacobi(model, batch.ids, initial, batch.lengths if known else ESTIMATE, **common(batch, new))

    return parallel(model, decode)


def blocks(model: Any, new: int, size: int, initial: Any = None) -> System:
    """PGJ."""

    def decode(batch: Batch) -> Any:
        return gauss_seidel_jacobi(model, batch.ids, size, initial, batch.lengths, **common(batch, new))

    return parallel(model, decode)


def hybrid(model: Any, new: int, size: int, initial: Any = None) -> System:
    """HGJ."""
    return parallel(model, lambda batch: hybrid_jacobi(model, batch.ids, size, initial, **common(batch, new)))


def systems(model: Any, heads: BlockwiseLM | None, lm: Path | None, max_new_tokens: int) -> dict[str, System]:
    """All systems by name; greedy decoding comes first and gives the lengths."""
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
        "HGJ, b = 3, random": hgj(3, RandomTokens(BaseModel.of(model).vocab_size)),
        "HGJ, b = 3, source": hgj(3, SourceCopy()),
    }
    scorer = as_scorer(lm)
    if isinstance(scorer, NgramScorer) and scorer.lm is not None:
        chosen["HGJ, b = 3, n-gram"] = hgj(3, NgramContinuation(scorer.lm))
    for name, path in (("0-gram", None), ("n-gram", lm)) if heads is not None else ():
        if name == "0-gram" or path is not None:
            initial = DraftedInitial(PathsDrafter(heads, path, p=1))
            for size in (3, 5, heads.num_heads):
                chosen[f"HGJ, b = {size}, lattice, {name}"] = hybrid(heads, max_new_tokens, size, initial)
            chosen[f"PJ, lattice, {name}"] = whole(heads, max_new_tokens, initial)
    return chosen


def row(measured: SystemRun, greedy: SystemRun, beam: SystemRun, bleu: float | None) -> dict[str, Any]:
    """One line of the table."""
    return {
        "system": measured.name,
        "iterations": sum(measured.passes),
        "iteration speedup": measured.iteration_speedup(greedy),
        "its interval": [*measured.interval(greedy, "passes")],
        "seconds": sum(measured.seconds),
        "over greedy": measured.time_speedup(greedy),
        "interval": [*measured.interval(greedy, "seconds")],
        "over beam 5": measured.time_speedup(beam),
        "text by text, 10 to 90 %": [measured.distribution(greedy, "seconds")[quantile] for quantile in ("0.1", "0.9")],
        "BLEU": bleu,
        "FLOPs": sum(measured.flops),
        "FLOPs / speedup": measured.flops_per_speed(greedy),
    }


def rows_as_table(rows: list[dict[str, Any]]) -> str:
    """Rows in Markdown, without columns that none has."""

    def cell(key: str, value: Any) -> Any:
        if isinstance(value, list):
            return " to ".join(f"{each:.2f}" for each in value)
        if key.startswith("FLOPs"):
            return f"{value:.3g}"
        return f"{value:.1f}" if key == "seconds" else value

    keys = [key for key in rows[0] if any(each[key] is not None for each in rows)]
    return markdown(keys, [[cell(key, each[key]) for key in keys] for each in rows])


@dataclass
class Results:
    """Decodes: of every data set and number of threads, text by text, what each system did.

    path: the CSV file that keeps them, if any; what it holds at first is taken up, a text that was cut short by a
    kill left out.
    """

    path: Path | None
    systems: list[str]
    rows: list[dict[str, Any]] = field(default_factory=list)

    COLUMNS = ("data", "threads", "text", "system", "seconds", "passes", "flops", "tokens")

    def __post_init__(self) -> None:
        if self.path is None:
            return
        if self.path.exists():
            lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
            found = list(csv.DictReader(line for line in lines if line.endswith("\n")))
            whole = len(found) // len(self.systems) * len(self.systems)
            self.rows = found[:whole]
        with replacing(self.path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.COLUMNS)
            writer.writeheader()
            writer.writerows(self.rows)

    def of(self, data: str, threads: int, texts: Container[int]) -> dict[str, SystemRun]:
        """What was measured so far, of texts by number."""
        found = {name: SystemRun(name) for name in self.systems}
        for row in self.rows:
            if row["data"] == data and int(row["threads"]) == threads and int(row["text"]) in texts:
                each = found[row["system"]]
                each.tokens.append([int(token) for token in row["tokens"].split()])
                each.seconds.append(float(row["seconds"]))
                each.passes.append(int(row["passes"]))
                each.flops.append(int(row["flops"]))
        return found

    def add(self, data: str, threads: int, text: int, found: dict[str, SystemRun]) -> None:
        """A text's decodes by all systems."""
        new = []
        for name, each in found.items():
            cost = (each.seconds[0], each.passes[0], (each.flops or [0])[0], " ".join(map(str, each.tokens[0])))
            new.append(dict(zip(self.COLUMNS, (data, threads, text, name, *cost), strict=True)))
        self.rows += new
        if self.path is not None:
            with self.path.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self.COLUMNS).writerows(new)


def parser() -> argparse.ArgumentParser:
    found = options(__doc__, whole=True)
    about = ".jsonl with sources and references, or plain text, one a line"
    found.add_argument("texts", type=Path, nargs="*", help=about)
    found.add_argument("--data", type=Path, help=f"directory that holds {' and '.join(DATA)}, which are added")
    found.add_argument("--model", type=Path, required=True, help="directory of the model")
    about = "directory of the same model with heads, for lattices as initial values"
    found.add_argument("--heads", type=Path, help=about)
    found.add_argument("--lm", type=Path, help="n-gram model over its tokens")
    pair_options(found)
    found.add_argument("--limit", type=int, help="texts of each file, at most")
    found.add_argument("--max-new-tokens", type=int, default=128)
    found.add_argument("--threads", type=int, nargs="+", default=[1])
    about = "directory of all decodes, in which the same command resumes"
    found.add_argument("--output", "-o", type=Path, help=about)
    found.add_argument("--json", type=Path, help="write the numbers here as well")
    return found


def main() -> None:
    arguments = parser().parse_args()
    files = [*arguments.texts, *([arguments.data / name for name in DATA] if arguments.data is not None else [])]
    if len({file.stem for file in files}) < len(files) or not files:
        parser().error("expected files of texts with different names, or --data")
    set_up()
    loaded = load(arguments.model)
    base = BaseModel.of(loaded.model)
    heads: Any = load(arguments.heads).model if arguments.heads is not None else None
    if heads is not None and not isinstance(heads, BlockwiseLM):
        parser().error(f"{arguments.heads}: expected a model with heads, got one without")
    tokenizer: Any = loaded.tokenizer
    chosen = systems(base, heads, arguments.lm, arguments.max_new_tokens)
    if arguments.output is not None:
        made_of = {"model": weights_fingerprint(base.model), "heads": str(arguments.heads), "lm": str(arguments.lm)}
        made_of |= {name: getattr(arguments, name) for name in ("max_new_tokens", "source")}
        claim(arguments.output, {**made_of, "systems": [*chosen]})
    results = Results(arguments.output / "decodes.csv" if arguments.output is not None else None, [*chosen])
    record: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for file in files:
        target = arguments.target if file.suffix == ".jsonl" else None
        texts = read_texts(file, arguments.source, target, None, arguments.limit)
        record[file.stem] = {
            threads: measured(base, chosen, tokenizer, texts, file.stem, threads, results)
            for threads in arguments.threads
        }
    print("One by one; every Jacobi text is greedy decoding's.\n")
    about = signature()
    if arguments.json is not None:
        write_json(arguments.json, {"signature": about, "data": record})


def in_turns(
    base: BaseModel,
    chosen: dict[str, System],
    spelled: Sequence[Sequence[int]],
    kept: Sequence[int],
    data: str,
    threads: int,
    results: Results,
    lenient: Container[str] = (BEAM,),
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, SystemRun]:
    """Decode what is not decoded yet of the texts ``kept``, by number.

    Raises:
        ValueError: a system that is not lenient writes another text than greedy decoding.
    """
    fill, done = GenerationSettings(base).fill_id, len(results.of(data, threads, kept)[GREEDY].tokens)
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(f"{data}, {threads} threads", total=len(kept), completed=done)
        for number in kept[done:]:
            warm_ups, left = int(number == kept[done]), not base.is_encoder_decoder
            found = compare(chosen, [spelled[number]], fill, left, warm_ups=warm_ups, clock=clock)
            for name, each in found.items():
                if name not in lenient and each.differing(found[GREEDY]):
                    raise ValueError(f"{data}, text {number}: {name}: expected greedy decoding's text, got another")
            results.add(data, threads, number, found)
            progress.advance(task)
    return results.of(data, threads, kept)


def measured(
    base: BaseModel,
    chosen: dict[str, System],
    tokenizer: Any,
    texts: JacobiInputs,
    data: str,
    threads: int,
    results: Results,
) -> list[dict[str, Any]]:
    """Decode what is not decoded yet of a data set, and print its table."""
    torch.set_num_threads(threads)
    spelled = [tokenizer(text)["input_ids"] for text in texts.inputs]
    room = base.source_positions if base.is_encoder_decoder else base.max_positions and base.max_positions - 1
    kept = [number for number, ids in enumerate(spelled) if room is None or len(ids) <= room]
    if not kept:
        raise ValueError(f"{data}: expected texts of at most {room} tokens (the model's positions), got none")
    found = in_turns(base, chosen, spelled, kept, data, threads, results)
    greedy, rows = found[GREEDY], list[dict[str, Any]]()
    bleu: Any = None
    if texts.references is not None:
        from sacrebleu.metrics.bleu import BLEU

        bleu, references = BLEU(), [[texts.references[number] for number in kept]]
    for each in found.values():
        lines = [tokenizer.decode(tokens, skip_special_tokens=True).strip() for tokens in each.tokens]
        score = bleu.corpus_score(lines, references).score if bleu is not None else None
        rows.append(row(each, greedy, found[BEAM], score))
    left_out = f", {len(spelled) - len(kept)} of more than {room} left out" if len(kept) < len(spelled) else ""
    counts = f"{sum(map(len, greedy.tokens))} tokens, {threads} thread{'s' * (threads > 1)}"
    print(f"{data}, {len(kept)} texts{left_out}, {counts}:\n\n{rows_as_table(rows)}\n")
    if bleu is not None:
        print(f"BLEU: `{bleu.get_signature()}`\n")
    return rows


if __name__ == "__main__":
    run(main)
