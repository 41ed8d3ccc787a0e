"""What a docstring says about a function and its parameters, in the Google, NumPy and Sphinx styles.

Only what a model needs is taken: the text before the first section, and a description a parameter. A docstring of no style
at all is description from beginning to end.
"""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple

_PARAMETERS = frozenset(
    {"args", "arguments", "parameters", "params", "other parameters", "keyword args", "keyword arguments"}
)
_OTHERS = frozenset(
    {
        "attributes",
        "example",
        "examples",
        "note",
        "notes",
        "raises",
        "references",
        "return",
        "returns",
        "see also",
        "todo",
        "warns",
        "warning",
        "warnings",
        "yield",
        "yields",
    }
)
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:\s*(.*)")
_NUMPY_ENTRY = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")
_SPHINX_FIELD = re.compile(r":(\w+)(?:\s+([^:]*?))?:\s*(.*)")


class Docstring(NamedTuple):
    """The text that describes the function, and a text a parameter."""

    description: str
    parameters: dict[str, str]


def parse_docstring(text: str | None) -> Docstring:
    """Read a docstring; one that is missing describes nothing."""
    if not text:
        return Docstring("", {})
    lines = inspect.cleandoc(text).splitlines()
    description: list[str] = []
    entries: dict[str, list[str]] = {}
    at = 0
    while at < len(lines):
        section = _section_at(lines, at)
        if section is not None:
            name, style, at = section
            end = _end_of_section(lines, at, style)
            if name in _PARAMETERS:
                read = _read_numpy if style == "numpy" else _read_google
                read(lines[at:end], entries)
            at = end
        elif _SPHINX_FIELD.match(lines[at]):
            at = _read_sphinx(lines, at, entries)
        else:
            # Prose after a section belongs to that section's author, and is description all the same.
            description.append(lines[at])
            at += 1
    told = "\n".join(description).strip()
    return Docstring(
        re.sub(r"\n{3,}", "\n\n", told),
        {name: _joined(said) for name, said in entries.items() if _joined(said)},
    )


def _section_at(lines: list[str], at: int) -> tuple[str, str, int] | None:
    """The name and style of the section that begins here, and where its body does."""
    line = lines[at]
    if line[:1].isspace():
        return None
    name = line.strip().rstrip(":").lower()
    if name not in _PARAMETERS and name not in _OTHERS:
        return None
    following = lines[at + 1] if at + 1 < len(lines) else ""
    if re.fullmatch(r"-{3,}\s*", following):
        return name, "numpy", at + 2
    # "Note:" may also begin a paragraph: a section of this style has an indented body.
    if line.rstrip().endswith(":") and following[:1].isspace():
        return name, "google", at + 1
    return None


def _end_of_section(lines: list[str], at: int, style: str) -> int:
    while at < len(lines):
        line = lines[at]
        if line.strip() and not line[:1].isspace() and (style == "google" or _section_at(lines, at)):
            return at
        at += 1
    return at


def _read_google(body: list[str], entries: dict[str, list[str]]) -> None:
    margin = min((_indent(line) for line in body if line.strip()), default=0)
    said: list[str] | None = None
    for line in body:
        found = _GOOGLE_ENTRY.match(line.strip()) if _indent(line) == margin else None
        if found is not None:
            said = entries.setdefault(found[1], [])
            said.append(found[2])
        elif said is not None:
            said.append(line.strip())


def _read_numpy(body: list[str], entries: dict[str, list[str]]) -> None:
    described: list[list[str]] = []
    for line in body:
        found = _NUMPY_ENTRY.fullmatch(line.strip()) if line.strip() and _indent(line) == 0 else None
        if found is not None:
            described = [entries.setdefault(name.strip(" *"), []) for name in found[1].split(",")]
        else:
            for said in described:
                said.append(line.strip())


def _read_sphinx(lines: list[str], at: int, entries: dict[str, list[str]]) -> int:
    """Read one field, with the indented lines that go on with it; returns where it ends."""
    found = _SPHINX_FIELD.match(lines[at])
    assert found is not None
    said = [found[3]]
    at += 1
    while at < len(lines) and (lines[at][:1].isspace() or not lines[at].strip()):
        said.append(lines[at].strip())
        at += 1
    if found[1] in {"param", "parameter", "arg", "argument", "key", "keyword"} and found[2]:
        entries.setdefault(found[2].split()[-1].lstrip("*"), []).extend(said)
    return at


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip()) if line.strip() else -1


def _joined(said: list[str]) -> str:
    return " ".join(part for part in said if part)
