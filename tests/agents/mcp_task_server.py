"""An MCP server over stdio whose tools run as tasks: `mcp_task_server.py LOG [no-cancel]`.

- `quick` ends after two questions, `failing` after one; `endless` runs until it is cancelled; `deaf` refuses its first cancel and
  then takes a while; `stubborn` takes two seconds to end; `at_once` is answered without a task; `dropped` is cancelled by the server;
  `shaky` cannot be asked twice, and `lost` never; `asking` waits for input, for which it would ask in answer to `tasks/result`.
  `plain` is no task.
- Every request about a task is written to LOG.
- `no-cancel`: the server does not offer to cancel tasks.
"""

from __future__ import annotations

import json
import sys
from typing import Any

LOG, MODES = sys.argv[1], sys.argv[2:]
SUPPORT = dict.fromkeys(
    ["quick", "failing", "endless", "deaf", "stubborn", "at_once", "dropped", "shaky", "lost", "asking"],
    "optional",
) | {"plain": "forbidden", "must": "required"}
SCHEMA = {"type": "object", "properties": {}}
tasks: dict[str, dict[str, Any]] = {}
asked: dict[str, int] = {}  # how often each task was asked for
refused: set[str] = set()


class Refused(Exception):
    pass


def note(text: str) -> None:
    with open(LOG, "a") as file:
        file.write(text + "\n")


def text_result(text: str, *, failed: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        can: dict[str, Any] = {"requests": {"tools": {"call": {}}}}
        if "no-cancel" not in MODES:
            can["cancel"] = {}
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}, "tasks": can},
            "serverInfo": {"name": "tasks", "version": "1"},
        }
    if method == "tools/list":
        listed = [
            {"name": name, "inputSchema": SCHEMA, "execution": {"taskSupport": support}}
            for name, support in SUPPORT.items()
        ]
        return {"tools": listed}
    if method == "tools/call":
        name = params["name"]
        note(f"call {name}{' as a task' if 'task' in params else ''}")
        if name == "at_once" or "task" not in params:
            return text_result("answered")
        moment = "2026-01-01T00:00:00Z"
        tasks[name] = {
            "taskId": name,
            "status": "working",
            "createdAt": moment,
            "lastUpdatedAt": moment,
            "ttl": None,
            "pollInterval": 20,
        }
        return {"task": tasks[name]}
    name = params["taskId"]
    task = tasks[name]
    if method != "tasks/get":
        note(f"{method} {name}")
    if method == "tasks/get":
        look_at(task)
        return task
    if method == "tasks/cancel":
        cancel(task)
        return task
    assert method == "tasks/result", method
    if name == "asking":
        task["status"] = "completed"
    return text_result(f"{name} did it", failed=task["status"] == "failed")


def look_at(task: dict[str, Any]) -> None:
    name = task["taskId"]
    asked[name] = asked.get(name, 0) + 1
    task["statusMessage"] = f"step {min(asked[name], 2)}"
    if name in ("quick", "must") and asked[name] >= 2:
        task["status"] = "completed"
    if name == "shaky":
        if asked[name] <= 2:
            raise Refused("not now")
        task["status"] = "completed"
    if name == "lost" and task["status"] == "working":
        raise Refused("not now")
    if name == "asking" and task["status"] == "working":
        task["status"] = "input_required"
    if name == "failing":
        task["status"] = "failed"
    if name == "dropped":
        task.update(status="cancelled", statusMessage="out of memory")
    if name == "stubborn" and asked[name] > 100:
        task["status"] = "cancelled"
    if name == "deaf" and "deaf" in refused and asked[name] > 5:
        task["status"] = "cancelled"


def cancel(task: dict[str, Any]) -> None:
    name = task["taskId"]
    if name == "deaf" and name not in refused:
        refused.add(name)
        raise Refused("not now")
    if task["status"] in ("completed", "failed", "cancelled"):
        raise Refused("it has ended")
    if name not in ("stubborn", "deaf"):
        task["status"] = "cancelled"


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            note(f"{message.get('method')}")
            continue
        try:
            reply: dict[str, Any] = {"result": answer(message["method"], message.get("params") or {})}
        except Refused as error:
            reply = {"error": {"code": -32602, "message": str(error)}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)


if __name__ == "__main__":
    main()
