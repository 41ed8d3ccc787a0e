"""Break the code on purpose, a few hundred times, and see whether the tests notice: `make mutants`.

    python scripts/mutants.py [--count N] [--only MODULE]... [--jobs N] [--list]

A *mutant* is the code with one small change: `<` for `<=`, `or` for `and`, a statement or a `raise` left out.
Its tests run; if one fails, the mutant is *killed*. One that *survives* shows a promise that no test holds,
or code that is not needed, or it is *equivalent*: no program can tell it from the original. Survivors that
were looked at are in scripts/mutants_explained.toml, with the reason. A survivor that is not in there makes
the exit status 1.

- Which mutants are made is decided by a hash of each one, of its function and of SEED. So it is the same ones
  each time, and a change in one function leaves those of all others as they are.
- The working tree is never touched. Each job has a copy of it in a temporary folder, which PYTHONPATH names.
- The tests of a module come in two sets (TESTS): a quick one, and, for mutants that survive that and are not
  explained, a wide one. They run on asyncio and trio, in virtual time where they can.
- A mutant that is not done in time counts as killed: most of them wait for ever.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

ROOT = Path(__file__).resolve().parent.parent
EXPLAINED = ROOT / "scripts" / "mutants_explained.toml"
SEED = "quiesce"
COUNT = 300
MODULES = (
    "kernel/scope/*.py",
    "kernel/base/token.py",
    "kernel/base/rungs.py",
    "kernel/base/grace.py",
    "agents/run/engine*.py",
    "agents/run/approvals.py",
    "agents/run/input_guards.py",
    "agents/run/model_requests.py",
)
NOT_COPIED = (
    ".git",
    ".venv*",
    "build",
    "dist",
    "site",
    "node_modules",
    "__pycache__",
    ".*_cache",
    ".hypothesis",
)

Outcome: TypeAlias = Literal["killed", "timed out", "survived", "explained"]


# Mutants ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """One change of one module.

    `text` is its first line, without a comment; `start` and `end` are bytes of the file.
    """

    module: str
    function: str
    line: int
    text: str
    operator: str
    old: str
    new: str
    start: int
    end: int
    replacement: str

    def __str__(self) -> str:
        old, new = (textwrap.shorten(part, 100, placeholder=" ...") for part in (self.old, self.new))
        return f"src/quiesce/{self.module}.py:{self.line}: {self.operator}: {old}  ->  {new}"

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.replacement.encode() + source[self.end :]


COMPARISONS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}
OTHER_FUNCTION = {"min": "max", "max": "min", "any": "all", "all": "any"}
FOR_THE_LOG = {"logger", "warnings"}  # what is said there is not looked at; that it is said, is
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Mutator(ast.NodeVisitor):
    """Finds the mutants of one module; annotations, docstrings, messages and what is for type checkers alone
    are left as they are.
    """

    def __init__(self, module: str, source: bytes) -> None:
        self.found: list[Mutant] = []
        self._module = module
        self._source = source
        self._lines = source.splitlines(keepends=True)
        self._offsets = [0]
        for line in self._lines:
            self._offsets.append(self._offsets[-1] + len(line))
        self._names: list[str] = []
        self._tail = False  # whether the function ends after the statement that is visited

    # What is looked at

    def visit_Module(self, node: ast.Module) -> None:
        self._block(node.body, tail=False)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        self._block(node.body, tail=False)
        self._names.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if any("overload" in ast.unparse(decorator) for decorator in node.decorator_list):
            return
        self._names.append(node.name)
        self.visit(node.args)
        self._block(node.body, tail=True)
        self._names.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_arguments(self, node: ast.arguments) -> None:
        for default in [*node.defaults, *node.kw_defaults]:
            if default is not None:
                self.visit(default)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def _block(self, body: Sequence[ast.stmt], *, tail: bool) -> None:
        outer = self._tail
        for statement in body:
            self._tail = tail and statement is body[-1]
            self.visit(statement)
        self._tail = outer

    # What is changed

    def visit_Compare(self, node: ast.Compare) -> None:
        for place, operator in enumerate(node.ops):
            changed = copy.copy(node)
            changed.ops = list(node.ops)
            changed.ops[place] = COMPARISONS[type(operator)]()
            self._change("comparison", node, changed)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        changed = copy.copy(node)
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._change("and/or", node, changed)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._change("not removed", node, node.operand)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in ARITHMETIC:
            changed = copy.copy(node)
            changed.op = ARITHMETIC[type(node.op)]()
            self._change("arithmetic", node, changed)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._change("constant", node, ast.Constant(not node.value))
        elif isinstance(node.value, int | float):
            for other in (node.value + 1, node.value - 1):
                self._change("constant", node, ast.Constant(other))

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func
        if isinstance(name, ast.Name) and name.id in OTHER_FUNCTION:
            self._change("function", name, ast.Name(OTHER_FUNCTION[name.id]))
        said = name.attr == "add_note" if isinstance(name, ast.Attribute) else False
        if not said and not FOR_THE_LOG.intersection(ast.unparse(name).split(".")):
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._negate(node.test)
        self.visit(node.test)
        self._block(node.body, tail=self._tail)
        self._block(node.orelse, tail=self._tail)

    def visit_While(self, node: ast.While) -> None:
        self._negate(node.test)
        self.visit(node.test)
        self._block(node.body, tail=False)
        self._block(node.orelse, tail=self._tail)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._block(node.body, tail=False)
        self._block(node.orelse, tail=self._tail)

    visit_AsyncFor = visit_For  # noqa: N815

    def visit_Try(self, node: ast.Try) -> None:
        self._block(node.body, tail=False)
        for handler in node.handlers:
            self._block(handler.body, tail=False)
        self._block(node.orelse, tail=False)
        self._block(node.finalbody, tail=False)

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            self.visit(item.context_expr)
        self._block(node.body, tail=self._tail)

    visit_AsyncWith = visit_With  # noqa: N815

    def visit_Expr(self, node: ast.Expr) -> None:
        called = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(called, ast.Call) and self._names:
            self._delete("call removed", node)
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        # Without it a name or an attribute would not exist at all: every test fails, and nothing is learned.
        is_first = self._names[-1:] == ["__init__"] or any(
            isinstance(name, ast.Name) for name in node.targets
        )
        if self._names and not is_first:
            self._delete("assignment removed", node)
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._delete("assignment removed", node)
        self.visit(node.value)

    def visit_Return(self, node: ast.Return) -> None:
        if not self._tail:
            self._delete("return removed", node)
        if node.value is not None:
            if not isinstance(node.value, ast.Constant):
                self._change("return value", node.value, ast.Constant(None))
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        if node.exc is None or "NotImplementedError" not in ast.unparse(node.exc):
            self._delete("raise removed", node)

    def visit_Break(self, node: ast.Break) -> None:
        self._replace("break/continue", node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace("break/continue", node, "break")

    def _negate(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant):
            self._change("not added", test, ast.UnaryOp(ast.Not(), test))

    def _change(self, operator: str, node: ast.expr, changed: ast.expr) -> None:
        new = ast.unparse(changed)
        self._replace(operator, node, new, f"({new})")

    def _delete(self, operator: str, node: ast.stmt) -> None:
        self._replace(operator, node, "pass")

    def _replace(
        self, operator: str, node: ast.stmt | ast.expr, new: str, replacement: str | None = None
    ) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        self.found.append(
            Mutant(
                self._module,
                ".".join(self._names),
                node.lineno,
                self._lines[node.lineno - 1].decode().partition("  # ")[0].strip(),
                operator,
                ast.unparse(node),
                new,
                self._offsets[node.lineno - 1] + node.col_offset,
                self._offsets[node.end_lineno - 1] + node.end_col_offset,
                new if replacement is None else replacement,
            )
        )


def mutants_of(module: str, source: bytes) -> list[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    mutator = Mutator(module, source)
    mutator.visit(ast.parse(source))
    return sorted(mutator.found, key=lambda mutant: (mutant.start, mutant.end))


def chosen(mutants: Sequence[Mutant], count: int) -> list[Mutant]:
    """About `count` of them, each module with a share that corresponds to its size; the same ones each time."""
    alike: Counter[tuple[str, ...]] = Counter()
    ranked: dict[str, list[tuple[bytes, Mutant]]] = {}
    for mutant in mutants:
        key = (mutant.module, mutant.function, mutant.operator, mutant.old, mutant.new)
        alike[key] += 1
        text = "\0".join([SEED, *key, str(alike[key])])
        ranked.setdefault(mutant.module, []).append((hashlib.sha256(text.encode()).digest(), mutant))
    found = []
    for of_module in ranked.values():
        share = -(-count * len(of_module) // len(mutants))
        found += [mutant for _, mutant in sorted(of_module, key=lambda pair: pair[0])[:share]]
    return sorted(found, key=lambda mutant: (mutant.module, mutant.start, mutant.end))


# Tests --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TestSet:
    """Files of tests, as patterns below tests/, and how long a mutant may take for them."""

    files: tuple[str, ...]
    chosen_by: str = "not slow and not audit"
    seconds: float = 240.0
    but: tuple[str, ...] = ()

    def arguments(self, root: Path) -> list[str]:
        files = [path for pattern in self.files for path in sorted((root / "tests").glob(pattern))]
        left_out = {path for pattern in self.but for path in (root / "tests").glob(pattern)}
        names = dict.fromkeys(str(path.relative_to(root)) for path in files if path not in left_out)
        return ["-x", "-q", "-p", "no:cacheprovider", "-m", self.chosen_by, "-k", WORLDS, *names]


WORLDS = "not uvloop and not eager"
VIRTUAL = "not slow and not audit and not real_time"
SCOPES = TestSet(
    (
        "kernel/test_scope.py",
        "kernel/test_scope_closing.py",
        "kernel/test_scope_ladder.py",
        "kernel/test_scope_*.py",
        "kernel/test_handle.py",
        "kernel/test_spawn.py",
        "kernel/test_delayed_cancel.py",
        "kernel/test_remains.py",
        "kernel/test_wait_queue.py",
        "kernel/test_closable.py",
        "kernel/test_report.py",
        "kernel/test_bad_use.py",
        "kernel/test_own.py",
        "kernel/test_stream.py",
        "kernel/test_guarded.py",
    ),
    VIRTUAL,
    60.0,
    but=("kernel/test_scope_shutdown.py",),
)
DEADLINES = replace(SCOPES, files=("kernel/test_grace.py", "kernel/test_rungs.py", *SCOPES.files))
TOKENS = TestSet(
    ("kernel/test_token*.py", "kernel/test_scope.py", "kernel/test_scope_closing.py"), VIRTUAL, 60.0
)
LISTENERS = TestSet(
    ("test_telemetry.py", "kernel/test_report.py", "kernel/test_scope_references.py"), seconds=60.0
)
UNSEEN = TestSet(("kernel/test_unseen.py", "kernel/test_report.py"), seconds=60.0)
BLOCKED_LOOPS = TestSet(
    ("kernel/test_blocked_loop.py", "kernel/test_scope_ladder.py", "kernel/test_scope_shutdown.py"),
    seconds=60.0,
)
KERNEL = TestSet(
    ("kernel/test_*.py", "test_telemetry.py"),
    but=(
        "kernel/test_process*.py",
        "kernel/test_procfs.py",
        "kernel/test_guardian.py",
        "kernel/test_foreign_tree.py",
        "kernel/test_unseen.py",
        "kernel/test_offspring.py",
        "kernel/test_thread.py",
        "kernel/test_contain_processes.py",
        "kernel/test_own_processes.py",
    ),
)
RUNS = TestSet(
    (
        "agents/test_runs.py",
        "agents/test_guardrails.py",
        "agents/test_interrupt.py",
        "agents/test_conversation.py",
        "agents/test_streaming.py",
        "agents/test_handoffs.py",
        "agents/test_tool_calls.py",
        "agents/test_blocked.py",
        "agents/test_run_hooks.py",
        "agents/test_tool_servers.py",
    ),
    VIRTUAL,
    60.0,
)
AGENTS = TestSet(("agents/test_*.py",))
# By the beginning of a module's name: the first that fits. Quick, and wide.
TESTS: Sequence[tuple[str, TestSet, TestSet]] = (
    ("kernel/base/token", TOKENS, KERNEL),
    ("kernel/base/", DEADLINES, KERNEL),
    ("kernel/scope/stop_", LISTENERS, KERNEL),
    ("kernel/scope/unseen", UNSEEN, KERNEL),
    ("kernel/scope/blocked_loop", BLOCKED_LOOPS, KERNEL),
    ("kernel/", SCOPES, KERNEL),
    ("agents/", RUNS, AGENTS),
)


def tests_of(module: str) -> tuple[TestSet, TestSet]:
    return next((quick, wide) for prefix, quick, wide in TESTS if module.startswith(prefix))


class Copy:
    """A copy of the tree, in which one mutant at a time is tested."""

    def __init__(self, root: Path, running: set[subprocess.Popen[bytes]], over: threading.Event) -> None:
        self._root = root
        self._running = running
        self._over = over

    def fails(self, tests: TestSet, mutant: Mutant | None = None) -> Literal["killed", "timed out"] | None:
        """Run the tests, with a mutant in its place if one is given; None if all of them pass."""
        if mutant is None:
            return self._fails(tests)
        path = self._root / "src" / "quiesce" / f"{mutant.module}.py"
        source = path.read_bytes()
        try:
            self._write(path, mutant.apply(source))
            return self._fails(tests)
        finally:
            self._write(path, source)

    @staticmethod
    def _write(path: Path, source: bytes) -> None:
        # Bytecode is found to be old by the size of its source, and by the second it was written in: too coarse here.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()
        path.write_bytes(source)

    def _fails(self, tests: TestSet) -> Literal["killed", "timed out"] | None:
        if self._over.is_set():
            return "killed"
        environment = {**os.environ, "PYTHONPATH": str(self._root / "src"), "QUIESCE_EXAMPLES": "repeatable"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with (self._root / "mutants-output.txt").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *tests.arguments(self._root)],
                cwd=self._root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process)
            try:
                status = process.wait(tests.seconds)
            except subprocess.TimeoutExpired:
                return "timed out"
            finally:
                end(process)
                self._running.discard(process)
        if status == 5:
            raise RuntimeError(f"there are no tests in {', '.join(tests.files)}")
        return "killed" if status else None

    def output(self) -> str:
        return (self._root / "mutants-output.txt").read_text(errors="replace")


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of it, with its process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


class Copies:
    """As many copies as jobs, each lent to one job at a time."""

    def __init__(self, jobs: int, folder: Path, root: Path = ROOT) -> None:
        self._free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._over = threading.Event()  # we are told to stop: nothing is started any more
        self._jobs = jobs
        for number in range(jobs):
            place = folder / str(number)
            shutil.copytree(root, place, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)
            self._free.put(Copy(place, self._running, self._over))

    def each(self, work: Callable[[Copy, Any], Any], things: Iterable[Any]) -> Iterator[Any]:
        """What `work(copy, thing)` returns for each thing, as it comes."""

        def run(thing: Any) -> Any:
            one = self._free.get()
            try:
                return work(one, thing)
            finally:
                self._free.put(one)

        with ThreadPoolExecutor(self._jobs) as pool:
            try:
                for done in as_completed([pool.submit(run, thing) for thing in things]):
                    yield done.result()
            except BaseException:  # before the pool waits for its threads
                self._over.set()
                pool.shutdown(wait=False, cancel_futures=True)
                for process in list(self._running):
                    end(process)
                raise


# Judgement ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Explanation:
    """Why a mutant may survive: `line` is the text of its line, `becomes` what its operator makes of the code there."""

    module: str
    function: str
    line: str
    operator: str
    becomes: str
    reason: str

    def fits(self, mutant: Mutant) -> bool:
        return (self.module, self.function, self.line, self.operator, self.becomes) == (
            mutant.module,
            mutant.function,
            mutant.text,
            mutant.operator,
            mutant.new,
        )


def explanations(path: Path = EXPLAINED) -> list[Explanation]:
    return [Explanation(**entry) for entry in tomllib.loads(path.read_text()).get("survivor", [])]


def all_mutants(root: Path = ROOT, modules: Sequence[str] = MODULES) -> list[Mutant]:
    library = root / "src" / "quiesce"
    paths = [path for pattern in modules for path in sorted(library.glob(pattern))]
    found = []
    for path in paths:
        found += mutants_of(path.relative_to(library).with_suffix("").as_posix(), path.read_bytes())
    return found


def judge(copy_of_tree: Copy, mutant: Mutant, explained: Sequence[Explanation]) -> Outcome:
    quick, wide = tests_of(mutant.module)
    if how := copy_of_tree.fails(quick, mutant):
        return how
    if any(explanation.fits(mutant) for explanation in explained):
        return "explained"
    return copy_of_tree.fails(wide, mutant) or "survived"


def table(outcomes: Sequence[tuple[Mutant, Outcome]]) -> Iterator[str]:
    by_module: dict[str, Counter[str]] = {}
    for mutant, outcome in outcomes:
        by_module.setdefault(mutant.module, Counter())[outcome] += 1
    if len(by_module) > 1:
        by_module["in all"] = sum((by_module[module] for module in list(by_module)), Counter())
    width = max([len("module"), *map(len, by_module)])
    columns = ("killed", "timed out", "survived", "explained")
    yield f"{'module':<{width}}  mutants" + "".join(f"  {column:>9}" for column in columns)
    for module, counts in by_module.items():
        yield f"{module:<{width}}  {counts.total():7}" + "".join(
            f"  {counts[column]:9}" for column in columns
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Break the code on purpose, and see whether the tests notice."
    )
    parser.add_argument(
        "--count", type=int, default=COUNT, help=f"about how many mutants, {COUNT} by default"
    )
    parser.add_argument(
        "--only", metavar="MODULE", action="append", default=[], help="of the mutants, those of this module"
    )
    parser.add_argument("--jobs", type=int, default=(os.cpu_count() or 1) + 1, help="how many at a time")
    parser.add_argument("--list", action="store_true", help="list the mutants, and run none")
    options = parser.parse_args()
    mutants = [
        mutant
        for mutant in chosen(all_mutants(), options.count)
        if not options.only or any(name in mutant.module for name in options.only)
    ]
    if not mutants:
        parser.error(f"there are no mutants in {', '.join(options.only) or 'these modules'}")
    if options.list:
        print(*mutants, sep="\n")
        return 0
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    explained = explanations()
    with tempfile.TemporaryDirectory(prefix="quiesce-mutants-", ignore_cleanup_errors=True) as folder:
        copies = Copies(options.jobs, Path(folder))
        if not tests_pass(copies, mutants):
            return 2
        outcomes: list[tuple[Mutant, Outcome]] = []
        work = copies.each(lambda one, mutant: (mutant, judge(one, mutant, explained)), mutants)
        for mutant, outcome in work:
            outcomes.append((mutant, outcome))
            if outcome == "survived":
                print(f"survived: {mutant}", flush=True)
            elif len(outcomes) % 25 == 0:
                print(f"{len(outcomes)} of {len(mutants)}", flush=True)
    outcomes.sort(key=lambda pair: (pair[0].module, pair[0].start, pair[0].end))
    return report(outcomes, explained)


def tests_pass(copies: Copies, mutants: Sequence[Mutant]) -> bool:
    """Whether the tests pass without any mutant; one more try for those that fail, as the machine may be busy."""

    def attempt(one: Copy, tests: TestSet) -> str:
        return "" if one.fails(tests) is None or one.fails(tests) is None else one.output()

    needed = dict.fromkeys(tests for mutant in mutants for tests in tests_of(mutant.module))
    failures = [output for output in copies.each(attempt, needed) if output]
    for output in failures:
        print(f"the tests fail without any mutant:\n{output}")
    return not failures


def report(outcomes: Sequence[tuple[Mutant, Outcome]], explained: Sequence[Explanation]) -> int:
    """Print what came of it; the exit status."""
    print("\n" + "\n".join(table(outcomes)))
    made = all_mutants()
    for explanation in explained:
        if not any(explanation.fits(mutant) for mutant in made):
            print(
                f"explains nothing any more: {explanation.module}: {explanation.function}: {explanation.line}"
            )
    survivors = [mutant for mutant, outcome in outcomes if outcome == "survived"]
    for mutant in survivors:
        print(f"survived: {mutant}\n    in {mutant.function or 'the module'}: {mutant.text}")
    if survivors:
        print(
            f"{len(survivors)} survived: write a test for each, or explain it in {EXPLAINED.relative_to(ROOT)}"
        )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
