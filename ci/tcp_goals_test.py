"""Tests of the arithmetic of ci/tcp_goals.py."""

import unittest

import tcp_goals as goals


def sizes(**providers):
    """provider -> size -> {round: value}, of lists of the values of the rounds."""
    return {name: {size: dict(enumerate(values)) for size, values in of.items()} for name, of in providers.items()}


def by(test, measured, *more, place="two", **options):
    return next(g for g in goals.judged({(place, test): measured}, *more, **options) if g["metric"] == test)


BIG = 1 << 20


class Verdicts(unittest.TestCase):
    def test_more_is_better_but_for_latency(self):
        rate = by("rate", sizes(rustmx={8: [1000] * 5}, tcp={8: [100] * 5}))
        self.assertEqual((rate["verdict"], rate["worst_ratio"], rate["most"]), ("met", 0.1, 0.1))
        self.assertEqual(by("rate", sizes(rustmx={8: [990] * 5}, tcp={8: [100] * 5}))["verdict"], "missed")
        self.assertEqual(by("latency", sizes(rustmx={8: [7] * 5}, tcp={8: [7] * 5}))["verdict"], "met")
        self.assertEqual(by("latency", sizes(rustmx={8: [7.1] * 5}, tcp={8: [7] * 5}))["verdict"], "missed")

    def test_other_sizes_do_not_count(self):
        late = by("latency", sizes(rustmx={8: [5], 16: [50]}, tcp={8: [6], 16: [6]}))
        self.assertEqual((late["verdict"], late["sizes"]), ("met", 1))
        wide = by("bw", sizes(rustmx={32768: [1], 65536: [140], BIG: [131]}, tcp={32768: [9], 65536: [100], BIG: [100]}))
        self.assertEqual((wide["verdict"], wide["worst_size"], wide["sizes"]), ("met", BIG, 2))

    def test_rounds_are_compared_with_themselves(self):
        # The machine was half as fast in the second round, and the third one has one of both only.
        found = by("bw", sizes(rustmx={BIG: [140, 70, 1]}, tcp={BIG: [100, 50]}))
        self.assertEqual((found["verdict"], found["rounds"], found["spread"]), ("met", 2, [0.714, 0.714]))

    def test_noise_hides(self):
        tcp = {BIG: [100] * 5}
        self.assertEqual(by("bw", sizes(rustmx={BIG: [140, 140, 140, 120, 120]}, tcp=tcp))["verdict"], "unproven")
        self.assertEqual(by("bw", sizes(rustmx={BIG: [120, 120, 120, 140, 140]}, tcp=tcp))["verdict"], "unproven")
        self.assertEqual(by("bw", sizes(rustmx={BIG: [140, 140, 140, 140, 120]}, tcp=tcp))["verdict"], "met")
        self.assertEqual(by("bw", sizes(rustmx={BIG: [120, 120, 120, 120, 140]}, tcp=tcp))["verdict"], "missed")

    def test_without_a_steady_round_nothing_is_proved(self):
        measured = sizes(rustmx={BIG: [10] * 5}, tcp={BIG: [100] * 5})
        self.assertEqual(by("bw", measured, {("two", "bw")})["verdict"], "unproven")
        self.assertEqual(by("bw", measured, {("one", "bw")})["verdict"], "missed")

    def test_nothing_measured_is_no_success(self):
        self.assertEqual(by("bw", sizes(rustmx={BIG: [10]}))["verdict"], "not measured")
        self.assertEqual(by("bw", sizes(tcp={BIG: [10]}))["verdict"], "not measured")
        found = goals.judged({("one", "bw"): {}})
        self.assertEqual({g["verdict"] for g in found}, {"not measured"})
        self.assertEqual(len(goals.rows(found, str)), 1 + len(goals.GOALS))


class PlainSockets(unittest.TestCase):
    def test_what_they_do_not_reach_is_the_limit(self):
        found = by("bw", sizes(rustmx={BIG: [110] * 5}, tcp={BIG: [100] * 5}, raw={BIG: [120] * 5}))
        self.assertEqual((found["verdict"], found["sizes_limit"], found["of_plain_sockets"]), ("limit", 1, 0.917))
        found = by("bw", sizes(rustmx={BIG: [110] * 5}, tcp={BIG: [100] * 5}, raw={BIG: [131] * 5}))
        self.assertEqual((found["verdict"], found["sizes_limit"]), ("missed", 0))

    def test_a_miss_within_reach_is_told_before_the_limit(self):
        found = by("bw", sizes(rustmx={65536: [60] * 5, BIG: [120] * 5}, tcp={65536: [100] * 5, BIG: [100] * 5},
                               raw={65536: [100] * 5, BIG: [150] * 5}))
        self.assertEqual((found["verdict"], found["worst_size"], found["sizes_limit"]), ("missed", BIG, 1))

    def test_who_reaches_more_than_they_do_has_met_it(self):
        found = by("bw", sizes(rustmx={BIG: [150] * 5}, tcp={BIG: [100] * 5}, raw={BIG: [120] * 5}))
        self.assertEqual((found["verdict"], found["of_plain_sockets"]), ("met", 1.25))

    def test_latency_beside_theirs(self):
        found = by("latency", sizes(rustmx={8: [8] * 5}, tcp={8: [7] * 5}, raw={8: [4] * 5}))
        self.assertEqual((found["verdict"], found["of_plain_sockets"]), ("missed", 0.5))


class Link(unittest.TestCase):
    def test_what_it_leaves(self):
        self.assertAlmostEqual(goals.link_of(["rate 1gbit"]), 125 * 1448 / 1514)
        self.assertAlmostEqual(goals.link_of(["delay 1", "rate 200mbit"], 9000), 25 * 8948 / 9014)
        self.assertAlmostEqual(goals.link_of(["rate 800kbit"], family="IPv6"), 0.1 * 1428 / 1514)
        for none in ([], ["delay 1"], ["rate 0"], ["rate 0bit"], ["rate xbit"], ["rate 1mbps"], ["rate"]):
            self.assertIsNone(goals.link_of(none), none)

    def of_link(self, ours, raw, place="two"):
        measured = sizes(rustmx={BIG: [ours] * 5}, tcp={BIG: [90] * 5}, raw={BIG: [raw] * 5})
        found = goals.judged({(place, "bw"): measured}, link=100)
        return next((g["verdict"] for g in found if g["beside"] == "link"), None)

    def test_all_but_a_twentieth(self):
        self.assertEqual(self.of_link(95.1, 99), "met")
        self.assertEqual(self.of_link(94, 99), "missed")
        self.assertEqual(self.of_link(93, 94), "limit")

    def test_of_one_host_the_cable_is_not_used(self):
        self.assertIsNone(self.of_link(94, 99, "one"))


class Table(unittest.TestCase):
    def test_what_it_tells(self):
        measured = sizes(rustmx={BIG: [110] * 5}, tcp={BIG: [100] * 5}, raw={BIG: [120] * 5})
        found = goals.judged({("two", "bw"): measured}, hands={("two", "bw"): [200, 240]})
        table = goals.rows(found, str)
        row = dict(zip(table[0], table[-1]))
        self.assertEqual((row["where"], row["measured"], row["plain sockets"], row["of theirs"], row["hand-over"], row["verdict"]),
                         ("two hosts", "0.91", "0.83", "0.92", "220 (200 .. 240)", "limit"))


if __name__ == "__main__":
    unittest.main()
