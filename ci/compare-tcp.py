#!/usr/bin/env python3
"""Compares rustmx with libfabric's tcp provider and with raw sockets, in interleaved rounds (see ci/compare-tcp.sh)."""

import pathlib
import statistics
import subprocess
import sys

import stacks as over
import tcp_goals as wanted
from stacks import PIN, ROOT, UNSTEADY, cell, fail, human, misused, say, table

OUT = ROOT / "target/compare-tcp"
PORT = "7099"
PLACES = {"one": ("h1",), "two": ("h1", "h2")}
PROVIDERS = ("rustmx", "tcp", "raw")
TESTS = {  # test -> (field of the JSON, unit, is less better, perf's name, sizes, sizes with --quick)
    "latency": ("latency_us", "us", True, "latency", (8, 1 << 20), (8, 1 << 10)),
    "bw": ("bandwidth_mbs", "MB/s", False, "bw", (1 << 16, 4 << 20), (1 << 16, 1 << 20)),
    "rate": ("rate_mps", "messages/s", False, "mbw_mr", (8, 8), (8, 8)),
}


class Comparison:
    def __init__(self, lab, options):
        self.lab, self.quick, self.chosen, self.also, self.longest = lab, options.quick, options.chosen, options.also, options.max
        self.samples = {}  # (place, test) -> provider -> size -> {round: value}
        self.failures, self.handovers = {}, []

    def sizes(self, test):
        least, most = TESTS[test][5 if self.quick else 4]
        return least, self.longest if test == "bw" and self.longest else most

    def run(self, place, test, provider):
        """One run: {size: figure}, or None and why."""
        field, _, _, name, _, _ = TESTS[test]
        sizes, seconds = "{}:{}".format(*self.sizes(test)), str(0.05 if self.quick else 0.1)
        hosts = PLACES[place]
        if provider == "raw":
            text, why = raw(self.lab, hosts, [test, "--sizes", sizes, "--seconds", seconds])
        else:
            directory, settings = self.also.get(provider, (over.LIBRARIES, {}))
            stack = "tcp" if provider == "tcp" else "rustmx"
            # What tcp needs is told to both, so that the provider is the only difference.
            extra = {"FI_PROVIDER_PATH": str(directory), "OMPI_MCA_opal_common_ofi_provider_include": stack}
            extra |= {"FI_RUSTMX_SHM": "0"} if place == "one" else {}
            command = [*PIN, str(OUT / "ompi5/perf"), name, "--json", "--sizes", sizes, "--seconds", seconds]
            text, _, why = over.run(f"ompi5-{stack}", command, 2, extra | settings, self.lab, hosts)
        return (None, why) if why else ({point["size"]: point[field] for point in over.objects(text)}, None)

    def once(self, place, test, providers):
        """All providers once. Returns the hand-overs before, between and after, and what was measured."""
        these, hands = [], [over.limits(OUT, True)["handover_ns"]]
        for provider in [p for p in providers if (place, test, p) not in self.failures]:
            points, why = self.run(place, test, provider)
            hands.append(over.limits(OUT, True)["handover_ns"])
            if why:
                self.failures[place, test, provider] = why
                self.lab.call("kill", "all")  # what a killed mpirun left
                say(f"FAILED {provider}, {test}, {place}: {why}")
            else:
                these.append((provider, points))
        return hands, these

    def measure(self, rounds):
        places, tests, providers = self.chosen
        tasks = {(place, test): 0 for place in places for test in tests}
        for attempt in range(1, 2 * rounds + 1):
            for (place, test), kept in tasks.items():
                if kept == rounds:
                    continue
                # Forwards and backwards in turn: nobody always comes after the same one.
                hands, these = self.once(place, test, providers[:: 1 if attempt % 2 else -1])
                steady = max(hands) <= UNSTEADY * min(hands)
                # At the end an unsteady one is shown if there is no other, but it proves nothing.
                keep = steady or (kept == 0 and attempt == 2 * rounds)
                self.handovers.append({"place": place, "test": test, "ns": hands, "kept": keep, "steady": steady})
                tasks[place, test] += keep
                for provider, points in these if keep else []:
                    for size, value in points.items():
                        self.samples.setdefault((place, test), {}).setdefault(provider, {}).setdefault(size, {})[attempt] = value
                state = "" if steady else ", unsteady: shown for want of another" if keep else ", unsteady: discarded"
                say(f"{place}, {test}: round {tasks[place, test]} of {rounds}{state}")
            if all(kept == rounds for kept in tasks.values()):
                break

    def values(self, place, test, provider, size):
        return self.samples.get((place, test), {}).get(provider, {}).get(size, {})

    def judged(self, link):
        """What of what rustmx asks of itself is met."""
        kept = [h for h in self.handovers if h["kept"]]
        hands = {}
        for h in kept:
            hands.setdefault((h["place"], h["test"]), []).extend(h["ns"])
        return wanted.judged(self.samples, {(h["place"], h["test"]) for h in kept if not h["steady"]}, hands, link)

    def ratio(self, place, test, ours, other, size):
        """How many times as good one is as another: the median of the ratios within a round, the least and the most."""
        a, b = self.values(place, test, ours, size), self.values(place, test, other, size)
        less = TESTS[test][2]
        each = [b[r] / a[r] if less else a[r] / b[r] for r in a if r in b]
        return (statistics.median(each), min(each), max(each)) if each else None


def raw(lab, hosts, arguments):
    """The sockets alone: a server on the last host, a client on the first."""
    program = str(OUT / "rawtcp")
    server = subprocess.Popen([*lab.on(hosts[-1]), "taskset", "-c", "1", program, "serve", PORT], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, text=True)
    try:
        server.stdout.readline()  # it listens
        command = [*lab.on(hosts[0]), "taskset", "-c", "0", program, hosts[-1], PORT, *arguments]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120,
                              check=False)
    except subprocess.TimeoutExpired as late:
        return "", str(late)
    finally:
        server.kill()
        server.wait()
    return done.stdout, f"exit code {done.returncode}: {done.stderr}" if done.returncode else None


# ---- telling ----


def pairs(results, here):
    """Which of those that are here are set against each other."""
    wanted = [("rustmx", "tcp"), *((name, "tcp") for name in results.also), *(("rustmx", name) for name in results.also),
              ("rustmx", "raw"), ("tcp", "raw")]
    return [(a, b) for a, b in wanted if a in here and b in here]


def show(results):
    for (place, test), by_provider in results.samples.items():
        steady = all(h["steady"] for h in results.handovers if h["kept"] and (h["place"], h["test"]) == (place, test))
        warning = "" if steady else ". NO STEADY ROUND: this proves nothing"
        where = "both ranks on one host" if place == "one" else "on two hosts"
        print(f"\n{test}, {TESTS[test][1]}, {where}{warning}")
        here = [p for p in results.chosen[2] if p in by_provider]
        against = pairs(results, here)
        rows = [["size", *here, *(f"{a}:{b}" for a, b in against)]]
        for size in sorted({s for sizes in by_provider.values() for s in sizes}):
            row = [human(size)]
            for provider in here:
                values = results.values(place, test, provider, size)
                row.append(cell(statistics.median(values.values()) if values else None, 2 if test == "latency" else 0))
            for a, b in against:
                found = results.ratio(place, test, a, b, size)
                row.append("{:.2f} ({:.2f}-{:.2f})".format(*found) if found else "-")
            rows.append(row)
        table(rows)
    print("\nMedians of the kept rounds. a:b tells how many times as good a is as b: the median of the ratios within a round, the least and")
    print("the most; above 1 is better, also for latency.")


def show_goals(goals, link):
    print("\nGoals: of the other's time in the same round, at the size that decides; the smallest and the largest round. Plain sockets: what part")
    print("these need; where that is above the goal, too, it is out of reach (limit). Of theirs: how much rustmx does while plain sockets do 1.")
    if link:
        print(f"The link leaves {link:.1f} MB/s to who uses TCP over it.")
    table(wanted.rows(goals, human))


def record(results, options, goals, link):
    told = [
        {"place": place, "test": test, "unit": TESTS[test][1], "providers": {
            provider: [{"size": size, "median": statistics.median(rounds.values()), "rounds": list(rounds.values())}
                       for size, rounds in sorted(sizes.items())] for provider, sizes in by_provider.items()},
         "ratios": {f"{a}:{b}": {size: results.ratio(place, test, a, b, size) for size in by_provider[a]}
                    for a, b in pairs(results, by_provider)}}
        for (place, test), by_provider in results.samples.items()
    ]
    return over.machine() | {
        "goals": goals, "link_mbs": link, "rounds": options.rounds, "quick": options.quick, "lab": options.lab, "faults": options.fault, "results": told,
        "also": {name: {"directory": str(directory), "settings": settings} for name, (directory, settings) in results.also.items()},
        "handovers": results.handovers, "failures": {", ".join(where): why for where, why in results.failures.items()},
    }


def another(word):
    """The name of another rustmx, its directory, and settings of its own: NAME=[DIRECTORY][,VARIABLE=VALUE...]."""
    name, equals, rest = word.partition("=")
    directory, *settings = rest.split(",")
    if not name or not equals or name in PROVIDERS or not all("=" in setting for setting in settings):
        misused(f"--also {word}: NAME=[DIRECTORY][,VARIABLE=VALUE...] is wanted, and a name of its own")
    directory = pathlib.Path(directory).resolve() if directory else over.LIBRARIES
    if directory != over.LIBRARIES and not list(directory.glob("*rustmx*fi.so")):
        misused(f"--also {word}: no rustmx provider in {directory}")
    return name, (directory, dict(setting.split("=", 1) for setting in settings))


def chosen(words, also):
    words = {word for word in words.split(",") if word}
    kinds = (tuple(PLACES), tuple(TESTS), (PROVIDERS[0], *also, *PROVIDERS[1:]))
    unknown = words - {name for names in kinds for name in names}
    if unknown:
        misused(f"unknown in --only: {', '.join(sorted(unknown))}; known: {', '.join(name for names in kinds for name in names)}")
    return [[name for name in names if name in words] or list(names) for names in kinds]


def size(text):
    """Bytes, with k or m behind."""
    unit = {"k": 1 << 10, "m": 1 << 20}.get(text[-1:], 1)
    return int(text[:-1] if unit > 1 else text) * unit


def parse():
    parser = over.Arguments()
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--max", type=size)
    parser.add_argument("--also", action="append", default=[])
    parser.add_argument("--lab", default="")
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.rounds = options.rounds if options.rounds is not None else 2 if options.quick else 5
    if options.rounds < 1:
        misused("--rounds needs a number above 0")
    if options.max and not 1 << 20 <= options.max <= 32 << 20:
        misused("--max needs a size from 1m to 32m")
    options.also = dict(another(word) for word in options.also)
    options.chosen = chosen(options.only, options.also)
    return options


def limited(options):
    """What the link leaves, if the laboratory limits it."""
    words = options.lab.split()
    mtu = int(words[words.index("--mtu") + 1]) if "--mtu" in words else 1500
    return wanted.link_of(options.fault, mtu, "IPv6" if "--ipv6-only" in words else "IPv4")


def main():
    options = parse()
    if options.check:
        return 0
    over.need_two_cores()
    over.interruptible()
    if "rustmx" in options.chosen[2] and not list(over.LIBRARIES.glob("*rustmx*fi.so")):
        fail(f"no rustmx provider in {over.LIBRARIES}: leave out --no-build")
    over.build(OUT, ("ompi5",), ("perf",), ("rawtcp",))
    with over.Lab("--hosts", "2", *options.lab.split()) as lab:
        for fault in options.fault:
            kind, *words = fault.split()
            lab.call(kind, "h2", *words)
        results = Comparison(lab, options)
        try:
            results.measure(options.rounds)
        except over.CUT_SHORT as why:
            results.failures["interrupted",] = over.cut_short(why)
    link = limited(options)
    goals = results.judged(link)
    text, written = over.write(OUT, record(results, options, goals, link))
    if options.json:
        print(text)
    else:
        show(results)
        show_goals(goals, link)
    say(f"written: target/compare-tcp/{written}")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
