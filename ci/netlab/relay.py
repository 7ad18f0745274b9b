#!/usr/bin/env python3
"""Holds up, reorders, loses or slows down the packets of a cable: what netem would do where the kernel has it.

`ci/netlab.sh delay HOST MS [options]` starts one of these for each cable of a host, between two interfaces of its own (TAP) on
the switch: what comes out of one goes into the other, later. Each direction has its own queue and its own random numbers, so
that a seed means the same decisions for the same packets in the same order. Unless the lab has --no-offload, a "packet" is
whatever the kernel sends in one piece, up to 64 KiB. Ends on SIGTERM, or when an interface is taken away, and then prints one
JSON object with what it did."""

import argparse
import errno
import fcntl
import heapq
import json
import os
import random
import select
import signal
import struct
import sys
import time

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
CHECKSUMS, LONG4, LONG6, LONG_ECN = 1, 2, 4, 8  # what may be left to whoever sends it on
LARGEST = (1 << 16) + 64
BATCH = 32  # packets that are taken before those that are due are looked after again
HEADER = 10  # of struct virtio_net_hdr, before each packet


def parse():
    parser = argparse.ArgumentParser(prog="ci/netlab.sh delay HOST", description=__doc__.split("\n\n", maxsplit=1)[0],
                                     epilog="Each way by itself: a round trip takes two of these delays. `delay HOST 0` ends it.")
    parser.add_argument("delay", metavar="MS", type=float, help="milliseconds that every packet takes, each way; decimals may be")
    parser.add_argument("--jitter", metavar="MS", type=float, default=0, help="up to so much more, by chance; the order is kept")
    parser.add_argument("--reorder", metavar="PERCENT", type=float, default=0, help="so many are held back, and others overtake them")
    parser.add_argument("--hold", metavar="MS", type=float, default=1, help="for how long they are (default %(default)s)")
    parser.add_argument("--loss", metavar="PERCENT", type=float, default=0, help="so many are lost")
    parser.add_argument("--rate", metavar="MBIT", type=float, default=0, help="megabits a second, each way (default: no limit)")
    parser.add_argument("--queue", metavar="MS", type=float, default=50, help="with a rate: who would wait longer is lost (default %(default)s)")
    parser.add_argument("--memory", metavar="MIB", type=int, default=256, help="held in each direction; more is lost (default %(default)s)")
    parser.add_argument("--seed", metavar="N", type=int, default=1, help="of the random numbers (default %(default)s)")
    parser.add_argument("--cable", metavar="INTERFACE", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in ("delay", "jitter", "reorder", "hold", "loss", "rate", "queue"):
        if not 0 <= getattr(options, name) < 1e6:
            parser.error(f"{name}: a number from 0")
    if options.reorder > 100 or options.loss > 100:
        parser.error("--reorder and --loss: at most 100 percent")
    return options


def tap(name):
    """Opens a TAP interface; packets as they are, with what is still to be done to them (virtio_net_hdr) in front."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(file, TUNSETOFFLOAD, CHECKSUMS | LONG4 | LONG6 | LONG_ECN)
    return file


class Direction:
    """Packets from one interface to the other."""

    def __init__(self, source, target, options, seed):
        self.source, self.target, self.options = source, target, options
        self.chance = random.Random(seed)
        self.held = []  # (when due, number, packet), a heap
        self.bytes = 0  # in it
        self.idle = 0.0  # when the line has sent what it was given
        self.last = 0.0  # when the last packet is due that keeps the order
        self.count = {"packets": 0, "bytes": 0, "lost": 0, "reordered": 0, "overrun": 0, "refused": 0}

    def take(self, now):
        """Takes what has come. False if there may be more."""
        for _ in range(BATCH):
            try:
                packet = os.read(self.source, LARGEST)
            except BlockingIOError:
                return True
            self.accept(packet, now)
        return False

    def accept(self, packet, now):
        options, count, length = self.options, self.count, len(packet) - HEADER
        count["packets"] += 1
        count["bytes"] += length
        # All numbers are drawn for each packet, so that what happens to one does not change the fate of the next.
        lose, swap, late = self.chance.random(), self.chance.random(), self.chance.random()
        if lose * 100 < options.loss:
            count["lost"] += 1
            return
        begins = now
        if options.rate:
            begins = max(now, self.idle)
            if begins - now > options.queue / 1e3 or self.bytes > options.memory << 20:
                count["overrun"] += 1
                return
            self.idle = begins = begins + length * 8 / (options.rate * 1e6)
        elif self.bytes > options.memory << 20:
            count["overrun"] += 1
            return
        due = begins + (options.delay + late * options.jitter) / 1e3
        if swap * 100 < options.reorder:
            count["reordered"] += 1
            due += options.hold / 1e3
        else:
            due = self.last = max(due, self.last)
        heapq.heappush(self.held, (due, count["packets"], packet))
        self.bytes += length

    def give(self, now):
        """Sends on what is due."""
        held = self.held
        while held and held[0][0] <= now:
            packet = heapq.heappop(held)[2]
            self.bytes -= len(packet) - HEADER
            try:
                os.write(self.target, packet)
            except OSError as error:
                if error.errno == errno.EBADFD:
                    raise
                self.count["refused"] += 1  # its cable is pulled


def relay(options):
    files = [tap(name) for name in options.cable]
    print("relaying", flush=True)
    directions = [Direction(*files, options, 2 * options.seed), Direction(*files[::-1], options, 2 * options.seed + 1)]
    by_source = {d.source: d for d in directions}
    ready = []
    try:
        while True:
            now = time.monotonic()
            for source in ready:
                by_source[source].take(now)
            now, due = time.monotonic(), None
            for direction in directions:
                direction.give(now)
                if direction.held:
                    first = direction.held[0][0]
                    due = first if due is None else min(due, first)
            # Microseconds, where poll and epoll have milliseconds.
            ready = select.select(files, [], [], None if due is None else max(0, due - time.monotonic()))[0]
    except (OSError, KeyboardInterrupt, SystemExit):
        pass
    print(json.dumps({"out of the host": directions[0].count, "to the host": directions[1].count}), flush=True)


def main():
    options = parse()
    if not options.cable:
        return  # options are checked before anything is changed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    relay(options)


if __name__ == "__main__":
    main()
