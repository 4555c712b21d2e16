"""Draws the pictures of architecture.md and lists the modules there: ``python docs/draw.py`` after one came or went.

The pictures have a ground of their own and both colour schemes, so that they can be read on any page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
BEGIN, END = "<!-- modules: python docs/draw.py -->", "<!-- end of modules -->"

ROOMS = {
    "fst": "n-gram automata and lattices as OpenFst has them; searches and readers in one C++ core",
    "latticebpd/lattices": "sausage lattices, draft trees, sets of them, their pictures",
    "latticebpd/constraints": "what a text may be: grammars as automata over tokens",
    "latticebpd/cpu": "the engine's and drafters' kernels",
    "latticebpd/models": "target models, on the CPU engine or on PyTorch; tokenizers, chat templates",
    "latticebpd/verification": "one pass over trees: attention, caches, a verifier for each kind of model",
    "latticebpd/scoring": "n-gram, KenLM, neural and calibrated scorers; stored weights",
    "latticebpd/drafters": "heads, block, masks, MTP, copies; strategies and system names",
    "latticebpd/decoding": "the loop, acceptance, stopping, generation config",
    "latticebpd/jacobi": "Jacobi decoding, trajectories, dependency graphs",
    "latticebpd/measuring": "oracle, comparisons, tuning, calibration, timing",
    "latticebpd/report": "pages, plots, the demo's table",
    "latticebpd/hosts": "drafters inside other programs: vLLM, SGLang",
    "latticebpd/serving": "an OpenAI-compatible server: scheduler, endpoints, limits",
    "latticebpd/cli": "one file per command",
    "latticebpd": "`load`, conversations, console, version, public names",
    "lm_training": "makes what latticebpd loads",
    "lm_training/data": "files to token ids",
    "lm_training/ngram": "n-gram models from counts",
    "lm_training/training": "one loop, options, optimizers",
    "lm_training/families": "a family's objective: heads, block, masks, rescorers, translators",
    "lm_training/cli": "its commands",
}
"""Folder -> what it holds, from the lowest to the highest; folders within belong to the one that is named."""

STYLE = """<style>
text { fill: #1c2024; font: 14px system-ui, sans-serif } .faint { fill: #60666c; font-size: 12px }
.b { font-weight: 600 } .m { text-anchor: middle }
.ground { fill: #fbfbfa } .line { stroke: #60666c; fill: none; stroke-width: 1.4 } .tip { fill: #60666c }
.box { fill: #fff; stroke: #d9dcdf } .room { fill: #eaf3f9; stroke: #0072b2 }
.mid { fill: #fdf1e8; stroke: #c45100 } .end { fill: #e8f5f0; stroke: #00835e }
@media (prefers-color-scheme: dark) {
text { fill: #e6e8ea } .faint { fill: #a2a9b0 } .ground { fill: #14171a } .line { stroke: #a2a9b0 }
.tip { fill: #a2a9b0 }
.box { fill: #1b1f23; stroke: #3a4046 } .room { fill: #12293a; stroke: #5ab4ec }
.mid { fill: #3a2412; stroke: #ff9248 } .end { fill: #0f2f26; stroke: #2fc79a } }
</style><defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>"""


def svg(width: int, height: int, label: str, parts: Sequence[str], style: str = STYLE) -> str:
    """A picture on a ground of its own. label: what it shows, for readers who do not see it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="{escape(label)}">\n{style}\n<rect class="ground" width="{width}" height="{height}"'
        ' rx="10"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def box(x: int, y: int, width: int, height: int, kind: str, *lines: str) -> str:
    """A box; its first line is bold."""
    middle = y + height / 2 + 5 - 8.5 * (len(lines) - 1)
    texts = [
        f'<text class="m {"b" if i == 0 else "faint"}" x="{x + width / 2:g}"'
        f' y="{middle + 17 * i:g}">{escape(line)}</text>'
        for i, line in enumerate(lines)
    ]
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>' + "".join(texts)


def arrow(path: str, dashed: bool = False) -> str:
    return (
        f'<path class="line" d="{path}"'
        f' marker-end="url(#tip)"{" stroke-dasharray=" + chr(34) + "4 4" + chr(34) if dashed else ""}/>'
    )


def rooms() -> str:
    """The folders, each importing only from those below it."""
    parts = []
    of_latticebpd = [name.split("/")[1] for name in ROOMS if name.startswith("latticebpd/")]
    left, width, row, top = 24, 620, 40, 96
    bottom = top + row * len(of_latticebpd)
    parts.append(box(left, 20, width, 52, "mid", "lm_training", "data · ngram · training · families · cli"))
    parts.append(f'<rect class="box" x="{left}" y="{top - 8}" width="{width}" height="{bottom - top + 14}" rx="10"/>')
    for place, name in enumerate(reversed(of_latticebpd)):
        y = top + row * place
        parts.append(f'<rect class="room" x="{left + 10}" y="{y}" width="{width - 20}" height="{row - 6}" rx="6"/>')
        parts.append(f'<text class="b" x="{left + 24}" y="{y + 22}">{name}</text>')
        parts.append(f'<text class="faint" x="{left + 130}" y="{y + 22}">{escape(ROOMS["latticebpd/" + name])}</text>')
    parts.append(box(left, bottom + 24, width, 52, "end", "fst", ROOMS["fst"]))
    x = left + width + 26
    parts.append(arrow(f"M{x} 30V{bottom + 66}"))
    parts.append(f'<text class="faint" x="{x + 12}" y="{bottom / 2:g}">imports run</text>')
    parts.append(f'<text class="faint" x="{x + 12}" y="{bottom / 2 + 16:g}">downwards only</text>')
    parts.append(arrow(f"M{left + width - 10} {top + 16}h12v-50h-8", dashed=True))
    parts.append(f'<text class="faint" x="{x + 12}" y="{top + 2}">cli mounts its commands</text>')
    parts.append(f'<text class="faint" x="{x + 12}" y="{top + 18}">when they are called</text>')
    return svg(850, bottom + 96, "The folders of the three packages; imports run downwards", parts)


def flow() -> str:
    """One call of a decode, and where its numbers go."""
    parts = [
        box(20, 30, 170, 84, "room", "source", "heads · MTP · block", "masks · assistant · top-k"),
        box(250, 30, 150, 84, "box", "lattices", "k arcs a slot"),
        box(460, 30, 170, 84, "room", "strategy", "vanilla · p best", "tree · oracle"),
        box(690, 30, 140, 84, "box", "draft tree", "distinct prefixes"),
        box(460, 160, 170, 60, "room", "scorer", "n-gram · neural · none"),
        box(20, 160, 380, 60, "room", "other drafters", "copies of the text · an earlier output · yours"),
        box(690, 280, 140, 70, "mid", "verification", "one forward pass"),
        box(460, 280, 170, 70, "mid", "acceptance rule", "exact · lenient · sampling"),
        box(250, 280, 150, 70, "box", "committed tokens", "stop rules"),
        box(20, 280, 170, 70, "box", "states", "text, hidden state"),
        box(250, 410, 150, 60, "end", "calls, counts", "block efficiency"),
        box(460, 410, 170, 60, "end", "measuring", "oracle, comparisons"),
        box(690, 410, 140, 60, "end", "report", "pages, CSV, PNG"),
        arrow("M190 72H248"), arrow("M400 72H458"), arrow("M630 72H688"), arrow("M545 160V116"), arrow("M760 114V278"),
        arrow("M400 190H430V246H720V116"), arrow("M690 315H632"), arrow("M460 315H402"), arrow("M250 315H192"),
        arrow("M105 280V222"), arrow("M20 315H8V72H18"),
        arrow("M325 350V408"), arrow("M400 440H458"), arrow("M630 440H688"),
    ]  # fmt: skip
    return svg(
        850,
        490,
        "Data flow: source, lattices, strategy and scorer, draft tree, verification, acceptance, committed tokens,"
        " states",
        parts,
    )


def modules() -> str:
    """A table of all modules, by room."""
    owner: dict[str, list[str]] = {name: [] for name in ROOMS}
    for path in sorted(
        path for package in ("fst", "latticebpd", "lm_training") for path in (ROOT / package).rglob("*.py")
    ):
        if path.name.startswith("_"):
            continue
        folder = path.parent.relative_to(ROOT)
        room = next(str(name) for name in (folder, *folder.parents) if str(name) in ROOMS)
        owner[room].append("/".join([*folder.relative_to(room).parts, path.stem]))
    rows = [
        f"| `{room}` | {ROOMS[room]} | {', '.join(f'`{name}`' for name in names)} |" for room, names in owner.items()
    ]
    return "\n".join([BEGIN, "", "| folder | holds | modules |", "|---|---|---|", *rows, "", END])


def with_modules(text: str) -> str:
    """architecture.md with the table as it should be."""
    return re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: modules(), text, flags=re.DOTALL)


if __name__ == "__main__":
    page = DOCS / "architecture.md"
    page.write_text(with_modules(page.read_text(encoding="utf-8")), encoding="utf-8")
    (DOCS / "rooms.svg").write_text(rooms(), encoding="utf-8")
    (DOCS / "flow.svg").write_text(flow(), encoding="utf-8")
