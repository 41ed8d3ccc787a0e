"""Figures about how the tree reads: sizes, comments, imports between packages, cycles, and hands in other
packages' pockets.

    python3 scripts/house_figures.py [FOLDER]...     # src/quiesce unless told; any package's folder, to compare

Code lines are those with code on them: neither blank, nor a comment, nor a docstring.
"""

from __future__ import annotations

import ast
import io
import statistics
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Kind = Literal["run", "type", "lazy"]


@dataclass
class Module:
    name: str
    path: Path
    text: str
    tree: ast.Module
    imports: list[tuple[str, str, Kind]] = field(default_factory=list)  # module, name, kind

    @property
    def package(self) -> str:
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else parts[0]

    @property
    def folder(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    @property
    def room(self) -> str:
        """The folder that it is in; a module beside the rooms of a package stands for itself."""
        return self.folder if self.folder.count(".") > 1 else self.name


def load(folder: Path) -> dict[str, Module]:
    modules = {}
    for path in sorted(folder.rglob("*.py")):
        parts = (folder.name, *path.relative_to(folder).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(errors="replace")
        try:
            modules[name] = Module(name, path, text, ast.parse(text))
        except SyntaxError:
            print(f"left out: {path} cannot be parsed", file=sys.stderr)
    for module in modules.values():
        module.imports = list(imports_of(module, modules, module.tree, "run"))
    return modules


def imports_of(
    module: Module, modules: dict[str, Module], node: ast.AST, kind: Kind
) -> Iterator[tuple[str, str, Kind]]:
    for child in ast.iter_child_nodes(node):
        inner = kind
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            inner = "type"
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and kind == "run":
            inner = "lazy"
        if isinstance(child, ast.ImportFrom):
            base = child.module or ""
            if child.level:
                above = module.folder.split(".")[: module.folder.count(".") + 2 - child.level]
                base = ".".join([*above, base] if base else above)
            for alias in child.names:
                whole = f"{base}.{alias.name}"
                found = whole if whole in modules else base
                if found in modules:
                    yield found, alias.name, inner
        elif isinstance(child, ast.Import):
            for alias in child.names:
                if alias.name in modules:
                    yield alias.name, "", inner
        yield from imports_of(module, modules, child, inner)


def docstrings(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and node.body
            and isinstance(first := node.body[0], ast.Expr)
            and isinstance(first.value, ast.Constant)
            and isinstance(first.value.value, str)
        ):
            lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def sizes(modules: dict[str, Module]) -> Iterator[tuple[str, str]]:
    lines = comments = documented = code = anys = ignores = long = very_long = broad = 0
    functions: list[int] = []
    for module in modules.values():
        text = module.text.splitlines()
        lines += len(text)
        prose = docstrings(module.tree)
        documented += len(prose)
        with_code: set[int] = set()
        try:
            for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
                if token.type == tokenize.COMMENT:
                    comments += not token.line[: token.start[1]].strip()
                elif token.type not in (
                    tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
                ):  # fmt: skip
                    with_code.update(range(token.start[0], token.end[0] + 1))
        except tokenize.TokenError:
            pass
        code += len(with_code - prose)
        ignores += module.text.count("type: ignore")
        long += sum(len(line) > 120 for line in text)
        very_long += sum(len(line) > 140 for line in text)
        for node in ast.walk(module.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                functions.append((node.end_lineno or node.lineno) - node.lineno + 1)
            elif isinstance(node, ast.Name) and node.id == "Any":
                anys += 1
            elif isinstance(node, ast.ExceptHandler):
                caught = ast.unparse(node.type) if node.type else ""
                broad += caught in ("", "Exception", "BaseException")
    in_files = [len(module.text.splitlines()) for module in modules.values()]
    yield "lines / files", f"{lines:,} / {len(modules)}"
    yield "code lines", f"{code:,}"
    ninth = statistics.quantiles(functions, n=10)[-1]
    yield (
        "median file, median function, p90 function",
        f"{statistics.median(in_files):.0f}, {statistics.median(functions):.0f}, {ninth:.0f}",
    )
    yield "functions over 50 lines", str(sum(size > 50 for size in functions))
    yield (
        "comment lines % / docstring lines %",
        f"{100 * comments / lines:.1f} / {100 * documented / lines:.1f}",
    )
    yield "`Any` per 100 lines", f"{100 * anys / lines:.1f}"
    yield "`type: ignore` per 1000 lines", f"{1000 * ignores / lines:.1f}"
    yield "lines over 120 characters, over 140", f"{long}, {very_long}"
    yield "broad excepts", str(broad)
    folders = Counter(module.path.parent for module in modules.values())
    yield "most modules in a folder", ", ".join(str(n) for _, n in folders.most_common(5))


def knots(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that can all reach each other (Tarjan's algorithm), the largest first."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in edges.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = []
            while True:
                group.append(stack.pop())
                if group[-1] == node:
                    break
            if len(group) > 1:
                found.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for node in edges:
        if node not in index:
            visit(node)
    return sorted(found, key=len, reverse=True)


def cycles(modules: dict[str, Module]) -> Iterator[tuple[str, str]]:
    # A surface imports all that it offers; what is asked of it is counted as asked of the module that has it.
    homes: dict[tuple[str, str], str] = {}
    for module in modules.values():
        if module.path.name in ("__init__.py", "inner.py"):
            for target, name, kind in module.imports:
                if kind == "type" and target != module.name:
                    homes[module.name, name] = target

    def home(target: str, name: str) -> str:
        while (target, name) in homes:
            target = homes[target, name]
        return target

    for kinds, title in (
        (("run",), "at run time"),
        (("run", "lazy", "type"), "with lazy and type-checking ones"),
    ):
        edges: dict[str, set[str]] = defaultdict(set)
        rooms: dict[str, set[str]] = defaultdict(set)
        for module in modules.values():
            if module.path.name in ("__init__.py", "inner.py"):
                continue
            for target, name, kind in module.imports:
                if kind in kinds:
                    other = modules[home(target, name)]
                    edges[module.name].add(other.name)
                    if other.room != module.room:
                        rooms[module.room].add(other.room)
        sizes = ", ".join(f"{group[0].split('.')[1]} {len(group)}" for group in knots(edges)) or "none"
        yield f"cycles of modules {title}", sizes
        yield f"cycles of rooms {title}", "; ".join(" ".join(group) for group in knots(rooms)) or "none"


def reach(modules: dict[str, Module]) -> Iterator[tuple[str, str]]:
    inner: Counter[str] = Counter()
    internals: Counter[str] = Counter()
    names: dict[str, set[str]] = defaultdict(set)
    for module in modules.values():
        for target, name, _ in module.imports:
            other = modules[target]
            if other.package == module.package or target.count(".") < 2:
                continue
            if target.endswith(".inner"):
                inner[other.package] += 1
                names[other.package].add(name)
            elif any(part.startswith("_") for part in target.split(".")[2:]) or target.count(".") > 2:
                internals[other.package] += 1
    yield "imports of another package's modules", spelled(internals)
    yield "imports of another package's `inner`", spelled(inner)
    yield (
        "names in `inner` that are used",
        ", ".join(f"{package} {len(used)}" for package, used in names.items()),
    )
    yield "private attributes of others", spelled(private_attributes(modules))


def private_attributes(modules: dict[str, Module]) -> Counter[str]:
    """Uses of `thing._name` where no class of the same package has such a name, by the package that has."""
    owners: dict[str, set[str]] = defaultdict(set)
    for module in modules.values():
        for node in ast.walk(module.tree):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in ("self", "cls")
            ):
                owners[node.attr].add(module.package)
            elif isinstance(node, ast.ClassDef):
                for part in node.body:
                    if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
                        owners[part.name].add(module.package)
                    elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                        owners[part.target.id].add(module.package)
                    elif isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "__slots__":
                        for name in ast.walk(part.value):
                            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                                owners[name.value].add(module.package)
    found: Counter[str] = Counter()
    for module in modules.values():
        for node in ast.walk(module.tree):
            if (
                isinstance(node, ast.Attribute)
                and node.attr.startswith("_")
                and not node.attr.startswith("__")
                and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
                and owners[node.attr]
                and module.package not in owners[node.attr]
            ):
                found[f"{module.package} -> {'/'.join(sorted(owners[node.attr]))}"] += 1
    return found


def spelled(counted: Counter[str]) -> str:
    return ", ".join([str(counted.total()), *(f"{name} {n}" for name, n in counted.most_common())])


def main() -> None:
    for folder in map(Path, sys.argv[1:] or ["src/quiesce"]):
        modules = load(folder.resolve())
        print(f"{folder}")
        for what, figure in (*sizes(modules), *cycles(modules), *reach(modules)):
            print(f"  {what:<48} {figure}")


if __name__ == "__main__":
    main()
