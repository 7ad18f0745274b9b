"""Results of a part: kept as JSON, compared with a baseline, shown as a table."""

import fnmatch
import hashlib
import json
import subprocess
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from launch import ROOT, WORK, LIBRARY_DIR, NETWORK

HERE = Path(__file__).resolve().parent
SHARED_MEMORY = WORK / "results"
KEPT = WORK / "results-network" if NETWORK else SHARED_MEMORY

# pass, fail; notrun: the suite itself refused (the provider does not offer what the test needs);
# excluded: listed in an exclude file, with the reason; elsewhere: fails over the baseline as well.
RESULTS = ("pass", "fail", "notrun", "excluded", "elsewhere")


@dataclass
class Case:
    name: str
    result: str
    seconds: float = 0.0
    detail: str = ""


def excludes(suite):
    """[(pattern, reason)] of SUITE.exclude, where each line reads: PATTERN  # reason"""
    path, found = HERE / f"{suite}.exclude", []
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        if not line.strip() or line.startswith("#"):
            continue
        pattern, _, reason = (word.strip() for word in line.partition(" # "))
        if not reason:
            raise SystemExit(f"{path}:{number}: an exclude needs a reason: PATTERN # reason")
        found.append((pattern, reason))
    return found


def excluded(name, patterns):
    """The reason why a test is left out, or None."""
    return next((why for pattern, why in patterns if fnmatch.fnmatch(name, pattern)), None)


def place(suite, part, transport):
    return KEPT / suite / f"{part}.{transport}.json"


def load(suite, part, transport):
    return read(place(suite, part, transport))


def by_shared_memory(suite, part):
    """What rustmx did last where peers of one machine share memory."""
    return read(SHARED_MEMORY / place(suite, part, "rustmx").relative_to(KEPT))


def read(path):
    return json.loads(path.read_text()) if path.exists() else None


def library():
    return next(iter(LIBRARY_DIR.glob("*rustmx*fi.so")), None)


def digest():
    return hashlib.sha256(library().read_bytes()).hexdigest()


def stamp():
    return LIBRARY_DIR / "rustmx-commit"


def write_stamp():
    """Right after a build: the commit of the tree, with + if what is built from had changes in it."""
    run = lambda *words: subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True).stdout
    changed = run("status", "--porcelain", "provider", "capi", "include", "Cargo.toml", "Cargo.lock")
    name = (run("rev-parse", "--short", "HEAD").strip() or "?") + ("+" if changed.strip() else "")
    stamp().write_text(f"{name} {digest()}\n")


def commit():
    """What the library was built from, if it is the one that ci/conformance.sh built last."""
    words = stamp().read_text().split() if stamp().exists() else []
    return words[0] if words[1:] == [digest()] else "unknown"


def compare(cases, baseline):
    """Marks what fails over the baseline as well."""
    theirs = {case["name"]: case["result"] for case in baseline["cases"]}
    for case in cases:
        if case.result == "fail" and theirs.get(case.name) in ("fail", "notrun"):
            case.result = "elsewhere"


def compare_kept(suite, part, baseline):
    """The kept result of a part after a comparison with a newer baseline."""
    record = load(suite, part, "rustmx")
    cases = [Case(**case) for case in record["cases"]]
    compare(cases, baseline)
    return keep(record | with_counts(cases))


def with_counts(cases):
    counts = {result: sum(case.result == result for case in cases) for result in RESULTS}
    return {"counts": counts, "cases": [asdict(case) for case in cases]}


def keep(record):
    """Whole or not at all: --missing takes what is there for done."""
    path = place(record["suite"], record["part"], record["transport"])
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(record, indent=1) + "\n")
    fresh.rename(path)
    return record


def save(suite, part, transport, versions, cases, seconds, load):
    if transport == "rustmx":
        versions = {"rustmx": commit()} | versions
    record = {
        "suite": suite,
        "part": part,
        "transport": transport,
        "date": date.today().isoformat(),
        "seconds": round(seconds),
        "load": round(load, 1),  # of the machine before the part began
        "library": digest() if transport == "rustmx" else "",
        "versions": versions,
    }
    return keep(record | with_counts(cases))


def missing(suite, part, transport):
    """Whether a part has no result of this very library (or none at all over another transport)."""
    kept = load(suite, part, transport)
    return not kept or transport == "rustmx" and kept.get("library") != digest()


def sums(records):
    total = {result: sum(record["counts"][result] for record in records) for result in RESULTS}
    left_out = total["notrun"] + total["excluded"] + total["elsewhere"]
    return f"{total['pass']} passed, {total['fail']} failed, {left_out} excluded"


def line(record):
    transport = "" if record["transport"] == "rustmx" else f" ({record['transport']})"
    return f"{record['suite']} {record['part']}{transport}: {sums([record])}"


def difference(ours, theirs):
    """What one of two records passes and the other does not."""
    results = [{c["name"]: c["result"] for c in record["cases"]} for record in (ours, theirs)]
    lines = []
    for name in sorted(results[0].keys() | results[1].keys()):
        here, there = (result.get(name, "absent") for result in results)
        if (here == "pass") != (there == "pass"):
            lines.append(f"  {name}: {here} over {ours['transport']}, {there} over {theirs['transport']}")
    return lines


HEADER = """# Other people's suites over rustmx

Written by `ci/conformance.sh table` from what `ci/conformance.sh SUITE PART` measured last; `ci/conformance.sh --help`
says how a part is run. *refused*: the suite itself skipped the test, because it needs what the provider does not offer (endpoints of type
`FI_EP_MSG` or `FI_EP_DGRAM` …) or what the machine lacks; *excluded*: listed with its reason in `mpi-tests/conformance/`;
*fails elsewhere*: fails over the transport of the column *beside* in the same way. The commit of rustmx is that of the library that
was run, with `+` if it was built from changes that were in no commit.

| suite | part | passed | failed | refused | excluded | fails elsewhere | beside | seconds | date | versions |
|---|---|---:|---:|---:|---:|---:|---|---:|---|---|
"""
LISTED = 12  # lines for one part


def grouped(names):
    """Tests as lines of a list; those of one class of mpi4py's are one line."""
    classes = {}
    for name in names:
        above, dot, test = name.rpartition(".")
        key = above if dot and name.startswith("test_") else name
        classes.setdefault(key, []).append(test)
    lines = []
    for key, tests in classes.items():
        more = f": {', '.join(tests[:3])}{' …' if len(tests) > 3 else ''} ({len(tests)})" if key not in names else ""
        lines.append(f"* `{key}`{more}")
    return lines


def folded(title, names):
    if not names:
        return ""
    lines = grouped(names)
    if len(lines) > LISTED:
        lines = [*lines[:LISTED], f"* and {len(lines) - LISTED} more"]
    return f"<details><summary>{title}: {len(names)}</summary>\n\n" + "\n".join(lines) + "\n\n</details>\n\n"


def usual(suite):
    """The parts that `all` runs. Most of the others have cases that these have, too, which would count twice."""
    return [part for part in suite.PARTS if part not in suite.LEFT_OUT_OF_ALL]


def table(suites):
    """The table of all kept records, in the order of the suites' own lists of parts."""
    rows, failures, elsewhere, left_out, totals = [], "", "", {}, dict.fromkeys(RESULTS, 0)
    for suite in suites:
        for part in usual(suite):
            record = load(suite.NAME, part, "rustmx")
            if not record:
                continue
            counts = record["counts"]
            for result in RESULTS:
                totals[result] += counts[result]
            beside = getattr(suite, "BASELINE", None)
            other = load(suite.NAME, part, beside) if beside else None
            versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
            cells = [suite.NAME, part, counts["pass"], counts["fail"], counts["notrun"], counts["excluded"]]
            shown = f"{beside}: {other['counts']['pass']} passed, {other['counts']['fail']} failed" if other else ""
            cells += [counts["elsewhere"], shown]
            cells += [record["seconds"], record["date"], versions]
            rows.append("| " + " | ".join(str(cell) for cell in cells) + " |")
            named = lambda result: [case["name"] for case in record["cases"] if case["result"] == result]
            failures += folded(f"{suite.NAME} {part}", named("fail"))
            elsewhere += folded(f"{suite.NAME} {part}", named("elsewhere"))
            for case in record["cases"]:
                if case["result"] == "excluded":
                    left_out.setdefault(case["detail"], []).append(f"`{case['name']}`")
    numbers = [totals[result] for result in RESULTS]
    text = HEADER + "\n".join(rows) + f"\n| **all** | {len(rows)} parts | " + " | ".join(map(str, numbers)) + " | | | | |\n"
    for title, body in (("Failures", failures), ("Fails elsewhere as well", elsewhere)):
        text += f"\n## {title}\n\n{body.rstrip()}\n" if body else ""
    if left_out:
        text += "\n## Excluded\n\n"
        for why, names in left_out.items():
            some = ", ".join(dict.fromkeys(names))
            text += f"* {some}: {why}\n"
    return text + by_network(suites)


def by_network(suites):
    """What is kept of parts that ran with every peer reached by TCP (`--network`)."""
    rows, failures = [], ""
    for suite in suites:
        for part in usual(suite):
            record = read(WORK / "results-network" / suite.NAME / f"{part}.rustmx.json")
            if not record:
                continue
            cells = [suite.NAME, part, *(record["counts"][result] for result in ("pass", "fail", "notrun", "excluded"))]
            cells += [record["seconds"], record["date"], record["versions"]["rustmx"]]
            rows.append("| " + " | ".join(str(cell) for cell in cells) + " |\n")
            late = lambda case: " (time limit)" if "TIMED OUT" in case["detail"] else ""
            failed = [case["name"] + late(case) for case in record["cases"] if case["result"] == "fail"]
            failures += folded(f"{suite.NAME} {part}", failed)
    if not rows:
        return ""
    head = "| suite | part | passed | failed | refused | excluded | seconds | date | rustmx |\n|---|---|---:|---:|---:|---:|---:|---|---|\n"
    note = "A part that took many times what it took in the table above ran on a busy machine: then what spins in turns meets its time limit.\n\n"
    return "\n## Every peer by TCP (`--network`)\n\n" + note + head + "".join(rows) + (f"\nFailed:\n\n{failures.rstrip()}\n" if failures else "")
