"""Folders of the user, by the XDG base directory specification."""

from __future__ import annotations

import os
from pathlib import Path


def user_folder(variable: str, default: str, contents: str) -> Path:
    """The folder that an XDG variable names, or else `default` below the home directory.

    Raises `FileNotFoundError` if the home directory is needed and unknown; `contents` says what cannot be stored then.
    """
    named = os.environ.get(variable, "")
    # The specification says to ignore a relative path.
    if os.path.isabs(named):
        return Path(named)
    try:
        return Path.home() / default
    except RuntimeError:
        raise FileNotFoundError(
            f"cannot store {contents}, because your home directory is unknown: set HOME or {variable}, "
            "or use --store FILE (or --store none)"
        ) from None
