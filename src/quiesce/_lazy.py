"""The names that a package offers: listed once, and imported on first use.

A package lists the names that it offers as imports in an `if TYPE_CHECKING:` block and calls `offer()` below
it. Type checkers and readers see ordinary imports. At run time the block is skipped, and a name is imported
when it is first used: so importing one part of the library imports no other.

The obvious way is a table of names next to the block, which would list everything twice. Instead, at the
first use of a name, the code of the package runs once more, with the block and with an `__import__` that
imports nothing and only records what is imported. That needs neither the source, which a frozen program does
not have, nor knowledge of byte code, which changes with every version of Python. It does mean that such a
package contains nothing but its docstring, imports and constants.

A package may also offer names of another package, and of another distribution of ours. If that is not
installed, those names are in neither `__all__` nor `dir()`, so that `import *` works, and using one raises an
error that says what to install.
"""

from __future__ import annotations

import builtins
import sys
from importlib import import_module
from types import CodeType

# Not from `typing`: nothing is imported here that a hostile folder could replace (see `quiesce/__init__.py`).
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Our other distributions: the package that each installs, and the extra that installs it.
_DISTRIBUTIONS = {"quiesce_chat": "embedded"}
# The packages of this one whose names another package may offer too. Others are imported above the block, to be called
# there (`quiesce._extras`), which a name that is only recorded cannot be.
_OFFERED = ("quiesce.agents", "quiesce.models")


def offer() -> None:
    """Make the imports of the caller's `if TYPE_CHECKING:` block its attributes, and its `__all__`.

    Each name is imported when it is first used.
    """
    frame = sys._getframe(1)
    names, code = frame.f_globals, frame.f_code
    package: str = names["__name__"] if "__path__" in names else names["__name__"].rpartition(".")[0]
    imports: dict[str, _Import] = {}

    def offered() -> dict[str, _Import]:
        if not imports:
            imports.update(_imports_of(code, package))
        return imports

    def installed() -> set[str]:
        return {name for name, value in offered().items() if value.is_installed()}

    def load(name: str) -> object:
        if name == "__all__":
            return sorted(installed())
        if name not in offered():
            raise AttributeError(f"module {names['__name__']!r} has no attribute {name!r}")
        value = names[name] = imports[name].load(f"{names['__name__']}.{name}")
        return value

    def listed() -> list[str]:
        return sorted({*names, *installed()})

    names["__getattr__"], names["__dir__"] = load, listed


def from_above(module: str, name: str) -> Any:
    """Import `name` from a module of a higher room, at the time of the call.

    Imports go downward. Use this only in the few places where a call has to go up: a scope does not know
    which event loops exist.
    """
    return getattr(import_module(module), name)


class _Import:
    """One recorded import: a name of a module, or the module itself if `name` is empty."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    def is_installed(self) -> bool:
        if self._module not in _DISTRIBUTIONS:
            return True
        from importlib.util import find_spec

        return find_spec(self._module) is not None

    def load(self, offered_as: str) -> object:
        if (extra := _DISTRIBUTIONS.get(self._module)) is not None:
            from_above("quiesce._extras", "require")(self._module, extra, offered_as)
        module = import_module(self._module)
        return getattr(module, self._name) if self._name else module


class _Source:
    """What an import is from: a module with names, or a package with modules (`from . import`)."""

    def __init__(self, module: str, *, is_package: bool = False) -> None:
        self._module = module
        self._is_package = is_package

    @property
    def __all__(self) -> list[str]:
        """The names of `from .module import *`, which only that module knows: so it is imported."""
        names: list[str] = import_module(self._module).__all__
        return names

    def __getattr__(self, name: str) -> _Import:
        return _Import(f"{self._module}.{name}", "") if self._is_package else _Import(self._module, name)


class _OtherModule:
    """Any other module, and everything in it: `TYPE_CHECKING` is true, and functions do nothing."""

    def __getattr__(self, name: str) -> _OtherModule:
        return self

    def __call__(self, *args: object, **options: object) -> None:
        pass


def _imports_of(code: CodeType, package: str) -> dict[str, _Import]:
    """Run the code of a package with an `__import__` that only records, and return what was imported."""

    def record(name: str, globals: object, locals: object, fromlist: object, level: int) -> object:  # noqa: A002
        if not level:
            return _Source(name) if name in _DISTRIBUTIONS or name.startswith(_OFFERED) else _OtherModule()
        here = package.rsplit(".", level - 1)[0]
        return _Source(f"{here}.{name}") if name else _Source(here, is_package=True)

    names: dict[str, Any] = {"__builtins__": {**vars(builtins), "__import__": record}}
    exec(code, names)
    return {name: value for name, value in names.items() if isinstance(value, _Import) and name[0] != "_"}
