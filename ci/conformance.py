"""The work of ci/conformance.sh, whose header says what its arguments mean."""

import argparse
import signal
import sys
import time
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "mpi-tests/conformance"))
sys.dont_write_bytecode = True

import record  # noqa: E402
from launch import LIBRARY_DIR, Unusable, say  # noqa: E402

SUITES = {
    module.NAME: module
    for module in map(import_module, ("fabtests", "mpich", "mpi4py_suite", "imb", "hpcc", "netpipe"))
}


SHOWN = 20  # failures of a part; all are in the kept result


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
    begun = time.monotonic()
    say(f"{suite.NAME} {part} over {transport}")
    try:
        cases = suite.run_part(part, transport)
    except Unusable as error:
        print(f"conformance: {error}", file=sys.stderr)
        cases = [record.Case("the part can be run", "fail", detail=str(error))]
    baseline = record.load(suite.NAME, part, getattr(suite, "BASELINE", "")) if transport == "rustmx" else None
    if baseline:
        record.compare(cases, baseline)
    return record.save(suite.NAME, part, transport, suite.versions(), cases, time.monotonic() - begun)


def one(suite, part, with_baseline):
    baseline = getattr(suite, "BASELINE", None)
    theirs = measure(suite, part, baseline) if with_baseline else None
    ours = measure(suite, part, "rustmx")
    failed = [case["name"] for case in ours["cases"] if case["result"] == "fail"]
    for name in failed[:SHOWN]:
        say(f"FAIL {suite.NAME} {part}: {name}")
    if len(failed) > SHOWN:
        say(f"and {len(failed) - SHOWN} more")
    if theirs:
        lines = record.difference(suite.NAME, part, ours, theirs)
        print(f"{record.line(theirs)}; difference to rustmx: {len(lines)}")
        print("".join(f"{line}\n" for line in lines), end="")
    say(f"kept in {record.place(suite.NAME, part, 'rustmx').relative_to(ROOT)}, {ours['seconds']} s")
    print(record.line(ours), flush=True)
    return ours["counts"]["fail"] == 0


def main():
    # As an exception it passes the places that end what was started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(add_help=False, usage="see ci/conformance.sh --help")
    parser.add_argument("suite", nargs="?")
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--baseline", action="store_true")
    options = parser.parse_args()
    if options.list:
        return show_list()
    if options.suite == "table":
        path = ROOT / "mpi-tests/CONFORMANCE.md"
        path.write_text(record.table(SUITES.values()))
        return say(f"wrote {path.relative_to(ROOT)}")
    if options.suite != "all" and options.suite not in SUITES:
        stop(f"no suite '{options.suite}', expected all, table or one of: {' '.join(SUITES)}")
    if not list(LIBRARY_DIR.glob("*rustmx*fi.so")):
        stop(f"no rustmx provider in {LIBRARY_DIR}: cargo build --release -p rustmx-fi")
    chosen = []
    for suite in SUITES.values() if options.suite == "all" else [SUITES[options.suite]]:
        for part in options.parts:
            if part not in suite.PARTS:
                stop(f"{suite.NAME} has no part '{part}', expected of: {' '.join(suite.PARTS)}")
        if options.baseline and not getattr(suite, "BASELINE", None) and options.suite != "all":
            stop(f"{suite.NAME} has no baseline")
        wanted = options.parts or [part for part in suite.PARTS if part not in suite.LEFT_OUT_OF_ALL]
        chosen += [(suite, part) for part in wanted]
    good = True
    for suite in dict.fromkeys(suite for suite, _ in chosen):
        try:
            suite.prepare()
        except Unusable as error:
            stop(error)
        for part in (part for owner, part in chosen if owner is suite):
            good &= one(suite, part, options.baseline and getattr(suite, "BASELINE", None))
    sys.exit(0 if good else 1)


main()
