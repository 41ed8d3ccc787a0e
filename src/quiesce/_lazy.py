"""What a package offers, written down once and loaded on first use.

A package lists the names that it offers as imports in an `if TYPE_CHECKING:` block and calls `offer()` below it. Type checkers
and readers see ordinary imports. At run time the block is skipped, and a name is imported when it is first asked for: importing
one part of the library imports no other.

A table of names beside the block would be the obvious way, and would say everything twice. Instead, when a name is first asked for,
the code of the package runs once more, with the block and with an `__import__` that imports nothing and notes what it is asked for.
That needs neither the source, which a frozen program does not have, nor byte code, which every version of Python changes. It
does mean that such a package holds nothing but its docstring, its imports and constants.
"""

from __future__ import annotations

import builtins
import sys
from importlib import import_module
from types import CodeType

TYPE_CHECKING = (
    False  # see `quiesce/__init__.py`: nothing is imported here that a hostile folder could replace
)
if TYPE_CHECKING:
    from typing import Any


def offer() -> None:
    """Make the names that the calling module imports in its `if TYPE_CHECKING:` block its attributes, each when it is first used.

    They are its `__all__`.
    """
    frame = sys._getframe(1)
    names, code = frame.f_globals, frame.f_code
    package: str = names["__name__"] if "__path__" in names else names["__name__"].rpartition(".")[0]
    noted: dict[str, _Noted] = {}

    def offered() -> dict[str, _Noted]:
        if not noted:
            noted.update(_imports_of(code, package))
        return noted

    def load(name: str) -> object:
        if name == "__all__":
            return sorted(offered())
        if name not in offered():
            raise AttributeError(f"module {names['__name__']!r} has no attribute {name!r}")
        value = names[name] = noted[name].load()
        return value

    def listed() -> list[str]:
        return sorted({*names, *offered()})

    names["__getattr__"], names["__dir__"] = load, listed


def from_above(module: str, name: str) -> Any:
    """Import `name` of a higher room for a lower one, by its name and at the time of the call.

    Imports go downward. Use this in the few places where a call has to go up: a scope does not know which event loops exist.
    """
    return getattr(import_module(module), name)


class _Noted:
    """A name that was to be imported from a module, or a module, if it has none."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    def load(self) -> object:
        module = import_module(self._module)
        return getattr(module, self._name) if self._name else module


class _Here:
    """A module of the package, or the package, as the source of an import."""

    def __init__(self, package: str, module: str) -> None:
        self._package = package
        self._module = module

    @property
    def __all__(self) -> list[str]:
        """For `from .names import *`: only that module knows."""
        names: list[str] = import_module(f"{self._package}.{self._module}").__all__
        return names

    def __getattr__(self, name: str) -> _Noted:
        if self._module:
            return _Noted(f"{self._package}.{self._module}", name)
        return _Noted(f"{self._package}.{name}", "")


class _Elsewhere:
    """Any other module, and whatever is in it: `TYPE_CHECKING` is true, and functions do nothing."""

    def __getattr__(self, name: str) -> _Elsewhere:
        return self

    def __call__(self, *args: object, **options: object) -> None:
        pass


def _imports_of(code: CodeType, package: str) -> dict[str, _Noted]:
    def note(name: str, globals: object, locals: object, fromlist: object, level: int) -> object:  # noqa: A002
        return _Here(package.rsplit(".", level - 1)[0], name) if level else _Elsewhere()

    names: dict[str, Any] = {"__builtins__": {**vars(builtins), "__import__": note}}
    exec(code, names)
    return {name: value for name, value in names.items() if isinstance(value, _Noted) and name[0] != "_"}
