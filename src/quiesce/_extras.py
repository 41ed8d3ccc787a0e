"""What a missing optional dependency says."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


class MissingExtra(ImportError):
    """Something of quiesce needs a package that its base install does not bring."""


def require(module: str, extra: str, what: str) -> ModuleType:
    """The module, or an error that says which extra brings it.

    ```python
    openai = require("openai", "openai", "OpenAIModel")
    ```
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise MissingExtra(
            f"{what} needs the package {module.partition('.')[0]!r}, which is not installed: "
            f"pip install 'quiesce[{extra}]'",
            name=module,
        ) from error
