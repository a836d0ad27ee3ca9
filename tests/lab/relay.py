"""`python relay.py DELAY LOSS`: a bad cable between the devices `near` and `far` of its network, in both directions.

For kernels without netem. Frames are those that the kernel hands over, up to 64 KB of one stream; their order stays.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import sys
import time
from collections import deque

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23  # <linux/if_packet.h>
SO_RCVBUFFORCE = 33  # <asm-generic/socket.h>
ETH_P_ALL = 3  # <linux/if_ether.h>
BUFFER = 1 << 24


def port(device: str) -> socket.socket:
    """A socket of whole frames, each behind what the kernel has left to do to it: checksums, cuts into segments."""
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    found.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    found.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    found.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
    found.bind((device, ETH_P_ALL))
    found.setblocking(False)
    return found


def relay(delay: float, loss: float) -> None:
    """Hand frames on, as long as both devices are there.

    Args:
        delay: s, in each direction.
        loss: probability that a frame is lost.

    Raises:
        OSError: a device is gone, or down.
    """
    near, far = port("near"), port("far")
    beyond, under_way = {near: far, far: near}, deque[tuple[float, socket.socket, bytes]]()
    print("relaying", flush=True)
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for there in select.select([near, far], [], [], wait)[0]:
            frame = there.recv(1 << 17)
            if random.random() >= loss:
                under_way.append((time.monotonic() + delay, beyond[there], frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, there, frame = under_way.popleft()
            with contextlib.suppress(BlockingIOError):  # its queue is full: lost, as on any cable
                there.send(frame)


if __name__ == "__main__":
    relay(float(sys.argv[1]), float(sys.argv[2]))
