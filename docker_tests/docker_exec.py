"""Run a command in a container so that it stops there: `docker exec` as work that runs elsewhere.

    python docker_exec.py CONTAINER COMMAND [ARGUMENT]...

Killing `docker exec` ends only the local client; the command runs on in the container. So what is owned is the
command's session in the container (`remote`): a stop signals it there, and waits until it has ended.
"""

# --8<-- [start:program]
import asyncio
import sys
from dataclasses import dataclass

import quiesce
from quiesce import Remote, remote

# The command keeps the pid of this shell. Docker has given it a session of its own, which has the same number.
START = 'echo "$$"; exec "$@"'
# Zombies do not count: in a container without an init process, nobody reaps them.
SIGNAL = """
signal() {  # each process of the session; false if there is none
    none=1
    for stat in /proc/[0-9]*/stat; do
        { read -r line <"$stat"; } 2>/dev/null || continue
        set -- "$1" "${line%% *}" ${line##*) }
        if [ "$6" = "$session" ] && [ "$3" != Z ]; then
            none=0
            kill "$1" "$2" 2>/dev/null
        fi
    done
    return $none
}
session=$1
"""
# SIGTERM, and after three seconds SIGKILL.
STOP = (
    SIGNAL
    + "signal -TERM; n=30; while signal -0 && [ $n -gt 0 ]; do n=$((n-1)); sleep 0.1; done; signal -KILL; true"
)
WAIT = SIGNAL + "while signal -0; do sleep 0.1; done"
CONTAINER_ENDED = ("is not running", "No such container")


@dataclass
class Command:
    """A command that runs in a container, and the `docker exec` that brings its output."""

    container: str
    session: int
    client: asyncio.subprocess.Process
    output: asyncio.StreamReader

    async def shell(self, script: str) -> None:
        arguments = ("exec", self.container, "sh", "-c", script, "sh", str(self.session))
        docker = await asyncio.create_subprocess_exec("docker", *arguments, stderr=asyncio.subprocess.PIPE)
        _, said = await docker.communicate()
        if docker.returncode and not any(ended in said.decode() for ended in CONTAINER_ENDED):
            raise OSError(said.decode().strip() or f"docker exec: exit status {docker.returncode}")

    async def stop(self) -> None:
        await self.shell(STOP)

    async def wait(self) -> int:
        """Its exit status, when nothing of its session runs any more."""
        await self.shell(WAIT)
        return await self.client.wait()


def in_container(container: str, *command: str) -> Remote[Command, int]:
    async def start() -> Command:
        arguments = ("exec", container, "sh", "-c", START, "sh", *command)
        client = await asyncio.create_subprocess_exec("docker", *arguments, stdout=asyncio.subprocess.PIPE)
        assert client.stdout is not None
        first = await client.stdout.readline()
        if not first:
            raise OSError(
                f"{command[0]!r} was not started: docker exec has exit status {await client.wait()}"
            )
        return Command(container, int(first), client, client.stdout)

    return remote(start, Command.stop, Command.wait, name=" ".join(command), id=lambda c: f"in {container}")


async def main() -> None:
    async with in_container(*sys.argv[1:]) as command:
        async for line in command.value.output:
            print(line.decode(), end="", flush=True)
        status = await command.wait()
    sys.exit(status)


if __name__ == "__main__":
    quiesce.run(main)
# --8<-- [end:program]
