"""A decode as HTML: its texts, with a bar before the tokens of each call."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from latticebpd.lattices.pictures import visible

MOST_ROWS, MOST_TOKENS = 4, 400  # shown of a decode, and of each row
_COLOURS = ("#00835e", "#1f6feb")

Decoder = Callable[[list[int]], str] | None  # tokens -> text; None shows their ids


def decode_html(generated: Any, decode: Decoder = None) -> str:
    """HTML of the texts of a ``Generated``; with a trace, a bar precedes the tokens of each call."""
    rows = []
    for row, tokens in enumerate(generated.tokens[:MOST_ROWS].tolist()):
        prompt, new = tokens[: generated.prompt_length], tokens[generated.prompt_length :]
        blocks = generated.blocks(row) if generated.trace is not None else [new]
        before = f'<span style="opacity:.6">{_text(decode, prompt)}</span>'
        rows.append(f'<p style="white-space:pre-wrap">{before}{_blocks(decode, blocks)}</p>')
    total, num_calls = len(generated.tokens), generated.num_calls
    more = f"<p>the first {MOST_ROWS} of {total} texts</p>" if total > MOST_ROWS else ""
    calls = f"{generated.num_tokens} tokens in {num_calls} call{'s' * (num_calls != 1)}"
    mean = f", {generated.block_efficiency:.2f} tokens per call" if num_calls else ""
    return f"<div>{''.join(rows)}{more}<p><small>{calls}{mean}</small></p></div>"


def _blocks(decode: Decoder, blocks: Sequence[Sequence[int]]) -> str:
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
        else:  # full prefixes, because a block may end inside a letter
            text = decode(so_far)
            text = text.rstrip("\ufffd") if number + 1 < len(blocks) else text
            new, shown = text[len(shown) :], text
        bar = '<span style="opacity:.4">┃</span>' if len(blocks) > 1 else ""
        parts.append(f'{bar}<span style="color:{_COLOURS[number % 2]}">{_safe(new)}</span>')
    return "".join(parts)


def _text(decode: Decoder, tokens: list[int]) -> str:
    cut = tokens[-MOST_TOKENS:]
    return ("… " if len(cut) < len(tokens) else "") + _safe(" ".join(map(str, cut)) if decode is None else decode(cut))


def _safe(text: str) -> str:
    """Escaped; line breaks and tabs stay, other control characters are marked."""
    parts = re.split(r"([\n\t])", escape(text))
    return "".join(part if part in ("\n", "\t") else visible(part).replace("␣", " ") for part in parts)
