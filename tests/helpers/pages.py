"""Pages taken apart: well formed, every link within, nothing loaded."""

from __future__ import annotations

from html.parser import HTMLParser


class _Page(HTMLParser):
    """Collects what a page loads, its ids and its links; every opened element must be closed."""

    VOID = frozenset(["meta", "link", "br", "img", "input"])

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.links += [value for name, value in attrs if name in ("href", "src", "xlink:href") and value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_page(text: str) -> set[str]:
    """Assert that a page is well formed, that its links lead to places of its own, and that it loads nothing; returns
    its tags."""
    page = _Page()
    page.feed(text)
    assert page.open == []
    assert not {"link", "img", "iframe", "object"} & page.tags
    assert all(link.startswith("#") for link in page.links)
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert "url(http" not in text
    assert "@import" not in text
    return page.tags
