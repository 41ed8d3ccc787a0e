"""What a docstring says about a function and its parameters, in the Google, NumPy and Sphinx styles.

Only what a model needs is taken: the text outside of all sections, and a description of each parameter. The
library `docstring_parser` does the parsing. What it would lose is put right here: Google sections that it
does not know, entries that go on in a line without extra indentation, prose behind a section or a field,
parameters that share a description, and the stars of `*args` and `**kwargs`.
"""

from __future__ import annotations

import inspect
import re
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from quiesce._extras import require

if TYPE_CHECKING:
    from docstring_parser.google import GoogleParser

_PARAMETERS = (
    "Other Parameters",
    "Keyword Args",
    "Keyword Arguments",
)  # besides those that the library knows
_OTHERS = (
    *("Note", "Notes", "References", "Return", "See Also", "Todo"),
    *("Warns", "Warning", "Warnings", "Yield"),
)
_FIELDS = "param|parameter|arg|argument|key|keyword|type|raises?|returns?|rtype|yields?|ytype"


class Docstring(NamedTuple):
    """The text that describes the function, and one text per parameter."""

    description: str
    parameters: dict[str, str]


def parse_docstring(text: str | None) -> Docstring:
    """Read a docstring; a missing one describes nothing, and one in no style is all description."""
    if not text:
        return Docstring("", {})
    require("docstring_parser", "agents", "function_tool")
    from docstring_parser import ParseError, numpydoc, rest

    text = inspect.cleandoc(text)
    ordered = _with_sections_last(text)
    readings: list[Any] = [numpydoc.parse(text)]
    for parse in (_google().parse, rest.parse):
        with suppress(ParseError):
            readings.append(parse(ordered))
    # Read in a style that it is not written in, the text has no sections, and is description from beginning
    # to end.
    best = max(readings, key=lambda one: (len(one.params), len(one.meta), -len(one.description or "")))
    parameters: dict[str, str] = {}
    for one in best.params:
        for name in one.arg_name.split(","):
            if description := " ".join((one.description or "").split()):
                parameters[name.strip(" *")] = description
    return Docstring(re.sub(r"\n{3,}", "\n\n", (best.description or "").strip()), parameters)


@cache
def _google() -> GoogleParser:
    from docstring_parser.google import DEFAULT_SECTIONS, GoogleParser, Section, SectionType

    parameters = [Section(title, "param", SectionType.MULTIPLE) for title in _PARAMETERS]
    others = [Section(title, title.lower(), SectionType.SINGULAR) for title in _OTHERS]
    return GoogleParser([*DEFAULT_SECTIONS, *parameters, *others])


def _with_sections_last(text: str) -> str:
    """The same text with all prose in front of the first Google section or Sphinx field.

    The library takes what comes after these for a part of them, or drops it. "Note:" may also begin a
    paragraph: a section has an indented body.
    """
    sections: list[str] = []

    def take(found: re.Match[str]) -> str:
        title, body = found["title"], found["body"]
        if title is not None:
            # A line without a colon goes on with the entry before it. The library wants such a line further
            # indented.
            body = re.sub(r"^([ \t]+)([^:\s][^:\n]*)$", r"\1\1\2", body, flags=re.MULTILINE)
        sections.append(f"{title.title()}:\n{body}" if title is not None else found[0])
        return ""

    titles = "|".join(_google().sections)
    indented = r"(?:[ \t]+\S.*(?:\n|\Z)|[ \t]*\n)*"
    section = rf"(?P<title>{titles}):[ \t]*\n(?=[ \t]+\S)(?P<body>{indented})"
    field = rf":(?:{_FIELDS})\b[^:\n]*:.*(?:\n|\Z){indented}"
    prose = re.sub(rf"^(?:{section}|{field})", take, text, flags=re.MULTILINE | re.IGNORECASE)
    return "\n\n".join([prose.rstrip(), "\n".join(sections)]) if sections else text
