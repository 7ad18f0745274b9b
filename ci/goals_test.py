"""Tests of the arithmetic of ci/goals.py."""

import unittest

import goals


def samples(metric, **stacks):
    """stack -> size -> the values of its rounds."""
    return {metric: {
        name.replace("_", "-"): {size: dict(enumerate(values)) for size, values in sizes.items()} for name, sizes in stacks.items()
    }}


class Ratios(unittest.TestCase):
    def test_each_round_has_its_own_best_peer(self):
        s = samples("reused", ompi5_heap={8192: [4, 4, 4]}, ompi5_sm={8192: [8, 16, 4]}, impi_own={8192: [16, 5]})
        self.assertEqual(goals.ratios(s, "reused", goals.HEAP, 8192), {0: 0.5, 1: 0.8, 2: 1.0})
        self.assertEqual(goals.ratios(s, "reused", goals.PLAIN, 8192), {})

    def test_rates_are_turned_round(self):
        s = samples("fresh stream", ompi5_heap={1 << 20: [26]}, ompi5_ucx={1 << 20: [20]}, mpich_own={1 << 20: [13]})
        self.assertAlmostEqual(goals.ratios(s, "fresh stream", goals.HEAP, 1 << 20)[0], 1 / 1.3)


class Verdicts(unittest.TestCase):
    def test_the_worst_size_decides(self):
        s = samples("reused", ompi5_heap={4096: [9], 8192: [4, 5, 6], 1 << 19: [2, 2, 2], 1 << 20: [59]},
                    ompi5_sm={4096: [1], 8192: [10] * 3, 1 << 19: [10] * 3, 1 << 20: [100]})
        first, _, long, *_ = goals.judged(s)
        self.assertEqual((first["verdict"], first["worst_size"], first["worst_ratio"], first["spread"]), ("met", 8192, 0.5, [0.4, 0.6]))
        self.assertEqual((first["sizes_met"], first["sizes"], first["rounds"]), (2, 2, 3))
        self.assertEqual((long["verdict"], long["worst_size"]), ("met", 1 << 20))
        s["reused"][goals.HEAP][8192] = {0: 5.1}
        self.assertEqual(goals.judged(s)[0]["verdict"], "missed")
        self.assertEqual(goals.judged(s, {"reused"})[0]["verdict"], "unproven")
        self.assertEqual(goals.judged(s, {"fresh"})[0]["verdict"], "missed")

    def test_nothing_measured_is_no_success(self):
        self.assertEqual({g["verdict"] for g in goals.judged({})}, {"not measured"})
        self.assertEqual(len(goals.rows(goals.judged({}), str)), 1 + len(goals.GOALS))

    def test_a_comparison(self):
        kind = {"memory": "private", "source": "fresh"}
        said = {
            "against_limit": [kind | {"way": "chosen", "worst": 0.2, "at": 65536, "sizes": 3}, kind | {"way": "alone", "worst": 9}],
            "steps": [kind | {"from": 4096, "apart": 1.5}],
            "regret": [kind | {"rule": "the provider", "mean": 0.04, "worst": 0.16, "at": 8192, "sizes": 9}, kind | {"rule": "kernel from 4k"}],
        }
        verdicts = [(g["metric"], g["verdict"]) for g in goals.of_comparison(said)]
        self.assertEqual(verdicts, [("above two copying processes", "missed"), ("step beyond a doubling", "met"),
                                    ("regret on average", "met"), ("regret at worst", "missed")])
        self.assertEqual(goals.rows(goals.of_comparison(said), str)[1][4], "0.20")


if __name__ == "__main__":
    unittest.main()
