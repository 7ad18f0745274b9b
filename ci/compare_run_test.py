#!/usr/bin/env python3
"""ci/compare-mpi.sh from its arguments to its JSON and its tables, by real MPIs, with our benchmark and with what has OSU's names and
columns. Needs two cores, what ci/setup.sh installs and a release build; takes most of a minute. Last line: "N passed, N failed"."""

import importlib.util
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import stacks as over

HERE = pathlib.Path(__file__).resolve().parent
SPEC = importlib.util.spec_from_file_location("compare_mpi", HERE / "compare-mpi.py")
compare = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(compare)

HEADINGS = {  # of OSU's benchmarks, version 7.4, for bytes
    "latency": "# Size       Avg Latency(us)",
    "bw": "# Size      Bandwidth (MB/s)",
    "bibw": "# Size      Bandwidth (MB/s)",
    "mbw_mr": "# Size                  MB/s        Messages/s",
}


def run(*options, **environment):
    """The script's standard output. It builds nothing."""
    command = [HERE / "compare-mpi.sh", "--no-build", "--quick", "--rounds", "1", *options]
    done = subprocess.run(command, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=600, check=False)
    if done.returncode:
        raise AssertionError(f"exit code {done.returncode}: {' '.join(options)}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def tables(said):
    """(MPI, test) -> ways -> size -> figure."""
    return {(r["mpi"], r["test"]): {way: {p["size"]: p["median"] for p in points} for way, points in r["ways"].items()}
            for r in said["results"]}


class Comparison(unittest.TestCase):
    def has_figures(self, said, tests, sizes, ways):
        self.assertEqual((said["failures"], said["left_out"]), ([], []))
        found = tables(said)
        self.assertEqual(set(found), {(mpi, test) for mpi in compare.MPIS for test in tests})
        for unit, by_way in found.items():
            self.assertEqual({way: list(points) for way, points in by_way.items()}, {way: sizes for way in ways}, unit)
            for figure in (figure for points in by_way.values() for figure in points.values()):
                self.assertTrue(math.isfinite(figure) and figure > 0, unit)

    def test_every_way_that_was_asked_for_has_figures(self):
        ways = [compare.DEFAULT, "stream"]
        if compare.PRELOADED in compare.ways()[0]:
            ways.append("mapped-shared")
        said = json.loads(run("--json", "--sizes", "32k:64k", "--only", ",".join(["latency", "bibw", "reused", *ways])))
        self.has_figures(said, ["latency", "bibw"], [32768, 65536], ways)
        self.assertEqual((said["program"], said["rounds"]), ("perf", 1))
        for result in said["results"]:
            self.assertTrue(result["summary"] and all(s["regret"]["sizes"] == 2 for s in result["summary"]), result)


class Osu(unittest.TestCase):
    """Programs with OSU's names, of which those of each MPI are in a directory of their own: links to our benchmark."""

    @classmethod
    def setUpClass(cls):
        where = tempfile.TemporaryDirectory()
        cls.addClassCleanup(where.cleanup)
        cls.top = pathlib.Path(where.name)
        over.build(cls.top / "built", compare.MPIS, ("perf",))
        for mpi in compare.MPIS:
            below = cls.top / f"osu-{mpi}/libexec/pt2pt"
            below.mkdir(parents=True)
            for test in compare.TESTS:
                (below / f"osu_{test}").symlink_to(cls.top / "built" / mpi / "perf")
        cls.directories = ":".join(str(cls.top / f"osu-{mpi}") for mpi in compare.MPIS)

    def test_what_lies_below_the_directories_is_run_and_read(self):
        tests = list(compare.TESTS)
        said = run("--sizes", "64:128", "--only", ",".join([*tests, "inline"]), OSU_DIR=self.directories)
        # What was said, and what was written, are of one run.
        written = json.loads((compare.OUT / "latest.json").read_text(encoding="utf-8"))
        self.assertEqual(written["program"], "osu")
        Comparison.has_figures(self, written, tests, [64, 128], ["inline"])
        for (mpi, test), ways in tables(written).items():
            _, unit, _ = compare.TESTS[test]
            title = f"{over.TITLES[mpi]}, {test}, {unit}, source reused"
            table = re.search(rf"^{re.escape(title)}.*\n((?:.+\n)+)", said, re.M)
            self.assertTrue(table, f"no table {title}: {said}")
            rows = {words[0]: words[2] for line in table[1].splitlines() if (words := line.split()) and words[1:2] == ["B"]}
            shown = {f"{size}": over.cell(figure, 2 if unit == "us" else 0) for size, figure in ways["inline"].items()}
            self.assertEqual(rows, shown)

    def test_columns_are_those_of_osu(self):
        osu = compare.Osu(self.directories, compare.MPIS, 0.2)
        for test, heading in HEADINGS.items():
            command = osu.command("ompi5", test, "reused", [64, 128])
            self.assertEqual(pathlib.Path(command[0]).name, f"osu_{test}")
            # Every byte is compared, too.
            text, _, why = over.run("ompi5-rustmx", [*over.PIN, *command, "-c"], 2, osu.environment("ompi5"))
            self.assertIsNone(why)
            headings = [line for line in text.splitlines() if line.startswith("# Size")]
            self.assertEqual([" ".join(h.split()) for h in headings], [" ".join(heading.split()) + " Validation"], text)
            rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
            self.assertEqual([(int(row[0]), row[-1]) for row in rows], [(64, "Pass"), (128, "Pass")], text)
            points = osu.points(test, text)
            self.assertEqual(list(points), [64, 128])
            for size, *figures, _ in rows:
                self.assertEqual(len(figures), 2 if test == "mbw_mr" else 1, text)
                self.assertEqual(points[int(size)], float(figures[-1]))
                if test == "mbw_mr":  # both columns are of one time: 10^6 bytes, and messages
                    megabytes, messages = map(float, figures)
                    self.assertAlmostEqual(megabytes, messages * int(size) / 1e6, delta=0.01)


if __name__ == "__main__":
    over.need_two_cores()
    result = unittest.main(exit=False).result
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad} passed, {bad} failed")
    sys.exit(1 if bad else 0)
