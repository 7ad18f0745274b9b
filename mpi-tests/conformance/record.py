"""Results of a part: kept as JSON, compared with a baseline, shown as a table."""

import fnmatch
import json
import subprocess
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from launch import ROOT, WORK, LIBRARY_DIR

HERE = Path(__file__).resolve().parent
KEPT = WORK / "results"

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
    path = place(suite, part, transport)
    return json.loads(path.read_text()) if path.exists() else None


def commit():
    """The commit that was built, with + if the tree had changes in it."""
    run = lambda *words: subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True).stdout
    changed = run("status", "--porcelain", "provider", "capi", "include", "Cargo.toml", "Cargo.lock")
    return run("rev-parse", "--short", "HEAD").strip() + ("+" if changed.strip() else "")


def compare(cases, baseline):
    """Marks what fails over the baseline as well."""
    theirs = {case["name"]: case["result"] for case in baseline["cases"]}
    for case in cases:
        if case.result == "fail" and theirs.get(case.name) in ("fail", "notrun"):
            case.result = "elsewhere"


def save(suite, part, transport, versions, cases, seconds):
    if transport == "rustmx":
        versions = {"rustmx": commit()} | versions
    record = {
        "suite": suite,
        "part": part,
        "transport": transport,
        "date": date.today().isoformat(),
        "seconds": round(seconds),
        "versions": versions,
        "counts": {result: sum(case.result == result for case in cases) for result in RESULTS},
        "cases": [asdict(case) for case in cases],
    }
    path = place(suite, part, transport)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    return record


def line(record):
    counts = record["counts"]
    left_out = counts["notrun"] + counts["excluded"] + counts["elsewhere"]
    transport = "" if record["transport"] == "rustmx" else f" ({record['transport']})"
    return (
        f"{record['suite']} {record['part']}{transport}: {counts['pass']} passed, "
        f"{counts['fail']} failed, {left_out} excluded"
    )


def difference(suite, part, ours, theirs):
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
`FI_EP_MSG` or `FI_EP_DGRAM`, shared contexts …) or what the machine lacks; *excluded*: listed with its reason in `mpi-tests/conformance/`;
*fails elsewhere*: fails over the transport of the column *beside* in the same way.

| suite | part | passed | failed | refused | excluded | fails elsewhere | beside | seconds | date | versions |
|---|---|---:|---:|---:|---:|---:|---|---:|---|---|
"""


def table(suites):
    """The table of all kept records, in the order of the suites' own lists of parts."""
    rows, failures = [], []
    for suite in suites:
        for part in suite.PARTS:
            record = load(suite.NAME, part, "rustmx")
            if not record:
                continue
            counts = record["counts"]
            beside = getattr(suite, "BASELINE", None)
            other = load(suite.NAME, part, beside) if beside else None
            versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
            cells = [suite.NAME, part, counts["pass"], counts["fail"], counts["notrun"], counts["excluded"]]
            cells += [counts["elsewhere"], f"{beside}: {other['counts']['pass']} passed" if other else ""]
            cells += [record["seconds"], record["date"], versions]
            rows.append("| " + " | ".join(str(cell) for cell in cells) + " |")
            failures += [
                f"* {suite.NAME} {part}: `{case['name']}`" for case in record["cases"] if case["result"] == "fail"
            ]
    text = HEADER + "\n".join(rows) + "\n"
    if failures:
        text += "\n## Failures\n\n" + "\n".join(failures) + "\n"
    return text
