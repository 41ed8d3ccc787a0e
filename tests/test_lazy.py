"""What a package offers: listed once, loaded on first use, with and without its source."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

FILES = {
    "offering/__init__.py": """
        \"\"\"A package.\"\"\"

        from __future__ import annotations

        from typing import TYPE_CHECKING

        from quiesce._lazy import offer

        if TYPE_CHECKING:
            from . import whole
            from .room import first
            from .room.inside import second as third

        offer()
    """,
    "offering/whole.py": "value = 1",
    "offering/room/__init__.py": "first = 'first'; print('loaded')",
    "offering/room/inside.py": "second = 'second'",
    "offering/inner.py": """
        from typing import TYPE_CHECKING

        from quiesce._lazy import offer

        if TYPE_CHECKING:
            from .room.inside import second

        offer()
    """,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path


def run(folder: Path, program: str) -> str:
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{program}"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_names_are_loaded_when_they_are_used(folder: Path) -> None:
    program = (
        "import offering; print('imported'); print(offering.third, offering.first, offering.whole.value)"
    )
    assert run(folder, program).split() == ["imported", "loaded", "second", "first", "1"]


def test_all_and_dir_list_them_and_load_none(folder: Path) -> None:
    program = "import offering; print(offering.__all__, {'first', 'third', 'whole'} <= set(dir(offering)))"
    assert run(folder, program) == "['first', 'third', 'whole'] True\n"


def test_a_star_import_brings_them_all(folder: Path) -> None:
    assert run(folder, "from offering import *; print(first, third, whole.value)").endswith(
        "first second 1\n"
    )


def test_a_module_beside_the_rooms_may_offer_names_too(folder: Path) -> None:
    assert run(folder, "from offering.inner import second; print(second)").endswith("second\n")


def test_without_the_source_it_is_the_same(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "compileall", "-q", "-b", str(folder)], check=True)
    for path in folder.rglob("*.py"):
        path.unlink()
    assert run(folder, "import offering; print(offering.third)").endswith("second\n")


def test_an_unknown_name_is_an_error_that_says_where(folder: Path) -> None:
    program = """
try:
    import offering; offering.fourth
except AttributeError as error:
    print(error)
"""
    assert run(folder, program) == "module 'offering' has no attribute 'fourth'\n"
