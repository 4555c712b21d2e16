"""A decode as HTML: its texts, and where each call of the model began."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from latticebpd.lattices.pictures import visible

MOST_ROWS, MOST_TOKENS = 4, 400
"""What is shown at most: rows, and tokens of each."""

_COLOURS = ("#00835e", "#1f6feb")


def decode_html(found: Any, decode: Callable[[list[int]], str] | None = None) -> str:
    """HTML of the texts; where the decode has a trace, each bar begins what one call of the model committed.

    Args:
        found: a ``Generated``.
        decode: tokens -> text; None shows their numbers.
    """
    rows = []
    for row in range(min(MOST_ROWS, len(found.sequences))):
        prompt = found.sequences[row, : found.prompt_length].tolist()
        new = found.sequences[row, found.prompt_length :].tolist()
        blocks = found.blocks(row) if found.trace is not None else [new]
        rows.append(
            '<p style="white-space:pre-wrap"><span'
            f' style="opacity:.6">{_text(decode, prompt)}</span>{_blocks(decode, blocks)}</p>'
        )
    more = f"<p>the first {MOST_ROWS} of {len(found.sequences)} texts</p>" if len(found.sequences) > MOST_ROWS else ""
    calls = f"{found.num_tokens} tokens in {found.num_calls} call{'s' * (found.num_calls != 1)}"
    mean = f", {found.block_efficiency:.2f} tokens per call" if found.num_calls else ""
    return f"<div>{''.join(rows)}{more}<p><small>{calls}{mean}</small></p></div>"


def _blocks(decode: Callable[[list[int]], str] | None, blocks: Sequence[Sequence[int]]) -> str:
    parts: list[str] = []
    so_far: list[int] = []
    shown = ""
    for number, block in enumerate(blocks):
        if len(so_far) == MOST_TOKENS:
            parts.append(" …")
            break
        block = block[: MOST_TOKENS - len(so_far)]
        so_far += block
        if decode is None:
            new = " " + " ".join(map(str, block))
        else:  # whole prefixes, because a block may end inside a letter
            text = decode(so_far)
            text = text.rstrip("\ufffd") if number + 1 < len(blocks) else text
            new, shown = text[len(shown) :], text
        bar = '<span style="opacity:.4">┃</span>' if len(blocks) > 1 else ""
        parts.append(f'{bar}<span style="color:{_COLOURS[number % 2]}">{_safe(new)}</span>')
    return "".join(parts)


def _text(decode: Callable[[list[int]], str] | None, tokens: list[int]) -> str:
    cut = tokens[-MOST_TOKENS:]
    return ("… " if len(cut) < len(tokens) else "") + _safe(" ".join(map(str, cut)) if decode is None else decode(cut))


def _safe(text: str) -> str:
    """Escaped, line breaks kept, other control characters marked."""
    return "\n".join(
        "\t".join(visible(part).replace("␣", " ") for part in line.split("\t")) for line in escape(text).split("\n")
    )
