"""Check that a Ray cluster answers at an address and accepts this token; Ray itself would try for half a minute."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import grpc

from pipeline.sweep.resources import ResourceError

TIMEOUT_SECONDS = 5.0
# Requests for a head's two ports, cluster and Ray Client; neither answers without its token.
QUESTIONS = ("/ray.rpc.NodeInfoGcsService/CheckAlive", "/ray.rpc.RayletDriver/ClusterInfo")


def check_address(address: str, found: bool = False) -> None:
    """Check that a cluster answers at `host:port`, and that Ray has its token; else raise `ResourceError`.

    An address without a port (`auto`, if no cluster was found) is left to Ray. If Ray has `found` the cluster itself,
    it sends a token unless RAY_AUTH_MODE forbids it.
    """
    host, separator, port = address.rpartition(":")
    if not separator:
        return
    try:
        socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise ResourceError(f"address: no Ray cluster answers at '{address}' ({error}); start one with "
                            "`ray start --head`, or leave --address out to use this machine alone") from None
    if not _refuses(address, ""):
        return
    token, source = own_token()
    if not token:
        raise ResourceError(f"address: the Ray cluster at '{address}' asks for a token, and there is none; set "
                            "RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the token of its head, or write that to "
                            f"{source} (RAY_AUTH_TOKEN_PATH names another file)")
    if _refuses(address, token):
        raise ResourceError(f"address: the Ray cluster at '{address}' asks for another token than that in {source}; "
                            "its own is in ~/.ray/auth_token on its head, if it was not set there")
    mode = os.environ.get("RAY_AUTH_MODE", "token" if found else "")
    if mode.lower() != "token":
        raise ResourceError(f"address: the Ray cluster at '{address}' asks for a token; Ray hands in that of {source} "
                            f"with RAY_AUTH_MODE=token only, got '{mode}'; set it")


def own_token() -> tuple[str, str]:
    """Return (the token that Ray finds here, empty for none; the place where it is, or should be)."""
    if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return token, "RAY_AUTH_TOKEN"
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    return (file.read_text(encoding="utf-8").strip() if file.is_file() else ""), str(file)


def _refuses(address: str, token: str) -> bool:
    """Whether the server refuses this token; with an empty token, whether it refuses requests without one."""
    with grpc.insecure_channel(address) as channel:
        for question in QUESTIONS:
            try:
                channel.unary_unary(question)(b"", timeout=TIMEOUT_SECONDS,
                                              metadata=[("authorization", f"Bearer {token}")] if token else [])
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                    return True
    return False
