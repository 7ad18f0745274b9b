"""Measures the sections in rounds, keeps the figures, and writes the page (see run.sh)."""

import json
import os
import pathlib
import shlex
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "ci"))

import stacks  # noqa: E402  (found through the line above)
from figures import Figures, spread  # noqa: E402
from sections import SECTIONS  # noqa: E402
from stacks import ROOT, fail, misused, say  # noqa: E402

FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-pthread"]
BUSY = 0.4  # a load average above which the page calls the figures provisional
UNSTEADY = 0.15  # likewise the middle half of the hand-overs


class Points:
    """Figures as they come in, a round after the other."""

    def __init__(self):
        self.points, self.missing = {}, set()

    def add(self, figure, series, x, values):
        self.points.setdefault(figure, {}).setdefault(series, {}).setdefault(x, []).extend(values)

    def add_lines(self, text):
        for point in stacks.objects(text):
            if "missing" in point:
                self.missing.add(f"{point['figure']}, {point['series']}: {point['missing']}")
            else:
                self.add(point["figure"], point["series"], point["x"], [point["value"]])

    def add_comparison(self, text):
        """What rustmx compare --json says: nanoseconds by kind of source. Of exported memory what only it has: others go as from private memory."""
        said = json.loads(text)
        for c in said["cells"]:
            if c["memory"] == "private" or c["way"] in MAPPED:
                self.add(c["source"], c["way"], c["size"], c["rounds_ns"])
        self.missing |= set(said["missing"])


# Where both processes copy in memory that one of them exports.
MAPPED = ("mapped-alone", "mapped-shared")
COMPARE = ["compare", "--json", "--memory", "private,exported", "--sources", "reused,fresh"]
# What a line of a torture test has.
COUNTS = ("test", "monitor", "rounds", "checked", "wrong")


def ask(command, limit=600):
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=limit, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as why:
        fail(str(why))
    if done.returncode:
        fail(f"{shlex.join(map(str, command))}: exit code {done.returncode}\n{done.stderr[-1500:]}")
    return done.stdout


def build(out, sections):
    out.mkdir(parents=True, exist_ok=True)
    for program in [s.program for s in sections if s.program]:
        ask(["gcc", *FLAGS, "-o", out / program, HERE / f"{program}.c"])
    stacks.build(out, (), ())


def measure(options, sections, binaries):
    """Returns section -> Points, and the circumstances."""
    found = {s.id: Points() for s in sections}
    load, handovers = os.getloadavg()[0], []
    quick = ["--quick"] if options.quick else []
    for s in sections:
        if not s.program:
            say(f"{s.id}: rustmx compare, which takes some minutes" if not options.quick else s.id)
            found[s.id].add_comparison(ask([options.rustmx, *COMPARE, *(["--quick", "--max", "64k"] if options.quick else [])]))
    rest = [s for s in sections if s.program]
    for number in range(1, (options.rounds if rest else 0) + 1):
        handovers.append(stacks.limits(binaries, True)["handover_ns"])
        for i, s in enumerate(rest, 1):
            say(f"round {number} of {options.rounds}, {i} of {len(rest)}: {s.id}")
            found[s.id].add_lines(ask([binaries / s.program, *quick]))
            if s.engine and options.engine:
                found[s.id].add_lines(ask([options.engine, *quick]))
            elif s.engine:
                found[s.id].missing.add("map-4096, engine: --engine names no program, and none was built")
    handovers.append(stacks.limits(binaries, True)["handover_ns"])
    return found, circumstances(options, load, handovers)


def circumstances(options, load, handovers):
    why = []
    if options.quick:
        why.append("it was a quick look")
    if load > BUSY:
        why.append(f"others used the machine when it began (load average {load:.1f})")
    if spread(handovers) > UNSTEADY:
        why.append(f"the hand-over of a cache line was unsteady (the middle half of the rounds is {spread(handovers):.0%} apart)")
    return stacks.machine() | {"rounds": options.rounds, "handover_ns": handovers, "load": load, "provisional": why}


def torture(command):
    """The counts of the engine's own torture tests, summed over runs of the same test with the same monitor and allocator."""
    sums = {}
    for line in stacks.objects(ask(shlex.split(command), 3600)):
        if set(COUNTS) <= line.keys():
            key = (line["test"], line.get("allocator", "libc"), line["monitor"])
            counts = sums.setdefault(key, {"rounds": 0, "checked": 0, "wrong": 0})
            for name in counts:
                counts[name] += line[name]
    return [{"test": test, "allocator": allocator, "monitor": monitor} | counts for (test, allocator, monitor), counts in sums.items()]


def lacking(data):
    """What every section must have, and has not. What a program told as missing is no fault."""
    faults = []
    for s in SECTIONS:
        if s.id not in data["sections"]:
            continue
        figures = Figures.read(data["sections"][s.id])
        for figure, series in s.needs:
            # rustmx compare tells what the kernel refuses by the way's name alone.
            excused = any(
                f"{series}: " in line
                or line.startswith("alone") and series in ("alone", "shared")
                or line.startswith("exported memory") and series in MAPPED
                for line in figures.missing
            )
            if not figures.has(figure, series) and not excused:
                faults.append(f"{s.id}: no figures of {figure}, {series}")
    return faults


def parse():
    parser = stacks.Arguments()
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rustmx", type=pathlib.Path, default=ROOT / "target/release/rustmx")
    parser.add_argument("--engine", type=pathlib.Path)
    parser.add_argument("--torture")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.quick and not options.output:
        misused("--quick needs --output: figures of a quick look do not belong on the page")
    options.rounds = options.rounds if options.rounds is not None else 1 if options.quick else 9
    words = [word for word in options.only.split(",") if word]
    unknown = [word for word in words if word not in [s.id for s in SECTIONS]]
    if unknown or options.rounds < 1:
        misused(
            f"unknown in --only: {', '.join(unknown)}; known: {', '.join(s.id for s in SECTIONS)}"
            if unknown
            else "--rounds needs a number above 0"
        )
    options.sections = [s for s in SECTIONS if not words or s.id in words]
    return options


def main():
    options = parse()
    if options.check:
        return
    kept = (options.output or ROOT / "target/papers").resolve()
    shown = options.output.resolve() if options.output else HERE
    latest = kept / "latest.json"
    data = json.loads(latest.read_text(encoding="utf-8")) if latest.exists() else {"sections": {}, "torture": []}
    if not options.page:
        stacks.need_two_cores()
        if any(not s.program for s in options.sections) and not options.rustmx.exists():
            fail(f"{options.rustmx} is missing: cargo build --release -p rustmx-cli")
        if options.engine and not options.engine.exists():
            fail(f"{options.engine} is missing: cargo build --release -p rustmx-benches --bench reuse")
        build(kept / "bin", options.sections)
        found, when = measure(options, options.sections, kept / "bin")
        for section, points in found.items():
            data["sections"][section] = {"measured": when} | Figures(points.points, points.missing).record()
        if options.torture and any(s.id == "monitor" for s in options.sections):
            say("monitor: the engine's torture tests")
            data["torture"] = torture(options.torture)
            if not data["torture"]:
                fail(f"{options.torture}: no counts among what it prints")
        data["time"] = when["time"]
        faults = lacking(data)
        if faults:
            fail("nothing is written: " + "; ".join(faults))
        stacks.write(kept, data)
    elif not data["sections"]:
        fail(f"nothing was measured yet: {latest} is missing")
    from page import write_page  # only now: drawing takes a second to load

    write_page(data, shown)
    say(f"written: {latest}, {shown / 'README.md'}, {shown / 'plots'}")


if __name__ == "__main__":
    main()
