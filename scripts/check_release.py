"""scripts/check_release.py [TAG]: whether the changelog has its shape, whether quiesce and quiesce-chat are
at the same version and need each other in it, and, with TAG, whether that tag may be published.

The changelog has a section per release, the newest first, under `## 1.2.3 (2031-12-24)`, and above them at most one
`## Unreleased`. Inside, `###` headings are those of https://keepachangelog.com.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNRELEASED = "Unreleased"
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+) \((\d{4}-\d\d-\d\d)\)")


def changelog_faults(changelog: str, version: str) -> Iterator[str]:
    """What is wrong with the text of a changelog in a tree that is at `version`."""
    headings = [line.removeprefix("## ") for line in changelog.splitlines() if line.startswith("## ")]
    releases = [heading for heading in headings if heading != UNRELEASED]
    if UNRELEASED in headings[1:]:
        yield f"{UNRELEASED} is not the first section, or there are two"
    for heading in releases:
        if not is_release(heading):
            yield f"{heading!r} is neither {UNRELEASED!r} nor a version with its day, such as '1.2.3 (2031-12-24)'"
    numbers = [tuple(map(int, match.groups()[:3])) for match in map(RELEASE.fullmatch, releases) if match]
    if numbers != sorted(set(numbers), reverse=True):
        yield "the releases are not in order, the newest first"
    if UNRELEASED not in headings and not any(heading.startswith(f"{version} (") for heading in releases):
        yield f"there is a section neither for {version} nor for what is not released yet"
    for line in changelog.splitlines():
        if line.startswith("### ") and line.removeprefix("### ") not in KINDS:
            yield f"{line!r} is none of {', '.join(sorted(KINDS))}"


def is_release(heading: str) -> bool:
    if not (match := RELEASE.fullmatch(heading)):
        return False
    try:
        date.fromisoformat(match[4])
    except ValueError:
        return False
    return True


def version_faults(quiesce: str, chat: str) -> Iterator[str]:
    """What is wrong with the versions in the texts of pyproject.toml and of chat/pyproject.toml."""
    version = tomllib.loads(quiesce)["project"]["version"]
    if (other := tomllib.loads(chat)["project"]["version"]) != version:
        yield f"quiesce is at {version}, and quiesce-chat is at {other}"
    for needed in re.findall(r'"(quiesce(?:-chat)?(?:\[\w+\])?==[^"]+)"', quiesce + chat):
        if not needed.endswith(f"=={version}"):
            yield f"quiesce is at {version}, and {needed} is needed"


def tag_faults(tag: str, changelog: str, version: str) -> Iterator[str]:
    """What keeps `tag` from being published from a tree that is at `version`."""
    if tag != f"v{version}":
        yield f"the tag is {tag}, and pyproject.toml is at {version}: the tag must be v{version}"
    first = next((line.removeprefix("## ") for line in changelog.splitlines() if line.startswith("## ")), "")
    if not first.startswith(f"{version} ("):
        yield f"the changelog begins with {first!r}, not with {version} and its day"


def main(arguments: list[str]) -> int:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    quiesce, chat = ((ROOT / name).read_text() for name in ("pyproject.toml", "chat/pyproject.toml"))
    version = tomllib.loads(quiesce)["project"]["version"]
    faults = [*changelog_faults(changelog, version), *version_faults(quiesce, chat)]
    for tag in arguments:
        faults += tag_faults(tag, changelog, version)
    print("\n".join(faults) or f"{version}: the changelog has its shape")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
