"""Fail if a file that belongs to the project names a package registry's host, or a path of the machine it
was written on, or still has the marks of a merge that somebody has to decide on.

A host or a path would tie the project to one place: a clone elsewhere has another home directory and, often,
another registry.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# Each pattern holds a class of one letter, so that this file does not match itself.
REGISTRIES = r"https?://[^\s\"')]*(?:simpl[e]\b|pyp[i]|registr[y]|artifactor[y]|np[m]js)"
MACHINE_PATHS = r"(?<![\w.~$}>*-])/(?:wor[k]|roo[t]|op[t]|hom[e]/\w+)(?=/|\b(?![.-]))"
CONFLICTS = r"^(?:<{7}|>{7}) "
FORBIDDEN = {
    "a registry host": re.compile(REGISTRIES),
    "a machine's path": re.compile(MACHINE_PATHS),
    "the mark of a merge": re.compile(CONFLICTS),
}


def project_files(root: Path) -> Iterator[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout
    for name in listing.decode().split("\0"):
        if name and (path := root / name).is_file():
            yield path


def offences(root: Path) -> Iterator[str]:
    for path in project_files(root):
        text = path.read_bytes().decode(errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            for what, pattern in FORBIDDEN.items():
                if match := pattern.search(line):
                    yield f"{path.relative_to(root)}:{number}: {what}: {match[0]}"


def main() -> int:
    found = list(offences(Path.cwd()))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
