#!/usr/bin/env python3
"""Questions about figures, against naive answers; and that a section without figures is noticed. Needs no package."""

import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "ci"))

from figures import Figures, spread  # noqa: E402


def figures(**series):
    """One round; each series a list of values at 1, 2, 4, …"""
    return Figures({"f": {name: {1 << i: [value] for i, value in enumerate(values)} for name, values in series.items()}}, set())


class Questions(unittest.TestCase):
    def test_wins_from_is_where_it_stays_better(self):
        random.seed(7)
        for _ in range(2000):
            n = random.randint(1, 6)
            a, b = ([random.randint(1, 4) for _ in range(n)] for _ in "ab")
            for less in (True, False):
                gain = [(y - x) * (1 if less else -1) for x, y in zip(a, b)]
                naive = next((1 << i for i in range(n) if gain[i] > 0 and min(gain[i:]) >= 0), None)
                self.assertEqual(figures(a=a, b=b).wins_from("f", "a", "b", less), naive)

    def test_what_varies_more_than_it_differs_is_a_tie(self):
        both = {"a": {1: [9.0], 2: [5.0], 4: [9.0, 10.0, 12.0]}, "b": {1: [8.0], 2: [6.0], 4: [9.5]}}
        f = Figures({"f": both}, set())
        self.assertEqual((f.wins_from("f", "a", "b"), f.wins_from("f", "b", "a")), (2, None))

    def test_medians_and_spread(self):
        f = Figures({"f": {"s": {8: [3.0, 1.0, 2.0, 100.0, 2.5]}}}, set())
        self.assertEqual(f.at("f", "s", 8), 2.5)
        self.assertEqual(f.spread("f", "s", 8), 1.0 / 2.5)
        self.assertEqual(spread([5.0]), 0.0)
        # Of two, and of three, there is no middle half.
        self.assertEqual((spread([4.0, 6.0]), spread([3.0, 2.0, 4.0]), spread([1.0, 2.0, 3.0, 9.0])), (0.4, 2 / 3, 0.8))
        self.assertIsNone(f.at("f", "t", 8))
        self.assertEqual(f.near("f", "s", 70000), 8)

    def test_what_is_written_is_read(self):
        f = figures(a=[1, 2, 3], b=[4])
        again = Figures.read(f.record())
        self.assertEqual((again.points, again.xs("f"), again.xs("f", "a", "b")), (f.points, [1, 2, 4], [1]))

    def test_a_kind_that_never_gets_cheaper_counts(self):
        from sections.registration import registration

        def verdict(**kinds):
            xs = (1, 2, 4, 8, 64)
            there = {name: {x: [cost(x)] for x in xs} for name, cost in kinds.items()}
            back = {name: {x: [1.0] for x in xs} for name in kinds}
            copies = {name: {x: [cost * x] for x in xs} for name, cost in (("plain", 100.0), ("cold", 200.0))}
            found = registration(Figures({"register": there, "deregister": back, "copy": copies}, set()))
            return next((word, text.partition(" pages, by kind")[0].rpartition(" lies at ")[2]) for word, text in found if "few pages" in text)

        soon, never = lambda x: 150.0, lambda x: 1000.0 * x
        self.assertEqual(verdict(mlock=soon), ("Holds", "2"))
        self.assertEqual(verdict(mlock=soon, watch=never), ("Holds in part", "2, never"))
        self.assertEqual(verdict(mlock=never), ("No longer holds", "never"))

    def test_a_section_without_figures_is_noticed(self):
        from papers import lacking
        from sections import SECTIONS

        section = next(s for s in SECTIONS if s.id == "calls")
        points = [{"figure": figure, "series": series, "x": 1, "rounds": [1.0]} for figure, series in section.needs]
        data = lambda points, missing=(): {"sections": {"calls": {"points": points, "missing": list(missing)}}}
        self.assertEqual(lacking(data(points)), [])
        self.assertEqual(len(lacking(data(points[1:]))), 1)
        figure, series = section.needs[0]
        self.assertEqual(lacking(data(points[1:], [f"{figure}, {series}: not here"])), [])


if __name__ == "__main__":
    unittest.main()
