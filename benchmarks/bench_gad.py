"""GAD and GAD++ on a translation test set (Xia 2022, tables 1 to 5, 7, 9, figure 4).

    python -m benchmarks.bench_gad multi30k-test_2016_flickr.jsonl --verifier verifier --drafter drafter \\
        --lm written.fst -o found

`gad.md` has the commands that make the models; `latticebpd generate --trace` shows drafts call by call.  Tables come
as Markdown on standard output; the directory gets everything as JSON, and the speed-up of every sentence as CSV.
Systems take turns sentence by sentence, so that a drift of the machine's speed affects all alike.  *Iterations* are
calls of the verifier after the prefill, a draft each; *tok.* is the tokens that a call commits, the end of text being
one.  Under exact acceptance every text must equal `generate()`'s; the program stops if one does not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from tokenizers import Tokenizer

from benchmarks import common
from benchmarks.decodes import Decoded, System, decode
from fst import NgramModel
from fst.fingerprint import vocabulary_fingerprint
from latticebpd import Drafter, Exact, NoDrafter, State, TopBeta, drafter_named, generate
from latticebpd.drafters import LatticeDrafter, MaskLattices, Vanilla
from latticebpd.drafters.masks.mask_network import NonAutoregressiveModel, check_pair, load_verifier
from latticebpd.target.stock_model import BaseModel

MODULES = ("verifier's encoder", "drafter's encoder", "drafter's decoder", "verifier's decoder", "others")
MAX_NEW = 96
GAD_PLUS = ((3, 1.0), (5, 3.0))
BETAS, TAUS = (3, 5), (1.0, 2.0, 3.0, 4.0, 5.0)
BEAM, GREEDY = "beam 5, generate()", "greedy, generate()"


def gad_drafter(model: Any, block: int) -> LatticeDrafter:
    return LatticeDrafter(MaskLattices(model, 1, block), Vanilla())


def gad_lattice_drafter(name: str, model: Any, lm: Any, alpha: float | None, block: int | None = None) -> Drafter:
    return drafter_named(name, MaskLattices(model, 16, block), lm, alpha)


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
    clock: common.Clock

    def first(self, count: int | None) -> Setting:
        """The same with fewer sentences."""
        first = {name: getattr(self, name)[:count] for name in ("sources", "texts", "references")}
        return replace(self, **first)

    def bleu(self, rows: Sequence[Sequence[int]]) -> float:
        texts = [self.tokenizer.decode(list(row)).strip() for row in rows]
        return float(sacrebleu.corpus_bleu(texts, [self.references[: len(rows)]]).score)

    def decoded(self, system: System, rows: int = 25, sources: slice = slice(None)) -> Decoded:
        """Translations in batches."""
        return decode(self.verifier, self.sources[sources], system, MAX_NEW, rows, self.clock, trace=False)

    def gad(self, block: int | None = None, rule: Any = None) -> System:
        """Drafts of best tokens."""
        return partial(gad_drafter, self.drafter, block or self.block_size), rule or Exact()


def repetition(rows: Sequence[Sequence[int]]) -> float:
    """Percentage of tokens that repeat the one before."""
    pairs = [(one, two) for row in rows for one, two in pairwise(row)]
    return 100 * sum(one == two for one, two in pairs) / max(1, len(pairs))


def systems(setting: Setting) -> dict[str, System]:
    block = setting.block_size
    found: dict[str, System] = {
        BEAM: {"num_beams": 5},
        GREEDY: {},
        "greedy, this loop": (NoDrafter, Exact()),
        f"GAD, k = {block}": setting.gad(),
    }
    if setting.lm is not None:
        lm = NgramModel.load(setting.lm)
        tree = partial(gad_lattice_drafter, f"{block}-tree", setting.drafter, lm, setting.alpha)
        found[f"GAD, tree of {block} nodes, n-gram"] = tree, Exact()
    for beta, tau in GAD_PLUS:
        found[f"GAD++, k = {block}, β = {beta}, τ = {tau:g}"] = setting.gad(rule=TopBeta(beta, tau))
    return found


def compared(setting: Setting, chosen: Mapping[str, System], rows: int) -> dict[str, Decoded]:
    """Every system on every batch, in turns."""
    found = {name: Decoded() for name in chosen}
    for system in chosen.values():
        setting.decoded(system, rows, slice(rows))  # warms up
    for first in range(0, len(setting.sources), rows):
        print(f"\rbatches of {rows}: {first} of {len(setting.sources)} sentences", end="", file=sys.stderr, flush=True)
        for name, system in chosen.items():
            found[name].add(setting.decoded(system, rows, slice(first, first + rows)))
    print("\r\033[K", end="", file=sys.stderr)
    return found


def alone(setting: Setting) -> Decoded:
    """The drafter without a verifier: each block's best tokens are accepted, up to the end of text."""
    found, end = Decoded(), setting.verifier.generation_config.eos_token_id
    start = BaseModel.of(setting.drafter).start_id
    for source in setting.sources:
        masks, text, calls = MaskLattices(setting.drafter, 1, setting.block_size), [start], 0
        started = setting.clock()
        while len(text) <= MAX_NEW and text[-1] != end:
            (lattice,) = masks.lattices([State(0, text, 1, None, MAX_NEW, source)])
            text, calls = text + lattice.tokens[:, 0].tolist(), calls + 1
        found.add(Decoded([text[1:]], [len(text) - 1], [calls], 0, [setting.clock() - started]))
    return found


def modules(setting: Setting, system: System) -> dict[str, float]:
    """Milliseconds per sentence by module (table 7), by a run of its own."""
    watch, verifier, base = common.Stopwatch(setting.clock), setting.verifier, setting.drafter.base
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
        # A stopwatch serves one thread, so the drafter must not encode in the background: no `read` here.
        patches.enter_context(watch.part(MODULES[4]))
        for source in setting.sources:
            drafter, rule = system[0](), system[1]  # type: ignore[index]
            generate(verifier, torch.tensor([source]), drafter, rule, MAX_NEW, attention_mask=[[1] * len(source)])
    return {name: 1e3 * watch.seconds.get(name, 0.0) / len(setting.sources) for name in MODULES}


def check_exact(chosen: Mapping[str, System], found: Mapping[str, Decoded]) -> None:
    """ValueError where exact acceptance wrote another text than `generate()`."""
    for name, system in chosen.items():
        if not isinstance(system, dict) and isinstance(system[1], Exact) and found[name].rows != found[GREEDY].rows:
            different = sum(one != two for one, two in zip(found[name].rows, found[GREEDY].rows, strict=True))
            raise ValueError(f"{name}: expected generate()'s texts, got {different} others")


def calls_of(found: Decoded) -> list[Any]:
    return [found.iterations, found.tokens_per_call] if found.calls else ["one a token", None]


def timed(setting: Setting, rows: int) -> tuple[dict[str, Decoded], list[list[Any]]]:
    """Systems in turns, by the clock."""
    chosen = systems(setting)
    found = compared(setting, chosen, rows)
    check_exact(chosen, found)
    if rows == 1:
        found["drafter alone"] = alone(setting)
    seconds, lines = {name: sum(each.seconds) for name, each in found.items()}, []
    for name, each in found.items():
        over = [seconds[other] / seconds[name] for other in (BEAM, GREEDY)]
        lines.append([name, *calls_of(each), *over, 1e3 * seconds[name] / len(each.seconds)])
    head = ("system", "iterations", "tok.", "over beam 5", "over greedy", "ms a sentence")
    common.table(f"Batches of {rows}, {len(setting.sources)} sentences:", head, lines)
    return found, lines


def quality(setting: Setting) -> list[list[Any]]:
    """Calls and texts of all sentences, which need no clock."""
    chosen = systems(setting)
    found = {name: setting.decoded(system) for name, system in chosen.items()}
    check_exact(chosen, found)
    found["drafter alone"] = alone(setting)
    lines = [[name, *calls_of(each), setting.bleu(each.rows), repetition(each.rows)] for name, each in found.items()]
    common.table("Calls and texts:", ("system", "iterations", "tok.", "BLEU", "repeats, %"), lines)
    return lines


def sweeps(setting: Setting) -> dict[str, list[list[Any]]]:
    """Block sizes, and beta by tau."""
    blocks: list[list[Any]] = []
    for block in (size for size in (3, 5, 8, 10, 12, 15, 20, 25, 30) if size <= setting.drafter.block_size):
        runs = [setting.decoded(setting.gad(block, rule)) for rule in (Exact(), TopBeta(3, 1.0))]
        blocks.append([block, *(value for each in runs for value in calls_of(each)), setting.bleu(runs[1].rows)])
    head = ("k", "GAD iterations", "GAD tok.", "GAD++ (3, 1) iterations", "GAD++ tok.", "GAD++ BLEU")
    common.table("Block sizes:", head, blocks)
    grid: list[list[Any]] = []
    for tau in TAUS:
        runs = [setting.decoded(setting.gad(rule=TopBeta(beta, tau))) for beta in BETAS]
        grid.append([tau, *(value for each in runs for value in (each.tokens_per_call, setting.bleu(each.rows)))])
    head = ("τ", *(f"β = {beta}: {what}" for beta in BETAS for what in ("tok.", "BLEU")))
    common.table("GAD++ by β and τ:", head, grid)
    return {"block sizes": blocks, "beta and tau": grid}


def lattices(setting: Setting) -> list[list[Any]]:
    """What lattices, the n-gram model and trees add, at equal verified tokens."""
    rows, model, alpha = [], setting.drafter, setting.alpha
    models: dict[str, Any] = {"0-gram": None} | ({"n-gram": setting.lm} if setting.lm else {})
    for block in (6, 12, 24):
        chosen: dict[str, Callable[[], Any]] = {}
        if block <= model.block_size:
            chosen[f"best tokens, k = {block}"] = partial(gad_drafter, model, block)
        for name, lm in models.items():
            if block <= model.block_size:
                best = partial(gad_lattice_drafter, "1-best", model, lm, alpha, block)
                chosen[f"best path, {name}, k = {block}"] = best
            chosen[f"tree of {block} nodes, {name}"] = partial(gad_lattice_drafter, f"{block}-tree", model, lm, alpha)
        for name, drafter in chosen.items():
            found = setting.decoded((drafter, Exact()))
            rows.append([name, found.verified / sum(found.calls), found.tokens_per_call, found.iterations])
    head = ("drafts", "verified a call", "tok.", "iterations")
    common.table(f"Lattices and trees, exact (α = {alpha:g}):", head, rows)
    return rows


def save_speedups(found: Mapping[str, Decoded], name: str, path: Path) -> None:
    """Speed-up of every sentence over beam 5 and greedy decoding (figure 4)."""
    rows: list[dict[str, Any]] = []
    for n, seconds in enumerate(found[name].seconds):
        over = {f"over_{label}": found[of].seconds[n] / seconds for label, of in (("beam_5", BEAM), ("greedy", GREEDY))}
        rows.append({"sentence": n, "tokens": len(found[name].rows[n]), **over})
    common.write_csv(path, rows)


def read(arguments: argparse.Namespace, drafter: Path) -> Setting:
    verifier, model = load_verifier(arguments.verifier), NonAutoregressiveModel.from_pretrained(drafter)
    tokenizer = Tokenizer.from_file(str(arguments.verifier / "tokenizer.json"))
    check_pair(verifier, model, vocabulary_fingerprint(tokenizer.get_vocab()))
    lines = [line for path in arguments.pairs for line in common.read_lines(path)][: arguments.limit]
    texts, references = ([line[name] for line in lines] for name in (arguments.source, arguments.target))
    sources = [encoded.ids for encoded in tokenizer.encode_batch(texts)]
    block, clock = min(arguments.block_size, model.block_size), common.Clock(arguments.clock, verifier.device)
    return Setting(verifier, model, tokenizer, sources, texts, references, block, arguments.lm, arguments.alpha, clock)


def parser() -> argparse.ArgumentParser:
    found = common.options(__doc__)
    found.add_argument("pairs", type=Path, nargs="+", help="JSONL, a sentence and its translation a line")
    found.add_argument("--verifier", type=Path, required=True)
    found.add_argument("--drafter", type=Path, required=True)
    about_other = "another drafter of the same verifier instead of the first (table 5); may come several times"
    found.add_argument("--other", type=common.named, action="append", default=[], metavar="NAME=DIR", help=about_other)
    found.add_argument("--lm", type=Path, help="n-gram model of the verifier's text, for the drafts of lattices")
    found.add_argument("--alpha", type=float, default=0.5, help="its weight")
    common.pair_options(found)
    found.add_argument("--limit", type=int, help="number of sentences")
    found.add_argument("--timed", type=int, help="number of them in timed tables; the other tables take all")
    found.add_argument("--block-size", type=int, default=15, help="masks per draft, where it is not what is varied")
    sizes = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    found.add_argument("--batch", type=sizes, default=[1, 8], help="sentences at once")
    common.clock_options(found)
    found.add_argument("--output", "-o", type=Path, help="directory for what is not a table")
    return found


def main() -> None:
    arguments = parser().parse_args()
    common.set_up(arguments.threads)
    setting = read(arguments, arguments.drafter)
    bleu = f"BLEU|nrefs:1|case:mixed|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    record: dict[str, Any] = {"signature": common.signature(sacrebleu=bleu, clock=arguments.clock)}
    sizes = {"verifier": setting.verifier, "drafter": setting.drafter.base}
    record["parameters"] = {name: sum(p.numel() for p in model.parameters()) for name, model in sizes.items()}
    print(f"{len(setting.sources)} sentences | parameters {record['parameters']}")
    few, chosen, by_rows = setting.first(arguments.timed), systems(setting), dict[int, dict[str, Decoded]]()
    for rows in arguments.batch:
        by_rows[rows], record[f"batches of {rows}"] = timed(few, rows)
    parts = {name: modules(few, system) for name, system in chosen.items() if name.startswith("GAD")}
    record["modules"] = [[name, *times.values(), sum(times.values())] for name, times in parts.items()]
    head = ("system", *MODULES, "total")
    common.table("Milliseconds a sentence by module, one after another:", head, record["modules"])
    record |= {"quality": quality(setting), **sweeps(setting), "lattices": lattices(setting)}
    if arguments.other:
        record["swap"] = []
        for label, each in (("drafter", setting), *((name, read(arguments, path)) for name, path in arguments.other)):
            for name, system in systems(each).items():
                if name.startswith("GAD"):
                    found = each.decoded(system)
                    bleu_of = each.bleu(found.rows)
                    record["swap"].append([f"{name}, {label}", found.tokens_per_call, found.iterations, bleu_of])
        common.table("Another drafter:", ("system", "tok.", "iterations", "BLEU"), record["swap"])
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        if 1 in by_rows:
            system = next(name for name in reversed(chosen) if "++" not in name)
            save_speedups(by_rows[1], system, arguments.output / "speedups.csv")
        common.write_json(arguments.output / "gad.json", record)


if __name__ == "__main__":
    common.run(main)
