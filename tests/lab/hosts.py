"""Hosts that are namespaces of this machine: network, names, processes, mounts, disks and homes of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lab.programs import LabError, Program, until

if TYPE_CHECKING:
    from lab.laboratory import Laboratory

ROOT = Path(__file__).resolve().parent.parent.parent
PREFIX = "lab-"  # of everything that lies outside the hosts: namespaces, links, the bridge
BRIDGE = PREFIX + "bridge"
SUBNET = "10.77.0"
CHECKOUT = "/root/photonic-dfa"  # on hosts, as launch.yaml has it
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin",
                        *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True))])
UNSHARE = ("unshare", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")
# What a host has for itself. Its home begins as an image of this machine's, with what `image` put there.
BOOT = r"""set -e
mount --make-rprivate /
hostname "$NAME"
mkdir -p "$LAB/checkout"
mount --bind "$CHECKOUT" "$LAB/checkout"
for folder in /tmp /dev/shm /srv; do mount -t tmpfs -o mode=1777 tmpfs $folder; done
if [ ! -e "$CHECKOUT" ]; then  # it lay in one of these
    mkdir -p "$CHECKOUT"
    mount --bind "$LAB/checkout" "$CHECKOUT"
fi
mkdir /srv/shared /srv/own /srv/data
mount --bind "$LAB/shared" /srv/shared
mount -t tmpfs -o "size=$OWN" tmpfs /srv/own
[ -z "$DATA" ] || mount --bind "$DATA" /srv/data
mkdir -p "$LAB/$NAME/home" "$LAB/$NAME/work" /run/sshd
mount -t overlay overlay -o "lowerdir=$IMAGE:/root,upperdir=$LAB/$NAME/home,workdir=$LAB/$NAME/work" /root
rm -rf /root/.ray /root/.ssh
mkdir -m 700 /root/.ray /root/.ssh
mkdir -p "$LAB/shared/mlruns"
mount --bind "$LAB/shared/mlruns" "$CHECKOUT/mlruns"
if [ "$NETWORK" ]; then
    mount --bind "$LAB/hosts" /etc/hosts
    mount --bind "$LAB/resolv.conf" "$(readlink -f /etc/resolv.conf)"
    ip link set lo up
fi
touch "$LAB/$NAME/up"
sleep infinity &
wait  # and, as the first process of a host has to, for those whose parents have ended
"""


class Host:
    """One host; `Laboratory.hosts` has them.

    Args:
        network: whether it has its own; else that of this machine, for what is installed before the laboratory closes.
    """

    def __init__(self, lab: Laboratory, name: str, number: int, network: bool = True) -> None:
        self.lab, self.name, self.address = lab, name, f"{SUBNET}.{number}"
        self._space, self._link, self._cable = PREFIX + name, PREFIX + name, f"{PREFIX}cable-{name}"
        self._network = network
        self._init: subprocess.Popen | None = None

    def boot(self) -> None:
        """Start it, with a home as new."""
        own = self.lab.folder / self.name
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir()
        up = own / "up"
        where = []
        if self._network:
            run_here("ip", "netns", "add", self._space)
            run_here("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self._space)
            run_here("ip", "link", "set", self._link, "master", BRIDGE, "up")
            run_here("ip", "-n", self._space, "addr", "add", f"{self.address}/24", "dev", "eth0")
            run_here("ip", "-n", self._space, "link", "set", "eth0", "up")
            where = ["nsenter", f"--net=/run/netns/{self._space}"]
        self._init = subprocess.Popen(
            [*where, *UNSHARE, "bash", "-c", BOOT],
            env={"PATH": PATH, "NAME": self.name, "LAB": str(self.lab.folder), "CHECKOUT": str(ROOT),
                 "IMAGE": str(self.lab.image), "DATA": self.lab.data,
                 "OWN": self.lab.own, "NETWORK": "1" if self._network else ""},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        until(lambda: up.exists() or self._init.poll() is not None, f"host {self.name} to start")
        if self._init.poll() is not None:
            raise LabError(f"host {self.name} does not start: {self._init.stderr.read()}")

    def off(self) -> None:
        """Kill all that runs on it, at once, and take it off the network, as when its power goes."""
        if self._init:
            for pid in self._pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._init.kill()
            self._init.wait()
            self._init = None
        if self._network:
            run_here("ip", "link", "del", self._link, check=False)
            for network in (self._space, self._cable):  # which ends the relay, too
                run_here("ip", "netns", "del", network, check=False)

    def command(self, *command: object) -> list[str]:
        """A command of this machine that runs `command` there."""
        return ["nsenter", f"--target={self._first()}", "--net", "--uts", "--mount", "--ipc", "--pid", "--",
                *map(str, command)]

    def start(self, *command: object, cwd: Path | str = "/root", **environment: str) -> Program:
        """A program there, in an environment that has nothing of this machine's but the PATH."""
        go = ["bash", "-c", 'cd "$0" && exec "$@"', cwd, *command]
        return Program(f"{self.name}: {' '.join(map(str, command))}"[:100], self.command(*go),
                       {"PATH": f"{self.lab.bin}{os.pathsep}{PATH}", "PYTHONPATH": str(ROOT), "HOME": "/root",
                        "USER": "root", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0",
                        **environment}, ROOT)

    def run(self, *command: object, seconds: float = 120, cwd: Path | str = "/root", **environment: str) -> str:
        """What a program says that runs there to its end.

        Raises:
            LabError: it failed.
        """
        program = self.start(*command, cwd=cwd, **environment)
        if code := program.wait(seconds):
            raise LabError(f"{program.name} ended with {code}:\n{program.text}")
        return program.text

    def cut(self) -> None:
        """Pull its cable."""
        run_here("ip", "link", "set", self._link, "down")

    def mend(self) -> None:
        """Plug its cable in."""
        run_here("ip", "link", "set", self._link, "up")

    def slow(self) -> None:
        """Make its link a bad one, as long as the host is on: 100 ms of delay in each direction, 2% of frames lost."""
        run_here("ip", "netns", "add", self._cable)
        run_here("ip", "link", "set", self._link, "nomaster", "netns", self._cable, "name", "near")
        run_here("ip", "link", "add", self._link, "type", "veth", "peer", "name", "far", "netns", self._cable)
        run_here("ip", "link", "set", self._link, "master", BRIDGE, "up")
        for device in ("near", "far"):
            run_here("ip", "-n", self._cable, "link", "set", "dev", device, "up")
        Program(f"{self.name}: relay", ["nsenter", f"--net=/run/netns/{self._cable}", sys.executable,
                                        str(Path(__file__).with_name("relay.py")), "0.1", "0.02"],
                {"PATH": PATH}, ROOT).wait_for("relaying")

    def pause(self) -> None:
        """Stop all its processes where they stand, and its link, as of a virtual machine that is paused."""
        self.cut()
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause`, as if no time had gone by."""
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.mend()

    def _first(self) -> int:
        """Its first process, as this machine numbers it."""
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text().split()
        if not children:
            raise LabError(f"host {self.name} is off")
        return int(children[0])

    def _pids(self) -> list[int]:
        """Its processes, the first last."""
        try:
            first = self._first()
            here = os.readlink(f"/proc/{first}/ns/pid")
        except (LabError, OSError):
            return []
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and os.readlink(entry / "ns" / "pid") == here and int(entry.name) != first:
                    found.append(int(entry.name))
        return [*found, first]


def run_here(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": PATH})
    if check and done.returncode:
        raise LabError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
