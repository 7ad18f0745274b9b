#!/usr/bin/env python3
"""What jobs over several hosts notice of faults between them: makes laboratories, orders faults, and writes down what was seen and when.

`ci/netlab.sh matrix` runs it, as root. Prints a table in Markdown, or with --json one object; `--keep` writes the table into
provider/docs/network.md. Takes some ten minutes. Exits with 1 if something came out otherwise than it should."""

import argparse
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAB = f"matrix-{os.getpid()}"
MPIS = ("ompi5", "mpich")
LIMIT = 150
MARKS = ("<!-- matrix: written by ci/netlab.sh matrix --keep -->", "<!-- end of matrix -->")


def netlab(*words, check=True, **more):
    done = subprocess.run([ROOT / "ci/netlab.sh", "--name", LAB, *map(str, words)], capture_output=True, text=True, timeout=120, **more)
    if check and done.returncode:
        sys.exit(f"matrix: netlab {' '.join(map(str, words))}: {done.stderr.strip()}")
    return done


class Job:
    """An MPI job over the hosts of the laboratory."""

    def __init__(self, options, mpi, ranks, hosts, words, transport="rustmx", env=(), launcher_words=()):
        venv = options.venvs / mpi
        agent = ROOT / "ci/netlab/agent.sh"
        names = [f"h{i}" for i in range(1, hosts + 1)]
        each = -(-ranks // hosts)
        env = dict(env)
        if transport == "rustmx":
            env |= {"FI_PROVIDER": "rustmx", "FI_PROVIDER_PATH": str(options.lib_dir), "FI_LOG_LEVEL": "warn"}
        else:
            env |= {"FI_PROVIDER": transport, "OMPI_MCA_opal_common_ofi_provider_include": transport}
        if mpi == "ompi5":
            env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_pml": "cm", "OMPI_MCA_mtl": "ofi"}
            launcher = [venv / "bin/mpirun", "--prtemca", "plm_ssh_agent", agent, "--host", ",".join(f"{n}:{each}" for n in names)]
            launcher += ["--map-by", f"ppr:{each}:node:OVERSUBSCRIBE", "--bind-to", "none", "--prtemca", "prte_if_include", "eth0"]
            launcher += [word for name in env if name.startswith("FI_") for word in ("-x", name)]
        else:
            env |= {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1", "LD_LIBRARY_PATH": str(venv / "lib")}
            launcher = [venv / "bin/mpiexec", "-launcher", "ssh", "-launcher-exec", agent, "-hosts", ",".join(names), "-ppn", each]
        # Files, which can be looked into while it runs. The ranks write there by themselves: a launcher that ends a job does not pass on what was told last.
        self.out, self.err = (tempfile.NamedTemporaryFile("a") for _ in range(2))
        words = ["sh", "-c", f'exec "$0" "$@" >>{self.out.name} 2>>{self.err.name}', *words]
        command = [ROOT / "ci/netlab.sh", "--name", LAB, "exec", "h1", "timeout", LIMIT, *launcher, *launcher_words, "-n", ranks, *words]
        self.child = subprocess.Popen([str(word) for word in command], env=os.environ | env, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err)

    def told(self):
        return Path(self.out.name).read_text(errors="replace")

    def begun(self):
        """Waits until the ranks talk."""
        while "begun" not in self.told() and self.child.poll() is None:
            time.sleep(0.05)

    def notices(self, *texts):
        """Waits until the provider or the program says one of these. After how many seconds; None: not at all."""
        begun = time.monotonic()
        while time.monotonic() - begun < 60:
            over = self.child.poll() is not None
            said = "".join(Path(file.name).read_text(errors="replace") for file in (self.out, self.err))
            if any(text in said for text in texts):
                return time.monotonic() - begun
            if over:
                break
            time.sleep(0.005)
        return None

    def fails(self):
        """Waits until an operation of MPICH ends with an error, which the program tells, or MPICH itself, which then ends it."""
        return self.notices('"failed": true', "OFI poll failed")

    def end(self):
        """What the program told, else what was said last on standard error."""
        try:
            self.child.wait(LIMIT + 10)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        finally:
            netlab("kill", "all", check=False)
        nothing = {"failed": True, "error": "nothing was told"}
        told = next((json.loads(line) for line in self.told().splitlines() if line.startswith("{")), nothing)
        return told | {"exit": self.child.returncode, "said": " ".join(Path(self.err.name).read_text(errors="replace").split())[-200:]}


def program(options, mpi, name="survive"):
    """The program, compiled for an MPI."""
    binary = ROOT / "target/mpi-tests" / mpi / name
    source = ROOT / f"mpi-tests/bench/{name}.c"
    binary.parent.mkdir(parents=True, exist_ok=True)
    if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
        subprocess.run([options.venvs / mpi / "bin/mpicc", "-std=c99", "-D_GNU_SOURCE", "-O2", "-o", binary, source], check=True)
    return binary


SCENES = []


def scene(what, *lab):
    """A scene of the matrix: what happens, the laboratory it needs, and the function that plays it: returns (seen, whether as it should be)."""
    def enter(play):
        SCENES.append((play.__name__, what, lab, play))
        return play
    return enter


def pauses(options, seconds, fault=None, mpi="ompi5", **more):
    """Two ranks that talk all the time, and a fault meanwhile."""
    job = Job(options, mpi, 2, 2, [program(options, mpi), "pauses", seconds], **more)
    if fault:
        job.begun()
        time.sleep(1)
        fault()
    return job.end()


def went_on(told, fault_ms=0, round_ms=0):
    """That a job went on; and that there was a fault to go through, if with it one round or each of them takes so long at least."""
    if told["failed"]:
        return f"failed: {told.get('error')} {told['said']}", False
    if told["longest_ms"] < fault_ms:
        return f"no fault was seen: the longest round took {told['longest_ms']:.0f} ms", False
    if told["seconds"] * 1e3 < round_ms * told["rounds"]:
        return f"no delay was seen: {told['rounds']} rounds in {told['seconds']} s", False
    return f"all verified; {told['rounds']} rounds in {told['seconds']} s, the longest took {told['longest_ms']:.0f} ms", True


# Of two ranks MPICH's launcher leaves the other one alone when one ends: else it would end it before it can tell what it was told.
SURVIVOR = ("-disable-auto-cleanup",)


def vanishes(options, least, most, env=(), fault=("drop", "h2", "on")):
    """A host is cut off while the ranks talk: what the other one waits for is to end within so many seconds, with these words."""
    job = Job(options, "mpich", 2, 2, [program(options, "mpich"), "pauses", 40], env=env, launcher_words=SURVIVOR)
    job.begun()
    time.sleep(1)
    freeze("h2")
    netlab(*fault)
    ended = job.fails()
    words = "the peer's host does not answer any more"
    noticed = job.notices(words) is not None
    # The launcher waits for the host that is gone.
    netlab("kill", "all", check=False)
    told = job.end()
    if ended is None or not noticed:
        return f"{'no error' if ended is None else 'no words'}: {told}", False
    return f"after {ended:.1f} s the operations of the other rank end: \"{words}\" (bound: {least} to {most} s)", least <= ended <= most


def freeze(host):
    """Stops the ranks on a host, and what the launcher has there: it would hear of their end, and end the others before these can tell what they
    were told. The ranks."""
    ranks = ranks_on(host)
    for pid in ranks:
        os.kill(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGSTOP)
        os.kill(pid, signal.SIGSTOP)
    return ranks


def ranks_on(host):
    """Processes of the program on a host."""
    holder = (state() / f"{host}.pid").read_text().strip()
    network = os.stat(f"/proc/{holder}/ns/net").st_ino
    found = []
    for at in Path("/proc").glob("[0-9]*"):
        try:
            if (at / "comm").read_text().strip() == "survive" and os.stat(at / "ns/net").st_ino == network:
                found.append(int(at.name))
        except OSError:
            pass  # it has ended meanwhile
    return found


@scene("nothing, 1500 bytes MTU", "--hosts", "2")
def nothing(options):
    return went_on(pauses(options, 4))


@scene("nothing, 9000 bytes MTU", "--hosts", "2", "--mtu", "9000")
def jumbo(options):
    return went_on(pauses(options, 4))


@scene("hosts with IPv6 only", "--hosts", "2", "--ipv6-only")
def ipv6(options):
    return went_on(pauses(options, 4))


@scene("IPv4 and IPv6, and packets of IPv4 to the ranks' ports are lost", "--hosts", "2", "--dual")
def half_dual(options):
    refuse(options, "ip daddr 10.77.0.0/24")
    return went_on(pauses(options, 4, env={"FI_RUSTMX_PORT_RANGE": PORTS}))


@scene("one host has IPv4 and IPv6, the other one IPv4 only", "--hosts", "2", "--dual")
def mixed_v4(options):
    only("h2", "-4")
    return went_on(pauses(options, 2))


@scene("one host has IPv4 and IPv6, the other one IPv6 only", "--hosts", "2", "--dual")
def mixed_v6(options):
    only("h2", "-6")
    return went_on(pauses(options, 2))


@scene("two cards, and what goes to the ranks' ports by the first one is lost", "--hosts", "2", "--nics", "2")
def second_card(options):
    refuse(options, "ip daddr 10.77.0.0/24")
    return went_on(pauses(options, 4, env={"FI_RUSTMX_PORT_RANGE": PORTS}))


@scene("two cards, the second one is down on one host", "--hosts", "2", "--nics", "2")
def one_down(options):
    inside("h2", "ip", "link", "set", "eth1", "down")
    return went_on(pauses(options, 4))


@scene("a docker0 with the same address on all hosts, a tunnel, an interface that is down", "--hosts", "2", "--decoys")
def decoys(options):
    return went_on(pauses(options, 4))


@scene("a cable is pulled for 2 s", "--hosts", "2")
def flap(options):
    return went_on(pauses(options, 9, lambda: netlab("flap", "h2", 2)), 1000)


@scene("1 packet of 1000 is lost", "--hosts", "2", "--no-offload")
def loss_little(options):
    netlab("loss", "h2", "0.1")
    return went_on(pauses(options, 6))


@scene("1 packet of 100 is lost", "--hosts", "2", "--no-offload")
def loss(options):
    netlab("loss", "h2", "1")
    return went_on(pauses(options, 6))


@scene("5 packets of 100 are lost", "--hosts", "2", "--no-offload")
def loss_much(options):
    netlab("loss", "h2", "5")
    return went_on(pauses(options, 8))


@scene("5 ms delay each way, 5 % of the packets 3 ms later", "--hosts", "2", "--no-offload")
def reorder(options):
    netlab("delay", "h2", "5", "--reorder", "5", "--hold", "3")
    return went_on(pauses(options, 6), round_ms=5)


@scene("a rank on another host is killed (kill -9)", "--hosts", "2")
def killed(options):
    job = Job(options, "mpich", 2, 2, [program(options, "mpich"), "pauses", 40], launcher_words=SURVIVOR)
    job.begun()
    time.sleep(1)
    most = 5.0  # generous: silence would be noticed after FI_RUSTMX_PEER_TIMEOUT, 10 s
    victims = freeze("h2")
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    ended = job.fails()
    netlab("kill", "all", check=False)
    told = job.end()
    if len(victims) != 1 or ended is None:
        return f"{len(victims)} ranks killed, and nothing was noticed: {told}", False
    words = re.findall(r"default nic=rustmx: ([^)]*)", told["error"] + told["said"]) or ["?"]
    return f"after {1e3 * ended:.0f} ms the operations of the other rank end: \"{words[0]}\" (bound: {most} s)", ended <= most


@scene("a host vanishes (all its packets are lost)", "--hosts", "2")
def vanish(options):
    return vanishes(options, 5, 10.5)


@scene("a host vanishes, FI_RUSTMX_PEER_TIMEOUT=4000", "--hosts", "2")
def vanish_sooner(options):
    return vanishes(options, 2, 6.5, {"FI_RUSTMX_PEER_TIMEOUT": "4000"})


@scene("a cable is pulled for good", "--hosts", "2")
def cable(options):
    return vanishes(options, 5, 10.5, fault=("link", "h2", "down"))


@scene("a rank computes for 60 s while it is sent 1000 messages and 16 MiB", "--hosts", "2")
def sleeper(options):
    job = Job(options, "ompi5", 2, 2, [program(options, "ompi5"), "sleeper", 60])
    told = job.end()
    return f"all verified after {told.get('seconds')} s {told['said'] if told['failed'] else ''}", not told["failed"]


def crowd(options, mpi, ranks):
    told = Job(options, mpi, ranks, 4, [program(options, mpi), "crowd", 4096]).end()
    if told["failed"]:
        return f"failed: {told['said']}", False
    times = ", ".join(f"{what} {told[what + '_s']} s" for what in ("allreduce", "alltoall", "bcast", "pairs"))
    return f"verified; {times}; at most {told['peak_kib'] / 1024:.0f} MiB ({told['peak_kib_before'] / 1024:.0f} before) and {told['descriptors']} " \
        "descriptors a rank", True


@scene("nothing; 64 ranks of Open MPI 5 on four hosts", "--hosts", "4")
def crowd_ompi5(options):
    return crowd(options, "ompi5", 64)


@scene("nothing; 64 ranks of MPICH on four hosts", "--hosts", "4")
def crowd_mpich(options):
    return crowd(options, "mpich", 64)


@scene("somebody listens at the switch, FI_RUSTMX_ENCRYPT=1", "--hosts", "2")
def secret(options):
    """What a listener finds of the messages; without encryption he must find them, else he proves nothing."""
    key = {"FI_RUSTMX_AUTH_KEY": secrets.token_hex(32)}
    seen = {}
    for what, env in (("plain", key), ("encrypted", key | {"FI_RUSTMX_ENCRYPT": "1"})):
        with Listener() as listener:
            told = pauses(options, 2, env=env)
        text, good = went_on(told)
        if not good:
            return f"{what}: {text}", False
        seen[what] = listener.packets, listener.found
    words = "; ".join(f"{what}: {found} of {packets} packets with a message's bytes" for what, (packets, found) in seen.items())
    return words, seen["plain"][1] > 0 and seen["encrypted"][0] > 0 and seen["encrypted"][1] == 0


class Listener:
    """Counts the packets of a kibibyte and more between the hosts, and those in which there is a part of what survive.c sends."""

    def __enter__(self):
        program = [sys.executable, Path(__file__).with_name("listen.py"), "h2.0"]
        self.child = subprocess.Popen(entered("switch", *program), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.child.stdout.readline() != "listening\n":
            sys.exit("matrix: nobody can listen at the switch")
        return self

    def __exit__(self, *_):
        told, _ = self.child.communicate("", timeout=60)  # the end of its input is its end
        self.packets, self.found = map(int, told.split())


PORTS = "20000-20099"


def refuse(options, which):
    """Loses what goes to the ranks' ports at the switch."""
    rules = f"table bridge wall {{ chain sieve {{ type filter hook forward priority 0; {which} tcp dport {PORTS} drop; }}\n}}"
    inside("switch", "nft", rules, check=True)


def inside(node, *words, check=True):
    """A command in the network of a node, the switch included."""
    return subprocess.run(entered(node, *words), check=check, capture_output=True, text=True)


def state():
    return Path(os.environ.get("NETLAB_STATE", "/run/rustmx-netlab")) / LAB


def entered(node, *words):
    return ["nsenter", "-t", (state() / f"{node}.pid").read_text().strip(), "--net", "--", *words]


def only(host, family):
    """Leaves a host addresses of one family (-4 or -6), and others a name for these alone."""
    inside(host, "ip", "-6" if family == "-4" else "-4", "addr", "flush", "dev", "eth0")
    names = state() / "hosts"  # in place: it is mounted
    wrong = ":" if family == "-4" else "."
    names.write_text("".join(line for line in names.read_text().splitlines(keepends=True)
                             if line.split()[1:] != [host] or wrong not in line.split()[0]))


def bandwidth(options, transport):
    command = [program(options, "ompi5", "perf"), "bw", "-m", "1048576:1048576", "--window", "16", "--seconds", "4", "--json"]
    job = Job(options, "ompi5", 2, 2, command, transport)
    job.end()
    found = re.findall(r'"bandwidth_mbs":([0-9.]+)', job.told())
    return float(found[-1]) if found else None


def figures(options):
    """No test: what 1 MiB messages get out of a link of 200 Mbit/s, of which TCP over IPv4 with 1500 bytes has 94.9 %."""
    rows = []
    netlab("up", "--hosts", "2", "--no-offload")
    for what, orders in (("200 Mbit/s", (("rate", "h2", "200mbit"),)),
                         ("200 Mbit/s, 5 ms each way", (("rate", "h2", "200mbit"), ("delay", "h2", "5")))):
        for order in orders:
            netlab(*order)
        rows.append((what, {transport: bandwidth(options, transport) for transport in ("rustmx", "tcp")}))
        netlab("mend", "h2")
    return rows


def play_all(options):
    seen, up = [], None
    for name, what, lab, play in SCENES:
        if options.only and name not in options.only:
            continue
        print(f"[matrix {time.monotonic() - started:4.0f}s] {name}: {what}", file=sys.stderr, flush=True)
        netlab("down", check=False)
        netlab("up", *lab)
        begun = time.monotonic()
        try:
            text, good = play(options)
        except subprocess.TimeoutExpired:
            text, good = f"no end after {LIMIT} s", False
        seen.append({"name": name, "what": what, "seen": text, "as it should be": good, "seconds": round(time.monotonic() - begun, 1)})
        print(f"[matrix {time.monotonic() - started:4.0f}s] {'ok' if good else 'FAIL'}: {text}", file=sys.stderr, flush=True)
    return seen


def table(seen, rows):
    lines = ["| what happened | what was seen | as it should be |", "|---|---|---|"]
    lines += [f"| {s['what']} | {s['seen'].replace('|', '/')} | {'yes' if s['as it should be'] else '**no**'} |" for s in seen]
    if rows:
        lines += ["", "| link | rustmx, MB/s | libfabric's tcp, MB/s |", "|---|---|---|"]
        lines += [f"| {what} | {got['rustmx'] or '?'} | {got['tcp'] or '?'} |" for what, got in rows]
    return "\n".join(lines) + "\n"


def keep(text):
    path = ROOT / "provider/docs/network.md"
    head, _, rest = path.read_text().partition(MARKS[0])
    path.write_text(f"{head}{MARKS[0]}\n{text}{MARKS[1]}{rest.partition(MARKS[1])[2]}")


def main():
    parser = argparse.ArgumentParser(prog="ci/netlab.sh matrix", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda t: t.split(","), help=f"of {','.join(s[0] for s in SCENES)},figures")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true", help="write the table into provider/docs/network.md")
    parser.add_argument("--lib-dir", type=Path, default=ROOT / "target/release", help="where the provider is (default: %(default)s)")
    parser.add_argument("--venvs", type=Path, default=ROOT / "target/venv", help="where the MPIs are (default: %(default)s)")
    options = parser.parse_args()
    # As an exception it passes the place that takes the laboratory down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unknown = set(options.only or ()) - {s[0] for s in SCENES} - {"figures"}
    if unknown:
        parser.error(f"no scene {', '.join(unknown)}")
    if options.keep and options.only:
        parser.error("--keep writes the whole table: without --only")
    try:
        seen = play_all(options)
        rows = figures(options) if not options.only or "figures" in options.only else []
    finally:
        netlab("down", check=False)
    text = table(seen, rows)
    if options.keep:
        keep(text)
    print(json.dumps({"scenes": seen, "figures": rows}, indent=1) if options.json else text, end="")
    sys.exit(0 if all(s["as it should be"] for s in seen) else 1)


started = time.monotonic()
if __name__ == "__main__":
    main()
