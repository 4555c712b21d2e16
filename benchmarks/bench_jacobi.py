"""Jacobi decoding against greedy and beam search: iterations, time, BLEU, operations; on one thread and on more.

    python -m benchmarks.bench_jacobi test_2016_flickr.jsonl --model translator
    python -m benchmarks.bench_jacobi test_2016_flickr.jsonl --model translator --heads translator-with-heads --lm written.fst --threads 1 2
    python -m benchmarks.bench_jacobi --data DIR --model translator --threads 1 2 -o jacobi   # Multi30k's test set, newstest2021

The model is one of `latticebpd train translation`, or any other encoder-decoder or causal LM.  As in Santilli 2023, texts
are decoded one by one, and the algorithms that need the target's length are told that of greedy decoding, unless a row
says that it is estimated (here: one and a half times the source, and five).  Systems take turns text by text, so that a
drift of the machine's speed meets all alike.  Every text is compared with greedy decoding's, token for token, and the
program ends with an error if one differs.  The output is Markdown; intervals, 95 %, draw texts anew.

With `-o` every decode is a line of `decodes.csv` in that directory as soon as all systems have decoded its text; the same command
goes on behind the last such text, and tables are always those of the file.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.progress import Progress

import latticebpd
from benchmarks.resuming import claim
from fst.files import replacing
from latticebpd.cli.jacobi_inputs import JacobiInputs, read_texts
from latticebpd.decoding.generation_config import GenerationSettings
from latticebpd.drafters import PathsDrafter
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.drafters.pretrained import load_model, load_tokenizer
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
from latticebpd.jacobi.jacobi_comparison import GREEDY, Batch, Measured, System, compare, parallel, stock
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.rescoring import as_scorer
from latticebpd.target.checkpoints import weights_fingerprint
from latticebpd.target.stock_model import BaseModel

BEAM = "beam 5"
ESTIMATE = LengthRatio(1.5, 5.0)
DATA = ("translation/multi30k-test_2016_flickr.jsonl", "translation/newstest2021-en-de.jsonl")
err = Console(stderr=True)


def systems(model: Any, heads: BlockwiseLM | None, lm: Path | None, max_new_tokens: int) -> dict[str, System]:
    """What is compared, by name; greedy decoding comes first and tells its lengths."""

    def common(batch: Batch) -> dict[str, Any]:
        return {"attention_mask": batch.mask, "max_new_tokens": max_new_tokens}

    def whole(initial: Any = None, known: bool = True, of: Any = model) -> System:
        return parallel(
            of, lambda batch: jacobi(of, batch.ids, initial, batch.lengths if known else ESTIMATE, **common(batch))
        )

    def blocks(size: int, initial: Any = None, of: Any = model) -> System:
        return parallel(
            of, lambda batch: gauss_seidel_jacobi(of, batch.ids, size, initial, batch.lengths, **common(batch))
        )

    def hybrid(size: int, initial: Any = None, of: Any = model) -> System:
        return parallel(of, lambda batch: hybrid_jacobi(of, batch.ids, size, initial, **common(batch)))

    chosen = {
        GREEDY: stock(model, max_new_tokens),
        BEAM: stock(model, max_new_tokens, num_beams=5),
        "PJ": whole(),
        "PJ, length estimated": whole(known=False),
        "PGJ, b = 5": blocks(5),
        "PGJ, b = 3": blocks(3),
        "HGJ, b = 3": hybrid(3),
        "HGJ, b = 1": hybrid(1),
        "HGJ, b = 3, random": hybrid(3, RandomTokens(BaseModel.of(model).vocab_size)),
        "HGJ, b = 3, source": hybrid(3, SourceCopy()),
    }
    scorer = as_scorer(lm)
    if isinstance(scorer, NgramScorer) and scorer.lm is not None:
        chosen["HGJ, b = 3, n-gram"] = hybrid(3, NgramContinuation(scorer.lm))
    if heads is not None:
        lattices = {"0-gram": PathsDrafter(heads, None, p=1)}
        if lm is not None:
            lattices["n-gram"] = PathsDrafter(heads, lm, p=1)
        for name, drafter in lattices.items():
            for size in (3, 5, heads.num_heads):
                chosen[f"HGJ, b = {size}, lattice, {name}"] = hybrid(size, DraftedInitial(drafter), of=heads)
            chosen[f"PJ, lattice, {name}"] = whole(DraftedInitial(drafter), of=heads)
    return chosen


def row(measured: Measured, greedy: Measured, beam: Measured, bleu: float | None) -> dict[str, Any]:
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


def markdown(rows: list[dict[str, Any]]) -> str:
    """A table of rows."""

    def cell(key: str, value: Any) -> str:
        if value is None or isinstance(value, str):
            return value or ""
        if isinstance(value, list):
            return " to ".join(f"{each:.2f}" for each in value)
        if key.startswith("FLOPs"):
            return f"{value:.3g}"
        return str(value) if isinstance(value, int) else f"{value:.1f}" if key == "seconds" else f"{value:.2f}"

    keys = [key for key in rows[0] if any(each[key] is not None for each in rows)]
    lines = [keys, ["---", *["--:"] * (len(keys) - 1)], *([cell(key, each[key]) for key in keys] for each in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


@dataclass
class Results:
    """Decodes: of every data set and number of threads, text by text, what each system did.

    path: the CSV file that keeps them, if any; what it holds at first is taken up, a text that was cut short by a kill left out.
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

    def of(self, data: str, threads: int, texts: Container[int]) -> dict[str, Measured]:
        """What was measured so far, of texts by number."""
        found = {name: Measured(name) for name in self.systems}
        for row in self.rows:
            if row["data"] == data and int(row["threads"]) == threads and int(row["text"]) in texts:
                each = found[row["system"]]
                each.tokens.append([int(token) for token in row["tokens"].split()])
                each.seconds.append(float(row["seconds"]))
                each.passes.append(int(row["passes"]))
                each.flops.append(int(row["flops"]))
        return found

    def add(self, data: str, threads: int, text: int, found: dict[str, Measured]) -> None:
        """A text's decodes by all systems."""
        new = [
            dict(zip(self.COLUMNS, (data, threads, text, name, each.seconds[0], each.passes[0], (each.flops or [0])[0],
                                    " ".join(map(str, each.tokens[0]))), strict=True))
            for name, each in found.items()
        ]  # fmt: skip
        self.rows += new
        if self.path is not None:
            with self.path.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self.COLUMNS).writerows(new)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "texts", type=Path, nargs="*", help=".jsonl with sources and references, or plain text, one a line"
    )
    parser.add_argument(
        "--data", type=Path, help=f"directory that holds {' and '.join(DATA)}, which are then taken too"
    )
    parser.add_argument("--model", type=Path, required=True, help="directory of the model")
    parser.add_argument(
        "--heads", type=Path, help="directory of the same model with heads, for lattices as initial values"
    )
    parser.add_argument("--lm", type=Path, help="n-gram model over its tokens")
    parser.add_argument("--source", default="en")
    parser.add_argument("--target", default="de")
    parser.add_argument("--limit", type=int, help="texts of each file, at most")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument(
        "--output", "-o", type=Path, help="directory to keep every decode in, from which the same command goes on"
    )
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    return parser


def main() -> None:
    parser = options()
    arguments = parser.parse_args()
    files = [*arguments.texts, *([arguments.data / name for name in DATA] if arguments.data is not None else [])]
    if len({file.stem for file in files}) < len(files) or not files:
        parser.error("expected files of texts with different names, or --data")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = load_model(arguments.model)
    base = BaseModel.of(model)
    heads = load_model(arguments.heads) if arguments.heads is not None else None
    if arguments.heads is not None and not isinstance(heads, BlockwiseLM):
        parser.error(f"{arguments.heads}: expected a model with heads, got one without")
    tokenizer: Any = load_tokenizer(arguments.model)
    chosen = systems(base, heads if isinstance(heads, BlockwiseLM) else None, arguments.lm, arguments.max_new_tokens)
    if arguments.output is not None:
        run_identity = {"model": weights_fingerprint(base.model), "heads": str(arguments.heads), "lm": str(arguments.lm)}
        claim(
            arguments.output,
            {**run_identity, "systems": [*chosen], "max_new_tokens": arguments.max_new_tokens, "source": arguments.source},
        )
    results = Results(arguments.output / "decodes.csv" if arguments.output is not None else None, [*chosen])
    print(f"`python {shlex.join(sys.argv)}`\n")
    record: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for file in files:
        texts = read_texts(
            file, arguments.source, arguments.target if file.suffix == ".jsonl" else None, None, arguments.limit
        )
        record[file.stem] = {
            threads: measured(base, chosen, tokenizer, texts, file.stem, threads, results)
            for threads in arguments.threads
        }
    print(
        f"One by one; every Jacobi text is greedy decoding's. {platform.machine()}, {os.cpu_count()} CPUs, PyTorch {torch.__version__}, "
        f"transformers {transformers.__version__}, latticebpd {latticebpd.__version__}."
    )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"command": shlex.join(sys.argv), "data": record}, indent=1) + "\n")


def in_turns(
    base: BaseModel, chosen: dict[str, System], spelled: Sequence[Sequence[int]], kept: Sequence[int], data: str, threads: int,
    results: Results, lenient: Container[str] = (BEAM,), clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Measured]:  # fmt: skip
    """Decode what was not yet decoded of the texts ``kept``, by number; ValueError where one that is not lenient writes another text."""
    fill, done = GenerationSettings(base).fill_id, len(results.of(data, threads, kept)[GREEDY].tokens)
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(f"{data}, {threads} threads", total=len(kept), completed=done)
        for number in kept[done:]:
            first = number == kept[done]
            found = compare(chosen, [spelled[number]], fill, not base.is_encoder_decoder, warm_ups=int(first), clock=clock)
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
    """Decode what was not yet decoded of a data set, and print its table."""
    torch.set_num_threads(threads)
    spelled = [tokenizer(text)["input_ids"] for text in texts.inputs]
    room = base.source_positions if base.is_encoder_decoder else base.max_positions and base.max_positions - 1
    kept = [number for number, ids in enumerate(spelled) if room is None or len(ids) <= room]
    if not kept:
        raise ValueError(f"{data}: expected texts of at most {room} tokens (the model's positions), got none")
    whole = in_turns(base, chosen, spelled, kept, data, threads, results)
    greedy, beam = whole[GREEDY], whole[BEAM]
    bleu: Any = None
    if texts.references is not None:
        from sacrebleu.metrics.bleu import BLEU

        bleu = BLEU()
        references = [texts.references[number] for number in kept]
    rows = []
    for each in whole.values():
        lines = [tokenizer.decode(tokens, skip_special_tokens=True).strip() for tokens in each.tokens]
        rows.append(row(each, greedy, beam, bleu.corpus_score(lines, [references]).score if bleu is not None else None))
    left_out = f", {len(spelled) - len(kept)} of more than {room} left out" if len(kept) < len(spelled) else ""
    counts = (
        f"{len(kept)} texts{left_out}, {sum(map(len, greedy.tokens))} tokens, {threads} thread{'s' * (threads > 1)}"
    )
    print(f"{data}, {counts}:\n\n{markdown(rows)}\n")
    if bleu is not None:
        print(f"BLEU: `{bleu.get_signature()}`\n")
    return rows


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"bench_jacobi: error: {error}")
