#!/usr/bin/env python3
"""What ci/netlab/relay.py decides about packets, with a clock and a cable of its own. Needs no root."""

import argparse
import os
import unittest

import relay

PLAIN = {"delay": 0, "jitter": 0, "reorder": 0, "hold": 1, "loss": 0, "rate": 0, "queue": 50, "memory": 256}
LENGTH = 1000


def packet(number):
    return bytes(relay.HEADER) + number.to_bytes(4, "big") + bytes(LENGTH - 4)


class Cable:
    """A direction that ends in a pipe. Packets go in and come out at times that are told."""

    def __init__(self, seed=1, **options):
        self.out, self.end = os.pipe()
        self.direction = relay.Direction(-1, self.end, argparse.Namespace(**(PLAIN | options)), seed)
        self.came = []  # (when, number)

    def run(self, count, every, until, step=0.0005):
        """Packets 0 to count - 1, one each `every` seconds; looked after each `step` seconds."""
        sent = 0
        for tick in range(round(until / step)):
            now = tick * step
            while sent < count and sent * every <= now:
                self.direction.accept(packet(sent), now)
                sent += 1
            before = self.direction.bytes
            self.direction.give(now)
            data = os.read(self.out, before - self.direction.bytes + relay.HEADER * count) if before > self.direction.bytes else b""
            whole = relay.HEADER + LENGTH
            self.came += [(now, int.from_bytes(data[i + relay.HEADER:][:4], "big")) for i in range(0, len(data), whole)]
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.out)
        os.close(self.end)

    def numbers(self):
        return [number for _, number in self.came]


class Decisions(unittest.TestCase):
    def test_a_delay_is_kept_and_nothing_else_changes(self):
        with Cable(delay=20) as cable:
            cable.run(200, 0.001, 0.3)
            self.assertEqual(cable.numbers(), list(range(200)))
            for when, number in cable.came:
                self.assertTrue(0.0195 < when - number * 0.001 < 0.0215, (when, number))

    def test_jitter_moves_packets_but_not_their_order(self):
        with Cable(delay=5, jitter=10) as cable:
            cable.run(300, 0.001, 0.4)
            self.assertEqual(cable.numbers(), list(range(300)))
            late = [when - number * 0.001 for when, number in cable.came]
            self.assertTrue(min(late) > 0.0045 and max(late) < 0.0165 and max(late) - min(late) > 0.005)

    def test_some_are_overtaken_and_none_is_lost(self):
        with Cable(delay=1, reorder=20, hold=5) as cable:
            numbers = cable.run(500, 0.001, 0.6).numbers()
            self.assertEqual(sorted(numbers), list(range(500)))
            overtaken = sum(numbers[i] < max(numbers[:i]) for i in range(1, 500))
            self.assertEqual(overtaken, cable.direction.count["reordered"])
            self.assertTrue(60 < overtaken < 140, overtaken)

    def test_so_many_are_lost(self):
        with Cable(loss=10) as cable:
            numbers = cable.run(2000, 0.0001, 0.3).numbers()
            self.assertTrue(1760 < len(numbers) < 1840, len(numbers))
            self.assertEqual(len(numbers) + cable.direction.count["lost"], 2000)

    def test_a_seed_decides_and_another_decides_otherwise(self):
        def fate(seed):
            with Cable(seed, delay=1, jitter=1, reorder=10, loss=10) as cable:
                return cable.run(300, 0.001, 0.5).came

        self.assertEqual(fate(7), fate(7))
        self.assertNotEqual(fate(7), fate(8))

    def test_a_rate_holds_and_who_would_wait_too_long_is_lost(self):
        # 8 megabits a second are a packet a millisecond; twice as many come.
        with Cable(rate=8, queue=20) as cable:
            cable.run(400, 0.0005, 0.3)
            in_time = [number for when, number in cable.came if 0.1 <= when < 0.2]
            self.assertTrue(98 <= len(in_time) <= 102, len(in_time))
            self.assertGreater(cable.direction.count["overrun"], 100)
            self.assertLess(max(when - number * 0.0005 for when, number in cable.came), 0.0225)

    def test_memory_is_bounded(self):
        for more in ({}, {"rate": 1, "queue": 100000}):
            with Cable(delay=1000, memory=1, **more) as cable:
                cable.run(2000, 0.0001, 0.3)
                self.assertTrue(1 << 20 <= cable.direction.bytes < (1 << 20) + 2 * LENGTH)
                self.assertGreater(cable.direction.count["overrun"], 900)


if __name__ == "__main__":
    unittest.main()
