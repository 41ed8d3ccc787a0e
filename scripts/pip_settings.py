"""Print how pip finds its packages here, for a pip in another root of this machine:

    set NAME=VALUE   an environment variable that says what files and variables say to the pip of this Python
    lend PATH        a file or folder that one of them names; of a package index, the folder that it is in as
                     well, for an index often refers to files beside it

A setting for a single command of pip counts if the command is `install`.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

SECTIONS = ("global", "install", ":env:")  # the later one wins
WRITTEN_BY_PIP = {"cache-dir", "log"}
INDEXES = {"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"}
FOLDERS_AND_FILES = {"PIP_FIND_LINKS", "PIP_CERT", "PIP_CLIENT_CERT"}
CERTIFICATES = {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}
PROXIES = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}


def main() -> None:
    for line in lines(listed_by_pip(), os.environ):
        print(line)


def listed_by_pip() -> str:
    command = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{sys.executable} -m pip config list failed:\n{done.stderr}")
    return done.stdout


def lines(listed: str, surroundings: Mapping[str, str]) -> Iterator[str]:
    variables = {
        name: value for name, value in surroundings.items() if name.upper() in CERTIFICATES | PROXIES
    }
    variables |= settings(listed)
    yield from (f"set {name}={value}" for name, value in variables.items())
    places = [
        place.parent if name in INDEXES and place.parent != Path("/") else place
        for name, value in variables.items()
        if name in INDEXES | FOLDERS_AND_FILES | CERTIFICATES
        for word in value.split()
        if (place := local_place(word)) and place.exists()
    ]
    yield from (f"lend {place}" for place in dict.fromkeys(places))


def settings(listed: str) -> dict[str, str]:
    """What `pip config list` printed, as the variables that pip reads."""
    by_section: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in listed.splitlines():
        where, _, value = line.partition("=")
        section, _, key = where.partition(".")
        if section in by_section and key not in WRITTEN_BY_PIP:
            # Values with several lines are lists; in a variable, blanks part them.
            by_section[section]["PIP_" + key.upper().replace("-", "_")] = " ".join(
                ast.literal_eval(value).split()
            )
    return {name: value for section in SECTIONS for name, value in by_section[section].items()}


def local_place(word: str) -> Path | None:
    """The file or folder that a word of a setting names, if it is one of this machine."""
    parts = urlsplit(word)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(word) if word.startswith("/") else None


if __name__ == "__main__":
    main()
