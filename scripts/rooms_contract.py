"""An import contract: a room is entered by its door.

A package of the library is a few folders, its rooms. What a room offers is in its `__init__`; its modules are
its own. So an import from outside a room names the room, never a module in it, and comes from the same
package: other packages use what the package offers in its own `__init__`, or in its `inner`, which is for the
rest of the library alone.

    [[tool.importlinter.contracts]] type = "rooms" root = "quiesce" packages = ["quiesce.acp.schema"]    #
    folders that are packages of their own, with a public surface; other distributions whole =
    ["quiesce.kernel.process.procfs"]    # modules that their room offers as a whole: a namespace of functions
"""

from __future__ import annotations

from collections.abc import Iterator

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class RoomsContract(Contract):
    type_name = "rooms"

    # Declared as fields, and set to what the configuration says.
    root: str = fields.StringField()  # type: ignore[assignment]
    packages: set[str] = fields.SetField(subfield=fields.StringField())  # type: ignore[assignment]
    whole: set[str] = fields.SetField(subfield=fields.StringField())  # type: ignore[assignment]

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        faults = sorted(self._faults(graph))
        return ContractCheck(kept=not faults, metadata={"faults": faults})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for fault in check.metadata["faults"]:
            output.print_error(fault)

    def _faults(self, graph: ImportGraph) -> Iterator[str]:
        for imported in graph.modules:
            room = self._room_of(imported, graph)
            if room is None:
                continue
            package = room.rpartition(".")[0]
            for importer in graph.find_modules_that_directly_import(imported):
                if is_in(importer, room):
                    continue
                if imported != room and imported not in self.whole:
                    yield f"{importer} imports {imported}: import it from {room}, which says what that room offers"
                elif not is_in(importer, package) and importer != self.root:
                    yield f"{importer} imports the room {room}: import from {package} or {package}.inner"

    def _room_of(self, module: str, graph: ImportGraph) -> str | None:
        """The innermost folder that `module` is in, or is, unless that is a package of its own."""
        while module not in self.packages:
            above = module.rpartition(".")[0]
            if above in ("", self.root):
                return None
            if graph.find_children(module):
                return module
            module = above
        return None


def is_in(module: str, folder: str) -> bool:
    return module == folder or module.startswith(folder + ".")
