"""Jacobi decoding against greedy and beam search: iterations, time, BLEU, operations; on one thread and on more.

    python benchmarks/bench_jacobi.py test_2016_flickr.jsonl --model translator
    python benchmarks/bench_jacobi.py test_2016_flickr.jsonl --model translator --heads translator-with-heads --lm written.fst --threads 1 2

The model is one of `latticebpd train translation`, or any other encoder-decoder or causal LM.  As in Santilli 2023, texts
are decoded one by one, and the algorithms that need the target's length are told that of greedy decoding, unless a row
says that it is estimated (here: one and a half times the source, and five).  Systems take turns text by text, so that a
drift of the machine's speed meets all alike.  Every text is compared with greedy decoding's, token for token, and the
program ends with an error if one differs.  The output is Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.progress import Progress

import latticebpd
from latticebpd.cli.jacobi_inputs import read_texts
from latticebpd.decoding.generation_config import GenerationSettings
from latticebpd.decoding.jacobi import (
    Drafted,
    LengthRatio,
    NgramContinuation,
    RandomTokens,
    SourceCopy,
    gauss_seidel_jacobi,
    hybrid_jacobi,
    jacobi,
)
from latticebpd.decoding.jacobi.comparison import GREEDY, Batch, Measured, System, compare, parallel, stock
from latticebpd.drafting import PathsDrafter
from latticebpd.models.base import BaseModel
from latticebpd.models.blockwise import BlockwiseLM
from latticebpd.models.pretrained import load_model, load_tokenizer
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.rescoring import as_scorer

BEAM = "beam 5"
ESTIMATE = LengthRatio(1.5, 5.0)
err = Console(stderr=True)


def systems(model: Any, heads: BlockwiseLM | None, lm: Path | None, max_new_tokens: int) -> dict[str, System]:
    """What is compared, by name; greedy decoding comes first and tells its lengths."""

    def common(batch: Batch) -> dict[str, Any]:
        return {"attention_mask": batch.mask, "max_new_tokens": max_new_tokens}

    def whole(initial: Any = None, known: bool = True, of: Any = model) -> System:
        return parallel(of, lambda batch: jacobi(of, batch.ids, initial, batch.lengths if known else ESTIMATE, **common(batch)))

    def blocks(size: int, initial: Any = None, of: Any = model) -> System:
        return parallel(of, lambda batch: gauss_seidel_jacobi(of, batch.ids, size, initial, batch.lengths, **common(batch)))

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
                chosen[f"HGJ, b = {size}, lattice, {name}"] = hybrid(size, Drafted(drafter), of=heads)
            chosen[f"PJ, lattice, {name}"] = whole(Drafted(drafter), of=heads)
    return chosen


def row(measured: Measured, greedy: Measured, beam: Measured, bleu: float | None) -> dict[str, Any]:
    """One line of the table."""
    return {
        "system": measured.name,
        "iterations": sum(measured.passes),
        "iteration speedup": measured.iteration_speedup(greedy),
        "seconds": sum(measured.seconds),
        "over greedy": measured.time_speedup(greedy),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, help=".jsonl with sources and references, or plain text, one a line")
    parser.add_argument("--model", type=Path, required=True, help="directory of the model")
    parser.add_argument("--heads", type=Path, help="directory of the same model with heads, for lattices as initial values")
    parser.add_argument("--lm", type=Path, help="n-gram model over its tokens")
    parser.add_argument("--source", default="en")
    parser.add_argument("--target", default="de")
    parser.add_argument("--limit", type=int, help="texts, at most")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    arguments = parser.parse_args()

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    jsonl = arguments.texts.suffix == ".jsonl"
    texts = read_texts(arguments.texts, arguments.source, arguments.target if jsonl else None, None, arguments.limit)
    model = load_model(arguments.model)
    base = BaseModel.of(model)
    heads = load_model(arguments.heads) if arguments.heads is not None else None
    if arguments.heads is not None and not isinstance(heads, BlockwiseLM):
        parser.error(f"{arguments.heads}: expected a model with heads, got one without")
    tokenizer: Any = load_tokenizer(arguments.model)
    inputs = [tokenizer(text)["input_ids"] for text in texts.inputs]
    fill = GenerationSettings(base).fill_id
    bleu: Any = None
    if texts.references is not None:
        from sacrebleu.metrics.bleu import BLEU

        bleu = BLEU()

    results: dict[int, list[dict[str, Any]]] = {}
    print(f"`python {shlex.join(sys.argv)}`\n")
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
            task = progress.add_task(f"{threads} threads", total=len(inputs) + 2)
            found = compare(
                systems(base, heads if isinstance(heads, BlockwiseLM) else None, arguments.lm, arguments.max_new_tokens),
                inputs,
                fill,
                not base.encodes,
                on_batch=lambda bar=progress, task=task: bar.advance(task),
            )
        greedy, beam = found[GREEDY], found[BEAM]
        for name, measured in found.items():
            if name != BEAM and measured.differing(greedy):
                err.print(f"{name}: {measured.differing(greedy)} texts differ from greedy decoding's")
                sys.exit(1)
        results[threads] = []
        for measured in found.values():
            written = [tokenizer.decode(tokens, skip_special_tokens=True).strip() for tokens in measured.tokens]
            score = bleu.corpus_score(written, [texts.references]).score if bleu is not None else None
            results[threads].append(row(measured, greedy, beam, score))
        print(f"{threads} thread{'s' if threads > 1 else ''}:\n\n{markdown(results[threads])}\n")
    tokens = sum(map(len, greedy.tokens))
    print(
        f"{len(inputs)} texts, {tokens} tokens, one by one; every Jacobi text is greedy decoding's. "
        f"{platform.machine()}, {os.cpu_count()} CPUs, PyTorch {torch.__version__}, "
        f"transformers {transformers.__version__}, latticebpd {latticebpd.__version__}."
    )
    if bleu is not None:
        print(f"BLEU: `{bleu.get_signature()}`")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"command": shlex.join(sys.argv), "threads": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
