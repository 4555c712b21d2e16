"""GAD and GAD++ on a translation test set (Xia 2022, tables 1 to 5, 7 to 9 and 11, figure 4).

    latticebpd train translation multi30k-train.jsonl --validation multi30k-val.jsonl -o verifier
    latticebpd distill train.npz --model verifier -o written          # and val.npz, -o written-val
    latticebpd train drafter written --validation written-val --model verifier -o drafter --block-size 30 --smallest-block 5
    python -m benchmarks.bench_gad multi30k-test_2016_flickr.jsonl --verifier verifier --drafter drafter --lm written.fst -o found

Tables come as Markdown on standard output; in the directory: everything as JSON, the speed-up of every sentence as CSV and
PNG, the drafts of a few sentences call by call as a page.  Systems take turns sentence by sentence, so that a
drift of the machine's speed meets all alike.  *Iterations* are calls of the verifier after the prefill, a draft each; *tok.* is the
tokens that a call commits, the end of text being one.  Under exact acceptance every text must equal `generate()`'s; the
program stops if one does not.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import sacrebleu
import torch
import transformers
from tokenizers import Tokenizer

import latticebpd
from benchmarks.bench_decoding import Clock, Stopwatch
from fst import NgramModel
from fst.files import replacing
from fst.fingerprint import vocabulary_fingerprint
from latticebpd import Exact, GadDrafter, GadPathsDrafter, GadTreeDrafter, NoDrafter, State, TopBeta, generate
from latticebpd.drafters import LatticeDrafter, MaskLattices, Vanilla
from latticebpd.drafters.masks.mask_network import NonAutoregressiveModel, check_pair, load_verifier
from latticebpd.measuring.call_records import read_calls, scorer_of
from latticebpd.report import TracedDecode, page_templates, trace_page
from latticebpd.target.stock_model import BaseModel

MODULES = ("verifier's encoder", "drafter's encoder", "drafter's decoder", "verifier's decoder", "others")
MAX_NEW = 96
GAD_PLUS = ((3, 1.0), (5, 3.0))
SPEEDS = ("over beam 5", "over greedy", "ms a sentence")
BETAS, TAUS = (3, 5), (1.0, 2.0, 3.0, 4.0, 5.0)


@dataclass
class Setting:
    """Models, and the test set in tokens and text."""

    verifier: Any
    drafter: NonAutoregressiveModel
    tokenizer: Tokenizer
    sources: list[list[int]]
    texts: list[str]
    references: list[str]
    block_size: int
    lm: Path | None
    alpha: float
    clock: Clock

    def first(self, count: int | None) -> Setting:
        """The same with fewer sentences."""
        return replace(self, sources=self.sources[:count], texts=self.texts[:count], references=self.references[:count])

    def text(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens)).strip()

    def bleu(self, rows: Sequence[Sequence[int]]) -> float:
        return float(sacrebleu.corpus_bleu([self.text(row) for row in rows], [self.references[: len(rows)]]).score)


@dataclass
class Found:
    """One system on the test set.  rows: new tokens of each sentence.  calls, tokens, verified: sums.  seconds: of each sentence."""

    rows: list[list[int]] = field(default_factory=list)
    calls: int = 0
    tokens: int = 0
    verified: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def iterations(self) -> float:
        return self.calls / len(self.rows)

    @property
    def accepted(self) -> float:
        return self.tokens / self.calls


def repetition(rows: Sequence[Sequence[int]]) -> float:
    """Percentage of tokens that repeat the one before."""
    pairs = [(one, two) for row in rows for one, two in pairwise(row)]
    return 100 * sum(one == two for one, two in pairs) / max(1, len(pairs))


def ended(row: Sequence[int], end: int) -> list[int]:
    row = list(row)
    return row[: row.index(end) + 1] if end in row else row


Stock = dict[str, Any]
System = tuple[Callable[[], Any], Any] | Stock
"""A drafter and an acceptance rule, or the arguments of `generate()`."""


def systems(setting: Setting) -> dict[str, System]:
    model, block = setting.drafter, setting.block_size
    plus = {
        f"GAD++, k = {block}, β = {beta}, τ = {tau:g}": (lambda: GadDrafter(model, block), TopBeta(beta, tau))
        for beta, tau in GAD_PLUS
    }
    trees: dict[str, System] = {}
    if setting.lm is not None:
        lm = NgramModel.load(setting.lm)
        trees[f"GAD, tree of {block} nodes, n-gram"] = (
            lambda: GadTreeDrafter(model, lm, block, setting.alpha),
            Exact(),
        )
    return {
        "beam 5, generate()": {"num_beams": 5},
        "greedy, generate()": {},
        "greedy, this loop": (NoDrafter, Exact()),
        f"GAD, k = {block}": (lambda: GadDrafter(model, block), Exact()),
        **trees,
        **plus,
    }


def decode(setting: Setting, system: System, first: int, rows: int, found: Found) -> None:
    """Translate a batch and add it to ``found``; its time is shared equally by its sentences."""
    sources = setting.sources[first : first + rows]
    width = max(map(len, sources))
    ids = torch.tensor([source + [0] * (width - len(source)) for source in sources])
    mask = torch.tensor([[1] * len(source) + [0] * (width - len(source)) for source in sources])
    end = setting.verifier.generation_config.eos_token_id
    started = setting.clock()
    if isinstance(system, dict):
        out = setting.verifier.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=MAX_NEW, **system)
    else:
        drafter = system[0]()
        if hasattr(drafter, "read"):
            drafter.read(sources)
        run = generate(setting.verifier, ids, drafter, system[1], MAX_NEW, attention_mask=mask)
        out = run.sequences
        found.calls += run.num_calls
        found.tokens += int(np.arange(len(run.accept_counts)) @ run.accept_counts)
        found.verified += run.verified_tokens
    found.seconds += [(setting.clock() - started) / len(sources)] * len(sources)
    found.rows += [ended(row, end) for row in out[:, 1:].tolist()]


def in_batches(setting: Setting, system: System, rows: int = 25) -> Found:
    found = Found()
    for first in range(0, len(setting.sources), rows):
        decode(setting, system, first, rows, found)
    return found


def compared(setting: Setting, chosen: dict[str, System], rows: int) -> dict[str, Found]:
    """Every system on every batch, in turns."""
    found = {name: Found() for name in chosen}
    for system in chosen.values():
        decode(setting, system, 0, rows, Found())  # warms up
    for first in range(0, len(setting.sources), rows):
        print(f"\rbatches of {rows}: {first} of {len(setting.sources)} sentences", end="", file=sys.stderr, flush=True)
        for name, system in chosen.items():
            decode(setting, system, first, rows, found[name])
    print("\r\033[K", end="", file=sys.stderr)
    return found


def alone(setting: Setting) -> Found:
    """The drafter without a verifier: each block's best tokens are believed, up to the end of text."""
    found, end = Found(), setting.verifier.generation_config.eos_token_id
    start = BaseModel.of(setting.drafter).start_id
    for source in setting.sources:
        masks, text = MaskLattices(setting.drafter, 1, setting.block_size), [start]
        started = setting.clock()
        while len(text) <= MAX_NEW and text[-1] != end:
            (lattice,) = masks.lattices([State(0, text, 1, None, MAX_NEW, source)])
            text = text + lattice.tokens[:, 0].tolist()
            found.calls += 1
        found.seconds.append(setting.clock() - started)
        found.rows.append(text[1:])
        found.tokens += len(text) - 1
    return found


def modules(setting: Setting, system: System) -> dict[str, float]:
    """Milliseconds per sentence by module (table 7), by a run of its own."""
    watch, parts = Stopwatch(setting.clock, frozenset()), dict.fromkeys(MODULES, 0.0)
    verifier, base = setting.verifier, setting.drafter.base
    with ExitStack() as patches:
        for owner, name in (
            (verifier.get_encoder(), MODULES[0]),
            (base.get_encoder(), MODULES[1]),
            (base.get_decoder(), MODULES[2]),
            (base.get_output_embeddings(), MODULES[2]),
            (verifier.get_decoder(), MODULES[3]),
            (verifier.get_output_embeddings(), MODULES[3]),
        ):
            patches.enter_context(watch.around(owner, "forward", name))
        # One stopwatch tells no two threads apart, so here the drafter encodes when it is first asked.
        patches.enter_context(watch.part(MODULES[4]))
        for source in setting.sources:
            generate(
                verifier, torch.tensor([source]), system[0](), system[1], MAX_NEW, attention_mask=[[1] * len(source)]
            )  # type: ignore[index]
    return {name: 1e3 * watch.seconds.get(name, 0.0) / len(setting.sources) for name in parts}


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(
            f"| {' | '.join('' if value is None else f'{value:.2f}' if isinstance(value, float) else str(value) for value in row)} |"
        )


def check_exact(chosen: dict[str, System], found: dict[str, Found]) -> None:
    """ValueError where exact acceptance wrote another text than `generate()`."""
    for name, system in chosen.items():
        if (
            not isinstance(system, dict)
            and isinstance(system[1], Exact)
            and found[name].rows != found["greedy, generate()"].rows
        ):
            different = sum(
                one != two for one, two in zip(found[name].rows, found["greedy, generate()"].rows, strict=True)
            )
            raise ValueError(f"{name}: expected generate()'s texts, got {different} others")


def calls_of(found: Found) -> list[Any]:
    return [found.iterations, found.accepted] if found.calls else ["one a token", None]


def timed(setting: Setting, rows: int) -> tuple[dict[str, Found], list[list[Any]]]:
    """Systems side by side, by the clock."""
    chosen = systems(setting)
    found = compared(setting, chosen, rows)
    check_exact(chosen, found)
    if rows == 1:
        found["drafter alone"] = alone(setting)
    beam, greedy, lines = found["beam 5, generate()"].seconds, found["greedy, generate()"].seconds, []
    for name, each in found.items():
        total = sum(each.seconds)
        speed = [sum(beam) / total, sum(greedy) / total, 1e3 * total / len(each.seconds)]
        lines.append([name, *calls_of(each), *speed])
    table(f"Batches of {rows}, {len(setting.sources)} sentences:", ("system", "iterations", "tok.", *SPEEDS), lines)
    return found, lines


def quality(setting: Setting) -> list[list[Any]]:
    """Calls and texts of all sentences, which need no clock."""
    chosen = systems(setting)
    found = {name: in_batches(setting, system) for name, system in chosen.items()}
    check_exact(chosen, found)
    found["drafter alone"] = alone(setting)
    lines = [[name, *calls_of(each), setting.bleu(each.rows), repetition(each.rows)] for name, each in found.items()]
    table("Calls and texts:", ("system", "iterations", "tok.", "BLEU", "repeats, %"), lines)
    return lines


def sweeps(setting: Setting) -> dict[str, list[list[Any]]]:
    """Block sizes, and beta by tau."""
    blocks = []
    for block in (size for size in (3, 5, 8, 10, 12, 15, 20, 25, 30) if size <= setting.drafter.block_size):
        exact = in_batches(setting, (lambda block=block: GadDrafter(setting.drafter, block), Exact()))
        loose = in_batches(setting, (lambda block=block: GadDrafter(setting.drafter, block), TopBeta(3, 1.0)))
        blocks.append(
            [block, exact.iterations, exact.accepted, loose.iterations, loose.accepted, setting.bleu(loose.rows)]
        )
    table(
        "Block sizes:",
        ("k", "GAD iterations", "GAD tok.", "GAD++ (3, 1) iterations", "GAD++ tok.", "GAD++ BLEU"),
        blocks,
    )
    grid = []
    for tau in TAUS:
        cells = [
            in_batches(setting, (lambda: GadDrafter(setting.drafter, setting.block_size), TopBeta(beta, tau)))
            for beta in BETAS
        ]
        grid.append([tau, *(value for cell in cells for value in (cell.accepted, setting.bleu(cell.rows)))])
    table("GAD++ by β and τ:", ("τ", *(f"β = {beta}: {what}" for beta in BETAS for what in ("tok.", "BLEU"))), grid)
    return {"block sizes": blocks, "beta and tau": grid}


def lattices(setting: Setting) -> list[list[Any]]:
    """What lattices, the n-gram model and trees add, at equal verified tokens."""
    rows, model, lm, alpha = [], setting.drafter, setting.lm, setting.alpha
    models: dict[str, Any] = {"0-gram": None} | ({"n-gram": lm} if lm else {})
    for block in (6, 12, 24):
        chosen: dict[str, Callable[[], Any]] = {}
        if block <= model.block_size:
            chosen[f"best tokens, k = {block}"] = lambda block=block: GadDrafter(model, block)
        for name, path in models.items():
            if block <= model.block_size:
                chosen[f"best path, {name}, k = {block}"] = lambda path=path, block=block: GadPathsDrafter(
                    model, path, 1, alpha, 16, block
                )
            chosen[f"tree of {block} nodes, {name}"] = lambda path=path, block=block: GadTreeDrafter(
                model, path, block, alpha
            )
        for name, drafter in chosen.items():
            found = in_batches(setting, (drafter, Exact()))
            rows.append([name, found.verified / found.calls, found.accepted, found.iterations])
    table(f"Lattices and trees, exact (α = {alpha:g}):", ("drafts", "verified a call", "tok.", "iterations"), rows)
    return rows


def memory(setting: Setting) -> list[list[Any]]:
    """What the drafter takes beside the verifier (table 8): weights, and what it keeps of a sentence at the end of its decode."""
    kept = []
    for source in setting.sources:
        masks = MaskLattices(setting.drafter, 1, setting.block_size)
        drafter, filler = LatticeDrafter(masks, Vanilla()), masks.filler
        generate(
            setting.verifier, torch.tensor([source]), drafter, Exact(), MAX_NEW, attention_mask=[[1] * len(source)]
        )
        layers = [
            *filler.read.cache.past.self_attention_cache.layers,
            *filler.read.cache.past.cross_attention_cache.layers,
        ]
        kept.append(sum(layer.keys.nbytes + layer.values.nbytes for layer in layers) + filler.source.hidden.nbytes)
    sizes = {"verifier's weights": setting.verifier, "drafter's weights": setting.drafter.base}
    rows = [[name, sum(parameter.nbytes for parameter in model.parameters()) / 2**20] for name, model in sizes.items()]
    rows.append(["drafter's states, a sentence", float(np.mean(kept)) / 2**20])
    table("Memory:", ("what", "MiB"), rows)
    return rows


def histogram(found: dict[str, Found], name: str, directory: Path) -> None:
    """Speed-up over beam 5 of every sentence (figure 4)."""
    beam, greedy, ours = found["beam 5, generate()"].seconds, found["greedy, generate()"].seconds, found[name].seconds
    with replacing(directory / "speedups.csv") as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sentence", "tokens", "over_beam_5", "over_greedy"])
        for row, (tokens, b, g, o) in enumerate(zip(found[name].rows, beam, greedy, ours, strict=True)):
            writer.writerow([row, len(tokens), round(b / o, 4), round(g / o, 4)])
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for times, label, colour in ((beam, "over beam 5", "#0072b2"), (greedy, "over greedy", "#e69f00")):
        ratios = np.array(times) / np.array(ours)
        axes.hist(ratios, bins=np.arange(0, ratios.max() + 0.25, 0.25), alpha=0.65, label=label, color=colour)
    axes.axvline(1.0, color="0.4", linewidth=1)
    axes.set(xlabel="speed-up of a sentence", ylabel="sentences", title=name)
    axes.legend(frameon=False)
    with replacing(directory / "speedups.png") as temporary:
        figure.savefig(temporary, dpi=150, format="png")


def trace(setting: Setting, path: Path, count: int) -> None:
    """Table 11, for sentences that took several calls."""
    decodes = []
    for name, rule in (("GAD", Exact()), ("GAD++ (3, 1)", TopBeta(3, 1.0))):
        for row, source in enumerate(setting.sources[:count]):
            drafter = GadDrafter(setting.drafter, setting.block_size)
            out = generate(setting.verifier, torch.tensor([source]), drafter, rule, MAX_NEW, trace=True)
            calls = read_calls(setting.verifier, source, out, scorer_of(drafter))
            decodes.append(
                TracedDecode(f"{name}, sentence {row + 1}", setting.texts[row], out.sequences[0, 1:].tolist(), calls)
            )

    def decoded(tokens: Sequence[int]) -> str:
        return setting.tokenizer.decode(list(tokens), skip_special_tokens=False)

    page_templates.write(
        path, trace_page("GAD, call by call", f"{count} sentences", decodes, decoded, lambda token: decoded([token]))
    )


def read(arguments: argparse.Namespace, drafter: Path) -> Setting:
    verifier, model = load_verifier(arguments.verifier), NonAutoregressiveModel.from_pretrained(drafter)
    tokenizer = Tokenizer.from_file(str(arguments.verifier / "tokenizer.json"))
    check_pair(verifier, model, vocabulary_fingerprint(tokenizer.get_vocab()))
    lines = [json.loads(line) for path in arguments.pairs for line in path.read_text(encoding="utf-8").splitlines()][
        : arguments.limit
    ]
    texts, references = [line[arguments.source] for line in lines], [line[arguments.target] for line in lines]
    sources = [encoded.ids for encoded in tokenizer.encode_batch(texts)]
    block = min(arguments.block_size, model.block_size)
    clock = Clock(arguments.clock, verifier.device)
    return Setting(verifier, model, tokenizer, sources, texts, references, block, arguments.lm, arguments.alpha, clock)


def signature(arguments: argparse.Namespace) -> dict[str, str]:
    return {
        "command": shlex.join(["python", "-m", "benchmarks.bench_gad", *sys.argv[1:]]),
        "sacrebleu": f"BLEU|nrefs:1|case:mixed|tok:13a|smooth:exp|version:{sacrebleu.__version__}",
        "threads": str(torch.get_num_threads()),
        "cpus": str(os.cpu_count()),
        "machine": platform.machine(),
        "clock": arguments.clock,
        "latticebpd": latticebpd.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def named(text: str) -> tuple[str, Path]:
    name, separator, path = text.partition("=")
    if not (name and separator and path):
        raise argparse.ArgumentTypeError(f"expected NAME=DIR, got {text!r}")
    return name, Path(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("pairs", type=Path, nargs="+", help="JSONL, a sentence and its translation a line")
    parser.add_argument("--verifier", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument(
        "--other", type=named, action="append", default=[], metavar="NAME=DIR",
        help="another drafter of the same verifier, in the first one's place (table 5); may come several times",
    )  # fmt: skip
    parser.add_argument("--lm", type=Path, help="n-gram model of the verifier's text, for the drafts of lattices")
    parser.add_argument("--alpha", type=float, default=0.5, help="its weight")
    parser.add_argument("--source", default="en")
    parser.add_argument("--target", default="de")
    parser.add_argument("--limit", type=int, help="so many sentences only")
    parser.add_argument("--timed", type=int, help="so many of them where the clock decides; the other tables take all")
    parser.add_argument("--block-size", type=int, default=15, help="masks per draft, where it is not what is varied")
    parser.add_argument(
        "--batch", type=lambda text: [int(part) for part in text.split(",")], default=[1, 8], help="sentences at once"
    )
    parser.add_argument("--trace", type=int, default=3, help="sentences to show call by call")
    parser.add_argument("--systems-only", action="store_true", help="stop behind the comparison of systems")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--output", "-o", type=Path, help="directory for what is not a table")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    setting = read(arguments, arguments.drafter)
    found_of = {}
    record: dict[str, Any] = {"signature": signature(arguments)}
    print(" | ".join(f"{name} {value}" for name, value in record["signature"].items()))
    sizes = {"verifier": setting.verifier, "drafter": setting.drafter.base}
    record["parameters"] = {name: sum(p.numel() for p in model.parameters()) for name, model in sizes.items()}
    print(f"{len(setting.sources)} sentences | parameters {record['parameters']}")
    few, chosen = setting.first(arguments.timed), systems(setting)
    for rows in arguments.batch:
        found_of[rows], record[f"batches of {rows}"] = timed(few, rows)
    if arguments.systems_only:
        return
    parts = {name: modules(few, system) for name, system in chosen.items() if name.startswith("GAD")}
    record["modules"] = [[name, *times.values(), sum(times.values())] for name, times in parts.items()]
    table("Milliseconds a sentence by module, one after another:", ("system", *MODULES, "total"), record["modules"])
    record["memory"] = memory(few)
    record["quality"] = quality(setting)
    record |= sweeps(setting)
    record["lattices"] = lattices(setting)
    if arguments.other:
        rows = []
        for label, each in (("drafter", setting), *((name, read(arguments, path)) for name, path in arguments.other)):
            for name, system in systems(each).items():
                if name.startswith("GAD"):
                    found = in_batches(each, system)
                    rows.append([f"{name}, {label}", found.accepted, found.iterations, each.bleu(found.rows)])
        table("Another drafter in its place:", ("system", "tok.", "iterations", "BLEU"), rows)
        record["swap"] = rows
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        if 1 in found_of:
            histogram(found_of[1], next(name for name in reversed(chosen) if "++" not in name), arguments.output)
        trace(setting, arguments.output / "trace.html", arguments.trace)
        with replacing(arguments.output / "gad.json") as temporary:
            temporary.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"bench_gad: error: {error}")
