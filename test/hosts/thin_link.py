#!/usr/bin/env python3
"""A thin link between two network namespaces: a cable of two TAP devices, and this process between them. It stands in for `tc netem`, which many
kernels lack. Packets leave at a rate, one after the other, and arrive a delay later; those that find a full queue are lost, as in a router.

    thin_link.py NAMESPACE_A NAMESPACE_B DEVICE MBIT_PER_S DELAY_MS     until it is killed; needs root

The queue holds a fifth of a second. Prints "ready" when both devices are there; addresses are the caller's. SIGUSR1 prints the bytes that each has sent.
"""
import collections
import ctypes
import errno
import fcntl
import os
import select
import signal
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI, CLONE_NEWNET = 0x400454CA, 0x0002, 0x1000, 0x40000000
QUEUE_S, FRAME = 0.2, 1 << 16


def enter(path):
    with open(path, "rb") as place:
        if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), CLONE_NEWNET):
            sys.exit(f"thin_link: cannot enter {path}: {os.strerror(ctypes.get_errno())}")


def tap(namespace, device):
    """The device's file, made in a namespace."""
    enter(f"/run/netns/{namespace}")
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI))
    return fd


class Direction:
    """From one device to the other."""

    def __init__(self, source, sink, bytes_per_s, delay_s):
        self.source, self.sink, self.bytes_per_s, self.delay_s = source, sink, bytes_per_s, delay_s
        self.free_at, self.bytes = 0.0, 0     # free_at: when the last packet so far has left
        self.under_way = collections.deque()  # (time of arrival, packet)

    def take(self, now):
        while True:
            try:
                packet = os.read(self.source, FRAME)
            except OSError as e:
                if e.errno in (errno.EAGAIN, errno.EIO):
                    return
                raise
            start = max(now, self.free_at)
            if start - now > QUEUE_S:
                continue
            self.free_at = start + len(packet) / self.bytes_per_s
            self.under_way.append((self.free_at + self.delay_s, packet))

    def deliver(self, now):
        while self.under_way and self.under_way[0][0] <= now:
            packet = self.under_way.popleft()[1]
            try:
                os.write(self.sink, packet)
                self.bytes += len(packet)
            except OSError as e:
                if e.errno not in (errno.EIO, errno.EAGAIN, errno.ENOBUFS):  # the device is down, or full
                    raise


def main():
    first, second, device = sys.argv[1:4]
    at_home = os.open("/proc/self/ns/net", os.O_RDONLY)
    rate, delay = float(sys.argv[4]) * 1e6 / 8, float(sys.argv[5]) / 1e3
    a, b = tap(first, device), tap(second, device)
    enter(f"/proc/self/fd/{at_home}")  # what kills all of a namespace's processes leaves the link
    both = [Direction(a, b, rate, delay), Direction(b, a, rate, delay)]
    signal.signal(signal.SIGUSR1, lambda *_: print(*(d.bytes for d in both), flush=True))
    print("ready", flush=True)
    while True:
        now = time.monotonic()
        due = [d.under_way[0][0] for d in both if d.under_way]
        select.select([a, b], [], [], max(0.0, min(due) - now) if due else None)
        now = time.monotonic()
        for d in both:
            d.take(now)
            d.deliver(now)


main()
