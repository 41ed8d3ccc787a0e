"""List the names that users of agent-client-protocol write: what it exports, its classes with their fields,
its functions with their parameters.

    python -m venv sdk && sdk/bin/pip install agent-client-protocol==0.12.1
    sdk/bin/python scripts/list_acp_surface.py > tests/acp/sdk_surface.json

Run it with the Python that has the package. It lists names and nothing else:
`tests/acp/test_schema_surface.py` holds `quiesce.acp` against them.
"""

from __future__ import annotations

import inspect
import json
import sys
import typing
from importlib.metadata import version
from types import ModuleType
from typing import Any

import acp
import acp.exceptions
import acp.helpers
import acp.interfaces
import acp.meta
import acp.schema


def parameters(function: Any) -> list[str]:
    """Names in order; those after `*` can only be given by name."""
    listed: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in listed:
            listed.append("*")
        listed.append(f"**{name}" if parameter.kind is parameter.VAR_KEYWORD else name)
    return listed


def methods(kind: type) -> dict[str, list[str]]:
    functions = inspect.getmembers(kind, lambda one: inspect.isfunction(one) or inspect.ismethod(one))
    return {name: parameters(one) for name, one in functions if not name.startswith("_")}


def classes(module: ModuleType) -> dict[str, dict[str, list[str]]]:
    """Fields by class; a class that only wraps a value (`RootModel`) has the field `root`."""
    found = {}
    for name, kind in sorted(vars(module).items()):
        own = inspect.isclass(kind) and kind.__module__ == module.__name__ and name.isidentifier()
        fields: dict[str, Any] | None = getattr(kind, "model_fields", None) if own else None
        if fields is None or name.startswith("_") or name == "BaseModel":
            continue
        required = sorted(one for one, field in fields.items() if field.is_required())
        found[name] = {"fields": sorted(fields), "required": required}
    return found


def others(module: ModuleType) -> list[str]:
    """Names for unions and literals."""
    kinds = ("typing.Literal", "typing.Union", "Literal[", "Union[")
    return sorted(
        name
        for name, value in vars(module).items()
        if name[:1].isupper() and str(value).startswith(kinds) and not hasattr(typing, name)
    )


def written(surface: dict[str, Any]) -> str:
    """JSON, with a line for each name."""
    sections = []
    for title, section in surface.items():
        text = json.dumps(section)
        if isinstance(section, dict):
            rows = ",\n".join(
                f"  {json.dumps(name)}: {json.dumps(section[name])}" for name in sorted(section)
            )
            text = f"{{\n{rows}\n }}"
        sections.append(f" {json.dumps(title)}: {text}")
    return "{\n" + ",\n".join(sections) + "\n}"


def main() -> int:
    surface = {
        "version": version("agent-client-protocol"),
        "acp": sorted(acp.__all__),
        "classes": classes(acp.schema),
        "aliases": others(acp.schema),
        "helpers": {name: parameters(getattr(acp.helpers, name)) for name in sorted(acp.helpers.__all__)},
        "interfaces": {name: methods(getattr(acp.interfaces, name)) for name in acp.interfaces.__all__},
        "errors": methods(acp.exceptions.RequestError),
        "agent_methods": acp.meta.AGENT_METHODS,
        "client_methods": acp.meta.CLIENT_METHODS,
    }
    print(written(surface))
    return 0


if __name__ == "__main__":
    sys.exit(main())
