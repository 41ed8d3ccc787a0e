"""Finds the functions that the targets on the command line name.

A target is `pkg.mod:scenario`, `pkg.mod`, `path/file.py`, `path/file.py:scenario` (or `::`), or a folder. In modules,
files and folders the scenarios are the functions marked with `@scenario`, and those called `scenario` or
`scenario_...`. A file is imported with its folder on the path, as `python file.py` does it, or, inside a package, by
its dotted name, so that its relative imports work. A file of a folder that does not contain the word "scenario" is not
imported at all, because importing runs it.

Each scenario gets a target of its own, by which it can be found again from the same folder. It does not depend on how
the scenario was asked for, because replay commands and baseline files rely on it.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from quiesce._safe.printed import printed_line
from quiesce.audit.model import Place, is_audit_code, options_of, shorten

_HOW = "mark async functions with @scenario (from quiesce.audit), or name them scenario or scenario_..."


class BadTarget(Exception):
    """A target at which nothing can be audited; the message says why and what to do."""

    def __init__(self, target: str, message: str) -> None:
        super().__init__(f"{printed_line(target)}: {message}")
        self.target = target


@dataclass(frozen=True, slots=True)
class Collected:
    """A scenario that was found, and the target that finds it again."""

    function: Callable[[], Any]
    target: str
    #: The options of its `@scenario`.
    options: dict[str, Any] = field(default_factory=dict)


def collect(targets: Iterable[str]) -> tuple[list[Collected], list[BadTarget]]:
    """All scenarios of these targets, each once, and the targets that could not be resolved."""
    found: dict[str, Collected] = {}
    bad: list[BadTarget] = []
    for target in targets:
        for each in _collect(target):
            if isinstance(each, BadTarget):
                bad.append(each)
            else:
                found.setdefault(each.target, each)
    return list(found.values()), bad


def find_function(target: str) -> Callable[..., Any]:
    """The function that `pkg.mod:name` or `file.py:name` names; raises `BadTarget`."""
    place, name = _split(target)
    if not name:
        raise BadTarget(target, "name the function, as in pkg.mod:function or file.py:function")
    module = _import_file(Path(place), target) if _is_file(place) else _import_module(place, target)
    value = _attribute(module, name, target)
    if not callable(value):
        raise BadTarget(target, f"{name} is a {type(value).__name__}, not a function")
    return value  # type: ignore[no-any-return]


def _collect(target: str) -> Iterator[Collected | BadTarget]:
    try:
        place, name = _split(target)
        if os.path.isdir(place) and not name:
            yield from _in_folder(Path(place), target)
        elif _is_file(place):
            yield from _in_module(_import_file(Path(place), target), _display_path(Path(place)), name, target)
        elif os.sep in place:
            raise BadTarget(target, f"there is no file or folder {place}")
        else:
            yield from _in_module(_import_module(place, target), place, name, target)
    except BadTarget as bad:
        yield bad


def _split(target: str) -> tuple[str, str]:
    """Split a target into a module, file or folder, and the name of a function or ""."""
    if os.path.exists(target):
        return target, ""
    place, colon, name = target.partition("::")
    if not colon:
        place, colon, name = target.rpartition(":")
        if not colon:
            place, name = target, ""
    if colon and not (place and name):
        raise BadTarget(
            target, "a target is pkg.mod:scenario, file.py:scenario, a file, a folder or a module"
        )
    return place, name


def _is_file(place: str) -> bool:
    return place.endswith(".py") or os.path.isfile(place)


def _display_path(path: Path) -> str:
    """A path as a user would type it: relative to the current directory if it is below that, otherwise absolute."""
    full = path.resolve()
    try:
        return full.relative_to(Path.cwd().resolve()).as_posix()
    except ValueError:
        return full.as_posix()


# Scenarios in a module


def _in_module(module: ModuleType, place: str, name: str, target: str) -> Iterator[Collected]:
    if name:
        value = _attribute(module, name, target)
        yield Collected(value, f"{place}:{name}", options_of(value) or {})
        return
    found = list(_scenarios(module))
    if not found:
        functions = [key for key, value in vars(module).items() if inspect.iscoroutinefunction(value)]
        hint = f"; it has {_list(functions)}, which can be named after a colon" if functions else ""
        raise BadTarget(target, f"there is no scenario in it: {_HOW}{hint}")
    for key, value in found:
        yield Collected(value, f"{place}:{key}", options_of(value) or {})


def _scenarios(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for key, value in list(vars(module).items()):
        has_scenario_name = key == "scenario" or key.startswith("scenario_")
        if (has_scenario_name or options_of(value) is not None) and _is_defined_in(module, value):
            yield key, value


def _is_defined_in(module: ModuleType, value: object) -> bool:
    if isinstance(value, functools.partial) or inspect.iscoroutine(value) or inspect.isasyncgen(value):
        return True
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def _attribute(module: ModuleType, name: str, target: str) -> Any:
    value: Any = module
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            names = (
                [key for key in vars(value) if not key.startswith("__")] if hasattr(value, "__dict__") else []
            )
            where = (
                module.__name__
                if value is module
                else f"{module.__name__}'s {getattr(value, '__name__', value)}"
            )
            raise BadTarget(target, f"{where} has no {part!r}{_suggest(part, names)}") from None
    return value


# Files and folders


def _in_folder(folder: Path, target: str) -> Iterator[Collected | BadTarget]:
    is_empty = True
    for file in _python_files(folder):
        try:
            if "scenario" not in file.read_text(encoding="utf-8", errors="replace"):
                continue
        except OSError as error:
            yield BadTarget(str(file), f"it cannot be read: {error.strerror}")
            is_empty = False
            continue
        try:
            module = _import_file(file, _display_path(file))
        except BadTarget as bad:
            yield bad
            is_empty = False
            continue
        for key, value in _scenarios(module):
            is_empty = False
            yield Collected(value, f"{_display_path(file)}:{key}", options_of(value) or {})
    if is_empty:
        yield BadTarget(target, f"there is no scenario in any file below it: {_HOW}")


def _python_files(folder: Path) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _is_skipped(Path(here, name)))
        yield from (Path(here, name) for name in sorted(files) if name.endswith(".py") and name[0] != ".")


def _is_skipped(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name == "__pycache__" or (folder / "pyvenv.cfg").exists()


def _import_file(path: Path, target: str) -> ModuleType:
    path = path.absolute()
    if not path.is_file():
        near = [file.name for file in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise BadTarget(target, f"there is no file {_display_path(path)}{_suggest(path.name, near)}")
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").exists() and root.parent != root:
        root, parts = root.parent, [root.name, *parts]
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    if len(parts) > 1:
        module = _import_module(".".join(parts), target)
        if not _is_from(module, path.stat()):
            where = getattr(module, "__file__", "somewhere else")
            raise BadTarget(
                target, f"its module {'.'.join(parts)} is taken by {where}: rename one of the two"
            )
        return module
    return _load(path, target)


def _load(path: Path, target: str) -> ModuleType:
    """Import a file that is not in a package, under its own name unless another module has that name."""
    status = path.stat()
    for module in list(sys.modules.values()):
        if _is_from(module, status) and module.__name__ != "__main__":
            return module
    name = path.stem
    while name in sys.modules or name in sys.stdlib_module_names:
        name += "_"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadTarget(target, "it is not a Python file: its name does not end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        raise _import_failed(target, error) from None
    return module


def _is_from(module: ModuleType, status: os.stat_result) -> bool:
    """Whether a module was imported from the file with this status."""
    # Called for every imported module, which may be thousands: resolving their paths would take too long.
    file = getattr(module, "__file__", None)
    try:
        return isinstance(file, str) and os.path.samestat(os.stat(file), status)
    except (OSError, ValueError):
        # The file has been deleted, or it is not a valid path.
        return False


def _import_module(name: str, target: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise BadTarget(target, _not_found(missing)) from None
        raise _import_failed(target, error) from None
    except BaseException as error:
        raise _import_failed(target, error) from None


def _not_found(missing: str) -> str:
    parent, _, last = missing.rpartition(".")
    search = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    if parent and search is None:
        return (
            f"there is no module {missing!r}: {parent} is a module, not a package; "
            f"for a name in it write {parent}:{last}"
        )
    names = [module.name for module in pkgutil.iter_modules(search)]
    where = f"the package {parent}" if parent else "the current directory, nor installed"
    return f"there is no module {missing!r} in {where}{_suggest(last, names)}"


def _import_failed(target: str, error: BaseException) -> BadTarget:
    """The user's own error with its frames, without those of the import system and the audit."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    what = f"{type(error).__name__}: {error}".removesuffix(": ")
    if isinstance(error, SyntaxError) and error.filename:
        what = f"{type(error).__name__}: {error.msg}"
        lines = [f"{shorten(error.filename)}:{error.lineno}", (error.text or "").strip()]
    else:
        lines = []
        for frame, number in traceback.walk_tb(error.__traceback__):
            code = frame.f_code
            if not is_audit_code(code) and not code.co_filename.startswith("<frozen"):
                place = Place(code.co_filename, number, code.co_qualname)
                text = traceback.FrameSummary(place.file, place.line, place.function).line or ""
                lines += [str(place), text]
        lines = lines[-6:]  # the innermost three frames
    trace = "".join(f"\n    {line}" for line in lines if line)
    return BadTarget(target, f"importing it failed: {what}{trace}")


# Messages


def _suggest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _list(names: list[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
