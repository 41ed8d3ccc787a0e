"""Text in the HTML report: nothing that comes from a program gets into the page but through `esc`.

Names, paths and messages may hold anything. Control characters and those that turn the direction of writing are shown
as escapes, so that what is read is what is there.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from quiesce._safe.printed import printed
from quiesce.audit.model import Place, shorten


def esc(text: object) -> str:
    """For content and for quoted attributes."""
    return html.escape(printed(text), quote=True)


def code(text: object) -> str:
    return f"<code>{esc(text)}</code>"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".") if text else ""


def clip(text: str, limit: int) -> str:
    """Short enough for a label. The end of a qualified name or a path says more than its beginning."""
    return text if len(text) <= limit else "…" + text[1 - limit :]


def local_name(name: str) -> str:
    """A qualified name without the functions around it."""
    return name.rpartition("<locals>.")[2]


def reader_place(places: Sequence[Place]) -> Place | None:
    """Of places given innermost first: the first that the reader can change, or else the innermost."""
    return next((p for p in places if not p.in_library), places[0] if places else None)


def frame(place: Place) -> str:
    return f"<code>{esc(shorten(place.file))}:{place.line}</code> in {code(place.function)}"


def frames(places: Sequence[Place], own: Sequence[Place] = ()) -> str:
    """Places given innermost first: `own`, which are the reader's unless told, to see; the others folded."""
    own = own or [p for p in places if not p.in_library] or places[:1]
    shown = "".join(f"<li>{frame(p)}</li>" for p in own)
    folded = ""
    if hidden := len(places) - len(own):
        every = "".join(f"<li>{frame(p)}</li>" for p in places)
        folded = f"<details><summary>with {plural(hidden, 'frame')} in libraries</summary><ol>{every}</ol></details>"
    return f"<ol>{shown}</ol>{folded}"
