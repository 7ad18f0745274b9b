#!/usr/bin/env python3
"""ci/turns.sh from its arguments to its JSON, by real MPIs. Needs two cores, what ci/setup.sh installs and a release build; takes
most of a minute. Last line: "N passed, N failed"."""

import json
import os
import pathlib
import subprocess
import sys
import unittest

import stacks as over

HERE = pathlib.Path(__file__).resolve().parent


class Turns(unittest.TestCase):
    def test_all_take_their_turns(self):
        stacks = ["ompi5-rustmx", "impi-own", "again"]
        command = [HERE / "turns.sh", "--no-build", "--json", "--rounds", "3", "--seconds", "1", "--near", "1000", "--sizes", "1k,40000", "--only", "fresh,ompi5-rustmx,impi-own",
                   "--also", f"again={over.LIBRARIES},FI_RUSTMX_RECORD_COPY=memcpy"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300,
                              env=os.environ, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        said = json.loads(done.stdout)
        self.assertEqual(said["failures"], {})
        # No border that a quiet host's lines go to and fro about: a turn that begins on one side of it and ends on the other counts for neither. Wherever the
        # host had put the two cores, together each stack had messages of each size. Three rounds, for a busy host may take the cores away for the time of a size.
        for stack in stacks:
            for size in ("1024", "40000"):
                times = [t for phase in said["samples"].values() for t in phase["fresh"].get(stack, {}).get(size, {}).values()]
                self.assertTrue(times and all(t > 0 for t in times), f"{stack} {size}: {said['samples']}")

    def test_a_job_that_cannot_run_is_told(self):
        command = [HERE / "turns.sh", "--no-build", "--rounds", "1", "--seconds", "0.2", "--sizes", "1k", "--only", "fresh,ompi5-sm",
                   "--also", "nowhere=/nonexistent"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("FAILED nowhere fresh", done.stderr)


def main():
    outcome = unittest.main(exit=False).result
    failed = len(outcome.failures) + len(outcome.errors)
    print(f"{outcome.testsRun - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
