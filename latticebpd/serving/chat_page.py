"""The page at ``/`` that chats with the model: one file, which loads nothing and talks to this server alone."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response


@cache
def _page() -> tuple[str, dict[str, str]]:
    """The page and its headers, with which a browser runs the page's own style and script and no others."""
    text = files("latticebpd.serving").joinpath("chat_page.html").read_text(encoding="utf-8")
    script, style = (_hash(*re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)) for tag in ("script", "style"))
    policy = {
        "default-src": "'none'", "script-src": script, "style-src": style, "img-src": "data:",
        "connect-src": "'self'", "base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'",
    }  # fmt: skip
    return text, {
        "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }


def _hash(source: str) -> str:
    """As a policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def page(request: Request) -> Response:
    """The page."""
    text, headers = _page()
    return HTMLResponse(text, headers=headers)
