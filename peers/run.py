"""Stop other people's SDKs in every way, without and with quiesce, and write the table: `make peers`.

    python3 peers/run.py [--fast] [--only MODULE] [--stop STOP] [--fresh]

Then it drives the real Claude Code CLI with `quiesce.claude`, which `--only claude_cli` does alone.

Environments are kept as those of `make seeds` are. Each cell is a process with a judge of its own. The table
goes to docs/peers.md, unless only a part was asked for. It exits 1 if something is left with quiesce that is
not named with its reason, or if a cell could not be run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from peers.newest import changes  # noqa: E402
from peers.page import HEADS, Section, write  # noqa: E402
from peers.table import FAST, PEERS, STOPS, Peer  # noqa: E402
from peers.verdict import Verdict  # noqa: E402
from peers.ways import Scenario, Way  # noqa: E402
from throwaway import NotInstalled, build_wheel, environments, locked, make_environment  # noqa: E402

BUILD = environments("peers")
AT_ONCE = 4  # cells: most of their time they wait
CELL_LIMIT = 120.0  # seconds, for a judge that is stuck itself
STAND_INS = ROOT / "peers" / "standins"
DEMONSTRATION = ROOT / "examples" / "mcp_in_fastapi.py"
CARRIES_OVER = [
    ROOT / "examples" / "carries_over" / name for name in ("openai_agents.py", "openai_agents_realtime.py")
]
CARRIES_OVER_FROM = "openai-agents"
MATRIX = "agents_matrix"  # its module
MCP_ENVIRONMENTS = ("mcp-2", "mcp-1")  # in which it has to hold
DEMONSTRATION_LIMIT = 180.0
REAL_CLI = "claude_cli"  # the package that drives it
REAL_CLI_FROM = "claude-agent-sdk"
REAL_CLI_LIMIT = 240.0


def main() -> int:
    parser = argparse.ArgumentParser(description="Stop other people's SDKs, without and with quiesce.")
    parser.add_argument("--fast", action="store_true", help="a handful of cells, for continuous integration")
    parser.add_argument(
        "--only", metavar="MODULE", choices=sorted({peer.module for peer in PEERS} | {REAL_CLI, MATRIX})
    )
    parser.add_argument("--stop", choices=STOPS)
    parser.add_argument(
        "--newest", action="store_true", help="look at the newest releases too, as a whole run does"
    )
    parser.add_argument("--fresh", action="store_true", help="make every environment again")
    options = parser.parse_args()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell without job control has started us in the background, deaf to Ctrl-C: the cells shall hear it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    started = time.monotonic()
    chosen = [
        peer
        for peer in PEERS
        if options.only in (None, peer.module)
        and (not options.fast or any((peer.module, peer.environment) == key[:2] for key in FAST))
    ]
    sections: list[Section] = []
    left_out: list[str] = []
    with locked(BUILD), ExitStack() as stack:
        wheel = build_wheel(BUILD / "wheel")
        model = stack.enter_context(serving(sys.executable, "model.py"))
        installers = stack.enter_context(ThreadPoolExecutor(2))
        cells = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
        # The heavy ones first, so that they are being made while the others are stopped.
        order = [peer.environment for peer in sorted(chosen, key=lambda peer: not peer.is_heavy)]
        if not (options.only or options.stop):
            order += [*MCP_ENVIRONMENTS, CARRIES_OVER_FROM]
        drives_real_cli = options.only == REAL_CLI or not (options.only or options.stop or options.fast)
        if drives_real_cli:
            order.append(REAL_CLI_FROM)
        if options.only == MATRIX:
            order.append(CARRIES_OVER_FROM)
        made = {name: installers.submit(install, name, wheel, options.fresh) for name in dict.fromkeys(order)}
        pending: list[tuple[Section, dict[str, list[Future[Verdict]]]]] = []
        for peer in chosen:
            try:
                made[peer.environment].result()
            except NotInstalled as error:
                why = str(error).splitlines()[0].replace(f"{ROOT}{os.sep}", "")
                left_out.append(f"\n{peer.package} was left out: {why}.")
                print(f"{peer.package}: NOT INSTALLED: {error}")
                continue
            python = BUILD / peer.environment / "bin" / "python"
            settings = settings_of(peer, model)
            if peer.module == "mcp_http":
                settings["PEERS_MCP"] = stack.enter_context(serving(str(python), "mcp_http.py"))
            for section in sections_of(peer, python, settings):
                sections.append(section)
                futures: dict[str, list[Future[Verdict]]] = {}
                wanted = (
                    FAST.get((peer.module, peer.environment, section.scenario.name), ())
                    if options.fast
                    else STOPS
                )
                for stop in wanted:
                    if options.stop not in (None, stop):
                        continue
                    if stop in section.scenario.impossible:
                        section.rows[stop] = section.scenario.impossible[stop]
                        continue
                    cell = (str(python), peer.module, section.scenario.name)
                    section.rows[stop] = "not run"  # keeps its place
                    futures[stop] = [
                        cells.submit(judge, (*cell, side, stop), settings) for side in section.scenario.sides
                    ]
                pending.append((section, futures))
        complaints = [*collect(pending)]
        if not (options.only or options.stop):
            complaints += filter(None, map(demonstrate, MCP_ENVIRONMENTS, map(made.get, MCP_ENVIRONMENTS)))
            complaints += filter(
                None, [carries_over(program, made[CARRIES_OVER_FROM]) for program in CARRIES_OVER]
            )
        if drives_real_cli:
            complaints += filter(None, [drive_real_cli(made[REAL_CLI_FROM])])
        if not options.stop and (options.only == MATRIX or not (options.only or options.fast)):
            complaints += filter(None, [stop_everywhere(made[CARRIES_OVER_FROM])])
        if options.newest or not (options.only or options.stop or options.fast):
            look_at_newest(chosen, wheel, sections, model)
    minutes = (time.monotonic() - started) / 60
    whole = not (options.fast or options.only or options.stop)
    if whole:
        write(ROOT / "docs" / "peers.md", sections, left_out, minutes)
    print(f"\npeers, {minutes * 60:.0f} s in all" + (": docs/peers.md written" if whole else ""))
    print(*complaints, sep="\n")
    return 1 if complaints or (left_out and not all(peer.is_heavy for peer in chosen)) else 0


def collect(
    pending: list[tuple[Section, dict[str, list[Future[Verdict]]]]],
) -> Iterator[str]:
    """Fill in the rows as they come, print them, and yield what is not as it should be."""
    for section, futures in pending:
        print(f"\n{section.title}", flush=True)
        for stop, sides in futures.items():
            row = tuple(side.result() for side in sides)
            section.rows[stop] = row
            print(f"  {STOPS[stop]:<32} {row[0]!s:<72} | {' | '.join(map(str, row[1:]))}", flush=True)
            reason = section.scenario.limits.get(stop)
            for side, one in zip(section.scenario.sides[1:], row[1:], strict=True):
                # A program that was killed cannot name anything.
                if not one.is_clean and not (reason and (one.is_all_named or stop == "killed")):
                    yield f"FAILED: {section.title}, {STOPS[stop]}, {HEADS[side]}: {one} (named: {one.named})"
            if row[0].not_run:
                yield f"FAILED: {section.title}, {STOPS[stop]}, without: {row[0]}"


def judge(cell: tuple[str, ...], settings: dict[str, str]) -> Verdict:
    """One cell, twice if it could not be run: a busy machine may have been too slow."""
    command = [sys.executable, "-m", "peers.judge", *cell]
    verdict = Verdict(not_run="the judge did not come to a verdict")
    for _ in range(2):
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=settings, stdout=subprocess.PIPE, timeout=CELL_LIMIT, check=True
            )
        except subprocess.SubprocessError as error:
            verdict = Verdict(not_run=f"the judge failed: {error}")
            continue
        verdict = Verdict.of(json.loads(done.stdout))
        if not verdict.not_run:
            break
    return verdict


def demonstrate(name: str, made: Future[None] | None) -> str | None:
    """The example of an MCP client in FastAPI, in an environment; a complaint if it did not hold."""
    assert made is not None
    print(f"\n{DEMONSTRATION.name} in {name}:", flush=True)
    try:
        made.result()
        subprocess.run(
            [str(BUILD / name / "bin" / "python"), str(DEMONSTRATION)],
            timeout=DEMONSTRATION_LIMIT,
            check=True,
        )
    except (NotInstalled, subprocess.SubprocessError) as error:
        return f"FAILED: {DEMONSTRATION.name} in {name}: {error}"
    return None


def carries_over(program: Path, made: Future[None]) -> str | None:
    """A program for two libraries, with the one that it was written for; a complaint if that prints something else."""
    print(f"\n{program.name} with {CARRIES_OVER_FROM} itself", flush=True)
    try:
        made.result()
        done = subprocess.run(
            [str(BUILD / CARRIES_OVER_FROM / "bin" / "python"), str(program), "agents"],
            timeout=DEMONSTRATION_LIMIT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (NotInstalled, subprocess.SubprocessError) as error:
        return f"FAILED: {program.name} with {CARRIES_OVER_FROM}: {error}"
    if done.stdout != program.with_suffix(".txt").read_text():
        return f"FAILED: {program.name} prints something else with {CARRIES_OVER_FROM}:\n{done.stdout}"
    return None


def stop_everywhere(made: Future[None]) -> str | None:
    """A run of openai-agents, stopped at each of its points; a complaint if the drop-in leaves something."""
    counts = {}
    try:
        made.result()
        for which in ("agents", "dropin"):
            said = subprocess.run(
                [str(BUILD / CARRIES_OVER_FROM / "bin" / "python"), "-m", f"peers.{MATRIX}", which, "--json"],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                timeout=DEMONSTRATION_LIMIT,
                check=True,
            ).stdout
            cells = json.loads(said)
            counts[which] = sum(bool(cell["faults"]) for cell in cells), len(cells)
    except (NotInstalled, subprocess.SubprocessError) as error:
        return f"FAILED: {MATRIX}: {error}"
    for which, (leaks, cells) in counts.items():
        print(f"\nopenai-agents, stopped at every point, {which}: {leaks} of {cells} cells leak", flush=True)
    return (
        f"FAILED: {MATRIX}: {counts['dropin'][0]} cells leak with the drop-in"
        if counts["dropin"][0]
        else None
    )


def look_at_newest(chosen: list[Peer], wheel: Path, sections: list[Section], model: str) -> None:
    """Print what the newest releases would change in the table."""
    print("\nthe newest releases, compared with those that are pinned:", flush=True)
    with ExitStack() as stack:
        served: dict[str, str] = {}

        def judge_newest(section: Section, python: Path, side: str, stop: str) -> Verdict:
            peer = section.peer
            settings = {**settings_of(peer, model), "HOME": str(python.parent.parent / "home")}
            settings["PATH"] = f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
            if peer.module == "mcp_http":
                if peer.environment not in served:
                    served[peer.environment] = stack.enter_context(serving(str(python), "mcp_http.py"))
                settings["PEERS_MCP"] = served[peer.environment]
            return judge((str(python), peer.module, section.scenario.name, side, stop), settings)

        for name in dict.fromkeys(peer.environment for peer in chosen):
            peers = [peer for peer in chosen if peer.environment == name]
            for line in changes(BUILD, name, peers, wheel, sections, judge_newest):
                print(line, flush=True)


def drive_real_cli(made: Future[None]) -> str | None:
    """The real Claude Code CLI, by `quiesce.claude`; a complaint if a case was not as it should be."""
    print(f"\nthe CLI in {REAL_CLI_FROM}, driven by quiesce.claude", flush=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        made.result()
        subprocess.run(
            [str(BUILD / REAL_CLI_FROM / "bin" / "python"), "-m", f"peers.{REAL_CLI}"],
            cwd=ROOT,
            env=environment,
            timeout=REAL_CLI_LIMIT,
            check=True,
        )
    except (NotInstalled, subprocess.SubprocessError) as error:
        return f"FAILED: {REAL_CLI}: {error}"
    return None


def install(name: str, wheel: Path, is_fresh: bool) -> None:
    minor = max(peer.minor for peer in PEERS if peer.environment == name)
    make_environment(BUILD / name, ROOT / "peers" / f"{name}.txt", wheel, minor=minor, is_fresh=is_fresh)


def settings_of(peer: Peer, model: str) -> dict[str, str]:
    environment = BUILD / peer.environment
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        **peer.settings,
        "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "HOME": str(environment / "home"),
        "PEERS_MODEL": model,
    }


def sections_of(peer: Peer, python: Path, settings: dict[str, str]) -> Iterator[Section]:
    """Its scenarios, as the modules say that have the SDK; they cannot be imported here."""
    probe = (
        "import importlib, json, platform, sys; from importlib.metadata import version\n"
        "module = importlib.import_module(f'peers.{sys.argv[1]}')\n"
        "made = [getattr(module, name)() for name in sys.argv[3:]]\n"
        "print(json.dumps([version(sys.argv[2]), platform.python_version(),"
        " [[s.name, s.title, s.impossible, s.limits, s.dropin is not None] for s in made]]))"
    )
    command = [str(python), "-c", probe, peer.module, peer.package, *peer.scenarios]
    said = subprocess.run(
        command, cwd=ROOT, env=settings, stdout=subprocess.PIPE, timeout=120, check=True
    ).stdout
    version, python_version, scenarios = json.loads(said)
    for name, title, impossible, limits, has_dropin in scenarios:
        nothing = Way(use=None)  # type: ignore[arg-type]  # what it does is the cell's affair
        dropin = nothing if has_dropin else None
        scenario = Scenario(name, title, nothing, nothing, impossible, limits, dropin)
        yield Section(peer, version, python_version, scenario)


@contextmanager
def serving(python: str, name: str) -> Iterator[str]:
    """Run a stand-in that serves; the port that it says."""
    server = subprocess.Popen(
        [python, str(STAND_INS / name)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
