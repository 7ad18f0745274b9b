"""Tests of what ci/turns.py makes of the figures."""

import contextlib
import io
import unittest

import turns


def point(round_, size, phase, latency, messages=1000):
    return {"round": round_, "size": size, "phase": phase, "latency_us": latency, "handover_ns": 50, "messages": messages}


class Figures(unittest.TestCase):
    def test_phases_are_kept_apart_and_few_messages_do_not_count(self):
        found, hands = {phase: {} for phase in turns.PHASES}, {phase: [] for phase in turns.PHASES}
        turns.gather("a", [point(0, 4096, "near", 1.0), point(1, 4096, "near", 3.0), point(0, 4096, "far", 2.0, turns.FEWEST - 1)], found, hands)
        self.assertEqual(found, {"near": {"a": {4096: {0: 1.0, 1: 3.0}}}, "far": {}})
        self.assertEqual(hands, {"near": [50, 50], "far": []})

    def test_a_line_tells_medians_and_parts_of_the_best_peer(self):
        samples = {"fresh": {"ompi5-rustmx": {40000: {0: 2.0, 1: 6.0}}, "impi-own": {40000: {0: 4.0, 1: 4.0}}, "old": {1024: {0: 1.0}}}}
        head, short, long = turns.rows(samples, "fresh", ["ompi5-rustmx", "impi-own", "old"])
        self.assertEqual(head[-4:], ["ompi5-rustmx/best", "old/best", "spread ompi5-rustmx", "spread old"])
        self.assertEqual(short, ["1 KiB", "-", "-", "1.00", "-", "-", "-", "-"])
        self.assertEqual(long, ["40000", "4.00", "4.00", "-", "1.00", "-", "0.50..1.50", "-"])


class Arguments(unittest.TestCase):
    def test_sizes(self):
        self.assertEqual([turns.size(text) for text in ("4k", "40000", "1M")], [4096, 40000, 1 << 20])
        for text in ("", "k", "0", "1.5k", "5m"):
            self.refused(turns.size, text)

    def test_others(self):
        other = turns.Other("old=/tmp/lib,FI_A=b,FI_C=d=e")
        self.assertEqual((other.name, other.stack, other.environment), ("old", "ompi5-rustmx", {"FI_PROVIDER_PATH": "/tmp/lib", "FI_A": "b", "FI_C": "d=e"}))
        self.assertEqual(turns.Other("old-heap=/tmp/lib").stack, "ompi5-heap")
        for text in ("old", "=x", "old=", "old=/tmp,FI_A"):
            self.refused(turns.Other, text)

    def refused(self, what, text):
        with self.assertRaises(SystemExit) as left, contextlib.redirect_stderr(io.StringIO()):
            what(text)
        self.assertEqual(left.exception.code, 2)


if __name__ == "__main__":
    unittest.main()
