"""The laboratory: the network, its hosts, what their homes begin with, and what this machine needs for it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import yaml
from filelock import FileLock, Timeout

from lab.hosts import BRIDGE, CHECKOUT, PATH, PREFIX, ROOT, SUBNET, UNSHARE, Host, run_here
from lab.programs import LabError

WORKERS = ("n1", "n2", "n3")
DISK = "/var/tmp"  # on which homes lie
PROGRAMS = {"ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux",
            "mount": "mount", "rsync": "rsync", "ssh": "openssh-client", "sshd": "openssh-server",
            "slurmctld": "slurm-wlm", "munged": "munge", "initdb": "postgresql"}
# In a network of its own: what may be refused to root, too, as in a container.
TRY = r"""set -e
ip link add try type bridge
ip link add try0 type veth peer name try1
mkdir home work
mount -t tmpfs tmpfs /srv
mount -t overlay overlay -o "lowerdir=/root,upperdir=$PWD/home,workdir=$PWD/work" /root
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
            run_here("ip", "link", "add", BRIDGE, "type", "bridge")
            run_here("ip", "addr", "add", f"{SUBNET}.1/24", "dev", BRIDGE)  # so that this machine sees its hosts
            run_here("ip", "link", "set", BRIDGE, "up")
            for host in self.hosts.values():
                host.boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for host in self.hosts.values():
            host.off()
        run_here("ip", "link", "del", BRIDGE, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.release()

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def restart(self) -> None:
        """Switch the hosts that train off and on, so that nothing of before runs on them."""
        for name in WORKERS:
            self[name].off()
            self[name].boot()

    def move_in(self, made: Path) -> None:
        """Let homes begin with what `image` made: that of `laptop` now, others when their hosts start again."""
        self.image = made
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
    for line in run_here("ip", "netns", "list", check=False).splitlines():
        if line.startswith(PREFIX):
            run_here("ip", "netns", "del", line.split()[0], check=False)
    run_here("ip", "link", "del", BRIDGE, check=False)


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
