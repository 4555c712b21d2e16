"""The README's two pictures: speeds as bars, and two decodes of one answer that run next to each other.

    python -m benchmarks.pictures bars                                  # docs/speed.svg from the committed rows
    python -m benchmarks.pictures record --model qwen2.5-coder-1.5b     # docs/decodes.json: what was written when
    python -m benchmarks.pictures decodes                               # docs/decodes.svg from the record

The decodes run in real time, over and over; where a reader prefers no motion, their last picture is shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import columns, grouped, options, read_csv, read_json, run, set_up, signature, write_json
from benchmarks.qwen.speed import DEFAULT, GREEDY, ratio
from docs.draw import svg
from fst.files import write_text
from latticebpd import Drafter, Loaded, NoDrafter, load

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RECORD = DOCS / "decodes.json"
MODELS = {
    "SmolLM2 135M": ("smollm2", "unread", "chat: Spec-Bench"),
    "Qwen2.5-Coder 0.5B": ("qwen", "beside-0.5b", "code: HumanEval"),
    "Qwen2.5-Coder 1.5B": ("qwen", "beside-1.5b", "code: HumanEval"),
}
"""Model -> folder and file of its rows, and what it is asked."""
PEERS = {
    "unread": ("llama-server-q4_0",),
    "beside-0.5b": ("llama-server-0.5b",),
    "beside-1.5b": ("llama-server-1.5b",),
}
"""File of rows -> those of llama.cpp's, with the same file or with weights that it computes faster."""
Row = Mapping[str, Any]
QUESTION = "Add type hints and a docstring to this function."
CODE = """
def longest_repeated(text, least):
    seen, best = set(), ""
    for word in text.split():
        if word in seen and len(word) > max(least, len(best)):
            best = word
        seen.add(word)
    return best
"""
NEW_TOKENS = 160
HOLD = 2.5
"""Seconds for which the last picture stays."""
STYLE = """<style>
text { fill: #1c2024; font: 14px system-ui, sans-serif } .faint { fill: #60666c } .small { font-size: 12px }
.b { font-weight: 600 } .e { text-anchor: end } .ground { fill: #fbfbfa } .pane { fill: #fff; stroke: #d9dcdf }
.peer { fill: #9aa2aa } .engine { fill: #0072b2 } .drafts { fill: #d55e00 }
.code { font: 12px ui-monospace, Menlo, Consolas, monospace; white-space: pre }
.even { fill: #00694b } .odd { fill: #0060a8 }
@media (prefers-color-scheme: dark) {
text { fill: #e6e8ea } .faint { fill: #a2a9b0 } .ground { fill: #14171a } .pane { fill: #1b1f23; stroke: #3a4046 }
.peer { fill: #737b83 } .engine { fill: #3d9bdc } .drafts { fill: #ff9248 }
.even { fill: #4cd3a5 } .odd { fill: #6fbdf5 } }
@media (prefers-reduced-motion: reduce) { * { animation: none !important } }
</style>"""


def words(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(text)}</text>'


# ---------------------------------------------------------------- bars
def measured() -> dict[str, tuple[list[Row], list[Row]]]:
    """Of each model the rows of latticebpd and of llama.cpp, for the questions that both have answered."""
    found = {}
    for model, (folder, name, _) in MODELS.items():
        results = ROOT / "benchmarks" / folder / "results"
        own, files = (
            read_csv(results / f"{name}.csv"),
            {each: read_csv(results / f"{each}.csv") for each in PEERS[name]},
        )
        peers = [{**row, "system": f"{row['system']}, {file}"} for file, rows in files.items() for row in rows]
        both = {row["question"] for row in own} & {row["question"] for row in peers}
        found[model] = tuple([row for row in rows if row["question"] in both] for rows in (own, peers))
    return found


def speeds_of(own: Sequence[Row], peers: Sequence[Row]) -> tuple[float, float, float]:
    """Tokens a second of llama.cpp's fastest way, of greedy decoding and of the default."""
    ours, theirs = ({name: rate(each) for name, each in grouped(some, "system").items()} for some in (own, peers))
    return max(theirs.values()), ours[GREEDY], ours[DEFAULT]


def lines_of_speeds() -> list[list[str]]:
    """A line for each model, as README has them."""
    lines = []
    for model, (own, peers) in measured().items():
        peer, engine, drafted = speeds_of(own, peers)
        by_system = grouped(own, "system")
        gain = ratio(by_system[DEFAULT], by_system[GREEDY], "seconds")
        lines.append([model, *(f"{each:.0f}" for each in (peer, engine, drafted)), f"{drafted / peer:.1f}",
                      f"{engine / peer:.1f}", gain])  # fmt: skip
    return lines


def rate(rows: Sequence[Mapping[str, Any]]) -> float:
    tokens, seconds = columns(rows, "tokens", "seconds").sum(axis=1)
    return float(tokens / seconds)


def bars() -> str:
    left, right, height, step = 196, 640, 20, 84
    found = {model: speeds_of(*rows) for model, rows in measured().items()}
    scale = (right - left) / max(drafted for _, _, drafted in found.values())
    parts = []
    for number, (model, each) in enumerate(found.items()):
        top = 54 + number * step
        parts += [words(16, top + 15, model, "b"), words(16, top + 37, MODELS[model][2], "faint small")]
        peer, engine, drafted = each
        parts.append(f'<rect class="peer" x="{left}" y="{top}" width="{peer * scale:.1f}" height="{height}"/>')
        parts.append(words(left + peer * scale + 8, top + 15, f"{peer:.0f}", "faint"))
        top += height + 4
        parts.append(f'<rect class="engine" x="{left}" y="{top}" width="{engine * scale:.1f}" height="{height}"/>')
        start, size = left + engine * scale, (drafted - engine) * scale
        parts.append(f'<rect class="drafts" x="{start:.1f}" y="{top}" width="{size:.1f}" height="{height}"/>')
        ratios = f"{drafted:.0f}: {engine / peer:.1f}× by the engine, {drafted / engine:.2f}× by drafts"
        parts.append(words(left + drafted * scale + 8, top + 15, ratios))
    legend = [
        ("peer", "llama.cpp, its fastest way"),
        ("engine", "latticebpd without drafts"),
        ("drafts", "and with drafts"),
    ]
    for at, (kind, text) in zip((left, left + 210, left + 420), legend, strict=True):
        parts += [f'<rect class="{kind}" x="{at}" y="18" width="12" height="12"/>', words(at + 18, 29, text, "small")]
    parts.append(words(16, 29, "tokens a second", "faint small"))
    label = "Tokens a second of three models: " + "; ".join(
        f"{model}: llama.cpp {peer:.0f}, latticebpd {engine:.0f} without drafts, {drafted:.0f} with"
        for model, (peer, engine, drafted) in found.items()
    )
    return svg(960, 54 + step * len(found) - 20, label, parts, STYLE)


# ---------------------------------------------------------------- decodes
class Clock:
    """A streamer that notes when which tokens came, in seconds from the call on."""

    accepts_numpy = True

    def __init__(self) -> None:
        self.blocks: list[tuple[float, list[int]]] = []
        self._begun, self._prompt_seen = time.perf_counter(), False

    def put(self, tokens: np.ndarray) -> None:
        if self._prompt_seen:
            self.blocks.append((time.perf_counter() - self._begun, tokens.flatten().tolist()))
        self._prompt_seen = True

    def end(self) -> None:
        pass


def record(loaded: Loaded) -> list[dict[str, Any]]:
    """Without and with drafts: seconds and text of each block."""
    drafters: dict[str, Drafter] = {"without drafts": NoDrafter(), "latticebpd": loaded.drafter()}
    asked = f"{QUESTION}\n\n```python{CODE}```"
    for drafter in drafters.values():
        loaded.generate(asked, drafter, max_new_tokens=8)  # warms up
    decodes = []
    for name, drafter in drafters.items():
        clock = Clock()
        loaded.generate(asked, drafter, max_new_tokens=NEW_TOKENS, streamer=clock)
        tokens, blocks, shown = list[int](), [], 0
        for seconds, new in clock.blocks:
            tokens += new
            text = loaded.tokenizer.decode(tokens, skip_special_tokens=True).rstrip("\ufffd")
            blocks.append([round(seconds, 4), text[shown:], len(new)])
            shown = len(text)
        decodes.append({"name": name, "blocks": blocks})
    return decodes


def pieces(blocks: Sequence[tuple[float, str, int]], width: int) -> Iterator[tuple[float, int, int, int, str]]:
    """Seconds, block, line, column and text of each piece: a block's part of a line of at most ``width`` characters."""
    line = column = 0
    for number, (seconds, text, _) in enumerate(blocks):
        for part in text.splitlines(keepends=True):
            rest = part.rstrip("\n")
            while rest:
                if column == width:
                    line, column = line + 1, 0
                fits, rest = rest[: width - column], rest[width - column :]
                yield seconds, number, line, column, fits
                column += len(fits)
            if part.endswith("\n"):
                line, column = line + 1, 0


def decodes() -> str:
    kept = read_json(RECORD)
    both = kept["decodes"]
    total = max(each["blocks"][-1][0] for each in both) + HOLD
    pane, gap, line_height, glyph, top = 466, 12, 16, 7.2247, 92
    width = int((pane - 24) / glyph)
    parts, rules, last = (
        [words(16, 28, kept["model"], "b"), words(16, 50, f"“{kept['question']}”", "faint small")],
        [],
        0,
    )
    for number, each in enumerate(both):
        x, blocks = 16 + number * (pane + gap), each["blocks"]
        tokens, seconds = sum(count for _, _, count in blocks), blocks[-1][0]
        own = list(pieces(blocks, width))
        last = max(last, max(line for _, _, line, _, _ in own))
        rate = f"{tokens} tokens in {len(blocks)} passes, {seconds:.1f} s: {tokens / seconds:.0f} tokens/s"
        parts += [words(x + 12, top - 6, each["name"], "b"), words(x + pane - 12, top - 6, rate, "e small faint rate")]
        for at, block, line, column, text in own:
            share = 100 * at / total
            name = f"k{number}-{block}"
            rule = f"@keyframes {name} {{ 0% {{ opacity: 0 }} {share:.2f}% {{ opacity: 1 }} }}"
            if not rules or rules[-1] != rule:
                rules.append(rule)
            y = top + 24 + line * line_height
            style = f"animation: {name} {total:.2f}s steps(1) infinite"
            parts.append(
                f'<text x="{x + 12 + column * glyph:.1f}" y="{y}" class="code {("even", "odd")[block % 2]}"'
                f' style="{style}" xml:space="preserve" textLength="{len(text) * glyph:.1f}">{escape(text)}</text>'
            )
    height = top + 24 + (last + 1) * line_height
    panes = [
        f'<rect class="pane" x="{16 + number * (pane + gap)}" y="{top}" width="{pane}" height="{height - top}" rx="6"/>'
        for number in range(len(both))
    ]
    return svg(
        2 * pane + gap + 32,
        height + 16,
        "Two decodes of one answer, next to each other, in real time",
        [f"<style>{chr(10).join(rules)}</style>", *panes, *parts],
        STYLE,
    )


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("what", choices=["bars", "record", "decodes"])
    parser.add_argument("--model", default="qwen2.5-coder-1.5b", help="that is recorded")
    args = parser.parse_args()
    if args.what == "record":
        set_up(1)
        loaded = load(args.model)
        _ = loaded.costs
        about = {"model": args.model, "question": QUESTION, "decodes": record(loaded)}
        write_json(RECORD, {**about, "made by": signature()})
    else:
        drawn = {"bars": ("speed.svg", bars), "decodes": ("decodes.svg", decodes)}
        name, draw = drawn[args.what]
        write_text(DOCS / name, draw())


if __name__ == "__main__":
    run(main)
