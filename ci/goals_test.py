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

    def test_what_plain_loops_do_not_reach_is_the_limit(self):
        def judged(loops):
            s = samples("reused", ompi5_heap={8192: [6, 7, 8], 16384: [6, 6, 6]}, ompi5_sm={8192: [10] * 3, 16384: [10] * 3},
                        loops_mapped=loops, loops={8192: [9] * 3, 16384: [9] * 3})
            return goals.judged(s)[0]

        found = judged({8192: [5, 5.1, 5.1], 16384: [5.1] * 3})
        self.assertEqual((found["verdict"], found["worst_size"], found["plain_loops"], found["sizes_limit"]), ("limit", 8192, 0.51, 2))
        # The worse size is out of reach: the other one decides.
        found = judged({8192: [5.1] * 3, 16384: [5] * 3})
        self.assertEqual((found["verdict"], found["worst_size"], found["plain_loops"], found["sizes_limit"]), ("missed", 16384, 0.5, 1))
        table = goals.rows([found], str)
        self.assertEqual(table[1][table[0].index("plain loops")], "0.50")
        # Who is far from it has missed the goal, not the limit.
        far = samples("reused", ompi5_heap={8192: [9]}, ompi5_sm={8192: [10]}, loops_mapped={8192: [5.9]})
        self.assertEqual(goals.judged(far)[0]["verdict"], "missed")
        far["reused"]["loops-mapped"][8192] = {0: 6.1}
        self.assertEqual(goals.judged(far)[0]["verdict"], "limit")
        # What was not measured is no excuse.
        self.assertEqual((judged({})["verdict"], judged({16384: [9]})["worst_size"]), ("missed", 8192))
        # Nor is it one for what is met.
        s = samples("fresh", ompi5_rustmx={4096: [10]}, impi_own={4096: [10]}, loops={4096: [11]})
        found = next(g for g in goals.judged(s) if g["verdict"] != "not measured")
        self.assertEqual((found["verdict"], found["sizes_limit"]), ("met", 0))

    def test_nothing_measured_is_no_success(self):
        self.assertEqual({g["verdict"] for g in goals.judged({})}, {"not measured"})
        self.assertEqual(len(goals.rows(goals.judged({}), str)), 1 + len(goals.GOALS) + len(goals.STEPS))

    def test_beside_a_peer_that_failed_nothing_is_proved(self):
        # The best one is there in the first round only.
        s = samples("reused", ompi5_heap={8192: [4, 4, 4]}, ompi5_sm={8192: [10, 10, 10]}, impi_own={8192: [3]})
        first, *others = goals.judged(s, failures={("impi-own", "reused"): "exit code 1"})
        self.assertEqual((first["verdict"], first["why"], first["worst_size"]), ("unproven", "impi-own failed", 8192))
        self.assertIn("impi-own failed", goals.reasons([first])[0])
        # A step is rustmx's alone.
        self.assertEqual([g for g in others if g["metric"].startswith("step") and "why" in g], [])
        # Nor did it fail elsewhere.
        self.assertEqual(goals.judged(s, failures={("impi-own", "fresh"): ""})[0]["verdict"], "met")
        # What is left of a stack of ours that failed is no proof, either.
        s = samples("reused", ompi5_heap={4096: [1], 8192: [2]}, ompi5_sm={8192: [10, 10, 10]})
        found = goals.judged(s, failures={(goals.HEAP, "reused"): ""})
        self.assertEqual({g["verdict"] for g in found if "why" in g and "worst_size" in g}, {"unproven"})
        self.assertEqual([g["metric"] for g in found if g["verdict"] == "unproven"], ["reused", "step beyond a doubling, reused"])

    def test_the_phase_is_told(self):
        s = samples("reused", ompi5_heap={8192: [4]}, ompi5_sm={8192: [10]})
        first, *others = goals.judged(s, (), {"reused": [221.4, 190, 260.2], "sweep": [100]})
        self.assertEqual(first["handover_ns"], {"median": 221, "range": [190, 260]})
        table = goals.rows([first], str)
        self.assertEqual(table[1][table[0].index("hand-over")], "221 (190 .. 260)")
        of = {(g["metric"], g["stack"]): goals.in_phase(g) for g in others}
        self.assertEqual(of["step beyond a doubling, latency", goals.PLAIN], "100 (100 .. 100)")
        self.assertEqual(of["fresh", goals.HEAP], "-")


class Steps(unittest.TestCase):
    def worst(self, metric, stack, s, unsteady=()):
        return next(g for g in goals.judged(s, unsteady) if g["metric"] == f"step beyond a doubling, {metric}" and g["stack"] == stack)

    def test_by_hand(self):
        # 4 -> 8 KiB: twice as long, 8 -> 16 KiB: 3.2 times, 16 KiB -> 32 KiB: quicker.
        s = samples("reused", ompi5_heap={4096: [1, 1], 8192: [2, 2], 16384: [6.4, 6.4], 32768: [4, 4]})
        self.assertEqual(goals.steps(s, "reused", goals.HEAP), {4096: [1, 1], 8192: [1.6, 1.6], 16384: [1.6, 1.6]})
        found = self.worst("reused", goals.HEAP, s)
        self.assertEqual((found["verdict"], found["worst_ratio"], found["sizes_met"], found["sizes"]), ("missed", 1.6, 1, 3))
        self.assertEqual(self.worst("reused", goals.HEAP, s, {"reused"})["verdict"], "unproven")
        self.assertEqual(self.worst("reused", goals.PLAIN, s)["verdict"], "not measured")

    def test_rounds_are_compared_with_themselves(self):
        # The machine was half as fast in the second round, and the third one has one of both sizes only.
        s = samples("latency", ompi5_rustmx={1: [1, 2], 2: [2, 4, 99], 8: [1]})
        self.assertEqual(goals.steps(s, "latency", goals.PLAIN), {1: [1, 1]})
        self.assertEqual(self.worst("latency", goals.PLAIN, s)["verdict"], "met")
        self.assertEqual(self.worst("latency", goals.PLAIN, s, {"sweep"})["verdict"], "unproven")


class Comparison(unittest.TestCase):
    def setUp(self):
        kind = {"memory": "private", "source": "fresh"}
        self.said = {
            "against_limit": [kind | {"way": "chosen", "worst": 0.2, "at": 65536, "sizes": 3}, kind | {"way": "alone", "worst": 9}],
            "steps": [kind | {"from": 4096, "apart": 1.5}],
            "regret": [kind | {"rule": "the provider", "mean": 0.04, "worst": 0.16, "at": 8192, "sizes": 9}, kind | {"rule": "kernel from 4k"}],
            "handover_ns": [200, 240], "unsteady": [], "missing": ["exported memory: no such library"],
        }

    def verdicts(self, memory="private", source="fresh", **changed):
        found = goals.of_comparison(self.said | changed)
        return [g["verdict"] for g in found if g["stack"] == f"{memory} {source}"]

    def test_what_is_said_is_judged(self):
        self.assertEqual(self.verdicts(), ["missed", "met", "met", "missed"])
        first = goals.of_comparison(self.said)[4]
        self.assertEqual((first["metric"], first["worst_ratio"], goals.in_phase(first)), (goals.LIMIT, 0.2, "220 (200 .. 240)"))

    def test_what_is_unsteady_proves_nothing(self):
        self.assertEqual(self.verdicts(unsteady=["something else ran"]), ["unproven"] * 4)
        self.assertIn("something else ran", goals.reasons(goals.of_comparison(self.said | {"unsteady": ["something else ran"]}))[1])
        # Of ways that are mixed only what was chosen among them is in doubt.
        mixed = ["3 messages went another way than was asked for, so figures are mixed"]
        self.assertEqual(self.verdicts(missing=mixed), ["missed", "met", "unproven", "unproven"])

    def test_without_the_heap_its_goals_were_not_measured(self):
        found = [g for g in goals.of_comparison(self.said) if g["stack"].startswith("exported")]
        self.assertEqual(len(found), 8)
        self.assertEqual({(g["verdict"], g["why"]) for g in found}, {("not measured", "exported memory: no such library")})
        self.assertEqual(self.verdicts(source="reused"), ["not measured"] * 4)
        self.assertEqual(len(goals.rows(found, str)), 9)

    def test_a_failed_comparison_measured_nothing(self):
        found = goals.of_comparison(None, "exit code 1")
        self.assertEqual(len(found), 16)
        self.assertEqual({(g["verdict"], g["why"]) for g in found}, {("not measured", "exit code 1")})
        self.assertEqual(goals.reasons(found), ["not measured: 16 goals: exit code 1"])

    def test_cold_buffers_count_where_they_were_measured(self):
        cold = {"memory": "private", "source": "cold"}
        found = goals.of_comparison(self.said | {"steps": [cold | {"from": 1, "apart": 1.6}]})
        self.assertEqual(len(found), 24)
        self.assertEqual([g["verdict"] for g in found if g["stack"] == "private cold"], ["not measured", "missed", "not measured", "not measured"])


if __name__ == "__main__":
    unittest.main()
