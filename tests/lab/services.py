"""What runs on the hosts: a tracking server before PostgreSQL, ssh, Slurm, and Ray started by hand."""

from __future__ import annotations

import pwd
import shutil
from pathlib import Path

from lab.hosts import PATH, ROOT, Host, Laboratory, Program

TRACKING = "http://10.77.0.14:5000"


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
    where = ["--head", "--port=6379", "--ray-client-server-port=10001", '--resources={"OPU": 1}',
             f"--node-ip-address={host.address}"] if host.name == "n1" else [f"--address={lab['n1'].address}:6379"]
    return host.start("ray", "start", *where, f"--num-cpus={cores}", "--block", *options, RAY_AUTH_MODE="token",
                      **data(lab))


def data(lab: Laboratory) -> dict[str, str]:
    return {"PHOTONIC_DATA": "/srv/data"} if lab.data else {}


def write_token(lab: Laboratory, host: Host) -> None:
    (file := lab.folder / host.name / "home" / ".ray" / "auth_token").parent.mkdir(exist_ok=True)
    host.run("bash", "-c", f"umask 077; printf %s {lab.token} > /root/.ray/auth_token")
    assert file.exists()


def sweep(host: Host, file: Path, address: str, *options: str, **environment: str) -> Program:
    """`photonic sweep` on a host of the cluster."""
    return host.start("photonic", "sweep", file, "--address", address, "--mlruns", "/srv/shared/mlruns", *options,
                      cwd=ROOT, RAY_AUTH_MODE="token", MLFLOW_TRACKING_URI=TRACKING, **environment)
