"""`make mutants`: which changes it makes, which of them it takes, and what it says of those that survive."""

from __future__ import annotations

import ast
import runpy
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "mutants.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def changes(script: dict[str, Any], source: str) -> list[str]:
    return [
        f"{mutant.operator}: {mutant.old} -> {mutant.new}"
        for mutant in script["mutants_of"]("kernel/x", textwrap.dedent(source).encode())
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a = b < 1", ["comparison: b < 1 -> b <= 1", "constant: 1 -> 2", "constant: 1 -> 0"]),
        ("a = b is not None", ["comparison: b is not None -> b is None"]),
        ("a = b and c", ["and/or: b and c -> b or c"]),
        ("a = not b", ["not removed: not b -> b"]),
        ("a = b if c else d", ["not added: c -> not c"]),
        ("a = True", ["constant: True -> False"]),
        ("a = min(b, c)", ["function: min -> max"]),
        ("a = b + c", ["arithmetic: b + c -> b - c"]),
        ("return a", ["return value: a -> None"]),
        ("raise ValueError(1)", ["raise removed: raise ValueError(1) -> pass"]),
        ("self.a = b", ["assignment removed: self.a = b -> pass"]),
        ("a += b", ["assignment removed: a += b -> pass"]),
        ("await f()", ["call removed: await f() -> pass"]),
    ],
)
def test_each_kind_of_change_is_made(script: dict[str, Any], line: str, expected: list[str]) -> None:
    assert changes(script, f"async def f(self):\n    {line}") == expected


def test_an_early_return_and_the_way_out_of_a_loop_are_changed(script: dict[str, Any]) -> None:
    source = """
    def f(a):
        for b in a:
            if b:
                break
        if a:
            return
        if a:
            return
    """
    assert changes(script, source) == [
        "not added: b -> not b",
        "break/continue: break -> continue",
        "not added: a -> not a",
        "return removed: return -> pass",
        "not added: a -> not a",  # but the last one, after which nothing comes, is left as it is
    ]


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring of 1 and 2."""',
        "def f(a: Literal[1]) -> Literal[True]:\n    b: Literal[2]",
        "if TYPE_CHECKING:\n    a = 1 < 2",
        "@overload\ndef f(a: int = 1) -> None: ...",
        "@dataclass(frozen=True)\nclass A:\n    pass",
        "def f(a):\n    assert a < 1, 2",
        'a = f"{1 < 2}"',
        "class A:\n    def __init__(self, b):\n        self.b = b",
        "def f():\n    raise NotImplementedError",
        "a = 'text'",
    ],
)
def test_what_has_no_behaviour_is_left_as_it_is(script: dict[str, Any], source: str) -> None:
    assert changes(script, source) == []


def test_that_something_is_logged_is_behaviour_and_what_is_said_is_not(script: dict[str, Any]) -> None:
    source = 'def f(a):\n    logger.error("%s", a + 1, exc_info=True)'
    assert changes(script, source) == ["call removed: logger.error('%s', a + 1, exc_info=True) -> pass"]


def test_mutants_of_the_library_can_be_compiled_and_differ(script: dict[str, Any]) -> None:
    for mutant in script["chosen"](script["all_mutants"](), 50):
        source = (ROOT / "src" / "quiesce" / f"{mutant.module}.py").read_bytes()
        changed = mutant.apply(source)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)), str(mutant)
        assert mutant.text in source.decode().splitlines()[mutant.line - 1]


def test_a_change_of_one_function_leaves_the_choice_in_others_as_it_is(script: dict[str, Any]) -> None:
    functions = [f"def f{number}(a, b):\n    return a < {number} and b is None\n" for number in range(40)]
    before = "".join(functions)
    after = "\n\n" + before.replace("def f7(a, b):\n", "def f7(a, b):\n    c = a or b\n")

    def choose(source: str) -> set[tuple[str, str, str]]:
        found = script["chosen"](script["mutants_of"]("kernel/x", source.encode()), 60)
        return {(mutant.function, mutant.old, mutant.new) for mutant in found if mutant.function != "f7"}

    assert choose(before) == choose(before)
    assert len(choose(before) ^ choose(after)) <= 4
    assert len(choose(before)) > 50


def test_each_module_has_tests_that_exist(script: dict[str, Any]) -> None:
    for module in {mutant.module for mutant in script["all_mutants"]()}:
        for tests in script["tests_of"](module):
            files = [one for one in tests.arguments(ROOT) if one.endswith(".py")]
            assert files
            assert all((ROOT / file).exists() for file in files)


def test_explanations_give_a_reason_and_are_there_once(script: dict[str, Any]) -> None:
    explained = script["explanations"]()
    assert len({replace(explanation, reason="") for explanation in explained}) == len(explained)
    assert all(explanation.reason.endswith(".") for explanation in explained)


# Runs, of a library and of tests that are small -------------------------------------------------------------


LIBRARY = """
def clamp(value, low):
    if value < low:
        return low
    return value

def wait(ready):
    while not ready:
        pass
"""
TESTS = """
from quiesce.kernel.base.grace import clamp, wait

def test_clamp():
    assert clamp(1, 2) == 2
    assert clamp(3, 2) == 3

def test_wait():
    wait(True)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    package = root / "src" / "quiesce" / "kernel" / "base"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "grace.py").write_text(LIBRARY)
    (root / "tests").mkdir()
    (root / "tests" / "test_grace.py").write_text(TESTS)
    (root / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    slow\naddopts = -p no:quiesce -p no:quiesce-fixtures"
    )
    return root


@pytest.mark.slow
@pytest.mark.time_limit(120)
def test_mutants_are_killed_hang_or_survive_and_the_tree_is_not_touched(
    script: dict[str, Any], tree: Path, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    tests = script["TestSet"](("test_grace.py",), "not slow", 5.0)
    copies = script["Copies"](2, tmp_path / "copies", tree)
    assert list(copies.each(lambda one, _: one.fails(tests), [None])) == [None], "the tests pass as they are"
    mutants = script["all_mutants"](tree)
    outcomes = {
        f"{mutant.operator}: {mutant.old} -> {mutant.new}": how
        for mutant, how in copies.each(lambda one, mutant: (mutant, one.fails(tests, mutant)), mutants)
    }
    assert outcomes == {
        "comparison: value < low -> value <= low": None,  # equivalent
        "return removed: return low -> pass": "killed",
        "return value: low -> None": "killed",
        "return value: value -> None": "killed",
        "not removed: not ready -> ready": "timed out",
    }
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before


def test_a_survivor_fails_the_run_and_is_named_unless_it_is_explained(
    script: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    mutants = script["mutants_of"]("kernel/base/grace", LIBRARY.encode())
    survivor = next(mutant for mutant in mutants if mutant.operator == "comparison")
    others = [(mutant, "killed") for mutant in mutants if mutant is not survivor]
    assert script["report"]([(survivor, "survived"), *others], []) == 1
    said = capsys.readouterr().out
    assert "src/quiesce/kernel/base/grace.py:3: comparison: value < low  ->  value <= low" in said
    assert "1 survived: write a test for each, or explain it in scripts/mutants_explained.toml" in said
    explanation = script["Explanation"](
        "kernel/base/grace",
        "clamp",
        "if value < low:",
        "comparison",
        "value <= low",
        "Either is the same number.",
    )
    assert explanation.fits(survivor)
    assert not any(explanation.fits(mutant) for mutant, _ in others)
    assert script["report"]([(survivor, "explained"), *others], [explanation]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[2].split() == ["kernel/base/grace", "5", "4", "0", "0", "1"]
    assert "explains nothing any more: kernel/base/grace: clamp: if value < low:" in said
