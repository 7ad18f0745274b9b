"""The work of ci/conformance.sh, whose header says what its arguments mean."""

import argparse
import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "mpi-tests/conformance"))
sys.dont_write_bytecode = True

import record  # noqa: E402
from launch import apart, Elsewhere, LIBRARY_DIR, NETWORK, Unusable, say, standing  # noqa: E402

SUITES = {
    module.NAME: module
    for module in map(import_module, ("fabtests", "mpich", "mpi4py_suite", "imb", "hpcc", "netpipe"))
}


SHOWN = 20  # failures of a part; all are in the kept result
UNKNOWN = 120  # seconds for a part that was never run


def stop(text):
    print(f"conformance: {text}", file=sys.stderr)
    sys.exit(2)


def show_list():
    for suite in SUITES.values():
        for part, what in suite.PARTS.items():
            left_out = "" if part not in suite.LEFT_OUT_OF_ALL else ", not in all"
            print(f"{suite.NAME} {part:<14} {what}{left_out}")


def measure(suite, part, transport):
    """Runs a part over a transport and keeps the result."""
    begun, load = time.monotonic(), os.getloadavg()[0]
    say(f"{suite.NAME} {part} over {transport}")
    try:
        cases = suite.run_part(part, transport)
    except Elsewhere as error:
        cases = [record.Case("what runs uses rustmx", "fail", detail=str(error))]
    baseline = record.load(suite.NAME, part, getattr(suite, "BASELINE", "")) if transport == "rustmx" else None
    if baseline:
        record.compare(cases, baseline)
    return record.save(suite.NAME, part, transport, suite.versions(), cases, time.monotonic() - begun, load)


def one(suite, part, with_baseline, only_missing):
    """Runs a part and tells of it; returns its record."""
    baseline = getattr(suite, "BASELINE", None)
    theirs = None
    if with_baseline and only_missing and not record.missing(suite.NAME, part, baseline):
        theirs = record.load(suite.NAME, part, baseline)
    elif with_baseline:
        theirs = measure(suite, part, baseline)
    if theirs and only_missing and not record.missing(suite.NAME, part, "rustmx"):
        ours = record.compare_kept(suite.NAME, part, theirs)
    else:
        ours = measure(suite, part, "rustmx")
    failed = [case for case in ours["cases"] if case["result"] == "fail"]
    for case in failed[:SHOWN]:
        where = standing(case["detail"])
        say(f"FAIL {suite.NAME} {part}: {case['name']}{f' (hangs: {where})' if where else ''}")
    if len(failed) > SHOWN:
        say(f"and {len(failed) - SHOWN} more")
    if theirs:
        lines = record.difference(ours, theirs)
        print(f"{record.line(theirs)}; difference to rustmx: {len(lines)}")
        print("".join(f"{line}\n" for line in lines), end="")
    near = record.by_shared_memory(suite.NAME, part) if NETWORK else None
    if near:
        lines = record.difference(ours | {"transport": "TCP"}, near | {"transport": "shared memory"})
        print(f"{record.line(near)} by shared memory; difference to TCP: {len(lines)}")
        print("".join(f"{line}\n" for line in lines), end="")
    say(f"kept in {record.place(suite.NAME, part, 'rustmx')}, rustmx {ours['versions']['rustmx']}, {ours['seconds']} s")
    print(record.line(ours), flush=True)
    return ours


def estimate(suite, part, with_baseline):
    """Seconds, by what the part took last."""
    transports = ["rustmx"] + ([suite.BASELINE] if with_baseline else [])
    kept = [record.load(suite.NAME, part, transport) for transport in transports]
    return sum(one["seconds"] if one else UNKNOWN for one in kept)


def look_at(options):
    """Ends the program if the arguments make no sense."""
    if options.list:
        return
    if options.suite == "table":
        if NETWORK:
            stop("the table is of results by shared memory")
    elif options.suite in SUITES:
        suite = SUITES[options.suite]
        for part in options.parts:
            if part not in suite.PARTS:
                stop(f"{suite.NAME} has no part '{part}', expected of: {' '.join(suite.PARTS)}")
        if options.baseline and not getattr(suite, "BASELINE", None):
            stop(f"{suite.NAME} has no baseline")
    elif options.suite not in ("all", "short"):
        stop(f"no suite '{options.suite}', expected all, short, table or one of: {' '.join(SUITES)}")
    elif options.parts:
        stop(f"{options.suite} takes no parts")


def choose(options):
    """[(suite, part, whether over its baseline, too)]"""
    chosen = []
    several = options.suite in ("all", "short")
    for suite in SUITES.values() if several else [SUITES[options.suite]]:
        if options.suite == "short" and suite.NAME == "fabtests" and not apart():
            say("without fabtests, which ends every process of the machine that is named fi_…: unshare is refused here")
            continue
        baseline = getattr(suite, "BASELINE", None)
        for part in options.parts or (suite.SHORT if options.suite == "short" else record.usual(suite)):
            both = bool(options.baseline and baseline)
            if options.missing and not record.missing(suite.NAME, part, "rustmx"):
                if not (both and record.missing(suite.NAME, part, baseline)):
                    continue
            chosen.append((suite, part, both))
    return chosen


def perform(chosen, only_missing):
    """Runs the chosen parts; returns the exit code."""
    records, unusable, ready = [], [], {}
    for number, (suite, part, both) in enumerate(chosen):
        if len(chosen) > 1:
            left = sum(estimate(*entry) for entry in chosen[number:])
            say(f"part {number + 1} of {len(chosen)}, about {max(1, round(left / 60))} min left by what they took last")
        try:
            if suite not in ready:
                ready[suite] = ""
                try:
                    suite.prepare()
                except Unusable as error:
                    ready[suite] = str(error)
            if ready[suite]:
                raise Unusable(ready[suite])
            records.append(one(suite, part, both, only_missing))
        except Unusable as error:
            unusable.append(f"{suite.NAME} {part}")
            print(f"conformance: {error}", file=sys.stderr)
            print(f"{suite.NAME} {part}: cannot be run", flush=True)
    if unusable:
        print(f"conformance: cannot be run: {', '.join(unusable)}", file=sys.stderr)
    if len(chosen) > 1:
        # Again, beside the sum: who sees only the end of a long log must see what failed.
        for each in records:
            for case in each["cases"]:
                if case["result"] == "fail":
                    print(f"failed: {each['suite']} {each['part']}: {case['name']}", flush=True)
        print(f"{record.sums(records)} in {len(records)} parts", flush=True)
    return 2 if unusable else 1 if any(each["counts"]["fail"] for each in records) else 0


def main():
    # As an exception it passes the places that end what was started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    parser = argparse.ArgumentParser(prog="conformance", add_help=False, allow_abbrev=False, usage=argparse.SUPPRESS)
    parser.add_argument("suite", nargs="?")
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--baseline", action="store_true")
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("--stamp", action="store_true")  # by ci/conformance.sh, which has just built
    parser.add_argument("--check", action="store_true")  # by ci/conformance.sh, before it builds
    options = parser.parse_args()
    look_at(options)
    if options.check:
        return None
    if options.list:
        return show_list()
    if options.suite == "table":
        path = ROOT / "mpi-tests/CONFORMANCE.md"
        path.write_text(record.table(SUITES.values()))
        return say(f"wrote {path.relative_to(ROOT)}")
    if not record.library():
        stop(f"no rustmx provider in {LIBRARY_DIR}: cargo build --release -p rustmx-fi")
    if options.stamp:
        record.write_stamp()
    chosen = choose(options)
    if not chosen:
        say("every part has a result of this library")
    sys.exit(perform(chosen, options.missing))


main()
