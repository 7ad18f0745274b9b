"""What rustmx asks of itself for long messages beside the best of the other stacks, and whether measured rounds meet it. Arithmetic and
words only; ci/bench.py measures."""

import statistics

KIB, MIB = 1 << 10, 1 << 20

# The stacks that are measured in the same rounds, whatever MPI they belong to.
HEAP, PLAIN = "ompi5-heap", "ompi5-rustmx"
# A round of six stacks takes three times as long as one of two: the host moves more meanwhile.
UNSTEADY = 1.6
PEERS = ("ompi5-sm", "ompi5-ucx", "mpich-own", "impi-own")
STACKS = (HEAP, PLAIN, *PEERS)

# program -> its metrics, and the fields of the program's output
METRICS = {
    "reused": {"reused": "latency_us", "reused stream": "bandwidth_mbs"},
    "fresh": {"fresh": "latency_us", "fresh stream": "bandwidth_mbs"},
}
RATES = ("reused stream", "fresh stream")  # more is better
WORDS = {
    "reused": "half a round trip, buffers reused untouched, us", "fresh": "half a round trip, rewritten before each message, us",
    "reused stream": "windows of 64, buffer reused, MB/s", "fresh stream": "windows of 64, rewritten, MB/s",
}

# metric, stack, from and to which size, at most which part of the best other stack's time (for rates: of its time for each byte)
GOALS = (
    ("reused", HEAP, 8 * KIB, 512 * KIB, 0.5),
    ("reused", PLAIN, 128 * KIB, 512 * KIB, 0.7),
    ("reused", HEAP, MIB, None, 0.6),
    ("reused", PLAIN, MIB, None, 0.6),
    ("fresh", HEAP, 4 * KIB, 32 * KIB, 1.0),
    ("fresh", PLAIN, 4 * KIB, 32 * KIB, 1.0),
    ("fresh", HEAP, 64 * KIB, 512 * KIB, 0.65),
    ("fresh", PLAIN, 64 * KIB, 512 * KIB, 0.85),
    ("fresh", HEAP, MIB, None, 0.5),
    ("fresh", PLAIN, MIB, None, 0.65),
    ("reused stream", HEAP, MIB, None, 1 / 1.3),
    ("reused stream", PLAIN, MIB, None, 1 / 1.3),
    ("fresh stream", HEAP, MIB, None, 1 / 1.3),
    ("fresh stream", PLAIN, MIB, None, 1 / 1.3),
)


def ratios(samples, metric, stack, size):
    """In each round the part of the best other stack's time that a stack needs, by round; below 1 is better."""
    def values(name):
        return samples.get(metric, {}).get(name, {}).get(size, {})

    found = {}
    for round_, ours in values(stack).items():
        peers = [values(peer)[round_] for peer in PEERS if round_ in values(peer)]
        if peers:
            found[round_] = max(peers) / ours if metric in RATES else ours / min(peers)
    return found


def judged(samples, unsteady=()):
    """For each goal what was measured at its worst size: median and extremes of the rounds' ratios. Of `unsteady` programs nothing is proved."""
    found = []
    for metric, stack, first, last, most in GOALS:
        sizes = sorted(samples.get(metric, {}).get(stack, {}))
        here = {s: list(ratios(samples, metric, stack, s).values()) for s in sizes if first <= s and (last is None or s <= last)}
        here = {size: values for size, values in here.items() if values}
        goal = {"metric": metric, "stack": stack, "from": first, "to": last, "most": round(most, 3)}
        if not here:
            found.append(goal | {"verdict": "not measured"})
            continue
        worst = max(here, key=lambda size: statistics.median(here[size]))
        ratio = statistics.median(here[worst])
        found.append(goal | {
            "verdict": "unproven" if metric.split()[0] in unsteady else "met" if ratio <= most else "missed",
            "worst_ratio": round(ratio, 3), "worst_size": worst,
            "spread": [round(min(here[worst]), 3), round(max(here[worst]), 3)], "rounds": len(here[worst]),
            "sizes_met": sum(statistics.median(v) <= most for v in here.values()), "sizes": len(here),
        })
    return found


def of_comparison(said):
    """The same of what `rustmx compare --json` says: how near to the limit, how even, how well chosen."""
    found = []

    def add(what, kind, value, most, at, sizes):
        found.append({
            "metric": what, "stack": f"{kind['memory']} {kind['source']}", "most": most, "verdict": "met" if value <= most else "missed",
            "worst_ratio": round(value, 3), "worst_size": at, "sizes": sizes,
        })

    for a in said["against_limit"]:
        if a["way"] == "chosen":
            add("above two copying processes", a, a["worst"], 0.15, a["at"], a["sizes"])
    for s in said["steps"]:
        add("step beyond a doubling", s, s["apart"], 1.5, s["from"], None)
    for r in said["regret"]:
        if r["rule"] == "the provider":
            add("regret on average", r, r["mean"], 0.05, None, r["sizes"])
            add("regret at worst", r, r["worst"], 0.15, r["at"], r["sizes"])
    return found


def rows(goals, human):
    """The closing table."""
    table = [["goal", "of", "sizes", "at most", "measured", "rounds", "at", "met at", "verdict"]]
    for g in goals:
        sizes = "all" if "from" not in g else f"{human(g['from'])} .. {human(g['to']) if g['to'] else ''}".strip()
        spread = f"{g['spread'][0]:.2f} .. {g['spread'][1]:.2f}" if "spread" in g else "-"
        met = f"{g['sizes_met']} of {g['sizes']}" if "sizes_met" in g else "-"
        value = "-" if "worst_ratio" not in g else f"{g['worst_ratio']:.2f}"
        at = human(g["worst_size"]) if g.get("worst_size") else "-"
        table.append([g["metric"], g["stack"], sizes, f"{g['most']:.2f}", value, spread, at, met, g["verdict"]])
    return table
