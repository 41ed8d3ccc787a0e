"""Rules about the rooms that the import contracts cannot say."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from quiesce.kernel.inner import ScopeCore

PACKAGE = Path(__file__).parent.parent / "src" / "quiesce"

# What code calls a scope by.
SCOPES = {
    "core",
    "_core",
    "scope",
    "_scope",
    "inner",
    "_inner",
    "containment",
    "owner",
    "parent",
    "root",
    "above",
}

# Every child passes there at its end: a call would cost a tenth of what a child costs at all.
HOT = {("kernel/loops/asyncio_child.py", "core.ended"), ("kernel/loops/trio_loop.py", "core.ended")}


def writes(tree: ast.Module) -> Iterator[ast.Attribute]:
    """The attributes of others that code assigns to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            holder = node.value
            name = holder.attr if isinstance(holder, ast.Attribute) else getattr(holder, "id", "")
            if name in SCOPES:
                yield node


def written_outside(folder: Path, attributes: set[str]) -> set[tuple[str, str]]:
    """Which modules write which attributes of a scope, outside of the scope's own room."""
    return {
        (path.relative_to(folder).as_posix(), ast.unparse(node))
        for path in folder.rglob("*.py")
        if "kernel/scope/" not in path.as_posix()
        for node in writes(ast.parse(path.read_text()))
        if node.attr in attributes
    }


def test_only_its_own_room_writes_the_attributes_of_a_scope() -> None:
    assert written_outside(PACKAGE, set(ScopeCore.__slots__)) == HOT


def test_no_package_uses_private_attributes_of_another() -> None:
    sys.path.insert(0, str(PACKAGE.parents[1] / "scripts"))
    try:
        import house_figures
    finally:
        del sys.path[0]
    found = house_figures.private_attributes(house_figures.load(PACKAGE))
    # The audit looks into pytest and trio, the kernel into asyncio: names of theirs that we have, too.
    assert {which.partition(" -> ")[0] for which in found} <= {"audit", "kernel"}
    assert found.total() <= 14


def test_a_module_that_writes_one_is_found(tmp_path: Path) -> None:
    (tmp_path / "meddler.py").write_text(
        "core.notes = [*core.notes, 'mine']\nself.core.rung += 1\ncore.notes.append(1)\n"
    )
    assert written_outside(tmp_path, {"notes"}) == {("meddler.py", "core.notes")}
