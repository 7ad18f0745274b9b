#!/usr/bin/env python3
"""The arithmetic of ci/compare-mpi.py and ci/compare-tcp.py against naive answers, what it reads from programs, and what
the scripts that build first say to arguments that make no sense. Runs no MPI."""

import argparse
import contextlib
import importlib.util
import io
import json
import math
import pathlib
import random
import re
import subprocess
import unittest


def program(name):
    spec = importlib.util.spec_from_file_location(name.replace("-", "_"), pathlib.Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


compare, hosts = program("compare-mpi"), program("compare-tcp")

LATENCY, STREAM = ("ompi5", "latency", "reused"), ("ompi5", "bw", "reused")
KNOWN = {compare.DEFAULT: (0, math.inf), "a": (0, 4), "b": (2, math.inf)}


def results(unit, **ways):
    """Ways by size index, a list of rounds each; None: not measured."""
    known = KNOWN | {name: (0, math.inf) for name in ways}
    found = compare.Results([unit], known, [(0, 2, "a"), (3, math.inf, "b")], [1, 2, 4, 8])
    for way, by_size in ways.items():
        for i, rounds in enumerate(by_size):
            for number, value in enumerate(rounds or []):
                found.add(unit, way, number, {1 << i: value})
    return found


class Arithmetic(unittest.TestCase):
    def test_all_of_a_group_or_none(self):
        cut = compare.groups([1, 2, 4, 8, 16], KNOWN)
        self.assertEqual(cut, [([1], ("default", "a")), ([2, 4], ("default", "a", "b")), ([8, 16], ("default", "b"))])

    def test_crossovers_and_regret(self):
        random.seed(3)
        for _ in range(500):
            for unit, sign in ((LATENCY, 1), (STREAM, -1)):
                table = {way: [[random.uniform(1, 9) for _ in range(3)] for _ in range(4)] for way in ("a", "b", "default")}
                r = results(unit, **table)
                median = lambda way, i: sorted(table[way][i])[1]
                best = [min("ab", key=lambda way: sign * median(way, i)) for i in range(4)]
                found = r.crossovers(unit, ["a", "b"])
                self.assertEqual([c["size"] for c in found], [1 << i for i in range(1, 4) if best[i] != best[i - 1]])
                for c in found:
                    i = c["size"].bit_length() - 1
                    won = [sign * x < sign * y for x, y in zip(table[c["way"]][i], table[c["before"]][i])]
                    self.assertEqual((c["way"], c["agree"], c["rounds"]), (best[i], sum(won), 3))
                ratios = []
                for i in range(4):
                    each = [x / y if sign > 0 else y / x for x, y in zip(table["default"][i], table[best[i]][i])]
                    ratios.append(sorted(each)[1] - 1)
                regret = r.regret(unit, "default", lambda size: r.best(unit, ["a", "b"], size))
                self.assertAlmostEqual(regret["worst"], max(ratios))
                self.assertAlmostEqual(1 + regret["mean"], math.prod(1 + x for x in ratios) ** 0.25)
                self.assertEqual(regret["at"], 1 << ratios.index(max(ratios)))

    def test_a_size_that_a_way_does_not_carry(self):
        r = results(LATENCY, a=[[1], [1], None, None], b=[None, [2], [2], [2]], default=[[1], [2], [2], [2]])
        told = compare.summary(r, LATENCY)[0]
        self.assertEqual(told["first"], "a")
        self.assertEqual(told["crossovers"], [{"size": 4, "way": "b", "before": "a", "agree": 0, "rounds": 0}])
        self.assertEqual((told["regret"]["worst"], told["regret"]["at"], told["regret"]["sizes"]), (1.0, 2, 4))

    def test_a_gap_hides_no_crossover(self):
        r = results(LATENCY, a=[[1], None, [2], [2]], b=[[2], None, [1], [1]])
        self.assertEqual([(c["size"], c["way"]) for c in r.crossovers(LATENCY, ["a", "b"])], [(4, "b")])

    def test_a_default_is_held_against_what_it_could_have_taken(self):
        r = results(LATENCY, a=[[5]], default=[[5]], **{compare.PRELOADED: [[1]], "mapped-alone": [[1]]})
        plain, heap = compare.summary(r, LATENCY)
        self.assertEqual((plain["first"], plain["regret"]["worst"]), ("a", 0))
        self.assertEqual((heap["first"], heap["regret"]["worst"]), ("mapped-alone", 0))


class Reading(unittest.TestCase):
    def line(self, **fields):
        return json.dumps({"rustmx": "explain", "operation": "send", "forced": False, "bytes": 0} | fields)

    def test_messages_that_strayed(self):
        went = self.line(forced=True, count=90, bytes=90 * 4096)
        other = self.line(refused="eager", why="early", count=30, bytes=30 * 4096)
        short = self.line(refused="eager", why="inject", count=900, bytes=900 * 8)
        self.assertEqual(compare.strayed("\n".join([went, other, short]), 4096), (0.25, "early"))
        self.assertEqual(compare.strayed("\n".join([went, short]), 4096)[0], 0)
        beside = json.dumps({"rustmx": "explain", "about": "lends", "on": False, "says": "nothing"})
        self.assertEqual(compare.strayed("\n".join([went, beside, other, short]), 4096), (0.25, "early"))
        self.assertEqual(compare.strayed("rustmx stats: sent=1\n", 1)[0], 1)

    def test_columns_of_osu(self):
        text = "# OSU MPI Multiple Bandwidth / Message Rate Test v7.4\n# [ pairs: 1 ] [ window size: 64 ]\n" \
               "# Size                  MB/s        Messages/s\n" \
               "1                       5.76        5758476.91\n2                      11.20        5598312.02\n"
        osu = compare.Osu.__new__(compare.Osu)
        self.assertEqual(osu.points("mbw_mr", text), {1: 5758476.91, 2: 5598312.02})
        self.assertEqual(osu.points("bw", text), {1: 5.76, 2: 11.20})

    def test_sizes(self):
        self.assertEqual([compare.size_of(text) for text in ("1", "4k", "2M")], [1, 4096, 2 << 20])


class Misused(unittest.TestCase):
    ROOT = pathlib.Path(__file__).resolve().parent.parent

    def test_arguments_come_first(self):
        for script in ("ci/bench.sh", "ci/compare-mpi.sh", "ci/compare-tcp.sh", "ci/conformance.sh", "mpi-tests/papers/run.sh"):
            done = subprocess.run([self.ROOT / script, "--nonsense"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  check=False, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (2, ""), script)
            said = done.stderr.splitlines()
            # Nothing of ci/setup.sh, and nothing of cargo.
            self.assertTrue(said[0].startswith(f"Usage: {script} "), said[0])
            self.assertIn("--nonsense", said[-1])
            self.assertEqual(said[-2], "  --help")

    def test_every_protocol_that_there_may_be(self):
        text = (self.ROOT / "provider/src/config/force.rs").read_text(encoding="utf-8")
        carriers = re.search(r"CARRIERS: .*\s+\[(.*)\];", text)[1]
        names = dict(re.findall(r'Way::(\w+) => "(.*)"', text))
        self.assertEqual(compare.PROTOCOLS, tuple(names[way] for way in re.findall(r"Way::(\w+)", carriers)))


class BetweenHosts(unittest.TestCase):
    def test_more_is_better_and_only_what_is_within_a_round_counts(self):
        r = hosts.Comparison(None, argparse.Namespace(quick=True, chosen=None, also={}, max=None))
        r.samples = {("one", "latency"): {"rustmx": {8: {1: 2.0, 2: 3.0, 4: 9.0}}, "tcp": {8: {1: 8.0, 2: 6.0, 3: 1.0}}},
                     ("one", "bw"): {"rustmx": {8: {1: 2.0, 2: 3.0}}, "tcp": {8: {1: 8.0, 2: 6.0}}}}
        self.assertEqual(r.ratio("one", "latency", "rustmx", "tcp", 8), (3.0, 2.0, 4.0))
        self.assertEqual(r.ratio("one", "bw", "rustmx", "tcp", 8), (0.375, 0.25, 0.5))
        self.assertIsNone(r.ratio("one", "bw", "rustmx", "raw", 8))
        self.assertIsNone(r.ratio("two", "bw", "rustmx", "tcp", 8))

    def test_what_only_names(self):
        self.assertEqual(hosts.chosen("two,rate", {}), [["two"], ["rate"], list(hosts.PROVIDERS)])
        self.assertEqual(hosts.chosen("", {}), [list(hosts.PLACES), list(hosts.TESTS), list(hosts.PROVIDERS)])
        self.assertEqual(hosts.chosen("tcp,old", {"old": None})[2], ["old", "tcp"])

    def test_another_rustmx(self):
        self.assertEqual(hosts.another("a=,X=1,Y=p=q"), ("a", (hosts.over.LIBRARIES, {"X": "1", "Y": "p=q"})))
        self.assertEqual(hosts.another("a="), ("a", (hosts.over.LIBRARIES, {})))
        for nonsense in ("a", "=x", "tcp=", "a=,X", "a=/proc"):
            with self.assertRaises(SystemExit, msg=nonsense), contextlib.redirect_stderr(io.StringIO()) as said:
                hosts.another(nonsense)
            self.assertIn(f"--also {nonsense}: ", said.getvalue())

    def test_the_longest_message_is_that_of_bandwidth(self):
        r = hosts.Comparison(None, argparse.Namespace(quick=False, chosen=None, also={}, max=16 << 20))
        self.assertEqual([r.sizes(test) for test in hosts.TESTS], [(8, 1 << 20), (1 << 16, 16 << 20), (8, 8)])

    def test_what_is_unsteady_proves_no_goal(self):
        r = hosts.Comparison(None, argparse.Namespace(quick=True, chosen=None, also={}, max=None))
        r.samples = {("two", "rate"): {"rustmx": {8: {1: 99.0}}, "tcp": {8: {1: 1.0}}}}
        for steady, verdict in ((True, "met"), (False, "unproven")):
            r.handovers = [{"place": "two", "test": "rate", "ns": [100, 120], "kept": True, "steady": steady},
                           {"place": "two", "test": "rate", "ns": [900], "kept": False, "steady": False}]
            goal = next(g for g in r.judged(None) if g["metric"] == "rate")
            self.assertEqual((goal["verdict"], goal["handover_ns"]["range"]), (verdict, [100, 120]))

    def test_who_is_set_against_whom(self):
        r = hosts.Comparison(None, argparse.Namespace(quick=True, chosen=None, also={"old": None}, max=None))
        self.assertEqual(hosts.pairs(r, ["rustmx", "old", "tcp"]), [("rustmx", "tcp"), ("old", "tcp"), ("rustmx", "old")])
        self.assertEqual(hosts.pairs(r, ["tcp", "raw"]), [("tcp", "raw")])


if __name__ == "__main__":
    unittest.main()
