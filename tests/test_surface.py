"""The public surface is what is listed here. Changing it is a decision."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import quiesce

PUBLIC = [
    "CancelToken",
    "ChildCancelled",
    "Containment",
    "DuplicateId",
    "Grace",
    "Handle",
    "Held",
    "Inflight",
    "Leftover",
    "LineTooLong",
    "NotHeld",
    "Outcome",
    "PipeClosed",
    "Process",
    "Reason",
    "Scope",
    "ScopeClosed",
    "StopReport",
    "Stopped",
    "Stream",
    "TokenCancelled",
    "contain",
    "current_scope",
    "current_token",
    "guarded",
    "own",
    "run",
    "shielded",
    "stream",
    "to_thread",
]


AUDIT = [
    "STOPS",
    "AuditResult",
    "BadScenario",
    "BadToken",
    "Cell",
    "Example",
    "Finding",
    "Limits",
    "Point",
    "Progress",
    "Stop",
    "Strip",
    "UnknownStop",
    "audit",
    "scenario",
]


def modules_after(statement: str) -> set[str]:
    """What a fresh interpreter has loaded after `statement`."""
    code = f"import sys, json; {statement}; print(json.dumps(list(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(answer.stdout))


def test_all_is_exactly_the_public_names_in_order() -> None:
    assert list(quiesce.__all__) == PUBLIC


def test_the_audit_has_exactly_its_public_names_and_each_is_there() -> None:
    audit = importlib.import_module("quiesce.audit")
    assert list(audit.__all__) == AUDIT
    for name in AUDIT:
        assert getattr(audit, name) is not None


def test_the_audit_imports_nothing_of_the_rest_nor_any_backend() -> None:
    code = "import quiesce.audit; quiesce.audit.audit"
    loaded = modules_after(code)
    assert "quiesce.audit._sweep" in loaded
    assert not {
        name for name in loaded if name.startswith("quiesce.") and not name.startswith("quiesce.audit")
    }
    assert not loaded & {"trio", "uvloop", "anyio", "rich", "pytest"}


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (
            "quiesce.asgi",
            ["ClientGone", "StopOnDisconnect", "lifespan", "server_scope", "unless_disconnected"],
        ),
        ("quiesce.fixtures", ["owned_fixture"]),
        ("quiesce.telemetry", ["disable", "enable", "on_stop"]),
    ],
)
def test_a_module_beside_the_kernel_has_exactly_its_names_and_each_explains_itself(
    module: str, names: list[str]
) -> None:
    found = importlib.import_module(module)
    assert found.__all__ == names
    assert all(inspect.getdoc(getattr(found, name)) for name in names)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_can_be_imported_and_explains_itself(name: str) -> None:
    value = getattr(quiesce, name)
    documentation = vars(value).get("__doc__") if inspect.isclass(value) else inspect.getdoc(value)
    assert documentation
    assert documentation.strip()


def test_dir_shows_the_public_names() -> None:
    assert set(PUBLIC) <= set(dir(quiesce))


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        quiesce.no_such_name  # noqa: B018


def test_importing_quiesce_imports_neither_its_parts_nor_a_backend() -> None:
    loaded = modules_after("import quiesce")
    assert "quiesce" in loaded
    assert not {name for name in loaded if name.startswith("quiesce.")}
    assert not loaded & {"anyio", "asyncio", "trio", "uvloop", "sniffio"}


def test_using_the_kernel_does_not_need_trio_or_uvloop() -> None:
    loaded = modules_after("import quiesce; [getattr(quiesce, name) for name in quiesce.__all__]")
    assert "quiesce.kernel" in loaded
    assert not loaded & {"trio", "uvloop"}


def test_the_package_says_that_it_is_typed() -> None:
    assert Path(quiesce.__file__).with_name("py.typed").exists()


def test_the_version_is_the_one_that_is_installed() -> None:
    assert quiesce.__version__ == importlib.metadata.version("quiesce")
