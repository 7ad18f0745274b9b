#!/usr/bin/env python3
"""Measures rustmx against the other ways of the same MPIs, in interleaved rounds (see ci/bench.sh)."""

import json
import os
import pathlib
import statistics
import subprocess
import sys

import goals as wanted
import stacks as over
from stacks import PIN, ROOT, STACKS, TITLES, UNSTEADY, cell, fail, human, misused, say, table

OUT = ROOT / "target/bench"

METRICS = {  # name -> (field of the programs' output, unit, is less better)
    "latency": ("latency_us", "us", True),
    "bandwidth": ("bandwidth_mbs", "MB/s", False),
    "rate": ("rate_mps", "messages/s", False),
    "allreduce": ("latency_us", "us", True),
}
PROGRAMS = ("sweep", "rate", "allreduce", "reused", "fresh", "compare")
ACROSS = "all"  # the unit of stacks of different MPIs


def run(name, program, options):
    """One run of one program: its JSON lines, or None and the reason."""
    mpi = STACKS[name][0]
    if program in wanted.METRICS:
        sizes = ["--min", "1024", "--max", str(options.max), "--offset", str(options.offset)]
        sweep = over.preloading(name, [str(OUT / mpi / "sweep"), "--json", *sizes, "--iters-scale", str(options.scale / 2)])
        command, ranks = [*PIN, *sweep, *(["--fresh"] if program == "fresh" else [])], 2
    elif program == "allreduce":
        command, ranks = [str(OUT / mpi / "allreduce"), "--seconds", str(max(options.scale, 0.2))], 8
    else:
        command, ranks = [*PIN, str(OUT / mpi / "sweep"), "--json", "--iters-scale", str(options.scale)], 2
        command += ["--rate"] if program == "rate" else []
    text, _, why = over.run(name, command, ranks)
    return (None, why) if why else (over.objects(text), None)


def limits(handover_only):
    return over.limits(OUT, handover_only)


# ---- rounds ----


def program_of(metric):
    return "sweep" if metric in ("latency", "bandwidth") else metric


class Results:
    def __init__(self):
        self.samples = {}  # metric -> stack -> size -> {round: value}
        self.handovers, self.failures, self.limits = [], {}, []

    def hands(self, program, mpi):
        """The hand-overs in nanoseconds in the rounds of a program that count."""
        return [ns for h in self.handovers if h["kept"] and (h["mpi"], h["program"]) == (mpi, program) for ns in h["ns"]]

    def hand(self, metric, mpi):
        """The same in the rounds of a table, in the middle; whether they were steady; and all of them."""
        program = program_of(metric)
        hands = self.hands(program, mpi)
        steady = all(h["steady"] for h in self.handovers if h["kept"] and (h["mpi"], h["program"]) == (mpi, program))
        return statistics.median(hands), steady, hands

    def add(self, round_, stack, program, points):
        for point in points:
            here = {"sweep": ("latency", "bandwidth")}.get(program, (program,))
            fields = wanted.METRICS.get(program) or {metric: METRICS[metric][0] for metric in here}
            for metric, field in fields.items():
                if field not in point:
                    continue  # plain loops send no windows
                sizes = self.samples.setdefault(metric, {}).setdefault(stack, {})
                sizes.setdefault(point.get("size", point.get("bytes")), {})[round_] = point[field]

    def values(self, metric, stack, size):
        return self.samples.get(metric, {}).get(stack, {}).get(size, {})

    def median(self, metric, stack, size):
        values = self.values(metric, stack, size)
        return statistics.median(values.values()) if values else None

    def spread(self, metric, stack, size):
        """How far the rounds lie apart, as a part of the median."""
        values = list(self.values(metric, stack, size).values())
        return (max(values) - min(values)) / statistics.median(values) if values else None

    def ratio(self, metric, stack, other, size):
        """The median of the ratios within a round; below 1 is better."""
        ours, its = self.values(metric, stack, size), self.values(metric, other, size)
        both = [ours[r] / its[r] if METRICS[metric][2] else its[r] / ours[r] for r in ours if r in its]
        return statistics.median(both) if both else None

    def best(self, metric, stack, others, size):
        """The best of the others and the ratio to it."""
        known = [(self.ratio(metric, stack, o, size), o) for o in others]
        return max((k for k in known if k[0] is not None), default=(None, None))

    def sizes(self, metric):
        return sorted({size for stack in self.samples.get(metric, {}).values() for size in stack})


OWN = ("sweep", "rate", "allreduce")  # programs that run under the stacks of one MPI


def field_of(program):
    """Where a program across MPIs has half a round trip."""
    return wanted.METRICS[program][program]


def members(stacks, mpi):
    """The stacks of a unit."""
    return [s for s in stacks if (s in wanted.STACKS if mpi == ACROSS else STACKS[s][0] == mpi and s != wanted.HEAP)]


def measure(results, stacks, programs, options):
    """A round is one program under all ways of one MPI: only those are compared, and a short round seldom meets a move."""
    rounds = options.rounds
    units = [(mpi, program) for mpi in TITLES for program in programs if program in OWN and members(stacks, mpi)]
    units += [(ACROSS, program) for program in programs if program in wanted.METRICS and members(stacks, ACROSS)]
    kept = dict.fromkeys(units, 0)
    results.limits.append(limits(False))
    for attempt in range(1, 2 * rounds + 1):
        for mpi, program in units:
            if kept[mpi, program] == rounds:
                continue
            this, hands = [], [limits(True)["handover_ns"]]
            for name in [s for s in members(stacks, mpi) if (s, program) not in results.failures]:
                points, why = run(name, program, options)
                hands.append(limits(True)["handover_ns"])
                if why:
                    results.failures[name, program] = why
                    say(f"FAILED {name} {program}: {why}")
                else:
                    this.append((name, points))
            if mpi == ACROSS:
                points, why = over.loops(OUT, program == "fresh", options.max)
                if why:
                    results.failures["loops", program] = why
                hands.append(limits(True)["handover_ns"])
                this += [(name, [{"size": p["size"], field_of(program): p[field]} for p in points]) for name, field in wanted.LOOPS.items()]
            steady = max(hands) <= (wanted.UNSTEADY if mpi == ACROSS else UNSTEADY) * min(hands)
            # At the end an unsteady one is shown if there is no other, but it proves nothing.
            keep = steady or (kept[mpi, program] == 0 and attempt == 2 * rounds)
            results.handovers.append({"mpi": mpi, "program": program, "ns": hands, "kept": keep, "steady": steady})
            number = kept[mpi, program] + keep
            what = f"round {number} of {rounds}" if steady else "unsteady, shown for want of another" if keep else "discarded"
            say(f"{TITLES.get(mpi, mpi)} {program}: {what}, hand-over {', '.join(f'{ns:.0f}' for ns in hands)} ns")
            if keep:
                kept[mpi, program] += 1
                for name, points in this:
                    results.add(attempt, name, program, points)
        if all(count == rounds for count in kept.values()):
            break
    results.limits.append(limits(False))


# ---- telling ----


def show(results, stacks):
    kept = sum(h["kept"] for h in results.handovers)
    print(f"\nRounds: {kept} shown, {len(results.handovers) - kept} discarded. Copies of what the other core wrote: " + ", ".join(
        f"{human(int(size))} {' and '.join(format(l['memcpy_gbs'][size], '.1f') for l in results.limits)} GB/s"
        for size in (results.limits[0]["memcpy_gbs"] if results.limits else ())) + " (before and after everything)")
    for metric, (_, unit, _) in METRICS.items():
        digits = 2 if unit == "us" else 0
        for mpi, title in TITLES.items():
            here = [s for s in stacks if STACKS[s][0] == mpi and results.samples.get(metric, {}).get(s)]
            if not here:
                continue
            ours = f"{mpi}-rustmx" if f"{mpi}-rustmx" in here else None
            others = [s for s in here if s != ours]
            ns, steady, hands = results.hand(metric, mpi)
            what = f"{title}, {metric}{' of 8 ranks' if metric == 'allreduce' else ''}, {unit}"
            print(f"\n{what}; hand-over {ns:.0f} ns ({min(hands):.0f} .. {max(hands):.0f}){'' if steady else '. NO STEADY ROUND: this proves nothing'}")
            head = ["size"] + [s.split("-")[1] for s in here] + (["spread"] if ours else [])
            head += [f"vs {o.split('-')[1]}" for o in others if ours] + (["vs best"] if ours and len(others) > 1 else [])
            head += ["hand-overs"] if ours and metric == "latency" else []
            rows = [head]
            for size in results.sizes(metric):
                row = [human(size)] + [cell(results.median(metric, s, size), digits) for s in here]
                if ours:
                    spread = results.spread(metric, ours, size)
                    row.append("-" if spread is None else f"{spread:.0%}")
                    row += [cell(results.ratio(metric, ours, o, size)) for o in others]
                    row += [cell(results.best(metric, ours, others, size)[0])] if len(others) > 1 else []
                    if metric == "latency":
                        median = results.median(metric, ours, size)
                        row.append(cell(median * 1e3 / ns if median else None, 1))
                rows.append(row)
            table(rows)
    print("\nMedians of the kept rounds; spread: (largest - smallest) / median, of rustmx. vs: rustmx against that one, the")
    print("median of the ratios within a round, below 1 is better (also for MB/s and messages/s).")


# name, metric, rustmx's stack, the other one, up to what size
GOALS = [
    ("latency at most that of Open MPI's sm, 1 B to 4 KiB", "latency", "ompi5-rustmx", "ompi5-sm", 4096),
    ("message rate not below Open MPI's sm", "rate", "ompi5-rustmx", "ompi5-sm", None),
    ("no size slower than libfabric's tcp: latency", "latency", "ompi5-rustmx", "ompi5-tcp", None),
    ("no size slower than libfabric's tcp: bandwidth", "bandwidth", "ompi5-rustmx", "ompi5-tcp", None),
    ("8 ranks on 2 cores: allreduce not slower than Open MPI's sm", "allreduce", "ompi5-rustmx", "ompi5-sm", None),
]


def show_across(results, stacks):
    """The stacks of different MPIs beside each other, and what of the best other one's time rustmx needs."""
    here = members(stacks, ACROSS)
    for metric, words in wanted.WORDS.items():
        sizes = results.sizes(metric)
        if not sizes:
            continue
        ours = [s for s in (wanted.HEAP, wanted.PLAIN) if s in here]
        hands = results.hands(metric.split()[0], ACROSS)
        print(f"\n{words}; hand-over {statistics.median(hands):.0f} ns ({min(hands):.0f} .. {max(hands):.0f})")
        shown = [*here, *(loops for loops in wanted.LOOPS if results.samples[metric].get(loops))]
        head = ["size", *shown] + [f"{s.split('-')[1]}/best" for s in ours] + [f"spread {s.split('-')[1]}" for s in ours]
        rows = [head]
        for size in sizes:
            parts = [list(wanted.ratios(results.samples, metric, s, size).values()) for s in ours]
            row = [human(size)] + [cell(results.median(metric, s, size), 0 if metric in wanted.RATES else 2) for s in shown]
            row += [cell(statistics.median(p)) if p else "-" for p in parts]
            rows.append(row + [f"{min(p):.2f}..{max(p):.2f}" if p else "-" for p in parts])
        table(rows)


def compared(quick, longest):
    """What rustmx says of itself without an MPI, or why it does not."""
    command = over.LIBRARIES / "rustmx"
    if not command.exists():
        return None, f"{command} is missing: cargo build --release -p rustmx-cli"
    say("rustmx compare" + ("" if quick else ", some minutes"))
    arguments = [command, "compare", "--json", "--min", "256", "--max", str(max(longest, 16 << 20)), *(["--quick"] if quick else [])]
    environment = dict(os.environ) | {"FI_RUSTMX_PROFILE": over.RUSTMX["FI_RUSTMX_PROFILE"]}
    try:
        done = over.carry_out(arguments, environment, 1200)
    except subprocess.TimeoutExpired:
        return None, "no end after 20 minutes"
    return (json.loads(done.stdout), None) if done.returncode == 0 else (None, done.stderr[-1500:] or f"exit code {done.returncode}")


def verdicts(results):
    found = []
    for goal, metric, ours, other, most in GOALS:
        ratios = {size: results.ratio(metric, ours, other, size) for size in results.sizes(metric) if not most or size <= most}
        ratios = {size: ratio for size, ratio in ratios.items() if ratio is not None}
        if not ratios:
            found.append({"goal": goal, "verdict": "not measured"})
            continue
        worst = max(ratios, key=ratios.get)
        _, steady, hands = results.hand(metric, STACKS[ours][0])
        program = program_of(metric)
        failed = any((stack, program) in results.failures for stack in (ours, other))
        found.append({
            "goal": goal, "verdict": "unproven" if not steady or failed else "met" if ratios[worst] <= 1 else "missed", "worst_ratio": round(ratios[worst], 3),
            "worst_size": worst, "sizes_met": sum(r <= 1 for r in ratios.values()), "sizes": len(ratios),
        } | wanted.phase(hands))
    return found


def record(results, options, goals, asked, stacks):
    summary = {
        metric: {
            stack: [{"size": size, "median": results.median(metric, stack, size), "spread": round(results.spread(metric, stack, size), 3),
                     "rounds": list(values.values())} for size, values in sorted(by_size.items())]
            for stack, by_size in by_stack.items()
        }
        for metric, by_stack in results.samples.items()
    }
    return over.machine() | {
        "scale": options.scale, "longest": options.max, "offset": options.offset, "units": {m: u for m, (_, u, _) in METRICS.items()},
        "stacks": {name: STACKS[name][3] for name in stacks}, "handovers": results.handovers, "limits": results.limits,
        "results": summary, "goals": goals, "long_messages": asked, "failures": {f"{n} {p}": w for (n, p), w in results.failures.items()},
    }


def chosen(words):
    """Stacks and programs named by --only: whole names, an MPI, what comes after the dash, or a program."""
    words = [word for word in words.split(",") if word]
    programs = [p for p in PROGRAMS if p in words or (p == "sweep" and {"latency", "bandwidth"} & set(words))]
    stacks = [s for s in STACKS if s in words or s.split("-")[0] in words or s.split("-")[1] in words]
    known = set(PROGRAMS) | set(STACKS) | {part for s in STACKS for part in s.split("-")} | {"latency", "bandwidth"}
    unknown = [word for word in words if word not in known]
    if unknown:
        misused(f"unknown in --only: {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    return stacks or list(STACKS), programs or list(PROGRAMS)


def size(text):
    """A size like 16m."""
    unit = {"k": 1 << 10, "m": 1 << 20}.get(text[-1:].lower(), 1)
    return int(text if unit == 1 else text[:-1]) * unit


def need_room(longest):
    """Two ranks that have windows of 64 messages each way in buffers of their own."""
    need = 2 * 2 * 64 * longest
    available = next(int(line.split()[1]) << 10 for line in pathlib.Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    if available < need * 1.1:
        fail(f"--max {human(longest)} needs {human(need)} of memory, and {human(available)} are available: choose a smaller one")


def main():
    parser = over.Arguments()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--max", type=size, default=4 << 20)
    parser.add_argument("--offset", type=size, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.rounds < 1:
        misused("--rounds needs a number above 0")
    if not 1 << 20 <= options.max <= 32 << 20:
        misused("--max needs a size from 1m to 32m")
    if not 0 <= options.offset < 4096:
        misused("--offset needs a number of bytes below 4096")
    options.scale = 0.2 if options.quick else 1
    if options.quick and options.rounds == 5:
        options.rounds = 2
    stacks, programs = chosen(options.only)
    if options.check:
        return 0
    over.need_two_cores()
    over.interruptible()
    if "fresh" in programs:
        need_room(options.max)
    say(f"building; {len(stacks)} stacks, {options.rounds} rounds of {', '.join(programs)}")
    if wanted.HEAP in stacks and not over.HEAP.exists():
        say(f"{wanted.HEAP} left out: {over.HEAP} is missing: cargo build --release -p rustmx-heap")
        stacks.remove(wanted.HEAP)
    over.build(OUT, sorted({STACKS[name][0] for name in stacks}), ("sweep", "allreduce"), ("loops",))
    results, said, why = Results(), None, None
    try:
        measure(results, stacks, programs, options)
        if "compare" in programs:
            said, why = compared(options.quick, options.max)
    except over.CUT_SHORT as cut:
        why = results.failures["rounds", "all"] = over.cut_short(cut)
    unsteady = {h["program"] for h in results.handovers if h["mpi"] == ACROSS and h["kept"] and not h["steady"]}
    unsteady |= {h["program"] for h in results.handovers if h["mpi"] == "ompi5" and h["kept"] and not h["steady"]}
    hands = {program: results.hands(program, ACROSS if program in wanted.METRICS else "ompi5") for program in programs}
    # The goals for long messages are those of buffers of whole pages, as plain loops have.
    goals, asked = verdicts(results), [] if options.offset else wanted.judged(results.samples, unsteady, hands, results.failures)
    if "compare" in programs:
        asked += wanted.of_comparison(said, why)
        results.failures |= {("rustmx", "compare"): why} if why and not said else {}
    data = record(results, options, goals, asked, stacks)
    text, written = over.write(OUT, data)
    if options.json:
        print(text)
    else:
        show(results, stacks)
        if options.offset:
            print(f"\nLong messages: buffers begin {options.offset} bytes behind a page (--offset), for which there are no goals")
        show_across(results, stacks)
        print("\nGoals (unproven: no steady round, or a run failed)")
        for goal in goals:
            worst = f" (worst {goal['worst_ratio']:.2f} at {human(goal['worst_size'])}; {goal['sizes_met']} of {goal['sizes']} sizes; hand-over {wanted.in_phase(goal)} ns)" if "sizes" in goal else ""
            print(f"  {goal['verdict']:<12} {goal['goal']}{worst}")
        if any(g["verdict"] != "not measured" for g in asked):
            print("\nLong messages: the worst size of each goal; of the best other stack's time in the same round, the smallest and the largest round;")
            print("hand-over of a cache line in the rounds that count, ns: median (smallest .. largest). Plain loops: what part of the best other stack's time they")
            print("need (mpi-tests/bench/loops.c); where that is above the goal, too, it is out of reach (limit)")
            table(wanted.rows(asked, human))
            for line in wanted.reasons(asked):
                print(f"  {line}")
        for (name, program), why in results.failures.items():
            print(f"  FAILED       {name} {program}: {why.splitlines()[0]}")
    say(f"written: target/bench/{written}")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
