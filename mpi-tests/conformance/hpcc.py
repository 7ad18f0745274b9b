"""HPC Challenge (Debian's hpcc) under Debian's Open MPI 4."""

import re
import subprocess

from launch import WORK, carried, environment, launcher, need, run
from record import Case

NAME = "hpcc"
# Ranks: the process grid of HPL and PTRANS.
GRIDS = {"ompi4-2": (1, 2), "ompi4-4": (2, 2)}
PARTS = {part: f"Open MPI 4, {p * q} ranks" for part, (p, q) in GRIDS.items()}
SHORT = ("ompi4-2",)
LEFT_OUT_OF_ALL = ()
INPUT = """HPLinpack benchmark input file
rustmx conformance
HPL.out output file name
8 device out (6=stdout,7=stderr,file)
1 # of problems sizes (N)
400 Ns
1 # of NBs
40 NBs
0 PMAP process mapping (0=Row-,1=Column-major)
1 # of process grids (P x Q)
{p} Ps
{q} Qs
16.0 threshold
1 # of panel fact
2 PFACTs (0=left, 1=Crout, 2=Right)
1 # of recursive stopping criterium
4 NBMINs (>= 1)
1 # of panels in recursion
2 NDIVs
1 # of recursive panel fact.
1 RFACTs (0=left, 1=Crout, 2=Right)
1 # of broadcast
1 BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
1 # of lookahead depth
1 DEPTHs (>=0)
2 SWAP (0=bin-exch,1=long,2=mix)
64 swapping threshold
0 L1 in (0=transposed,1=no-transposed) form
0 U in (0=transposed,1=no-transposed) form
1 Equilibration (0=no,1=yes)
8 memory alignment in double (> 0)
##### This line (no. 32) is ignored (it serves as a separator). ######
0 Number of additional problem sizes for PTRANS
1200 values of N
0 number of additional blocking sizes for PTRANS
40 values of NB
"""


def prepare():
    need("hpcc", "hpcc")
    need("mpirun.openmpi", "openmpi-bin")


def package(name):
    ask = ["dpkg-query", "-W", "-f", "${Version}", name]
    return subprocess.run(ask, capture_output=True, text=True).stdout


def versions():
    return {"hpcc": package("hpcc"), "openmpi": package("openmpi-bin")}


def run_part(part, transport):
    p, q = GRIDS[part]
    where = WORK / "hpcc" / part
    where.mkdir(parents=True, exist_ok=True)
    (where / "hpccinf.txt").write_text(INPUT.format(p=p, q=q))
    output = where / "hpccoutf.txt"
    output.unlink(missing_ok=True)  # hpcc appends
    env = environment("ompi4", transport) | {"FI_RUSTMX_STATS": "1", "OMP_NUM_THREADS": "1"}
    log, errors = where / "log", where / "errors"
    command = [*launcher("ompi4", p * q, env), "hpcc"]
    code = run(command, log, env=env, cwd=where, errors=errors, limit=600, label=f"hpcc {part}",
               at=lambda: progress(output))
    said = errors.read_text(errors="replace")
    cases = parse(output.read_text(errors="replace") if output.exists() else "")
    if code != 0:
        cases.append(Case("exit code", "fail", 0, f"{code}\n{said[-3000:]}"))
    elif transport == "rustmx" and not carried(said, p * q):
        cases.append(Case("rustmx carries the messages of all ranks", "fail", 0, said[-2000:]))
    return cases


def progress(output):
    text = output.read_text(errors="replace") if output.exists() else ""
    return (re.findall(r"^Begin of .*", text, re.M) or ["start"])[-1]


def parse(text):
    """The verdicts that hpcc itself prints, and the errors that it counts."""
    values = dict(re.findall(r"^(\w+)=(\S+)$", text, re.M))
    wanted = {
        "Success": lambda v: v == "1",
        "PTRANS_residual": lambda v: 0 <= float(v) < 16,
        "MPIRandomAccess_ErrorsFraction": lambda v: float(v) <= 0.01,
        "MPIRandomAccess_LCG_ErrorsFraction": lambda v: float(v) <= 0.01,
        "MPIFFT_maxErr": lambda v: 0 < float(v) < 1e-10,
        "HPL_Tflops": lambda v: float(v) > 0,
        "MaxPingPongLatency_usec": lambda v: float(v) > 0,
        "NaturallyOrderedRingBandwidth_GBytes": lambda v: float(v) > 0,
    }
    cases = []
    for name, valid in wanted.items():
        good = name in values and valid(values[name])
        cases.append(Case(name, "pass" if good else "fail", 0, values.get(name, "not printed")))
    # HPL's residual line ends in its verdict; PTRANS prints one in each line of its table.
    verdicts = re.findall(r"^\|\|Ax-b.*\.\.\. (PASSED|FAILED)|^(?:WALL|CPU ).*(PASSED|FAILED)", text, re.M)
    good = [a or b for a, b in verdicts]
    fine = len(good) > 1 and "FAILED" not in good
    cases.append(Case("residuals of HPL and PTRANS", "pass" if fine else "fail", 0, " ".join(good)))
    return cases
