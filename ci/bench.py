#!/usr/bin/env python3
"""Measures rustmx against the other ways of the same MPIs, in interleaved rounds (see ci/bench.sh)."""

import argparse
import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
VENVS = ROOT / "target/venv"
OUT = ROOT / "target/bench"
SOURCES = ROOT / "mpi-tests/bench"
STARTED = time.monotonic()
UNSTEADY = 4 / 3  # a round in which the hand-over moved by more is discarded

RUSTMX = {"FI_PROVIDER": "rustmx", "FI_PROVIDER_PATH": str(ROOT / "target/release"), "FI_RUSTMX_STATS": "1",
          # The shipped table, unless a profile is named: figures of two machines are to be compared.
          "FI_RUSTMX_PROFILE": os.environ.get("FI_RUSTMX_PROFILE", "off")}
UCX = ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"]
OFI = ["--mca", "pml", "cm", "--mca", "mtl", "ofi"]
NETMOD = {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1"}

# name -> (MPI, environment, launcher options, what it is)
STACKS = {
    "ompi5-rustmx": ("ompi5", RUSTMX, OFI, "Open MPI 5 over rustmx"),
    "ompi5-sm": ("ompi5", {}, ["--mca", "pml", "ob1", "--mca", "btl", "sm,self"], "Open MPI 5's own shared memory"),
    "ompi5-ucx": ("ompi5", {}, UCX, "Open MPI 5 over UCX"),
    "ompi5-tcp": ("ompi5", {"FI_PROVIDER": "tcp", "OMPI_MCA_opal_common_ofi_provider_include": "tcp"}, OFI,
                  "Open MPI 5 over libfabric's tcp"),
    "ompi4-rustmx": ("ompi4", RUSTMX, OFI, "Open MPI 4 over rustmx"),
    "ompi4-vader": ("ompi4", {}, ["--mca", "pml", "ob1", "--mca", "btl", "vader,self"], "Open MPI 4's own shared memory"),
    "ompi4-ucx": ("ompi4", {}, UCX, "Open MPI 4 over UCX"),
    "mpich-rustmx": ("mpich", RUSTMX | NETMOD, [], "MPICH over rustmx"),
    "mpich-own": ("mpich", {}, [], "MPICH's own shared memory"),
    "mpich-shm": ("mpich", {"FI_PROVIDER": "shm"} | NETMOD, [], "MPICH over libfabric's shm"),
    "impi-rustmx": ("impi", RUSTMX | {"I_MPI_FABRICS": "ofi", "I_MPI_OFI_PROVIDER": "rustmx"}, [], "Intel MPI over rustmx"),
    "impi-own": ("impi", {"I_MPI_FABRICS": "shm"}, [], "Intel MPI's own shared memory"),
}
TITLES = {"ompi5": "Open MPI 5", "ompi4": "Open MPI 4", "mpich": "MPICH", "impi": "Intel MPI"}
METRICS = {  # name -> (field of the programs' output, unit, is less better)
    "latency": ("latency_us", "us", True),
    "bandwidth": ("bandwidth_mbs", "MB/s", False),
    "rate": ("rate_mps", "messages/s", False),
    "allreduce": ("latency_us", "us", True),
}
PROGRAMS = ("sweep", "rate", "allreduce")


def say(text):
    print(f"[bench {time.monotonic() - STARTED:4.0f}s] {text}", file=sys.stderr, flush=True)


def fail(text):
    sys.exit(f"bench: {text}")


# ---- building and running ----


def compiler(mpi):
    if mpi == "ompi4":
        return ["/usr/bin/mpicc.openmpi"], []
    if mpi == "impi":
        # Intel's wheel has no header; it has the MPICH ABI.
        return ["gcc"], [f"-I{VENVS}/mpich/include", f"-L{VENVS}/impi/lib", "-l:libmpi.so.12"]
    return [str(VENVS / mpi / "bin/mpicc")], []


def build(mpis):
    def run(command):
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            fail(f"{' '.join(command)}\n{done.stdout}")

    OUT.mkdir(parents=True, exist_ok=True)
    flags = ["-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra"]
    run(["gcc", "-std=c11", *flags, "-o", str(OUT / "limits"), str(SOURCES / "limits.c")])
    for mpi in mpis:
        (OUT / mpi).mkdir(exist_ok=True)
        for program in ("sweep", "allreduce"):
            command, libraries = compiler(mpi)
            if not pathlib.Path(command[0]).exists() and mpi != "impi":
                fail(f"{command[0]} is missing: run ci/setup.sh")
            run([*command, "-std=c99", *flags, "-o", str(OUT / mpi / program), str(SOURCES / f"{program}.c"), *libraries])


def launcher(mpi, options, environment, ranks):
    if mpi.startswith("ompi"):
        command = ["/usr/bin/mpirun.openmpi" if mpi == "ompi4" else str(VENVS / mpi / "bin/mpirun"), *options]
        command += ["--bind-to", "none"]
        if ranks > 2:
            command += ["--oversubscribe"] if mpi == "ompi4" else ["--map-by", ":OVERSUBSCRIBE"]
        for name in environment:
            command += ["-x", name] if name.startswith("FI_") else []
    else:
        command = [str(VENVS / mpi / "bin/mpiexec")]
    return [*command, "-n", str(ranks)]


# Each MPI has binding options of its own; this pins the ranks the same way under all of them.
PIN = ["sh", "-c", 'exec taskset -c "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" "$0" "$@"']


def run(name, program, scale):
    """One run of one program: its JSON lines, or None and the reason."""
    mpi, extra, options, _ = STACKS[name]
    environment = dict(os.environ) | extra
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    if mpi in ("mpich", "impi"):
        environment["LD_LIBRARY_PATH"] = str(VENVS / mpi / "lib")
    if mpi == "impi":
        environment["I_MPI_PIN"] = "off"
    ranks = 8 if program == "allreduce" else 2
    command = launcher(mpi, options, extra, ranks)
    if name == "ompi5-tcp":
        command = [str(ROOT / "mpi-tests/private-net.sh"), *command]
    if program == "allreduce":
        command += [str(OUT / mpi / "allreduce"), "--seconds", str(max(scale, 0.2))]
    else:
        command += [*PIN, str(OUT / mpi / "sweep"), "--json", "--iters-scale", str(scale)]
        command += ["--rate"] if program == "rate" else []
    try:
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired:
        return None, f"no end after 180 s: {' '.join(command)}"
    if done.returncode:
        return None, f"exit code {done.returncode}: {' '.join(command)}\n{done.stderr[-1500:]}"
    if name.endswith("-rustmx"):
        # Without this proof the figures might be those of whatever the MPI fell back to.
        used = [line for line in done.stderr.splitlines() if re.match(r"rustmx stats:.* sent=[1-9]", line)]
        if len(used) < ranks:
            return None, f"{len(used)} of {ranks} ranks sent over rustmx: {' '.join(command)}\n{done.stderr[-1500:]}"
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")], None


def limits(handover_only):
    command = [str(OUT / "limits")] + (["--handover"] if handover_only else [])
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


# ---- rounds ----


class Results:
    def __init__(self):
        self.samples = {}  # metric -> stack -> size -> {round: value}
        self.handovers, self.failures, self.limits = [], {}, []

    def hand(self, metric, mpi):
        """The hand-over in nanoseconds in the rounds of a table, and whether they were steady."""
        program = "sweep" if metric in ("latency", "bandwidth") else metric
        here = [h for h in self.handovers if h["kept"] and (h["mpi"], h["program"]) == (mpi, program)]
        return statistics.median(ns for h in here for ns in h["ns"]), all(h["steady"] for h in here)

    def add(self, round_, stack, program, points):
        for point in points:
            for metric in {"sweep": ("latency", "bandwidth")}.get(program, (program,)):
                sizes = self.samples.setdefault(metric, {}).setdefault(stack, {})
                sizes.setdefault(point.get("size", point.get("bytes")), {})[round_] = point[METRICS[metric][0]]

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


def measure(stacks, programs, rounds, scale):
    """A round is one program under all ways of one MPI: only those are compared, and a short round seldom meets a move."""
    results = Results()
    units = [(mpi, program) for mpi in TITLES for program in programs if any(STACKS[s][0] == mpi for s in stacks)]
    kept = dict.fromkeys(units, 0)
    results.limits.append(limits(False))
    for attempt in range(1, 2 * rounds + 1):
        for mpi, program in units:
            if kept[mpi, program] == rounds:
                continue
            this, hands = [], [limits(True)["handover_ns"]]
            for name in [s for s in stacks if STACKS[s][0] == mpi and (s, program) not in results.failures]:
                points, why = run(name, program, scale)
                hands.append(limits(True)["handover_ns"])
                if why:
                    results.failures[name, program] = why
                    say(f"FAILED {name} {program}: {why}")
                else:
                    this.append((name, points))
            steady = max(hands) <= UNSTEADY * min(hands)
            # At the end an unsteady one is shown if there is no other, but it proves nothing.
            keep = steady or (kept[mpi, program] == 0 and attempt == 2 * rounds)
            results.handovers.append({"mpi": mpi, "program": program, "ns": hands, "kept": keep, "steady": steady})
            number = kept[mpi, program] + keep
            what = f"round {number} of {rounds}" if steady else "unsteady, shown for want of another" if keep else "discarded"
            say(f"{TITLES[mpi]} {program}: {what}, hand-over {', '.join(f'{ns:.0f}' for ns in hands)} ns")
            if keep:
                kept[mpi, program] += 1
                for name, points in this:
                    results.add(attempt, name, program, points)
        if all(count == rounds for count in kept.values()):
            break
    results.limits.append(limits(False))
    return results


# ---- telling ----


def human(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def cell(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


def table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.rjust(width) for text, width in zip(row, widths)))


def show(results, stacks):
    kept = sum(h["kept"] for h in results.handovers)
    print(f"\nRounds: {kept} shown, {len(results.handovers) - kept} discarded. Copies of what the other core wrote: " + ", ".join(
        f"{human(int(size))} {' and '.join(format(l['memcpy_gbs'][size], '.1f') for l in results.limits)} GB/s"
        for size in results.limits[0]["memcpy_gbs"]) + " (before and after everything)")
    for metric, (_, unit, _) in METRICS.items():
        digits = 2 if unit == "us" else 0
        for mpi, title in TITLES.items():
            here = [s for s in stacks if STACKS[s][0] == mpi and results.samples.get(metric, {}).get(s)]
            if not here:
                continue
            ours = f"{mpi}-rustmx" if f"{mpi}-rustmx" in here else None
            others = [s for s in here if s != ours]
            ns, steady = results.hand(metric, mpi)
            what = f"{title}, {metric}{' of 8 ranks' if metric == 'allreduce' else ''}, {unit}"
            print(f"\n{what}; hand-over {ns:.0f} ns{'' if steady else '. NO STEADY ROUND: this proves nothing'}")
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


def verdicts(results):
    found = []
    for goal, metric, ours, other, most in GOALS:
        ratios = {size: results.ratio(metric, ours, other, size) for size in results.sizes(metric) if not most or size <= most}
        ratios = {size: ratio for size, ratio in ratios.items() if ratio is not None}
        if not ratios:
            found.append({"goal": goal, "verdict": "not measured"})
            continue
        worst = max(ratios, key=ratios.get)
        _, steady = results.hand(metric, STACKS[ours][0])
        found.append({
            "goal": goal, "verdict": "unproven" if not steady else "met" if ratios[worst] <= 1 else "missed", "worst_ratio": round(ratios[worst], 3),
            "worst_size": worst, "sizes_met": sum(r <= 1 for r in ratios.values()), "sizes": len(ratios),
        })
    return found


def record(results, options, goals, stacks):
    def first(path, pattern):
        match = re.search(pattern, pathlib.Path(path).read_text(encoding="utf-8"), re.M)
        return match[1].strip() if match else None

    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    summary = {
        metric: {
            stack: [{"size": size, "median": results.median(metric, stack, size), "spread": round(results.spread(metric, stack, size), 3),
                     "rounds": list(values.values())} for size, values in sorted(by_size.items())]
            for stack, by_size in by_stack.items()
        }
        for metric, by_stack in results.samples.items()
    }
    return {
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "commit": commit.stdout.strip(),
        "cpu": first("/proc/cpuinfo", r"^model name\s*:(.*)"), "cores": os.cpu_count(), "kernel": os.uname().release,
        "scale": options.scale, "units": {m: u for m, (_, u, _) in METRICS.items()},
        "stacks": {name: STACKS[name][3] for name in stacks}, "handovers": results.handovers, "limits": results.limits,
        "results": summary, "goals": goals, "failures": {f"{n} {p}": w for (n, p), w in results.failures.items()},
    }


def chosen(words):
    """Stacks and programs named by --only: whole names, an MPI, what comes after the dash, or a program."""
    words = [word for word in words.split(",") if word]
    programs = [p for p in PROGRAMS if p in words or (p == "sweep" and {"latency", "bandwidth"} & set(words))]
    stacks = [s for s in STACKS if s in words or s.split("-")[0] in words or s.split("-")[1] in words]
    known = set(PROGRAMS) | set(STACKS) | {part for s in STACKS for part in s.split("-")} | {"latency", "bandwidth"}
    unknown = [word for word in words if word not in known]
    if unknown:
        fail(f"unknown in --only: {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    return stacks or list(STACKS), programs or list(PROGRAMS)


def main():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.rounds < 1:
        fail("--rounds needs a number above 0")
    options.scale = 0.2 if options.quick else 1
    if options.quick and options.rounds == 5:
        options.rounds = 2
    if (os.cpu_count() or 1) < 2 or not {0, 1} <= os.sched_getaffinity(0):
        fail("needs cores 0 and 1")
    stacks, programs = chosen(options.only)
    say(f"building; {len(stacks)} stacks, {options.rounds} rounds of {', '.join(programs)}")
    build(sorted({STACKS[name][0] for name in stacks}))
    results = measure(stacks, programs, options.rounds, options.scale)
    goals = verdicts(results)
    data = record(results, options, goals, stacks)
    text = json.dumps(data, indent=1)
    stamp = data["time"][:19].replace("-", "").replace(":", "")
    for name in (f"{stamp}.json", "latest.json"):
        (OUT / name).write_text(text + "\n", encoding="utf-8")
    if options.json:
        print(text)
    else:
        show(results, stacks)
        print("\nGoals (unproven: no steady round)")
        for goal in goals:
            worst = f" (worst {goal['worst_ratio']:.2f} at {human(goal['worst_size'])}; {goal['sizes_met']} of {goal['sizes']} sizes)" if "sizes" in goal else ""
            print(f"  {goal['verdict']:<12} {goal['goal']}{worst}")
        for (name, program), why in results.failures.items():
            print(f"  FAILED       {name} {program}: {why.splitlines()[0]}")
    say(f"written: target/bench/{stamp}.json")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
