"""The baseline file: known findings, so that only new ones fail.

An entry has the target of the scenario, the world, and the key of the finding, which does not change when lines move.
It also names the strips that showed the finding: an entry counts as gone only if one of them ran again without showing
it.

    {"version": 1, "findings": [{"scenario": "app/jobs.py:scenario_poll", "world": "asyncio",
      "finding": "leaked Client._poll app/client.py:Client.start", "strips": ["cancel/early"]}]}
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .result import AuditResult

VERSION = 1


class BadBaseline(Exception):
    """A baseline file that cannot be read or written; the message says why."""


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One known finding of one scenario in one world."""

    scenario: str
    world: str
    finding: str
    strips: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.finding} ({self.scenario}, {self.world})"


class Baseline:
    """The entries of a baseline file."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = sorted(entries)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Baseline:
        """Read the file; raises `BadBaseline` if it does not exist or is not a baseline file."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise BadBaseline(
                f"there is no baseline file {path}: make one with --write-baseline {path}"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise BadBaseline(f"the baseline file {path} cannot be read: {error}") from None
        except json.JSONDecodeError as error:
            raise BadBaseline(f"the baseline file {path} is not JSON: {error}") from None
        if not isinstance(data, dict) or "version" not in data:
            raise BadBaseline(f"{path} is not a baseline file: write one with --write-baseline {path}")
        if data["version"] != VERSION:
            raise BadBaseline(
                f"the baseline file {path} has version {data['version']!r}, and this quiesce reads version {VERSION}: "
                "write it again with --write-baseline"
            )
        return cls(_entry(raw, number, path) for number, raw in enumerate(_list_in(data, path), 1))

    def keys_for(self, target: str, world: str) -> list[str]:
        """The keys of the known findings of one scenario, for `audit(baseline=...)`."""
        return [entry.finding for entry in self.entries if (entry.scenario, entry.world) == (target, world)]

    def gone(self, results: Sequence[AuditResult]) -> list[Entry]:
        """The entries that these audits covered and did not show again."""
        gone: list[Entry] = []
        for result in results:
            if result.verdict not in ("CLEAN", "FINDINGS") or not result.is_complete:
                continue
            seen = {finding.key for finding in result.findings}
            made = {f"{strip.stop}/{strip.phase}" for strip in result.strips} | {"baseline"}
            gone += [
                entry
                for entry in self.entries
                if (entry.scenario, entry.world) == (result.target, result.world)
                and entry.finding not in seen
                and (not entry.strips or made.intersection(entry.strips))
            ]
        return gone

    def adopt(self, results: Sequence[AuditResult]) -> Baseline:
        """A new baseline: the findings of these audits, and the old entries of scenarios that they did not cover."""
        looked_at = {(result.target, result.world) for result in results}
        kept = [entry for entry in self.entries if (entry.scenario, entry.world) not in looked_at]
        found = {
            (result.target, result.world, finding.key): Entry(
                result.target, result.world, finding.key, tuple(finding.strips)
            )
            for result in results
            for finding in result.findings
            if finding.severity == "error" and not finding.ignored
        }
        return Baseline([*kept, *found.values()])

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file completely or not at all; raises `BadBaseline`."""
        data = {
            "version": VERSION,
            "findings": [
                {
                    "scenario": entry.scenario,
                    "world": entry.world,
                    "finding": entry.finding,
                    "strips": list(entry.strips),
                }
                for entry in self.entries
            ],
        }
        target = Path(path)
        # In the same folder, because `replace` is atomic only within a file system.
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
            temporary.replace(target)
        except OSError as error:
            raise BadBaseline(f"the baseline file {path} cannot be written: {error.strerror}") from None
        finally:
            temporary.unlink(missing_ok=True)


def _list_in(data: dict[str, Any], path: object) -> list[Any]:
    findings = data.get("findings")
    if not isinstance(findings, list):
        raise BadBaseline(
            f'the baseline file {path} has no list of "findings": write it again with --write-baseline'
        )
    return findings


def _entry(raw: Any, number: int, path: object) -> Entry:
    words = [raw.get(name) for name in ("scenario", "world", "finding")] if isinstance(raw, dict) else []
    scenario, world, finding = words or (None, None, None)
    if not (isinstance(scenario, str) and isinstance(world, str) and isinstance(finding, str)):
        raise BadBaseline(
            f'entry {number} of the baseline file {path} is not {{"scenario": ..., "world": ..., "finding": ...}}'
        )
    strips = raw.get("strips", [])
    seen_in = tuple(str(strip) for strip in strips) if isinstance(strips, list) else ()
    return Entry(scenario, world, finding, seen_in)
