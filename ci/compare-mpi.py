#!/usr/bin/env python3
"""Compares rustmx's protocols through MPI, in interleaved rounds (see ci/compare-mpi.sh)."""

import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

import stacks as over
from stacks import PIN, ROOT, TITLES, UNSTEADY, cell, fail, human, misused, say, table

OUT = ROOT / "target/compare-mpi"
HEAP = over.LIBRARIES / "librustmx_heap.so"
MPIS = ("ompi5", "mpich")
TESTS = {  # test -> (field of the JSON, unit, is less better)
    "latency": ("latency_us", "us", True),
    "bw": ("bandwidth_mbs", "MB/s", False),
    "bibw": ("bandwidth_mbs", "MB/s", False),
    "mbw_mr": ("rate_mps", "messages/s", False),
}
SOURCES = ("reused", "fresh")
PROTOCOLS = ("inline", "eager", "stream", "alone", "shared", "mapped-alone", "mapped-shared")  # those that there may be
SHARING = {"mapped-alone", "mapped-shared"}  # protocols that need memory of the preloaded heap
DEFAULT, PRELOADED = "default", "default+heap"
SECONDS = 0.05  # for each size
STRAYED = 0.1  # the part of the messages that may go another way than was forced
OSU_ITERATIONS = ((8192, 2000), (131072, 400), (1 << 30, 60))  # up to which size how many


def size_of(text):
    factor = {"k": 1 << 10, "m": 1 << 20}.get(text[-1:].lower(), 1)
    return int(text[:-1] if factor > 1 else text) * factor


def ways():
    """What rustmx says it can do: name -> (shortest, longest message), and its own choice: rows (from, to, name)."""
    command = over.LIBRARIES / "rustmx"
    if not command.exists():
        fail(f"{command} is missing: leave out --no-build, or cargo build --release -p rustmx-cli")
    done = subprocess.run([command, "explain", "--json"], stdout=subprocess.PIPE, timeout=30)
    if done.returncode:
        fail("no job starts with these settings, says `rustmx explain`")
    said = json.loads(done.stdout)
    end = lambda to: math.inf if to is None else to
    known = {w["way"]: (w["from"], end(w["to"])) for w in said["ways"]}
    if SHARING & set(known) and HEAP.exists():
        known[PRELOADED] = (0, math.inf)
    elif SHARING & set(known):
        say(f"{', '.join(sorted(SHARING & set(known)))} left out: {HEAP} is missing")
        known = {name: sizes for name, sizes in known.items() if name not in SHARING}
    return {DEFAULT: (0, math.inf)} | known, [(r["from"], end(r["to"]), r["way"]) for r in said["table"] if not r["lent"]]


def groups(sizes, known):
    """The sizes, cut wherever a way begins or ends."""
    def carriers(size):
        return tuple(name for name, (first, last) in known.items() if first <= size <= last)

    found = []
    for size in sizes:
        if not found or carriers(size) != found[-1][1]:
            found.append(([], carriers(size)))
        found[-1][0].append(size)
    return found


# ---- programs ----


class Perf:
    """Our own benchmark."""

    def __init__(self, mpis, scale):
        over.build(OUT, mpis, ("perf",))
        self.scale, self.sources = scale, SOURCES

    def has(self, mpi, test):
        return True

    def command(self, mpi, test, source, sizes):
        command = [str(OUT / mpi / "perf"), test, "--json", "--sizes", f"{sizes[0]}:{sizes[-1]}", "--seconds", str(SECONDS * self.scale)]
        return command + (["--fresh"] if source == "fresh" else [])

    def environment(self, mpi):
        return {}

    def points(self, test, text):
        return {point["size"]: point[TESTS[test][0]] for point in over.objects(text)}


class Osu:
    """OSU's, wherever the user has them."""

    LIBRARY = {"ompi5": "libmpi.so.40", "mpich": "libmpi.so.12"}

    def __init__(self, directories, mpis, scale):
        over.build(OUT, mpis, ())
        self.scale, self.sources, self.found = scale, SOURCES[:1], {}
        files = {file for directory in directories.split(":") for file in pathlib.Path(directory).rglob("osu_*")}
        for file in sorted(files):
            test = file.name.removeprefix("osu_")
            if test not in TESTS or not file.is_file() or not os.access(file, os.X_OK):
                continue
            linked = subprocess.run(["ldd", file], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
            for mpi in mpis:
                if self.LIBRARY[mpi] in linked:
                    self.found.setdefault((mpi, test), file)
        if not self.found:
            fail(f"OSU_DIR={directories}: no osu_latency, osu_bw, osu_bibw or osu_mbw_mr below it that is linked with the library "
                 "of Open MPI 5 (libmpi.so.40) or MPICH (libmpi.so.12)")

    def has(self, mpi, test):
        return (mpi, test) in self.found

    def command(self, mpi, test, source, sizes):
        iterations = next(count for most, count in OSU_ITERATIONS if sizes[-1] <= most)
        count = max(int(iterations * self.scale), 10)
        return [str(self.found[mpi, test]), "-m", f"{sizes[0]}:{sizes[-1]}", "-i", str(count), "-x", str(max(count // 10, 2))]

    def environment(self, mpi):
        return {"LD_LIBRARY_PATH": str(over.VENVS / mpi / "lib")}

    def points(self, test, text):
        """Columns: the size, and the figure; the message rate is the third."""
        rows = [line.split() for line in text.splitlines() if line[:1].isdigit()]
        return {int(row[0]): float(row[2 if test == "mbw_mr" else 1]) for row in rows if len(row) > 1}


def strayed(text, shortest):
    """The part of the messages that went another way than was forced, and why. The benchmark's own short ones are no matter."""
    forced, other, why = 0, 0, {}
    for line in over.objects(text):
        if line.get("rustmx") != "explain" or line.get("operation") != "send" or 2 * line["bytes"] < shortest * line["count"]:
            continue
        if "refused" in line:
            other += line["count"]
            why[line["why"]] = why.get(line["why"], 0) + line["count"]
        elif line["forced"]:
            forced += line["count"]
    if forced + other == 0:
        return 1.0, "nothing went the forced way"
    return other / (forced + other), max(why, key=why.get) if why else ""


def run(program, unit, way, sizes):
    """One run: its points, or None and why; `another way: …` if rustmx itself did not do what was forced."""
    mpi, test, source = unit
    forced = way not in (DEFAULT, PRELOADED)
    # What is sent by an inject call goes by a copy: all ways are to have their completions alike.
    extra = program.environment(mpi) | {"FI_RUSTMX_INJECT_MAX": "232"}
    extra |= {"FI_RUSTMX_PROTOCOL": way, "FI_RUSTMX_EXPLAIN": "json"} if forced else {}
    preload = ["env", f"LD_PRELOAD={HEAP}"] if way in SHARING | {PRELOADED} else []
    out, err, why = over.run(f"{mpi}-rustmx", [*PIN, *preload, *program.command(mpi, test, source, sizes)], 2, extra)
    if why:
        return None, why
    if forced:
        part, reason = strayed(err, sizes[0])
        if part > STRAYED:
            return None, f"another way: {part:.0%} of the messages: {reason}"
    points = program.points(test, out)
    missing = [size for size in sizes if size not in points]
    return (None, f"no figure for {', '.join(map(human, missing))}") if missing else (points, None)


# ---- rounds ----


class Results:
    def __init__(self, units, known, choice, sizes):
        self.units, self.known, self.choice, self.sizes = units, known, choice, sizes
        self.samples = {}  # unit -> way -> size -> {round: value}
        self.other, self.failures, self.handovers = {}, {}, []

    def add(self, unit, way, round_, points):
        # A program with two decimals may say 0.00 of what took very long; that can be compared with nothing.
        for size, value in ((size, value) for size, value in points.items() if value > 0):
            self.samples.setdefault(unit, {}).setdefault(way, {}).setdefault(size, {})[round_] = value

    def values(self, unit, way, size):
        return self.samples.get(unit, {}).get(way, {}).get(size, {})

    def median(self, unit, way, size):
        values = self.values(unit, way, size)
        return statistics.median(values.values()) if values else None

    def spread(self, unit, way, size):
        values = list(self.values(unit, way, size).values())
        return (max(values) - min(values)) / statistics.median(values) if values else None

    def over(self, unit, way, other, size):
        """How much worse a way is than another: the median of the ratios within a round, less 1."""
        ours, its = self.values(unit, way, size), self.values(unit, other, size)
        ratios = [ours[r] / its[r] if TESTS[unit[1]][2] else its[r] / ours[r] for r in ours if r in its]
        return statistics.median(ratios) - 1 if ratios else None

    def forced(self, unit, heap):
        """The forced ways that a default is to be held against: those it could have taken."""
        ways_ = [w for w in self.known if w not in (DEFAULT, PRELOADED) and self.samples.get(unit, {}).get(w)]
        return [w for w in ways_ if heap or w not in SHARING]

    def best(self, unit, ways_, size):
        sign = 1 if TESTS[unit[1]][2] else -1
        known = [(sign * self.median(unit, w, size), w) for w in ways_ if self.median(unit, w, size) is not None]
        return min(known)[1] if known else None

    def crossovers(self, unit, ways_):
        """(size, way that is best from there, way that was, rounds that agree, rounds)."""
        found, leader = [], None
        for size in self.sizes:
            best = self.best(unit, ways_, size)
            if best and leader and best != leader:
                new, old = self.values(unit, best, size), self.values(unit, leader, size)
                both = [r for r in new if r in old]
                better = sum((new[r] < old[r]) == TESTS[unit[1]][2] for r in both)
                found.append({"size": size, "way": best, "before": leader, "agree": better, "rounds": len(both)})
            leader = best or leader
        return found

    def chosen(self, size):
        return next((way for first, last, way in self.choice if first <= size <= last), None)

    def regret(self, unit, default, against):
        """Of a default against what `against` names for each size: mean (geometric), worst, where."""
        each = {size: self.over(unit, default, against(size), size) for size in self.sizes if against(size)}
        each = {size: over for size, over in each.items() if over is not None}
        if not each:
            return None
        worst = max(each, key=each.get)
        mean = math.exp(statistics.fmean(math.log1p(o) for o in each.values())) - 1
        return {"mean": mean, "worst": each[worst], "at": worst, "sizes": len(each)}


def once(results, program, unit, sizes, ways_):
    """Every way once. Returns the hand-overs before, between and after, and what was measured."""
    these, hands = [], [over.limits(OUT, True)["handover_ns"]]
    for way in ways_:
        if (unit, way, sizes[0]) in results.other or (unit, way) in results.failures:
            continue
        points, why = run(program, unit, way, sizes)
        hands.append(over.limits(OUT, True)["handover_ns"])
        what = f"{TITLES[unit[0]]} {unit[1]} {unit[2]}, {way}, {human(sizes[0])} to {human(sizes[-1])}"
        if points:
            these.append((way, points))
        elif why.startswith("another way: "):
            results.other[unit, way, sizes[0]] = f"{human(sizes[0])} to {human(sizes[-1])}, {why.removeprefix('another way: ')}"
            say(f"left out: {what}, {why.removeprefix('another way: ')}")
        else:
            results.failures[unit, way] = f"{what}: {why}"
            say(f"FAILED {results.failures[unit, way]}")
    return hands, these


def measure(results, program, cut, rounds):
    tasks = [(unit, sizes, ways_) for unit in results.units for sizes, ways_ in cut]
    kept, done, most = [0] * len(tasks), 0, rounds * len(tasks)
    for attempt in range(1, 2 * rounds + 1):
        for i, (unit, sizes, ways_) in enumerate(tasks):
            if kept[i] == rounds:
                continue
            # Forwards and backwards in turn: nobody always comes after the same one.
            hands, these = once(results, program, unit, sizes, ways_[:: 1 if attempt % 2 else -1])
            steady = max(hands) <= UNSTEADY * min(hands)
            keep = steady or (kept[i] == 0 and attempt == 2 * rounds)
            results.handovers.append({"unit": "-".join(unit), "from": sizes[0], "ns": hands, "kept": keep, "steady": steady})
            kept[i] += keep
            done += keep
            for way, points in these if keep else []:
                results.add(unit, way, attempt, points)
            state = "" if steady else ", unsteady: shown for want of another" if keep else ", unsteady: discarded"
            say(f"{done}/{most}: {TITLES[unit[0]]} {unit[1]} {unit[2]} from {human(sizes[0])}, round {kept[i]} of {rounds}{state}")
        if min(kept) == rounds:
            break


# ---- telling ----


def show(results):
    for unit in results.units:
        mpi, test, source = unit
        columns = [w for w in results.known if results.samples.get(unit, {}).get(w)]
        if not columns:
            continue
        steady = all(h["steady"] for h in results.handovers if h["kept"] and h["unit"] == "-".join(unit))
        warning = "" if steady else ". SOME ROUNDS WERE UNSTEADY: these prove nothing"
        print(f"\n{TITLES[mpi]}, {test}, {TESTS[test][1]}, source {source}{warning}")
        defaults = [d for d in (DEFAULT, PRELOADED) if d in columns]
        rows = [["size", *columns, "spread", "best"] + ["regret" if d == DEFAULT else "with heap" for d in defaults]]
        digits = 2 if TESTS[test][1] == "us" else 0
        for size in results.sizes:
            row = [human(size)] + [cell(results.median(unit, w, size), digits) for w in columns]
            spread = results.spread(unit, DEFAULT, size)
            row += ["-" if spread is None else f"{spread:.0%}", results.best(unit, results.forced(unit, len(defaults) > 1), size) or "-"]
            for default in defaults:
                best = results.best(unit, results.forced(unit, default == PRELOADED), size)
                regret = results.over(unit, default, best, size) if best else None
                row.append("-" if regret is None else f"{regret:+.0%}")
            rows.append(row)
        table(rows)
        for told in summary(results, unit):
            where = "; ".join(map(crossing, told["crossovers"]))
            print(f"  {told['default']}: quickest is {told['first'] or 'unknown'}{'; ' if where else ''}{where}")
            for name, what in (("regret", "against the quickest for each size"), ("noise", "against the same protocols forced (noise)")):
                if told[name]:
                    r = told[name]
                    worst = f"{r['worst']:+.1%} at worst ({human(r['at'])})"
                    print(f"  {told['default']} {what}: {r['mean']:+.1%} on average, {worst}, {r['sizes']} sizes")
    if results.other:
        print("\nLeft out, because the messages went another way than was forced:")
        for line in left_out(results):
            print(f"  {line}")
    print("\nMedians of the kept rounds; spread: (largest - smallest) / median, of the default. Regret: how much worse the default is than")
    print("the best forced protocol, the median of the ratios within a round. The best of several is lucky: read it against the noise.")


def crossing(c):
    agree = f"{c['agree']} of {c['rounds']} rounds against {c['before']}" if c["rounds"] else f"which {c['before']} does not carry"
    return f"{c['way']} from {human(c['size'])} ({agree})"


def left_out(results):
    """What went another way than was forced, a line for each MPI and reason."""
    lines = {}
    for (unit, way, _), why in results.other.items():
        ways_, units = lines.setdefault((unit[0], why), ({}, {}))
        ways_[way] = units[f"{unit[1]} {unit[2]}"] = True
    return [f"{TITLES[mpi]}, {', '.join(ways_)} in {', '.join(units)}: {why}" for (mpi, why), (ways_, units) in lines.items()]


def summary(results, unit):
    """Crossovers and regret, of the default, and of the one with the heap if that ran."""
    found = []
    for default in (DEFAULT, PRELOADED):
        if not results.samples.get(unit, {}).get(default):
            continue
        ways_ = results.forced(unit, default == PRELOADED)
        firsts = [best for size in results.sizes if (best := results.best(unit, ways_, size))]
        found.append({
            "default": default, "first": firsts[0] if firsts else None, "crossovers": results.crossovers(unit, ways_),
            "regret": results.regret(unit, default, lambda size: results.best(unit, ways_, size)),
            # What the provider itself says it takes; with the heap it may take another.
            "noise": results.regret(unit, default, results.chosen) if default == DEFAULT else None,
        })
    return found


def record(results, options, program):
    def told(unit):
        mpi, test, source = unit
        return {
            "mpi": mpi, "test": test, "source": source, "unit": TESTS[test][1],
            "ways": {way: [{"size": size, "median": results.median(unit, way, size), "spread": round(results.spread(unit, way, size), 3),
                            "rounds": list(results.values(unit, way, size).values())} for size in sorted(by_size)]
                     for way, by_size in results.samples.get(unit, {}).items()},
            "summary": summary(results, unit),
        }

    return over.machine() | {
        "program": "osu" if isinstance(program, Osu) else "perf", "rounds": options.rounds, "quick": options.quick,
        "choice": [{"from": a, "to": None if b == math.inf else b, "way": w} for a, b, w in results.choice],
        "results": [told(unit) for unit in results.units], "handovers": results.handovers,
        "left_out": left_out(results), "failures": list(results.failures.values()),
    }


def chosen(words, known):
    """What --only names, of each kind; a kind of which nothing is named is all there is (but two tests)."""
    words = {word for word in words.split(",") if word}
    kinds = {"mpi": MPIS, "test": tuple(TESTS), "source": SOURCES, "way": tuple(known)}
    unknown = words - {name for names in kinds.values() for name in names}
    if unknown:
        misused(f"unknown in --only: {', '.join(sorted(unknown))}; known: {', '.join(name for names in kinds.values() for name in names)}")
    pick = {kind: [name for name in names if name in words] for kind, names in kinds.items()}
    return pick["mpi"] or MPIS, pick["test"] or ["latency", "bw"], pick["source"] or SOURCES, pick["way"] or list(known)


def parse():
    parser = over.Arguments()
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sizes", default="1:4m")
    parser.add_argument("--only", default="")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.rounds = options.rounds if options.rounds is not None else 2 if options.quick else 5
    if options.rounds < 1:
        misused("--rounds needs a number above 0")
    try:
        first, last = map(size_of, options.sizes.split(":"))
    except ValueError:
        misused(f"--sizes {options.sizes}: two sizes and a colon are wanted, as in 1:4m")
    options.sizes = [1 << shift for shift in range(31) if first <= 1 << shift <= last]
    if not options.sizes:
        misused(f"no power of two from {first} to {last}")
    # Which of the protocols are on this machine is known only after the build.
    chosen(options.only, (DEFAULT, PRELOADED, *PROTOCOLS))
    return options


def main():
    options = parse()
    if options.check:
        return 0
    over.need_two_cores()
    over.interruptible()
    if os.environ.pop("FI_RUSTMX_PROTOCOL", None) is not None:
        say("FI_RUSTMX_PROTOCOL is set and left out of account: this command forces protocols itself")
    known, choice = ways()
    mpis, tests, sources, wanted = chosen(options.only, known)
    scale = 0.2 if options.quick else 1
    osu = os.environ.get("OSU_DIR")
    program = Osu(osu, mpis, scale) if osu else Perf(mpis, scale)
    units = [(m, t, s) for m in mpis for t in tests for s in sources if s in program.sources and program.has(m, t)]
    if not units:
        fail("nothing of what --only names is there to run")
    cut = [(sizes, [way for way in carriers if way in wanted]) for sizes, carriers in groups(options.sizes, known)]
    say(f"{'OSU' if osu else 'perf'}: {len(units)} tables, {len(cut)} groups of sizes, {options.rounds} rounds; {', '.join(wanted)}")
    results = Results(units, known, choice, options.sizes)
    try:
        measure(results, program, [(sizes, ways_) for sizes, ways_ in cut if ways_], options.rounds)
    except over.CUT_SHORT as why:
        results.failures["interrupted"] = over.cut_short(why)
    text, written = over.write(OUT, record(results, options, program))
    if options.json:
        print(text)
    else:
        show(results)
    say(f"written: target/compare-mpi/{written}")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
