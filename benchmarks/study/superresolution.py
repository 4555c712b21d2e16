"""Super-resolution in small (Stern 2018, section 7.2, table 2): digits of 4x4 pixels to digits of 8x8, 17 intensities.

    python -m benchmarks.study.superresolution --work WORK        # from scratch; the same command goes on
    python -m benchmarks.study.superresolution                    # tables and figures again, from results/*.csv

scikit-learn's 1,797 handwritten digits; the small image is the mean of 2x2 pixels, rounded.  The model is a stock
Marian encoder-decoder whose tokens are intensities: its encoder reads 16 pixels, its decoder writes 64, row by row.
Block heads come on it, with the base model frozen or fine-tuned, and decode by exact acceptance and by distance.
Exact acceptance must write greedy decoding's images; the program stops where it does not.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

from benchmarks import common, decodes
from latticebpd import BlockwiseLM, Distance, Exact, Loaded, NoDrafter, load
from latticebpd.drafters.heads.blockwise import load_blockwise, new_heads
from latticebpd.lattices.texts import Texts
from latticebpd.models.transformers.transformers_model import Model
from latticebpd.models.weight_kinds import TORCH
from latticebpd.report.theme import STYLE
from lm_training.families.heads import train_heads
from lm_training.families.shapes import TranslationShape
from lm_training.families.translators import load_translator, new_translator, train_translation
from lm_training.training.training_options import HeadTraining, TranslationTraining

SIDE, PIXELS, BRIGHTEST = 8, 64, 16
PAD, END = BRIGHTEST + 1, BRIGHTEST + 2  # the decoder begins with the one; nothing ends with the other
SHAPE = TranslationShape(96, 2, 2, 4, 384, 80)
TEST, VALIDATION = 400, 100
RULES: dict[str, Any] = {"exact": Exact(), "distance 1": Distance(1), "distance 2": Distance(2)}
PAPER = {
    2: (1.07, 1.24, 1.59, 1.96), 4: (1.08, 1.36, 2.11, 3.75), 6: (1.09, 1.38, 2.23, 5.25),
    8: (1.09, 1.49, 2.17, 6.36), 10: (1.10, 1.40, 2.04, 6.79),
}  # fmt: skip
"""Mean accepted block sizes by k: frozen, exact and within 2; fine-tuned, exact and within 2."""
BASES = ("frozen", "fine-tuned")
TABLE, SPEED = "superresolution.csv", "superresolution-speed.csv"
COLUMNS = ("base", "k", "rule", "image", "tokens", "calls", "absolute", "squared")


def digits() -> np.ndarray:
    """``[images, 8, 8]`` intensities from 0 to 16."""
    from sklearn.datasets import load_digits

    return load_digits().images.astype(np.int64)


def small(images: np.ndarray) -> np.ndarray:
    """``[images, 8, 8]`` -> ``[images, 4, 4]``: means of 2x2 pixels, rounded half up."""
    halves = images.reshape(len(images), SIDE // 2, 2, SIDE // 2, 2)
    return (halves.sum(axis=(2, 4)) + 2) // 4


def texts_of(images: np.ndarray) -> Texts:
    """The small image's pixels as prompt, the large one's after it."""
    pooled = small(images).reshape(len(images), -1)
    rows = np.concatenate([pooled, images.reshape(len(images), -1)], axis=1)
    return Texts.of_rows(list(rows), [pooled.shape[1]] * len(rows))


def parts(images: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training, validation and test images."""
    mixed = images[np.random.default_rng(0).permutation(len(images))]
    return mixed[TEST + VALIDATION :], mixed[TEST : TEST + VALIDATION], mixed[:TEST]


def whole(images: np.ndarray, rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Decoded rows as images; ValueError where one is none."""
    complete = np.array([row if len(row) == PIXELS else [PAD] * PIXELS for row in rows])
    if complete.shape != (len(images), PIXELS) or complete.max() > BRIGHTEST:
        raise ValueError(f"expected {len(images)} images of {PIXELS} intensities, got others; train for longer")
    return complete.reshape(images.shape)


def heads_of(work: Path, images: tuple[np.ndarray, ...], name: str, k: int, **options: Any) -> Loaded:
    """Heads on the frozen base model; or on one that they fine-tune, starting as the frozen one's."""
    directory, texts, steps = work / name, [texts_of(part) for part in images[:2]], options["steps"]

    def make() -> None:
        torch.manual_seed(0)
        base = load_translator(work / "base")
        if "fine_tune" in options:
            heads = decodes.fewer_heads(load_blockwise(work / "frozen").heads, k)
        else:
            heads = new_heads(base, "feed-forward", k)
        chosen = HeadTraining(objective="joint", warmup_steps=20, validation_every=steps, serving_prompts=0, **options)
        train_heads(BlockwiseLM(base, heads), *texts, directory, chosen)

    common.stage(directory / "latticebpd/heads.json", make)
    return load(directory, weights=TORCH)


def base_of(work: Path, images: tuple[np.ndarray, ...], steps: int) -> Loaded:
    """The model that writes images."""

    def make() -> None:
        torch.manual_seed(0)
        fixed: dict[str, Any] = {"label_smoothing": 0.0, "validation_every": 100}
        chosen = TranslationTraining(steps=steps, batch_tokens=2 * PIXELS * 64, **fixed)
        texts, new = map(texts_of, images[:2]), new_translator(SHAPE, END + 1, END, PAD)
        train_translation(*texts, work / "base", new, chosen)

    common.stage(work / "base" / "model.safetensors", make)
    return load(work / "base", weights=TORCH)


def measure(work: Path, settings: argparse.Namespace) -> None:
    """All stages, then the CSV files."""
    images = parts(digits())
    test = images[2][: settings.limit]
    sources, base = small(test).reshape(len(test), -1).tolist(), base_of(work, images, settings.base_updates).target
    decoded = decodes.Decodes(work / "decodes", sources, PIXELS)

    def greedy(model: Model) -> list[list[int]]:
        return decodes.decode(model, sources, {}, PIXELS, len(sources)).rows

    own, rows = greedy(base), list[dict[str, Any]]()

    def add(kind: str, k: Any, rule: str, pixels: np.ndarray, run: decodes.Decoded | None = None) -> None:
        gap, counts = (pixels - test).reshape(len(test), -1), (run.tokens, run.calls) if run else [[0] * len(test)] * 2
        columns = (range(len(test)), *counts, abs(gap).sum(axis=1), (gap**2).sum(axis=1))
        rows.extend(dict(zip(COLUMNS, (kind, k, rule, *each), strict=True)) for each in zip(*columns, strict=True))

    add("frozen", 1, "greedy", whole(test, own))
    add("none", "", "copied", np.kron(small(test), np.ones((2, 2), np.int64)))
    frozen = heads_of(work, images, "frozen", max(settings.k), steps=settings.head_updates, batch_size=64)
    tuning = {"steps": settings.tuning_updates, "batch_size": 32, "fine_tune": True, "base_learning_rate": 5e-4}
    systems: dict[str, Any] = {"greedy": (base, (NoDrafter, Exact()))}
    for kind in BASES:
        for k in settings.k:
            model = frozen if kind == "frozen" else heads_of(work, images, f"tuned-{k}", k, **tuning)
            wanted, drafter = own if kind == "frozen" else greedy(model.target), decodes.vanilla(model, k)
            for rule, acceptance in RULES.items():
                decoded_images = decoded(f"{kind}-{k}-{rule}", model.target, drafter, acceptance, wanted)
                add(kind, k, rule, whole(test, decoded_images.rows), decoded_images)
                if kind == "fine-tuned" and rule != "distance 1":
                    systems[f"fine-tuned, {rule}, k = {k}"] = model.target, (drafter, acceptance)
    common.write_csv(settings.results / TABLE, rows)
    systems = dict(sorted(systems.items(), key=lambda item: "distance" in item[0]))  # as the table has them
    speeds = decodes.speed_rows(work / "decodes" / "speeds.json", systems, sources[: settings.timed], PIXELS)
    common.write_csv(settings.results / SPEED, speeds)


def measures(rows: Sequence[Mapping[str, str]]) -> dict[tuple[str, str, str], dict[str, float]]:
    """Of every base model, k and rule: mean accepted block size, mean absolute error in intensities, peak
    signal-to-noise ratio in dB, with intervals over images."""
    cells = {}
    for key, own in common.grouped(rows, *COLUMNS[:3]).items():
        tokens, calls, absolute, squared = common.columns(own, *COLUMNS[4:])
        error, square = (common.pooled(each, np.full(len(each), PIXELS)) for each in (absolute, squared))
        low, decibels, high = sorted(10 * np.log10(BRIGHTEST**2 / np.array(square)))
        cells[key] = common.with_ends("accepted", decodes.accepted_size(tokens, calls)) | common.with_ends("MAE", error)
        cells[key] |= common.with_ends("PSNR", (decibels, low, high))
    return cells


def draw(results: Path) -> None:
    """Table 2's form on standard output, and the figures, from the CSV files alone."""
    measured = measures(common.read_csv(results / TABLE))
    cell = {(base, int(k), rule): row for (base, k, rule), row in measured.items() if k}
    sizes = sorted({k for base, k, _ in cell if base == "fine-tuned"})
    columns = [(base, rule) for base in BASES for rule in RULES]
    for what, places in (("accepted", 2), ("MAE", 2), ("PSNR", 1)):
        lines = [[k, *(common.spread(cell[base, k, rule], what, places) for base, rule in columns)] for k in sizes]
        common.table(what, ["k", *map(", ".join, columns)], lines)
    for (base, _, rule), row in measured.items():
        if rule in ("greedy", "copied"):
            print(f"{base} {rule}: MAE {common.spread(row, 'MAE')}, PSNR {common.spread(row, 'PSNR', 1)}")
    decodes.speed_table(common.read_csv(results / SPEED))
    decodes.save_figure(results / "superresolution.png", block_sizes(cell, sizes))


@rc_context(STYLE)
def block_sizes(cell: Mapping[tuple[str, int, str], Mapping[str, float]], sizes: list[int]) -> Figure:
    """Mean accepted block size by k, next to the paper's."""
    figure = Figure((9, 3.6), layout="constrained")
    ours, theirs = figure.subplots(1, 2, sharey=True)
    for number, (base, rule) in enumerate((base, rule) for base in BASES for rule in RULES):
        intervals = [common.interval_of(cell[base, k, rule], "accepted") for k in sizes]
        decodes.draw_band(ours, sizes, intervals, f"{base}, {rule}", number)
    names = [f"{base}, {rule}" for base in BASES for rule in ("exact", "distance 2 of 256")]
    for number, (name, series) in enumerate(zip(names, (0, 2, 3, 5), strict=True)):
        theirs.plot([*PAPER], [row[number] for row in PAPER.values()], label=name, **decodes.style_of(series))
    ours.set(title="digits, 4×4 to 8×8, 17 intensities", ylabel="mean accepted block size")
    theirs.set(title="Stern et al., 8×8 to 32×32, 256 intensities")
    for axes in (ours, theirs):
        axes.set(xlabel="block size k", xticks=sizes)
        axes.legend(fontsize=8)
    return figure


def main() -> None:
    parser = common.options(__doc__)
    about = "directory of models and decodes; without it only tables and figures are made again"
    parser.add_argument("--work", type=Path, help=about)
    parser.add_argument("--results", type=Path, default=decodes.RESULTS, help="directory of CSV files and figures")
    parser.add_argument("--k", type=int, nargs="+", default=[2, 4, 6, 8, 10], help="block sizes, head 1 included")
    parser.add_argument("--base-updates", type=int, default=500, help="of the base model, 64 images each")
    parser.add_argument("--head-updates", type=int, default=400, help="of heads on the frozen model, 64 images each")
    about = "of model and heads together, 32 images each, for every k"
    parser.add_argument("--tuning-updates", type=int, default=150, help=about)
    parser.add_argument("--limit", type=int, help="number of test images")
    parser.add_argument("--timed", type=int, default=12, help="test images that are timed")
    arguments = parser.parse_args()
    common.set_up()
    if arguments.work is not None:
        common.claim(arguments.work, arguments, "k base_updates head_updates tuning_updates limit")
        measure(arguments.work, arguments)
    draw(arguments.results)


if __name__ == "__main__":
    common.run(main)
