"""An SDK that is handed through: everything of it, the same objects, and ours in place of what is replaced."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from quiesce.dropin.handing import Release

SDK = {
    "sdk/__init__.py": """
        '''An SDK.'''
        from .runs import Agent, Runner
        from . import tools
        __all__ = ["Agent", "Runner"]
        __version__ = "1.2.3"
        not_listed = object()
    """,
    "sdk/runs.py": """
        class Agent: pass
        class Runner: pass
        DEFAULT = Runner()
    """,
    "sdk/tools.py": "class Tool: pass\nclass Server: pass",
    "sdk/deep/__init__.py": "from ..runs import Runner\nVALUE = object()",
    "sdk/deep/deeper.py": "from ..runs import Runner\nVALUE = object()",
    "sdk/broken.py": "import nothing_of_that_name",
    "sdk-1.2.3.dist-info/METADATA": "Metadata-Version: 2.1\nName: sdk\nVersion: 1.2.3\n",
    "ours/__init__.py": """
        '''Ours.'''
        from quiesce.dropin.handing import Release, hand_through
        hand_through(__name__, "sdk", Release("sdk", at_least="1.2", below="2"))
        from ._runner import Runner as Runner
        from sdk import *
        from ._runner import Runner as Runner
    """,
    "ours/_runner.py": """
        import sdk
        from quiesce.dropin.handing import replaces
        @replaces(sdk.Runner)
        class Runner(sdk.Runner): pass
    """,
    "ours/tools/__init__.py": """
        from quiesce.dropin.handing import hand_through, replaces
        hand_through(__name__, "sdk.tools")
        import sdk.tools
        @replaces(sdk.tools.Server)
        class Server(sdk.tools.Server): pass
    """,
}


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    import textwrap

    for name, text in SDK.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("ours")
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("ours", "sdk"):
            del sys.modules[name]


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_what_is_not_replaced_is_the_same_object(ours: ModuleType) -> None:
    sdk = load("sdk")
    assert ours.Agent is sdk.Agent
    assert ours.not_listed is sdk.not_listed
    assert ours.__version__ == "1.2.3"


def test_everything_of_the_sdk_is_listed(ours: ModuleType) -> None:
    assert {"Agent", "Runner", "not_listed", "runs"} <= set(dir(ours))
    names: dict[str, object] = {}
    exec("from ours import *", names)
    assert names["Agent"] is ours.Agent
    assert names["Runner"] is ours.Runner


def test_a_submodule_has_the_objects_of_the_sdks(ours: ModuleType) -> None:
    for name in ("deep", "deep.deeper"):
        assert load(f"ours.{name}").VALUE is load(f"sdk.{name}").VALUE


def test_the_sdks_own_modules_are_not_touched(ours: ModuleType) -> None:
    before = load("sdk.deep").__spec__
    load("ours.deep")
    assert load("sdk.deep").__spec__ is before
    assert load("sdk.runs").Runner is not ours.Runner


def test_what_is_replaced_is_ours_wherever_the_sdk_has_it(ours: ModuleType) -> None:
    for name in ("runs", "deep", "deep.deeper"):
        assert load(f"ours.{name}").Runner is ours.Runner, name
    assert issubclass(ours.Runner, load("sdk").Runner)


def test_a_submodule_is_ours_when_it_is_reached_as_an_attribute(ours: ModuleType) -> None:
    assert ours.tools is load("ours.tools")
    assert ours.tools.Server is not load("sdk.tools").Server
    assert ours.tools.Tool is load("sdk.tools").Tool


def test_what_the_sdk_does_not_have_is_an_error_with_our_name(ours: ModuleType) -> None:
    with pytest.raises(AttributeError, match="module 'ours' has no attribute 'nothing'"):
        _ = ours.nothing
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'ours'"):
        exec("from ours import nothing")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'ours\.nothing'"):
        load("ours.nothing")


def test_an_import_that_fails_inside_the_sdk_fails_as_it_does_there(ours: ModuleType) -> None:
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        load("ours.broken")


@pytest.mark.parametrize(
    ("at_least", "below"), [("1.2", "2"), ("1.2.3", "1.2.4"), ("1", "1.10"), ("1.2.3.0", "1.2.3.1")]
)
def test_a_release_in_the_range_is_taken(ours: ModuleType, at_least: str, below: str) -> None:
    Release("sdk", at_least, below).check("ours")


@pytest.mark.parametrize(
    ("at_least", "below"), [("1.3", "2"), ("1.0", "1.2"), ("1.0", "1.2.3"), ("1.10", "2")]
)
def test_a_release_outside_the_range_is_an_error_that_says_what_to_do(
    ours: ModuleType, at_least: str, below: str
) -> None:
    with pytest.raises(ImportError) as refused:
        Release("sdk", at_least, below).check("ours")
    assert str(refused.value) == (
        f"ours hands through sdk from {at_least} on and below {below}, but 1.2.3 is installed: "
        f"pip install 'sdk>={at_least},<{below}', or import the SDK itself until a newer quiesce knows that release"
    )


def test_a_candidate_of_the_release_that_is_excluded_is_excluded(
    ours: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quiesce.dropin.handing.version", lambda name: "2.0.0rc1")
    with pytest.raises(ImportError, match=r"2\.0\.0rc1 is installed"):
        Release("sdk", "1.2", "2").check("ours")


def test_an_sdk_that_is_not_installed_is_an_error_that_says_what_to_install() -> None:
    with pytest.raises(ModuleNotFoundError) as missing:
        Release("no-such-sdk", "1.2", "2").check("quiesce.dropin.none")
    assert str(missing.value) == (
        "quiesce.dropin.none hands through no-such-sdk, which is not installed: pip install 'no-such-sdk>=1.2,<2'"
    )


def test_the_package_of_drop_ins_imports_no_sdk() -> None:
    assert load("quiesce.dropin").__doc__
    assert not {"agents", "mcp"} & {name for name in vars(load("quiesce.dropin")) if name[0] != "_"}
