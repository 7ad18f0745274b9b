"""The ways in which MPIs move messages on this machine: how a program is built for each and run over each, pinned and
proved to use rustmx where it should. For ci/bench.py, ci/turns.py and ci/compare-mpi.py."""

import argparse
import datetime
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
VENVS = ROOT / "target/venv"
SOURCES = ROOT / "mpi-tests/bench"
# Where cargo puts what a release build makes.
LIBRARIES = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release"
STARTED = time.monotonic()
UNSTEADY = 4 / 3  # a round in which the hand-over of a cache line moved by more is discarded

RUSTMX = {"FI_PROVIDER": "rustmx", "FI_PROVIDER_PATH": str(LIBRARIES), "FI_RUSTMX_STATS": "1",
          # The shipped table, unless a profile is named: figures of two machines are to be compared.
          "FI_RUSTMX_PROFILE": os.environ.get("FI_RUSTMX_PROFILE", "off")}
UCX = ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"]
OFI = ["--mca", "pml", "cm", "--mca", "mtl", "ofi"]
NETMOD = {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1"}

# name -> (MPI, environment, launcher options, what it is)
STACKS = {
    "ompi5-rustmx": ("ompi5", RUSTMX, OFI, "Open MPI 5 over rustmx"),
    "ompi5-heap": ("ompi5", RUSTMX, OFI, "Open MPI 5 over rustmx with the preloaded heap"),
    "ompi5-sm": ("ompi5", {}, ["--mca", "pml", "ob1", "--mca", "btl", "sm,self"], "Open MPI 5's own shared memory"),
    "ompi5-ucx": ("ompi5", {}, UCX, "Open MPI 5 over UCX"),
    "ompi5-tcp": ("ompi5", {"FI_PROVIDER": "tcp", "OMPI_MCA_opal_common_ofi_provider_include": "tcp"}, OFI,
                  "Open MPI 5 over libfabric's tcp"),
    "ompi4-rustmx": ("ompi4", RUSTMX, OFI, "Open MPI 4 over rustmx"),
    "ompi4-vader": ("ompi4", {}, ["--mca", "pml", "ob1", "--mca", "btl", "vader,self"], "Open MPI 4's own shared memory"),
    "ompi4-ucx": ("ompi4", {}, UCX, "Open MPI 4 over UCX"),
    "mpich-rustmx": ("mpich", RUSTMX | NETMOD, [], "MPICH over rustmx"),
    "mpich-own": ("mpich", {}, [], "MPICH's own shared memory"),
    "mpich-shm": ("mpich", {"FI_PROVIDER": "shm"} | NETMOD, [], "MPICH over libfabric's shm"),
    "impi-rustmx": ("impi", RUSTMX | {"I_MPI_FABRICS": "ofi", "I_MPI_OFI_PROVIDER": "rustmx"}, [], "Intel MPI over rustmx"),
    "impi-own": ("impi", {"I_MPI_FABRICS": "shm"}, [], "Intel MPI's own shared memory"),
}
TITLES = {"ompi5": "Open MPI 5", "ompi4": "Open MPI 4", "mpich": "MPICH", "impi": "Intel MPI"}


def name_of_this():
    return pathlib.Path(sys.argv[0]).stem


def say(text):
    print(f"[{name_of_this()} {time.monotonic() - STARTED:4.0f}s] {text}", file=sys.stderr, flush=True)


def fail(text):
    sys.exit(f"{name_of_this()}: {text}")


def misused(text):
    """The arguments make no sense."""
    print(f"{name_of_this()}: {text}", file=sys.stderr)
    sys.exit(2)


class Arguments(argparse.ArgumentParser):
    """Those of a program whose script has the help in its head, and asks before it builds (ci/measure.sh)."""

    def __init__(self):
        # Not abbreviated: what a script does not know by its full name is passed on.
        super().__init__(add_help=False, allow_abbrev=False)
        self.add_argument("--check", action="store_true", help="only look at the arguments")

    def error(self, message):
        misused(message)


def need_two_cores():
    if (os.cpu_count() or 1) < 2 or not {0, 1} <= os.sched_getaffinity(0):
        fail("needs cores 0 and 1")


# ---- building ----


def compiler(mpi):
    if mpi == "ompi4":
        return ["/usr/bin/mpicc.openmpi"], []
    if mpi == "impi":
        # Intel's wheel has no header; it has the MPICH ABI.
        return ["gcc"], [f"-I{VENVS}/mpich/include", f"-L{VENVS}/impi/lib", "-l:libmpi.so.12"]
    return [str(VENVS / mpi / "bin/mpicc")], []


def build(out, mpis, programs, alone=()):
    """Compiles programs of mpi-tests/bench for each MPI into a directory of its own; limits, and others that need no MPI."""

    def run(command):
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            fail(f"{' '.join(command)}\n{done.stdout}")

    out.mkdir(parents=True, exist_ok=True)
    flags = ["-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra"]
    for program in ("limits", *alone):
        run(["gcc", "-std=c11", *flags, "-o", str(out / program), str(SOURCES / f"{program}.c")])
    for mpi in mpis:
        (out / mpi).mkdir(exist_ok=True)
        for program in programs:
            command, libraries = compiler(mpi)
            if not pathlib.Path(command[0]).exists() and mpi != "impi":
                fail(f"{command[0]} is missing: run ci/setup.sh")
            run([*command, "-std=c99", *flags, "-o", str(out / mpi / program), str(SOURCES / f"{program}.c"), *libraries])


# ---- running ----


class Lab:
    """A laboratory of several hosts (ci/netlab.sh), made with these options of `up` and undone at the end of a `with`."""

    def __init__(self, *options):
        self.script, self.options = str(ROOT / "ci/netlab.sh"), options
        self.name = f"{name_of_this()[:12]}-{os.getpid()}"

    def call(self, *words):
        done = subprocess.run([self.script, "--name", self.name, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              stdin=subprocess.DEVNULL, timeout=120, check=False)
        if done.returncode:
            fail(f"ci/netlab.sh {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def on(self, host):
        """What goes before a command that is to run on a host."""
        return [self.script, "--name", self.name, "exec", host]

    def ranks(self, hosts, each):
        """Options of Open MPI 5's mpirun: so many ranks on each of these hosts."""
        return ["--prtemca", "plm_ssh_agent", str(ROOT / "ci/netlab/agent.sh"), "--prtemca", "prte_if_include", "eth0",
                "--host", ",".join(f"{host}:{each}" for host in hosts), "--map-by", f"ppr:{each}:node:OVERSUBSCRIBE"]

    def __enter__(self):
        try:
            self.call("up", *self.options)
        except BaseException:
            # Nobody leaves what was not entered.
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.call("down")


def launcher(mpi, options, environment, ranks):
    if mpi.startswith("ompi"):
        command = ["/usr/bin/mpirun.openmpi" if mpi == "ompi4" else str(VENVS / mpi / "bin/mpirun"), *options]
        command += ["--bind-to", "none"]
        if ranks > 2:
            command += ["--oversubscribe"] if mpi == "ompi4" else ["--map-by", ":OVERSUBSCRIBE"]
        for name in environment:
            command += ["-x", name] if name.startswith("FI_") else []
    else:
        command = [str(VENVS / mpi / "bin/mpiexec")]
    return [*command, "-n", str(ranks)]


HEAP = LIBRARIES / "librustmx_heap.so"


def preloading(stack, command):
    """A command that has the heap preloaded if the stack says so: the program only, neither launchers nor shells."""
    return ["env", f"LD_PRELOAD={HEAP}", *command] if stack.endswith("-heap") else command


# Each MPI has binding options of its own; this pins the ranks the same way under all of them.
PIN = ["sh", "-c", 'exec taskset -c "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" "$0" "$@"']


RUNNING = set()  # the processes that carry_out has started, each the first of a session


def carry_out(command, environment, patience):
    """subprocess.run in a session of its own, of which nothing is left afterwards: ranks that go on would spoil what is measured next."""
    child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             start_new_session=True)
    RUNNING.add(child.pid)
    try:
        out, err = child.communicate(timeout=patience)
        return subprocess.CompletedProcess(command, child.returncode, out, err)
    finally:
        end({child.pid})
        RUNNING.discard(child.pid)
        child.wait()


def end(tops):
    """Launchers end their ranks when they are told to. Whatever is left after a while has no choice."""
    begun, left = time.monotonic(), theirs(tops, tops)
    for top in tops & left:
        tell(top, signal.SIGTERM)
    while (left := theirs(tops, left)) and time.monotonic() < begun + 20:
        for pid in left if time.monotonic() > begun + 5 else ():
            tell(pid, signal.SIGKILL)
        time.sleep(0.02)


def tell(pid, what):
    try:
        os.kill(pid, what)
    except ProcessLookupError:
        pass


def theirs(tops, known):
    """The known processes that still run, those of these sessions, and what descends from them: Hydra gives ranks sessions of their own."""
    about = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, _, session = entry.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:4]
        except OSError:
            continue  # it has just ended
        if state != "Z":
            about[int(entry.parent.name)] = int(parent), int(session)
    found = {pid for pid, (_, session) in about.items() if pid in known or session in tops}
    while more := {pid for pid, (parent, _) in about.items() if parent in found} - found:
        found |= more
    return found


def run(stack, command, ranks=2, extra=None, lab=None, hosts=("h1",), patience=180):
    """Runs a command (program and arguments, or PIN before them) over a stack, with more in its environment; in a lab, on these
    hosts (Open MPI 5 only). Returns what it wrote to standard output and standard error, and None; or "", "" and why it is worth
    nothing."""
    mpi, own, options, _ = STACKS[stack]
    selected = own | (extra or {})
    environment = dict(os.environ) | selected
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    if mpi in ("mpich", "impi"):
        environment["LD_LIBRARY_PATH"] = str(VENVS / mpi / "lib")
    if mpi == "impi":
        environment["I_MPI_PIN"] = "off"
    if lab:
        options = [*options, *lab.ranks(hosts, ranks // len(hosts))]
    whole = [*launcher(mpi, options, selected, ranks), *command]
    if lab:
        whole = [*lab.on(hosts[0]), *whole]
    elif stack == "ompi5-tcp":
        whole = [str(ROOT / "mpi-tests/private-net.sh"), *whole]
    try:
        done = carry_out(whole, environment, patience)
    except subprocess.TimeoutExpired:
        if lab:
            lab.call("kill", "all")
        return "", "", f"no end after {patience:.0f} s: {' '.join(whole)}"
    if done.returncode:
        return "", "", f"exit code {done.returncode}: {' '.join(whole)}\n{done.stderr[-1500:]}"
    if "cannot be preloaded" in done.stderr:
        # The loader goes on without it, and so would the figures.
        return "", "", f"{' '.join(whole)}\n{done.stderr[-1500:]}"
    if stack.endswith(("-rustmx", "-heap")):
        # Without this proof the figures might be those of whatever the MPI fell back to.
        used = [line for line in done.stderr.splitlines() if re.match(r"rustmx stats:.* sent=[1-9]", line)]
        if len(used) < ranks:
            return "", "", f"{len(used)} of {ranks} ranks sent over rustmx: {' '.join(whole)}\n{done.stderr[-1500:]}"
    return done.stdout, done.stderr, None


def objects(text):
    """The JSON objects among lines."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def loops(out, fresh, longest):
    """The least that messages take, by size (mpi-tests/bench/loops.c), or none and why."""
    command = [str(out / "loops"), "--min", "1024", "--max", str(longest)] + (["--fresh"] if fresh else [])
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    except subprocess.TimeoutExpired:
        return [], "plain loops took more than two minutes"
    return (objects(done.stdout), None) if done.returncode == 0 else ([], done.stderr or f"exit code {done.returncode}")


class Broken(Exception):
    """Something without which there is no further round; the text says what."""


# What ends a measurement before its last round: what was measured until then is told all the same.
CUT_SHORT = (KeyboardInterrupt, Broken)


def cut_short(why):
    """What is told of that, as a failure."""
    say("interrupted: what follows is what was measured until now")
    return f"interrupted before all rounds were done{': ' if str(why) else ''}{why}"


def interruptible():
    """To be ended (SIGTERM) is to be interrupted: an exception passes the places that end what was started, and that write what was measured."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def limits(out, handover_only):
    """What the machine allows just now (mpi-tests/bench/limits.c)."""
    command = [str(out / "limits")] + (["--handover"] if handover_only else [])
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    except subprocess.SubprocessError as why:
        raise Broken(str(why)) from why
    return json.loads(done.stdout)


# ---- telling ----


def machine():
    """When and where something was measured, and of which commit."""

    def first(path, pattern):
        match = re.search(pattern, pathlib.Path(path).read_text(encoding="utf-8"), re.M)
        return match[1].strip() if match else None

    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return {
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "commit": commit.stdout.strip(),
        "cpu": first("/proc/cpuinfo", r"^model name\s*:(.*)"), "cores": os.cpu_count(), "kernel": os.uname().release,
    }


def write(out, data):
    """Into a file named for its time, and into latest.json. Returns the text and the first file's name."""
    text = json.dumps(data, indent=1)
    stamp = data["time"][:19].replace("-", "").replace(":", "")
    for name in (f"{stamp}.json", "latest.json"):
        (out / name).write_text(text + "\n", encoding="utf-8")
    return text, f"{stamp}.json"


def human(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def cell(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


def table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.rjust(width) for text, width in zip(row, widths)))
