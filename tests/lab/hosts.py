"""Hosts that are namespaces of this machine: network, names, processes, mounts, disks and homes of their own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import yaml
from filelock import FileLock, Timeout

from lab.programs import LabError, Program, until

ROOT = Path(__file__).resolve().parent.parent.parent
PREFIX = "lab-"  # of everything that lies outside the hosts: namespaces, links, the bridge
BRIDGE = PREFIX + "bridge"
SUBNET = "10.77.0"
WORKERS = ("n1", "n2", "n3")
CHECKOUT = "/root/photonic-dfa"  # on hosts, as launch.yaml has it
PROGRAMS = {"ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux",
            "mount": "mount", "rsync": "rsync", "ssh": "openssh-client", "sshd": "openssh-server",
            "slurmctld": "slurm-wlm", "munged": "munge", "initdb": "postgresql"}
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin",
                        *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True))])
DISK = "/var/tmp"  # on which homes lie
UNSHARE = ("unshare", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")
# In a network of its own: what may be refused to root, too, as in a container.
TRY = r"""set -e
ip link add try type bridge
ip link add try0 type veth peer name try1
mkdir home work
mount -t tmpfs tmpfs /srv
mount -t overlay overlay -o "lowerdir=/root,upperdir=$PWD/home,workdir=$PWD/work" /root
"""
# What a host has for itself. Its home begins as an image of this machine's, with what `install` put there.
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


def lacking() -> list[str]:
    """What this machine lacks for a laboratory, in words; empty if it has all."""
    found = [] if os.uname().sysname == "Linux" else ["Linux"]
    found += [] if os.geteuid() == 0 else ["root"]
    packages = sorted({package for program, package in PROGRAMS.items() if not shutil.which(program, path=PATH)})
    found += [f"Debian's packages: apt-get install {' '.join(packages)}"] if packages else []
    if not found:
        with tempfile.TemporaryDirectory(dir=DISK) as folder:
            tried = subprocess.run([*UNSHARE, "--net", "bash", "-c", TRY], cwd=folder, capture_output=True, text=True,
                                   env={"PATH": PATH})
        found += [f"the right to make hosts: {tried.stderr.strip()}"] if tried.returncode else []
    return found


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
            _run("ip", "netns", "add", self._space)
            _run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self._space)
            _run("ip", "link", "set", self._link, "master", BRIDGE, "up")
            _run("ip", "-n", self._space, "addr", "add", f"{self.address}/24", "dev", "eth0")
            _run("ip", "-n", self._space, "link", "set", "eth0", "up")
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
            _run("ip", "link", "del", self._link, check=False)
            for network in (self._space, self._cable):  # which ends the relay, too
                _run("ip", "netns", "del", network, check=False)

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
        _run("ip", "link", "set", self._link, "down")

    def mend(self) -> None:
        """Plug its cable in."""
        _run("ip", "link", "set", self._link, "up")

    def slow(self, delay: float = 0.1, loss: float = 0.02) -> None:
        """Make its link a bad one, as long as the host is on.

        Args:
            delay: s, in each direction.
            loss: probability that a frame is lost.
        """
        _run("ip", "netns", "add", self._cable)
        _run("ip", "link", "set", self._link, "nomaster", "netns", self._cable, "name", "near")
        _run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "far", "netns", self._cable)
        _run("ip", "link", "set", self._link, "master", BRIDGE, "up")
        for device in ("near", "far"):
            _run("ip", "-n", self._cable, "link", "set", "dev", device, "up")
        Program(f"{self.name}: relay", ["nsenter", f"--net=/run/netns/{self._cable}", sys.executable,
                                        str(Path(__file__).with_name("relay.py")), str(delay), str(loss)],
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


class Laboratory:
    """The network and its hosts: n1, n2 and n3 that train, `tracking` and `laptop`.

    Args:
        data: folder of data sets, /srv/data on the hosts; empty for none.
        own: size of the disk /srv/own that each host has for itself.
        epochs: of the trials of lab.yaml.
    """

    def __init__(self, data: str = "", own: str = "1g", epochs: int = 120) -> None:
        self.data, self.own, self.epochs = data, own, epochs
        self.folder = Path(tempfile.mkdtemp(prefix="photonic-lab-", dir=DISK))
        self.folder.chmod(0o711)  # PostgreSQL runs as a user of its own
        self.image = self.folder / "nothing"  # what homes begin with, over this machine's
        self.bin = ROOT / ".venv" / "bin"
        self._lock = FileLock(f"/run/lock/{BRIDGE}")
        self.token = secrets.token_hex(32)
        names = (*WORKERS, "tracking", "laptop")
        self.hosts = {name: Host(self, name, number) for number, name in enumerate(names, 11)}

    def __enter__(self) -> Laboratory:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            self.folder.rmdir()
            raise LabError("another laboratory runs on this machine; it must end first") from None
        clear()
        try:
            (self.folder / "shared").mkdir()
            self.image.mkdir()
            names = "".join(f"{host.address} {name}\n" for name, host in self.hosts.items())
            (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
            (self.folder / "resolv.conf").write_text(f"nameserver {SUBNET}.99\n")  # that is not there
            _run("ip", "link", "add", BRIDGE, "type", "bridge")
            _run("ip", "addr", "add", f"{SUBNET}.1/24", "dev", BRIDGE)  # so that this machine sees its hosts
            _run("ip", "link", "set", BRIDGE, "up")
            for host in self.hosts.values():
                host.boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for host in self.hosts.values():
            host.off()
        _run("ip", "link", "del", BRIDGE, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.release()

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def restart(self) -> None:
        """Switch the hosts that train off and on, so that nothing of before runs on them."""
        for name in WORKERS:
            self[name].off()
            self[name].boot()

    def move_in(self, image: Path) -> None:
        """Let homes begin with an image: that of `laptop` now, others when their hosts start again."""
        self.image = image
        self["laptop"].off()
        self["laptop"].boot()


@contextlib.contextmanager
def image(lab: Laboratory) -> Iterator[Future[Path]]:
    """What homes begin with once `Laboratory.move_in` was called: the checkout and its packages, as `ray up` would
    bring them by the network that the hosts lack. It is made while the block runs, and ended with it."""
    maker = Host(lab, "image", 0, network=False)
    maker.boot()
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(_install, maker)
        finally:
            maker.off()


def _install(maker: Host) -> Path:
    launch = yaml.safe_load((ROOT / "experiments" / "cluster" / "launch.yaml").read_text())
    maker.run("rsync", "-a", *(f"--exclude={name}" for name in launch["rsync_exclude"]), f"{ROOT}/", CHECKOUT)
    for command in launch["setup_commands"]:
        maker.run("bash", "-c", command, seconds=600, PYTHONPATH="")
    maker.off()
    return maker.lab.folder / maker.name / "home"


def clear() -> None:
    """Take away what a laboratory left that was killed: its network; its mounts went with its processes."""
    for line in _run("ip", "netns", "list", check=False).splitlines():
        if line.startswith(PREFIX):
            _run("ip", "netns", "del", line.split()[0], check=False)
    _run("ip", "link", "del", BRIDGE, check=False)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, so that all is taken down."""
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": PATH})
    if check and done.returncode:
        raise LabError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
