"""Pictures of the statistics, drawn without a display."""

from __future__ import annotations

import os
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fst.files import replacing
from latticebpd.analysis.oracle import OracleTally

FORMATS = (".png", ".svg", ".pdf")


def oracle_curves(found: OracleTally) -> Figure:
    """Block efficiency against arcs per slot, a line for each number of heads (Kim 2024, figure 6)."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    order = sorted(range(len(found.ks)), key=lambda i: found.ks[i])
    ks = [found.ks[i] for i in order]
    for j, heads in enumerate(found.heads):
        name = f"{heads} heads"
        axes.plot(ks, found.block_efficiency[order, j], marker="o", color=f"C{j}", label=f"{name}, by position")
        if found.walked[..., 1].all():
            axes.plot(ks, found.decoded_block_efficiency[order, j], marker=".", linestyle="--", color=f"C{j}", label=f"{name}, by decoding")
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.set_xlabel("arcs per slot (k)")
    axes.set_ylabel("block efficiency (tokens per call)")
    axes.set_title(f"Oracle over {found.num_lattices:,} lattices")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a picture, whole or not at all.

    Raises:
        ValueError: the name ends in none of ``FORMATS``.
    """
    kind = Path(path).suffix.lower()
    if kind not in FORMATS:
        raise ValueError(f"{path}: expected a name that ends in {', '.join(FORMATS)}")
    FigureCanvasAgg(figure)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=kind[1:], dpi=150)
