#!/usr/bin/env python3
"""Links that delay: pairs of TAP devices in two network namespaces, with a process that passes frames on.

Frames wait for the given time in each direction; a device drops those beyond its queue. Devices take
frames of 64 KiB, so that one core passes on more than 1 Gbit/s. `bench/network.sh` starts this for a
network such as `1gbit@100ms`.

    bench/delay.py MILLISECONDS NAMESPACE DEVICE NAMESPACE DEVICE [NAMESPACE DEVICE ...]

Devices are created in their namespaces, two and two; "ready" is printed once all are up.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000
MTU = 65000
FRAME_BYTES_MAX = MTU + 64
QUEUE_FRAMES = 4096


def tap(namespace: str, device: str) -> int:
    """Creates a TAP device in a namespace and returns its descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as place:
        if libc.setns(place.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter namespace {namespace}")
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TAP | IFF_NO_PI))
    up = ["mtu", str(MTU), "txqueuelen", str(QUEUE_FRAMES), "up"]
    subprocess.run(["ip", "link", "set", device, *up], check=True)
    return descriptor


def pass_on(peers: dict[int, int], delay_s: float) -> None:
    """Passes frames on for ever; `peers` has the other end of each device."""
    waiting: deque[tuple[float, int, bytes]] = deque()
    poll = select.poll()
    for descriptor in peers:
        poll.register(descriptor, select.POLLIN)
    while True:
        wait_ms = max(0.0, waiting[0][0] - time.monotonic()) * 1e3 if waiting else None
        for descriptor, _ in poll.poll(wait_ms):
            # A few frames of each device in turn.
            for _ in range(16):
                try:
                    frame = os.read(descriptor, FRAME_BYTES_MAX)
                except BlockingIOError:
                    break
                waiting.append((time.monotonic() + delay_s, peers[descriptor], frame))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, peer, frame = waiting.popleft()
            # A device whose queue is full drops the frame, as a switch does.
            with contextlib.suppress(BlockingIOError):
                os.write(peer, frame)


def main() -> None:
    """Makes the devices of the command line and passes frames on."""
    delay_s, places = float(sys.argv[1]) / 1e3, sys.argv[2:]
    ends = [tap(*places[at : at + 2]) for at in range(0, len(places), 2)]
    pairs = list(zip(ends[::2], ends[1::2]))
    peers = {one: other for pair in pairs for one, other in (pair, pair[::-1])}
    print("ready", flush=True)
    pass_on(peers, delay_s)


if __name__ == "__main__":
    main()
