"""What runs on the hosts: a tracking server before PostgreSQL, ssh, Slurm, and Ray started by hand."""

from __future__ import annotations

import pwd
import secrets
import shutil
from pathlib import Path

from lab.hosts import PATH, ROOT, Host
from lab.laboratory import WORKERS, Laboratory
from lab.programs import Program, until

TRACKING = "http://10.77.0.14:5000"
JOBS = "http://10.77.0.11:8265"  # of the head, n1


def tracking(lab: Laboratory) -> Program:
    """The tracking server of docs/cluster.md, with PostgreSQL, on the host `tracking`; its log has every request."""
    host, folder = lab["tracking"], lab.folder / "postgres"
    folder.mkdir()
    owner = pwd.getpwnam("postgres")
    shutil.chown(folder, owner.pw_uid, owner.pw_gid)
    as_postgres = ["runuser", "-u", "postgres", "--"]
    host.run(*as_postgres, shutil.which("initdb", path=PATH), f"--pgdata={folder}/data", "--username=mlflow",
             "--auth=trust", "--no-sync", cwd=folder)
    database = host.start(*as_postgres, shutil.which("postgres", path=PATH), "-D", folder / "data", "-k", folder, "-c",
                          "listen_addresses=127.0.0.1", cwd=folder)
    database.wait_for("ready to accept connections")
    server = host.start("mlflow", "server", "--host", "0.0.0.0", "--port", "5000", "--workers", "1",
                        "--allowed-hosts", "*", "--artifacts-destination", lab.folder / "artifacts",
                        "--backend-store-uri", f"postgresql+psycopg2://mlflow@/postgres?host={folder}",
                        MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false", MLFLOW_DISABLE_TELEMETRY="true")
    server.wait_for("Application startup complete")
    return server


def ray_by_hand(lab: Laboratory, host: Host, *options: str, cores: int = 1) -> Program:
    """`ray start` as docs/cluster.md has it; n1 is the head, and has the OPU."""
    write_token(lab, host)
    where = ["--head", "--port=6379", f"--dashboard-host={host.address}", '--resources={"OPU": 1}',
             f"--node-ip-address={host.address}"] if host.name == "n1" else [f"--address={lab['n1'].address}:6379"]
    return host.start("ray", "start", *where, f"--num-cpus={cores}", "--block", *options, RAY_AUTH_MODE="token",
                      **data(lab))


SSHD = """UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
AuthorizedKeysFile {folder}/key.pub
HostKey {folder}/host
StrictModes no
PidFile none
"""


def ssh(lab: Laboratory) -> None:
    """Servers on n1, n2 and n3, which let root in from `laptop`."""
    folder = lab.folder / "ssh"
    folder.mkdir(exist_ok=True)
    for name in {"key", "host"} - {file.name for file in folder.iterdir()}:
        lab["laptop"].run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name)
    lab["laptop"].run("install", "-m", "600", folder / "key", "/root/.ssh/id_ed25519")
    (folder / "sshd_config").write_text(SSHD.format(folder=folder))
    for name in WORKERS:
        lab[name].start(shutil.which("sshd", path=PATH), "-D", "-e", "-f",
                        folder / "sshd_config").wait_for("Server listening")


SLURM = """ClusterName=lab
SlurmctldHost=n1({head})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=10
GresTypes=gpu
NodeName=n1 NodeAddr={n1} CPUs=16 RealMemory=4000 Gres=gpu:2
NodeName=n2 NodeAddr={n2} CPUs=16 RealMemory=4000 Gres=gpu:2
NodeName=n3 NodeAddr={n3} CPUs=16 RealMemory=4000 Gres=gpu:2
PartitionName=all Nodes=n[1-3] Default=YES MaxTime=INFINITE State=UP
"""


def slurm(lab: Laboratory) -> dict[str, str]:
    """A Slurm of the three hosts, with its controller on n1; its nodes claim cores, and GPUs that are empty files.

    Returns:
        The environment in which its commands find it.
    """
    folder = lab.folder / "slurm"
    (folder / "state").mkdir(parents=True)
    addresses = {name: lab[name].address for name in WORKERS}
    (folder / "slurm.conf").write_text(SLURM.format(head=lab["n1"].address, folder=folder, **addresses))
    devices = [folder / f"gpu{number}" for number in range(2)]
    for device in devices:
        device.touch()
    (folder / "gres.conf").write_text("".join(f"Name=gpu File={device}\n" for device in devices))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o400)
    folder.chmod(0o755)
    environment = {"SLURM_CONF": str(folder / "slurm.conf")}
    lab["n1"].start("munged", "--foreground", "--force", "--key-file", folder / "munge.key", "--socket",
                    folder / "munge.socket", "--pid-file", folder / "munge.pid", "--log-file", folder / "munge.log",
                    "--seed-file", folder / "munge.seed")
    until((folder / "munge.socket").exists, "munged")
    lab["n1"].start("slurmctld", "-D", **environment)
    for name in addresses:
        lab[name].start("slurmd", "-D", "-N", name, **environment)
    until(lambda: lab["n1"].run("sinfo", "-h", "-t", "idle", "-o", "%D", **environment).strip() == "3",
          "three idle nodes of Slurm")
    return environment


def data(lab: Laboratory) -> dict[str, str]:
    return {"PHOTONIC_DATA": "/srv/data"} if lab.data else {}


def write_token(lab: Laboratory, host: Host) -> None:
    host.run("bash", "-c", f"umask 077; printf %s {lab.token} > /root/.ray/auth_token")


def experiment(lab: Laboratory, name: str, file: str = "lab.yaml") -> Path:
    """What the laboratory sweeps under a name of its own, in a file that this machine and all hosts see."""
    path = lab.folder / f"{name}.yaml"
    text = Path(__file__).with_name(file).read_text().replace("name: lab\n", f"name: {name}\n")
    path.write_text(text.replace("epochs: 120", f"epochs: {lab.epochs}"))
    return path


def sweep(host: Host, file: Path, address: str, *options: str, **environment: str) -> Program:
    """`photonic sweep` on a host of the cluster."""
    return host.start("photonic", "sweep", file, "--address", address, "--mlruns", "/srv/shared/mlruns", *options,
                      cwd=ROOT, RAY_AUTH_MODE="token", MLFLOW_TRACKING_URI=TRACKING, **environment)
