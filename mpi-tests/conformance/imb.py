"""Intel's MPI benchmarks (binaries of the impi-rt wheel) under MPICH and Intel MPI."""

import re
import subprocess

from launch import CORES, NETWORK, VENVS, WORK, Unusable, carried, environment, launcher, prove, run, stuck
from record import Case

NAME = "imb"
MPIS = ("mpich", "impi")
PROGRAMS = {"mpi1": "IMB-MPI1", "p2p": "IMB-P2P", "nbc": "IMB-NBC", "rma": "IMB-RMA", "mt": "IMB-MT"}
PARTS = {
    f"{mpi}-{short}-{ranks}": f"{program} under {'MPICH' if mpi == 'mpich' else 'Intel MPI'}, {ranks} ranks"
    for mpi in MPIS
    for short, program in PROGRAMS.items()
    for ranks in (2, 4)
}
SHORT = ("impi-mpi1-2", "impi-rma-2")
LEFT_OUT_OF_ALL = ()
LIMIT = 420  # seconds for a part


def prepare():
    for program in PROGRAMS.values():
        if not (VENVS / "impi/bin" / program).exists():
            raise Unusable(f"no {program} in {VENVS / 'impi/bin'}: run ci/setup.sh suites")
    if not (VENVS / "iomp/lib/libiomp5.so").exists():
        raise Unusable("no libiomp5.so, which IMB-MT needs: run ci/setup.sh suites")


def versions():
    found = {}
    for venv, package in (("impi", "impi-rt"), ("mpich", "mpich")):
        ask = f"import importlib.metadata as m; print(m.version('{package}'))"
        python = VENVS / venv / "bin/python3"
        found[package] = subprocess.run([python, "-c", ask], capture_output=True, text=True).stdout.strip()
    return found


def arguments(short, ranks):
    """Small, because ranks that never give their core away take turns by time slices."""
    few = ranks > CORES
    if short == "mt":
        # IMB-MT takes lengths in place of logarithms.
        return ["-thread_level", "multiple", "-warmup", "1", "-repeat", "4" if few else "20", "-count", "1,64,4096"]
    words = ["-iter", "4" if few else "20", "-time", "1"]
    words += ["-msglog", "0:10" if few else "0:16"]
    # Those of IMB-RMA that are for two ranks only are left out by -npmin 4, over every transport.
    return words if short in ("p2p", "rma") else [*words, "-npmin", str(ranks)]


def run_part(part, transport):
    mpi, short, ranks = part.split("-")
    ranks = int(ranks)
    if NETWORK:
        prove(mpi, transport)  # what the benchmarks tell at their end says nothing of the way
    env = environment(mpi, transport) | {"FI_RUSTMX_STATS": "1", "OMP_NUM_THREADS": "2"}
    env["LD_LIBRARY_PATH"] += f":{VENVS / 'iomp/lib'}"
    log = WORK / "imb" / f"{part}.log"
    errors = log.with_suffix(".err")
    command = [*launcher(mpi, ranks, env), VENVS / "impi/bin" / PROGRAMS[short], *arguments(short, ranks)]
    code = run(command, log, env=env, limit=LIMIT, label=f"imb {part}", errors=errors)
    text, said = log.read_text(errors="replace"), errors.read_text(errors="replace")
    cases = parse(text)
    if code != 0:
        cases.append(Case("exit code", "fail", 0, f"{code}\n{(text + said)[-3000:]}\n{stuck(log)[-6000:]}"))
    if transport == "rustmx" and code == 0 and not carried(said, ranks):
        cases.append(Case("rustmx carries the messages of all ranks", "fail", 0, said[-2000:]))
    return cases


def parse(text):
    """A section must have been printed, with at least one line of numbers, for each listed benchmark."""
    listed = re.search(r"# List of [Bb]enchmarks to run:\n(.*?)(?:\n\s*\n|\n#-{10}|\Z)", text, re.S)
    names = re.findall(r"^# (\w+) *$", listed[1], re.M) if listed else []
    sections = {}
    for block in re.split(r"^# ?Benchmarking:? +", text, flags=re.M)[1:]:
        name = block.split()[0]
        numbers = re.findall(r"^ +\d[\d.e+]* +\d", block, re.M) or re.findall(r"^ +\d+\.\d+", block, re.M)
        sections[name] = sections.get(name, 0) + len(numbers)
    refused = re.findall(r"Benchmark (\w+) is invalid for", text)
    cases = []
    for name in dict.fromkeys([*names, *sections]):
        lines = sections.get(name, 0)
        if name in refused:
            cases.append(Case(name, "notrun", 0, "IMB wants another number of ranks for it"))
        else:
            cases.append(Case(name, "pass" if lines else "fail", 0, "" if lines else "no section with numbers"))
    return cases or [Case("a benchmark is listed", "fail", 0, text[-2000:])]
