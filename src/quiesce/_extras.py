"""The error for a missing optional dependency."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


class MissingExtra(ImportError):
    """A part of quiesce needs a package that the base installation does not include."""


def require(module: str, extra: str, what: str) -> ModuleType:
    """Import a module, or raise `MissingExtra` with the name of the extra to install.

    ```python
    openai = require("openai", "openai", "OpenAIModel")
    ```
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        # The package is installed, but one of its own imports is missing. That is another error, and is not hidden.
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise MissingExtra(
            f"{what} needs the package {module.partition('.')[0]!r}, which is not installed: "
            f"pip install 'quiesce[{extra}]'",
            name=module,
        ) from error
