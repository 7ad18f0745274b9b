"""The test suite of MPICH's source, on PyPI's MPICH, by the suite's own runtests."""

import re
import shutil

import record
from launch import CORES, TARGET, Unusable, VENVS, WORK, build, environment, prove, run, stuck
from record import Case

NAME = "mpich"
BASELINE = "tcp"

PARTS = {
    "attr": "attributes",
    "coll": "collectives",
    "comm": "communicators",
    "datatype": "datatypes",
    "errhan": "error handlers",
    "errors": "errors that must be reported",
    "group": "groups",
    "info": "info objects",
    "init": "initialization and finalization",
    "io": "MPI-IO",
    "mpi_t": "the tool interface",
    "part": "partitioned communication",
    "pt2pt": "point to point",
    "rma": "one-sided communication",
    "spawn": "dynamic processes",
    "threads": "threads",
    "topo": "topologies",
    "impls": "what concerns MPICH only",
}
SHORT = ("attr", "datatype", "errhan", "group", "info", "init", "mpi_t", "part", "pt2pt", "topo", "impls")
LEFT_OUT_OF_ALL = ()

TOP = WORK / "mpich"
LIST = "testlist.conformance"
# Seconds for one test: what the suite gives it, or USUAL, and more if ranks share cores (what spins at a
# barrier then waits for time slices); never more than LONGEST.
USUAL, LONGEST = 90, 240


def source():
    found = sorted(TARGET.glob("src/mpich-*/test/mpi/configure"))
    if not found:
        raise Unusable("no source of MPICH under target/src: run ci/setup.sh suites")
    return found[0].parent


def prepare():
    where, stamp = source(), TOP / "configured"
    wanted = f"{where} {VENVS / 'mpich'}"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    shutil.rmtree(TOP, ignore_errors=True)
    (TOP / "build").mkdir(parents=True)
    build(
        [where / "configure", f"--with-mpi={VENVS / 'mpich'}", "--enable-threads=multiple"]
        + ["--disable-fortran", "--disable-cxx", "--disable-perftest"],
        TOP / "configure.log",
        cwd=TOP / "build",
        env={"LD_LIBRARY_PATH": str(VENVS / "mpich/lib")},
        label="mpich: configure",
    )
    stamp.write_text(wanted)


def versions():
    import subprocess

    suite = source().parts[-3].removeprefix("mpich-")
    text = subprocess.run([VENVS / "mpich/bin/mpichversion"], capture_output=True, text=True).stdout
    return {"suite": suite, "MPICH": re.search(r"Version:\s+(\S+)", text)[1]}


def entries(directory):
    """The lines of a part's lists, those of directories in it included: [(directory, words)]."""
    listed = TOP / "build" / directory / "testlist"
    if not listed.exists():
        listed = source() / directory / "testlist"
    for line in listed.read_text().splitlines():
        words = line.split("#")[0].split()
        if not words or words[0].startswith("!"):
            continue
        if (source() / directory / words[0]).is_dir():
            yield from entries(f"{directory}/{words[0]}")
        else:
            yield directory, words


def case_name(directory, words):
    """What runtests' JUnit file calls the test, which lacks the time limit and the like."""
    ranks = words[1] if len(words) > 1 else "2"
    keys = dict.fromkeys(("arg", "env"), "")
    for key in keys:
        keys[key] = " ".join(w.partition("=")[2] for w in words[2:] if w.startswith(f"{key}="))
    return " ".join(f"{directory}/{words[0]} {ranks} {keys['arg']} {keys['env']}".split())


def limited(words):
    """The entry with its time limit within ours."""
    limits = [int(w.partition("=")[2]) for w in words if w.startswith("timeLimit=")]
    rest = [w for w in words if not w.startswith("timeLimit=")]
    # The first two words are the program and its ranks; a key needs both.
    rest = rest if len(rest) > 1 else [*rest, "2"]
    turns = -(-int(rest[1]) // CORES)
    return rest + [f"timeLimit={min(max(USUAL, *limits, 0) * turns, LONGEST)}"]


def listed(lists, directory):
    """Gives the directory a list, and its parent's list a line for it."""
    if directory not in lists:
        lists[directory] = []
        above, _, inner = directory.rpartition("/")
        if above:
            listed(lists, above)
            lists[above].append(inner)


def write_lists(part):
    """Leaves the lists for runtests in the build tree; returns {name: None or why it is left out}."""
    patterns, lists, expected = record.excludes(NAME), {}, {}
    for directory, words in entries(part):
        name = case_name(directory, words)
        why = record.excluded(name, patterns)
        while name in expected:
            name += " again"
        expected[name] = why
        listed(lists, directory)
        if not why:
            lists[directory].append(" ".join(limited(words)))
    for directory, lines in lists.items():
        (TOP / "build" / directory / LIST).write_text("\n".join(lines) + "\n")
    return expected


def run_part(part, transport):
    prove("mpich", transport)
    expected = write_lists(part)
    logs = TOP / "logs" / transport
    logs.mkdir(parents=True, exist_ok=True)
    junit = logs / f"{part}.xml"
    junit.unlink(missing_ok=True)
    label = f"mpich {part} ({transport})"
    # Beforehand, with all cores; what does not build fails again, with its reason, in runtests.
    run(["make", "-k", f"-j{CORES}", "-C", TOP / "build" / part], logs / f"{part}.make.log", alone=False,
        limit=1800, label=f"mpich {part}: make")
    command = [TOP / "build/runtests", f"-srcdir={source()}", f"-tests={LIST}", f"-testdirs={part}"]
    command += [f"-mpiexec={VENVS / 'mpich/bin/mpiexec'}", f"-junitfile={junit}"]
    env = environment("mpich", transport) | {"MPITEST_CLEANUP": "0", "MPITEST_TIMEOUT": str(USUAL)}
    log = logs / f"{part}.log"
    run(command, log, env=env, cwd=TOP / "build", limit=7200, label=label, watch=USUAL - 15,
        at=lambda: progress(junit, len(expected)))
    cases = parse(junit.read_text(errors="replace") if junit.exists() else "", expected)
    for case in cases:
        if case.result == "fail" and "TIMED OUT" in case.detail:
            program = case.name.split()[0].rpartition("/")[2]
            case.detail += "\n" + stuck(log, program)[-6000:]
    return cases


def progress(junit, total):
    names = re.findall(r'<testcase name=" - (.*?)"', junit.read_text(errors="replace")) if junit.exists() else []
    return f"{len(names)} of {total} done, last {' '.join(names[-1].split()) if names else 'none'}"


def parse(text, expected):
    cases, seen = [], set()
    # Not by an XML parser: runtests writes a tag in a tag for a skipped test.
    for name, seconds, body in re.findall(
        r'<testcase name=" - (.*?)"(?: time="(.*?)")?>(.*?)</testcase>', text, re.S
    ):
        name = " ".join(name.removeprefix("./").split())
        while name in seen:
            name += " again"
        seen.add(name)
        result, detail = "pass", ""
        if "<failure" in body:
            result, detail = "fail", output(body)
        elif "<skipped" in body:
            result, detail = "notrun", (re.search(r'message="(.*?)"', body) or ["", ""])[1]
        cases.append(Case(name, result, float(seconds or 0), detail))
    for name, why in expected.items():
        if why:
            cases.append(Case(name, "excluded", 0, why))
        elif name not in seen:
            cases.append(Case(name, "fail", 0, "runtests did not come to it"))
    return cases


def output(body):
    """The part of a failure that the test printed."""
    lines = [line[3:] for line in body.splitlines() if line.startswith("## ")]
    return "\n".join(lines[1:])[-4000:]
