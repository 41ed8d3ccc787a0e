"""What `scripts/list_claude_surface.py` found in claude-agent-sdk, and the functions it found it with."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

SDK: dict[str, Any] = json.loads((Path(__file__).parent / "sdk_surface.json").read_text(encoding="utf-8"))


def _loaded() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "list_claude_surface.py"
    spec = importlib.util.spec_from_file_location("list_claude_surface", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


lister = _loaded()
