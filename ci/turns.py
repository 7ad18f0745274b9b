#!/usr/bin/env python3
"""Half a round trip over several stacks that take turns on the same two cores (see ci/turns.sh)."""

import concurrent.futures
import math
import statistics
import sys
import time

import goals as wanted
import stacks as over
from stacks import PIN, ROOT, STACKS, cell, human, misused, say, table

OUT = ROOT / "target/turns"
TURN = 0.010
# Seconds in which all jobs have begun, wherever they stand in the queue for two cores.
STARTS_IN = 20
# Medians of fewer messages are not shown.
FEWEST = 20
PHASES = {"near": "a line in less than {} ns", "far": "a line in {} ns or more"}
PROGRAMS = tuple(wanted.METRICS)


class Other:
    """Open MPI 5 over a build or settings of the user's; by its name with the heap or without."""

    def __init__(self, text):
        self.name, _, rest = text.partition("=")
        directory, *settings = rest.split(",")
        if not self.name or not directory or not all("=" in s for s in settings):
            misused(f"--also {text}: not WORD=DIRECTORY[,NAME=VALUE]…")
        self.stack = wanted.HEAP if self.name.endswith("-heap") else wanted.PLAIN
        self.environment = {"FI_PROVIDER_PATH": directory} | dict(s.split("=", 1) for s in settings)


def size(text):
    """A size like 16k or 40000."""
    unit = {"k": 1 << 10, "m": 1 << 20}.get(text[-1:].lower(), 1)
    try:
        bytes_ = int(text if unit == 1 else text[:-1]) * unit
    except ValueError:
        bytes_ = 0
    # A round trip of the longest fits into a turn.
    if not 1 <= bytes_ <= 4 << 20:
        misused(f"--sizes: {text!r} is no size from 1 to 4m")
    return bytes_


def plan(stacks, others):
    """Name, stack and more environment of each job."""
    return [(name, name, {}) for name in stacks] + [(o.name, o.stack, o.environment) for o in others]


def launched(job, turn, of, start, program, options):
    """One job through all rounds: its JSON lines, or None and the reason."""
    _, stack, environment = job
    command = [str(OUT / STACKS[stack][0] / "turns"), "--turn", str(turn), "--of", str(of), "--start", f"{start:.6f}",
               "--seconds", str(options.seconds), "--rounds", str(options.rounds), "--sizes", ",".join(map(str, options.sizes)),
               "--offset", str(options.offset), "--near", str(options.near), *(["--fresh"] if program == "fresh" else [])]
    patience = STARTS_IN + options.rounds * len(options.sizes) * options.seconds + 120
    text, _, why = over.run(stack, [*PIN, *over.preloading(stack, command)], extra=environment, patience=patience)
    return (None, why) if why else (over.objects(text), None)


def measure(jobs, program, options):
    """All jobs of one program at once. Samples by phase, as goals.py has them, and failures."""
    start = time.clock_gettime(time.CLOCK_MONOTONIC) + STARTS_IN
    seconds = STARTS_IN + options.rounds * len(options.sizes) * options.seconds
    say(f"{program}: {len(jobs)} stacks in turns, {len(options.sizes)} sizes, {options.rounds} rounds: {seconds:.0f} s")
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        runs = [pool.submit(launched, job, turn, len(jobs), start, program, options) for turn, job in enumerate(jobs)]
        shown = 0
        try:
            while concurrent.futures.wait(runs, timeout=15).not_done:
                now = time.clock_gettime(time.CLOCK_MONOTONIC) - start
                done = min(int(now / options.seconds / len(options.sizes)), options.rounds) if now > 0 else 0
                if done > shown:
                    shown = done
                    say(f"{program}: round {done} of {options.rounds} is through")
        except KeyboardInterrupt:
            # Those who wait for them hear of no signal.
            over.end(set(over.RUNNING))
            raise
    found, hands, failures = {phase: {} for phase in PHASES}, {phase: [] for phase in PHASES}, {}
    for (name, _, _), (points, why) in zip(jobs, (run.result() for run in runs)):
        if why:
            failures[name, program] = why
            say(f"FAILED {name} {program}: {why}")
        gather(name, points or (), found, hands)
    return found, hands, failures


def gather(name, points, found, hands):
    """What a job printed, to what was found of all, by phase."""
    for p in points:
        if p["messages"] >= FEWEST:
            found[p["phase"]].setdefault(name, {}).setdefault(p["size"], {})[p["round"]] = p["latency_us"]
            hands[p["phase"]].append(p["handover_ns"])


def exact(bytes_):
    """A size in words, unless it is no whole number of KiB."""
    return human(bytes_) if bytes_ % 1024 == 0 else str(bytes_)


def rows(samples, metric, names):
    """A table of medians; behind it, of each stack of ours, the part of the best peer's time, its smallest and its largest round."""
    by_stack = samples[metric]
    ours = [name for name in names if name not in wanted.PEERS]
    lines = [["size", *names] + [f"{name}/best" for name in ours] + [f"spread {name}" for name in ours]]
    for bytes_ in sorted({s for sizes in by_stack.values() for s in sizes}):
        times = [by_stack.get(name, {}).get(bytes_, {}) for name in names]
        parts = [list(wanted.ratios(samples, metric, name, bytes_).values()) for name in ours]
        lines.append([exact(bytes_)] + [cell(statistics.median(t.values()) if t else None) for t in times]
                     + [cell(statistics.median(p)) if p else "-" for p in parts] + [f"{min(p):.2f}..{max(p):.2f}" if p else "-" for p in parts])
    return lines


def main():
    parser = over.Arguments()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--sizes", default=",".join([*(str(1 << n) for n in range(10, 23)), "40000"]))
    parser.add_argument("--only", default="")
    parser.add_argument("--also", action="append", default=[])
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--near", type=int, default=150)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.sizes = sorted({size(text) for text in options.sizes.split(",")})
    words = [word for word in options.only.split(",") if word]
    unknown = [word for word in words if word not in (*wanted.STACKS, *PROGRAMS)]
    if unknown:
        misused(f"unknown in --only: {', '.join(unknown)}; known: {', '.join((*wanted.STACKS, *PROGRAMS))}")
    others = [Other(text) for text in options.also]
    jobs = plan([s for s in wanted.STACKS if s in words] or list(wanted.STACKS), others)
    programs = [p for p in PROGRAMS if p in words] or list(PROGRAMS)
    if len({name for name, _, _ in jobs}) < len(jobs) or any(o.name in wanted.STACKS for o in others):
        misused("--also: each needs a name of its own")
    if not math.isfinite(options.seconds) or options.seconds > 600:
        misused(f"--seconds {options.seconds}: at most 600")
    if options.rounds < 1 or not 0 <= options.offset < 4096 or len(options.sizes) > 64:
        misused("--rounds needs a number above 0, --offset one below 4096, --sizes at most 64 sizes")
    if not 1 <= options.near <= 1000:
        misused(f"--near {options.near}: from 1 to 1000 ns")
    if options.seconds < 4 * TURN * len(jobs):
        misused(f"--seconds {options.seconds}: {len(jobs)} stacks need {4 * TURN * len(jobs):.2f} at least for some turns each")
    if options.check:
        return 0
    over.need_two_cores()
    over.interruptible()
    over.build(OUT, sorted({STACKS[stack][0] for _, stack, _ in jobs}), ("turns",))
    names = [name for name, _, _ in jobs]
    samples, hands = ({phase: {program: empty() for program in programs} for phase in PHASES} for empty in (dict, list))
    failures = {}
    try:
        for program in programs:
            found, handed, failed = measure(jobs, program, options)
            failures |= failed
            for phase in PHASES:
                samples[phase][program], hands[phase][program] = found[phase], handed[phase]
    except over.CUT_SHORT as why:
        failures["rounds", "all"] = over.cut_short(why)
    asked = {}
    for phase in PHASES:
        # Buffers behind a page have no goals.
        goals = [] if options.offset else wanted.judged(samples[phase], (), hands[phase], failures)
        asked[phase] = [g for g in goals if g["metric"].split(", ")[-1] in programs]
    data = over.machine() | {"seconds": options.seconds, "rounds": options.rounds, "offset": options.offset, "near_ns": options.near, "samples": samples,
                             "handover_ns": {p: {m: wanted.phase(h) for m, h in by.items()} for p, by in hands.items()},
                             "goals": asked, "failures": {" ".join(which): why for which, why in failures.items()}}
    text, written = over.write(OUT, data)
    if options.json:
        print(text)
    else:
        show(samples, hands, names, programs, asked, options.near)
    say(f"written: target/turns/{written}")
    return 1 if failures else 0


def show(samples, hands, names, programs, asked, near):
    for phase, words in ((phase, words.format(near)) for phase, words in PHASES.items()):
        for metric in programs:
            if not samples[phase][metric]:
                print(f"\n{phase} ({words}), {metric}: no stack had {FEWEST} messages of a size there in a round")
                continue
            print(f"\n{phase} ({words}; {wanted.in_phase(wanted.phase(hands[phase][metric]))} ns), {wanted.WORDS[metric]}")
            table(rows(samples[phase], metric, names))
        if any(goal["verdict"] != "not measured" for goal in asked[phase]):
            print(f"\nGoals, {phase}: the worst size of each; of the best other stack's time in the same round, the smallest and the largest round")
            table(wanted.rows([g for g in asked[phase] if g["verdict"] != "not measured"], exact))
            for line in wanted.reasons(asked[phase]):
                print(f"  {line}")


if __name__ == "__main__":
    sys.exit(main())
