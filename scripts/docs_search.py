"""A hook of mkdocs: a search for a word of quiesce finds the page of that word first, before other pages that
use it.
"""

from __future__ import annotations

from typing import Any

ABOVE_OTHERS = 4


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Called by mkdocs for each page; returns the Markdown to be rendered."""
    if page.file.src_uri.startswith("words/"):
        page.meta.setdefault("search", {})["boost"] = ABOVE_OTHERS
    return markdown
