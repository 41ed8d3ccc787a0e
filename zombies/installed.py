"""Installs the servers: from PyPI, from npm, and a browser for two of them. Kept until their versions change."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from throwaway import NotInstalled, build_wheel, make_environment

HERE = Path(__file__).parent
CLIENT, OLDER = "mcp-2", "mcp-1"  # with the client, and with servers that need an older mcp
INSTALL_LIMIT = 600.0
# What npm's packages would fetch when they are installed.
_NO_DOWNLOADS = ("--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")
_UNPACK = (
    "process.env.AWS_EXECUTION_ENV = 'AWS_Lambda_nodejs22.x';"  # so that it unpacks its libraries too
    "import('@sparticuz/chromium').then(async (it) => console.log(await it.default.executablePath()))"
)
_BY_UVX = ("mcp-server-fetch", "mcp-server-git", "mcp-server-time")


@dataclass(frozen=True)
class Installed:
    """Where everything is."""

    folder: Path

    @property
    def python(self) -> Path:
        """The client's."""
        return self.folder / CLIENT / "bin" / "python"

    @property
    def npm(self) -> Path:
        """Where `npx` finds the servers of npm."""
        return self.folder / "npm"

    @property
    def browser(self) -> Path:
        """A launcher of Chromium."""
        return self.npm / "browser" / "launch"

    @property
    def settings(self) -> dict[str, str]:
        """The environment variables of every server: nothing is fetched any more, or told to anybody."""
        places = [
            *(self.folder / name / "bin" for name in (CLIENT, OLDER)),
            self.npm / "node_modules" / ".bin",
        ]
        return {
            "PATH": os.pathsep.join([*map(str, places), os.environ.get("PATH", os.defpath)]),
            "HOME": str(self.folder / "home"),
            "DO_NOT_TRACK": "1",
            "npm_config_offline": "true",
            "npm_config_update_notifier": "false",
            "UV_OFFLINE": "1",
            "UV_NO_PROGRESS": "1",
            **self._uv,
        }

    @property
    def _uv(self) -> dict[str, str]:
        return {
            "UV_CACHE_DIR": str(self.folder / "uv"),
            "UV_CONSTRAINT": str(HERE / f"{CLIENT}.txt"),
            "UV_PYTHON": str(self.python),
            "UV_PYTHON_DOWNLOADS": "never",
        }

    def versions(self) -> dict[str, str]:
        """The version of every package that the table may show."""
        found = dict(json.loads((HERE / "package.json").read_text())["dependencies"])
        for name in (OLDER, CLIENT):
            found |= dict(line.split("==") for line in (HERE / f"{name}.txt").read_text().splitlines())
        return found

    def install(self, *, is_fresh: bool) -> None:
        """Raises NotInstalled."""
        wheel = build_wheel(self.folder / "wheel")
        for name in (CLIENT, OLDER):
            make_environment(self.folder / name, HERE / f"{name}.txt", wheel, is_fresh=is_fresh)
        (self.folder / "home").mkdir(exist_ok=True)
        self._install_from_npm(is_fresh)
        self._fill_cache_of_uv(is_fresh)

    def _install_from_npm(self, is_fresh: bool) -> None:
        wanted = (HERE / "package.json").read_text()
        stamp = self.npm / "made-of.txt"
        if not is_fresh and stamp.is_file() and stamp.read_text() == wanted:
            return
        if shutil.which("npm") is None:
            raise NotInstalled("there is no npm, and no Node, whose servers are among the most common ones")
        shutil.rmtree(self.npm, ignore_errors=True)
        (self.npm / "browser").mkdir(parents=True)
        (self.npm / "package.json").write_text(wanted)
        self._run("npm", "install", *_NO_DOWNLOADS)
        self._run("node", "-e", _UNPACK, TMPDIR=str(self.npm / "browser"))
        self.browser.write_text(
            f'#!/bin/sh\nexport LD_LIBRARY_PATH="{self.browser.parent}/al2023/lib"\n'
            f'exec "{self.browser.parent}/chromium" "$@"\n'
        )
        self.browser.chmod(0o755)
        stamp.write_text(wanted)

    def _fill_cache_of_uv(self, is_fresh: bool) -> None:
        wanted = (HERE / f"{CLIENT}.txt").read_text()
        stamp = self.folder / "uv" / "made-of.txt"
        if not is_fresh and stamp.is_file() and stamp.read_text() == wanted:
            return
        shutil.rmtree(self.folder / "uv", ignore_errors=True)
        for name in _BY_UVX:
            self._run(str(self.python.with_name("uvx")), name, "--help", **self._uv)
        stamp.write_text(wanted)

    def _run(self, *command: str, **settings: str) -> None:
        try:
            subprocess.run(
                command,
                cwd=self.npm,
                env={**os.environ, **settings},
                check=True,
                capture_output=True,
                text=True,
                timeout=INSTALL_LIMIT,
            )
        except subprocess.TimeoutExpired as error:
            raise NotInstalled(f"not done after {INSTALL_LIMIT:.0f} s: {command[0]} {command[1]}") from error
        except subprocess.CalledProcessError as error:
            raise NotInstalled(f"{command[0]} {command[1]} failed: {error.stdout}{error.stderr}") from error
