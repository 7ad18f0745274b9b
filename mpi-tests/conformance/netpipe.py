"""NetPIPE (Debian's netpipe-openmpi) under Debian's Open MPI 4."""

import re

from hpcc import package
from launch import WORK, carried, environment, launcher, need, run
from record import Case

NAME = "netpipe"
PARTS = {
    "plain": "ping-pong",
    "integrity": "ping-pong that checks each byte (-i)",
    "async": "receives posted beforehand (-a)",
    "synchronous": "synchronous sends (-S)",
    "stream": "one direction (-s)",
    "both": "both directions at once, receives posted beforehand (-2 -a)",
    "anysource": "receives from any source (-z)",
}
OPTIONS = {"integrity": "-i", "async": "-a", "synchronous": "-S", "stream": "-s", "both": "-2 -a", "anysource": "-z"}
SHORT = ("integrity",)
LEFT_OUT_OF_ALL = ()
LONGEST = 1 << 20


def prepare():
    need("NPopenmpi", "netpipe-openmpi")
    need("mpirun.openmpi", "openmpi-bin")


def versions():
    return {"netpipe": package("netpipe-openmpi"), "openmpi": package("openmpi-bin")}


def run_part(part, transport):
    where = WORK / "netpipe" / part
    where.mkdir(parents=True, exist_ok=True)
    env = environment("ompi4", transport) | {"FI_RUSTMX_STATS": "1"}
    log, errors = where / "log", where / "errors"
    # -n: so many repetitions of each size, instead of as many as half a second takes.
    command = [*launcher("ompi4", 2, env), "NPopenmpi", "-n", "50", "-u", LONGEST, "-o", where / "np.out"]
    command += OPTIONS.get(part, "").split()
    code = run(command, log, env=env, cwd=where,
               errors=errors, limit=300, label=f"netpipe {part}")
    text = log.read_text(errors="replace") + errors.read_text(errors="replace")
    cases = parse(text)
    if code != 0:
        cases.append(Case("exit code", "fail", 0, f"{code}\n{text[-3000:]}"))
    elif transport == "rustmx" and not carried(text, 2):
        cases.append(Case("rustmx carries the messages of both ranks", "fail", 0, text[-2000:]))
    return cases


def parse(text):
    """One case for each size: its line ends in a result. A failed check is a line of its own."""
    cases, last = [], 0
    for size, tail in re.findall(r"^ *\d+: +(\d+) bytes +\d+ times +(.*)$", text, re.M):
        good = re.match(r"--> +(?:[\d.]+ Mbps in +[\d.]+ usec|Integrity check passed)", tail)
        cases.append(Case(f"{size} bytes", "pass" if good else "fail", 0, "" if good else tail))
        last = max(last, int(size))
    broken = re.findall(r"^.*(?:[Ff]ailed|[Ee]rror|corrupt).*$", text, re.M)
    if broken:
        cases.append(Case("no line tells of a failure", "fail", 0, "\n".join(broken[:20])))
    if last < LONGEST // 2:
        cases.append(Case("the longest size is reached", "fail", 0, f"last was {last} bytes\n{text[-2000:]}"))
    return cases
