"""Text in the HTML report. Text from an audited program gets into the page only through `esc`.

Names, paths and messages may contain anything. Control characters, and characters that change the direction of writing,
are shown as escapes, so that readers see what is really there.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from quiesce._safe.printed import printed
from quiesce.audit.model import Place, shorten


def esc(text: object) -> str:
    """Escape text for content and for quoted attributes."""
    return html.escape(printed(text), quote=True)


def code(text: object) -> str:
    return f"<code>{esc(text)}</code>"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def sentence(text: str) -> str:
    """Add a capital letter and a full stop."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".") if text else ""


def clip(text: str, limit: int) -> str:
    """Shorten text for a label by cutting its beginning: the end of a name or path says more."""
    return text if len(text) <= limit else "…" + text[1 - limit :]


def local_name(name: str) -> str:
    """A qualified name without the functions around it."""
    return name.rpartition("<locals>.")[2]


def reader_place(places: Sequence[Place]) -> Place | None:
    """The first of these places (innermost first) that the reader can change, or else the innermost."""
    return next((p for p in places if not p.in_library), places[0] if places else None)


def frame(place: Place) -> str:
    return f"<code>{esc(shorten(place.file))}:{place.line}</code> in {code(place.function)}"


def frames(places: Sequence[Place], own: Sequence[Place] = ()) -> str:
    """A list of places, innermost first: `own` (default: those outside of libraries) visible, the others folded."""
    own = own or [p for p in places if not p.in_library] or places[:1]
    visible = "".join(f"<li>{frame(p)}</li>" for p in own)
    folded = ""
    if hidden := len(places) - len(own):
        every = "".join(f"<li>{frame(p)}</li>" for p in places)
        folded = f"<details><summary>with {plural(hidden, 'frame')} in libraries</summary><ol>{every}</ol></details>"
    return f"<ol>{visible}</ol>{folded}"
