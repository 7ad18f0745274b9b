"""Counts instructions per small message of Open MPI 5 over rustmx and over its own shared memory.

Called by ci/mpi-cost.sh with the directory that holds the programs; see its header.
"""

import collections
import os
import re
import subprocess
import sys

SHORT, LONG, WINDOW = 50, 150, 32
STACKS = {
    "rustmx": ["--mca", "pml", "cm", "--mca", "mtl", "ofi"],
    "sm": ["--mca", "pml", "ob1", "--mca", "btl", "self,sm"],
}


def by_object(path):
    """Instructions collected in a callgrind file, by the binary they belong to."""
    names, current, called, counts = {}, "?", False, collections.Counter()

    def name(text):
        number, rest = re.match(r"(\(\d+\)) ?(.*)", text).groups()
        if rest:
            names[number] = rest
        return os.path.basename(names[number])

    with open(path, errors="replace") as lines:
        for line in lines:
            if line.startswith("ob="):
                current = name(line[3:].rstrip())
            elif line.startswith("cob="):
                name(line[4:].rstrip())
            elif line.startswith("calls="):
                called = True  # The next line is the callee's cost.
            elif re.match(r"[0-9+*-]", line):
                fields = line.split()
                if called:
                    called = False
                elif len(fields) > 1:
                    counts[current] += int(fields[1])
    return counts


def run(mpirun, work, stack, rounds, bytes_):
    out = os.path.join(work, f"{stack}.{rounds}")
    command = [mpirun, "--allow-run-as-root", *STACKS[stack], "-np", "2", "sh", "-c"]
    command += [
        "exec valgrind -q --tool=callgrind --toggle-collect='window_*' "
        f'--callgrind-out-file={out}.$OMPI_COMM_WORLD_RANK "$@"',
        "sh", os.path.join(work, "window"), str(bytes_), str(rounds),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"mpi-cost: {' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return [by_object(f"{out}.{rank}") for rank in (0, 1)]


def main():
    mpirun, work, bytes_ = sys.argv[1], sys.argv[2], int(sys.argv[3])
    print(f"instructions per message of {bytes_} bytes, nobody waiting (window {WINDOW})")
    print(f"{'stack':8} {'side':8} {'all':>6} {'provider':>9} {'MPI itself':>11}")
    totals = {}
    for stack in STACKS:
        print(f"  {stack}: running under callgrind ...", file=sys.stderr)
        short, long = (run(mpirun, work, stack, n, bytes_) for n in (SHORT, LONG))
        for side, a, b in zip(("send", "receive"), short, long):
            # The difference of two runs: set-up and warm-up cancel out.
            each = {k: (b[k] - a[k]) / ((LONG - SHORT) * WINDOW) for k in b}
            every = sum(each.values())
            ours = sum(v for k, v in each.items() if "rustmx" in k)
            totals[stack, side] = every, every - ours
            print(f"{stack:8} {side:8} {every:6.0f} {ours:9.0f} {every - ours:11.0f}")
    for side in ("send", "receive"):
        room = totals["sm", side][0] - totals["rustmx", side][1]
        print(f"{side}: a provider that makes cm as cheap as sm has {room:.0f} instructions")


main()
