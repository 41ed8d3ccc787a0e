"""Hand everything of an installed SDK through, under a name of ours.

A package for an SDK begins like this. What it replaces is imported before and after the `*`: mypy keeps the
first of two imports of a name, pyright and Python the last. With that, type checkers know the SDK's own types.

    hand_through(__name__, "agents", Release("openai-agents", at_least="0.22", below="0.25"))

    from .runs import Runner as Runner
    from agents import *  # type: ignore[assignment, unused-ignore]
    from .runs import Runner as Runner

- **What the SDK does not list in its `__all__`** is looked up in the SDK when it is used.
- **A submodule** (`quiesce.dropin.agents.items`) may be a file here, which begins in the same way without a
  release. All others are made when they are imported, by a finder at the end of `sys.meta_path`: a module of
  our name that looks everything up in the SDK's module. It is not the SDK's module itself under a second name,
  because the import system would change the `__spec__` of that. Type checkers do not see these modules; where
  nothing is replaced in a module, the SDK's own import is as good.
- **A class that replaces another** says so with `replaces`. It is then offered wherever the SDK offers that
  other one: `agents.Runner` is also `agents.run.Runner`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")

_sdks: dict[str, str] = {}  # a package of ours: the package that it hands through
_replacements: dict[int, object] = {}  # the id of an object of an SDK, which the SDK keeps alive: ours


@dataclass(frozen=True)
class Release:
    """The releases of a distribution that a package hands through: from `at_least` on, and `below`."""

    distribution: str
    at_least: str
    below: str

    @property
    def requirement(self) -> str:
        """As pip reads it."""
        return f"{self.distribution}>={self.at_least},<{self.below}"

    def check(self, name: str) -> None:
        """Raise an `ImportError` that says what to do, if none of them is installed; `name` needs it."""
        try:
            installed = version(self.distribution)
        except PackageNotFoundError:
            raise ModuleNotFoundError(
                f"{name} hands through {self.distribution}, which is not installed: "
                f"pip install '{self.requirement}'",
                name=name,
            ) from None
        if not _numbers(self.at_least) <= _numbers(installed) < _numbers(self.below):
            raise ImportError(
                f"{name} hands through {self.distribution} from {self.at_least} on and below {self.below}, "
                f"but {installed} is installed: pip install '{self.requirement}', "
                f"or import the SDK itself until a newer quiesce knows that release",
                name=name,
            )


def hand_through(name: str, sdk: str, release: Release | None = None) -> None:
    """Make the module `name` offer everything of the SDK's module `sdk`; with a `release`, check that first."""
    if release is not None:
        release.check(name)
        _sdks[name] = sdk
        if _finder not in sys.meta_path:
            sys.meta_path.append(_finder)
    _hand_through(sys.modules[name], sdk)


def replaces(original: object) -> Callable[[T], T]:
    """Offer what is decorated in place of `original`, in every module of the SDK that has it."""

    def register(ours: T) -> T:
        _replacements[id(original)] = ours
        return ours

    return register


def _hand_through(ours: ModuleType, sdk: str) -> None:
    name = ours.__name__

    def look_up(attribute: str) -> object:
        theirs = import_module(sdk)
        if attribute == "__all__":
            listed = getattr(theirs, "__all__", None)
            return [one for one in dir(theirs) if one[0] != "_"] if listed is None else list(listed)
        try:
            value = getattr(theirs, attribute)
        except AttributeError:
            # Not the SDK's error, which names another module.
            raise AttributeError(
                f"module {name!r} has no attribute {attribute!r}", name=attribute, obj=ours
            ) from None
        if isinstance(value, ModuleType) and value.__name__ == f"{sdk}.{attribute}":
            return import_module(f"{name}.{attribute}")
        return _replacements.get(id(value), value)

    def listed() -> list[str]:
        return sorted({*vars(ours), *dir(import_module(sdk))})

    names: dict[str, Any] = vars(ours)
    names["__getattr__"], names["__dir__"] = look_up, listed


class _Finder:
    """Finds `quiesce.dropin.agents.items` where the SDK has `agents.items`, and there is no file of ours."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a counterpart of the SDK's module; None if the SDK has none."""
        sdk = _sdk_of(name)
        theirs = find_spec(sdk) if sdk is not None else None
        if theirs is None:
            return None
        # A loader is any object with these two methods; the stubs want a subclass of an abstract one.
        loader: Any = self
        return ModuleSpec(name, loader, is_package=theirs.submodule_search_locations is not None)

    def create_module(self, spec: ModuleSpec) -> None:
        """An ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        """Nothing of ours is in it; the SDK's module is imported now, so that its errors come now."""
        sdk = _sdk_of(module.__name__)
        assert sdk is not None
        module.__doc__ = import_module(sdk).__doc__
        _hand_through(module, sdk)


_finder: Any = (
    _Finder()
)  # Any: as a finder it is also its own loader, which typeshed's protocols do not foresee


def _sdk_of(name: str) -> str | None:
    """The SDK's module that the module `name` stands for."""
    for ours, theirs in _sdks.items():
        if name.startswith(f"{ours}."):
            return theirs + name.removeprefix(ours)
    return None


def _numbers(text: str) -> tuple[int, ...]:
    """The release numbers of a version, without what follows them and without zeros at the end: 1.10.0rc1 is 1.10."""
    matched = re.match(r"[0-9]+(\.[0-9]+)*", text)
    numbers = [int(number) for number in matched.group().split(".")] if matched is not None else [0]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
