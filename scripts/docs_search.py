"""Who searches the documentation for a word of quiesce wants its own page first, not every page that uses it. A hook of mkdocs."""

from __future__ import annotations

from typing import Any

ABOVE_OTHERS = 4


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Called for each page; what it gives back is what is rendered."""
    if page.file.src_uri.startswith("words/"):
        page.meta.setdefault("search", {})["boost"] = ABOVE_OTHERS
    return markdown
