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
# What plain loops take in the same rounds (mpi-tests/bench/loops.c), and their fields: no MPI is quicker by much. Beside which stack of ours.
LOOPS = {"loops": "private_us", "loops-mapped": "mapped_us"}
LEAST = {PLAIN: "loops", HEAP: "loops-mapped"}
# Who takes longer than so many times what they take is not at the limit, wherever that is.
NEAR_LIMIT = 1.5
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


# Beyond a doubling, no two adjacent sizes are further apart than this; of rustmx's own times.
STEP = 1.5
STEPS = (("latency", PLAIN), ("reused", HEAP), ("reused", PLAIN), ("fresh", HEAP), ("fresh", PLAIN))


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


def steps(samples, metric, stack):
    """How far the times of a size and of twice that size are apart beyond the doubling, or downwards, in each round, by the smaller size."""
    sizes, found = samples.get(metric, {}).get(stack, {}), {}
    for size, times in sizes.items():
        double = sizes.get(2 * size, {})
        apart = [max(double[r] / (2 * time), time / double[r]) for r, time in times.items() if r in double]
        if apart:
            found[size] = apart
    return found


def phase(hands):
    """In which phase of the machine something was measured: one hand-over of a cache line in nanoseconds, its median and extremes."""
    hands = list(hands)
    return {"handover_ns": {"median": round(statistics.median(hands)), "range": [round(min(hands)), round(max(hands))]}} if hands else {}


def in_phase(found):
    """The same in words."""
    hand = found.get("handover_ns")
    return f"{hand['median']} ({hand['range'][0]} .. {hand['range'][1]})" if hand else "-"


def worst_of(here, most, proved, least=None):
    """What was measured at the worst of these sizes: median and extremes of its rounds. `least`: what plain loops need, by size; where that is more
    than what is asked, it is the limit and no miss of who is near it, and the worst of the other sizes decides, if there is one."""
    if not here:
        return {"verdict": "not measured"}
    ratio = {size: statistics.median(values) for size, values in here.items()}
    plain = {size: statistics.median(values) for size, values in (least or {}).items() if values}

    def rank(size):
        """A miss first, then the limit; among equals the largest part."""
        limit = plain.get(size, 0) > most and ratio[size] <= NEAR_LIMIT * plain[size]
        return (0 if ratio[size] <= most else 1 if limit else 2), ratio[size]

    worst = max(here, key=rank)
    found = {
        "verdict": ("met", "limit", "missed")[rank(worst)[0]] if proved else "unproven",
        "worst_ratio": round(ratio[worst], 3), "worst_size": worst,
        "spread": [round(min(here[worst]), 3), round(max(here[worst]), 3)], "rounds": len(here[worst]),
        "sizes_met": sum(value <= most for value in ratio.values()), "sizes": len(here),
    }
    if plain:
        found |= {"sizes_limit": sum(rank(size)[0] == 1 for size in here), "plain_loops": round(plain[worst], 3) if worst in plain else None}
    return found


def judged(samples, unsteady=(), hands=None, failures=()):
    """For each goal what was measured at its worst size. Of `unsteady` programs nothing is proved, nor beside a peer that failed, which may be the
    best: (stack, program) in `failures`; `hands`: the hand-overs of each program."""

    def about(metric, stacks):
        program = "sweep" if metric == "latency" else metric.split()[0]
        lacking = [stack for stack in stacks if (stack, program) in failures]
        return program not in unsteady and not lacking, reason(lacking) | phase((hands or {}).get(program, ()))

    def reason(lacking):
        return {"why": f"{', '.join(lacking)} failed"} if lacking else {}

    found = []
    for metric, stack, first, last, most in GOALS:
        sizes = sorted(samples.get(metric, {}).get(stack, {}))
        here = {s: list(ratios(samples, metric, stack, s).values()) for s in sizes if first <= s and (last is None or s <= last)}
        here = {size: values for size, values in here.items() if values}
        proved, when = about(metric, (stack, *PEERS))
        goal = {"metric": metric, "stack": stack, "from": first, "to": last, "most": round(most, 3)}
        least = {size: list(ratios(samples, metric, LEAST[stack], size).values()) for size in here}
        found.append(goal | worst_of(here, most, proved, least) | when)
    for metric, stack in STEPS:
        proved, when = about(metric, (stack,))
        goal = {"metric": f"step beyond a doubling, {metric}", "stack": stack, "most": STEP}
        found.append(goal | worst_of(steps(samples, metric, stack), STEP, proved) | when)
    return found


# What `rustmx compare` is asked of each kind of buffers.
LIMIT, JUMP, MEAN, WORST = "above two copying processes", "step beyond a doubling", "regret on average", "regret at worst"


def of_comparison(said, failed=None):
    """The same of what `rustmx compare --json` says: how near to the limit, how even, how well chosen. What it does not say was not measured, of
    what it calls unsteady nothing is proved. `failed`: why it says nothing at all."""
    said = said or {}
    unsteady, missing = "; ".join(said.get("unsteady", ())), said.get("missing", ())
    mixed = next((m for m in missing if "went another way" in m), None)
    values = {}

    def add(what, kind, value, at, sizes):
        values[what, kind["memory"], kind["source"]] = {"worst_ratio": round(value, 3), "worst_size": at, "sizes": sizes}

    for a in said.get("against_limit", ()):
        if a["way"] == "chosen":
            add(LIMIT, a, a["worst"], a["at"], a["sizes"])
    for s in said.get("steps", ()):
        add(JUMP, s, s["apart"], s["from"], None)
    for r in said.get("regret", ()):
        if r["rule"] == "the provider":
            add(MEAN, r, r["mean"], None, r["sizes"])
            add(WORST, r, r["worst"], r["at"], r["sizes"])

    def absent(what, memory):
        words = "exported memory: " if memory == "exported" else "alone, shared: " if what == LIMIT else None
        told = next((m for m in missing if words and m.startswith(words)), None)
        return failed or told or "rustmx compare was not asked for it"

    found = []
    for memory in ("private", "exported"):
        for source in sorted({"reused", "fresh"} | {source for _, _, source in values}, key=("reused", "fresh", "cold").index):
            for what, most in ((LIMIT, 0.15), (JUMP, STEP), (MEAN, 0.05), (WORST, 0.15)):
                goal = {"metric": what, "stack": f"{memory} {source}", "most": most}
                value = values.get((what, memory, source))
                # Only what other ways cost is mixed: of the choice all messages count.
                doubt = unsteady or (what in (MEAN, WORST) and mixed)
                if value is None:
                    goal |= {"verdict": "not measured", "why": absent(what, memory)}
                elif doubt:
                    goal |= value | {"verdict": "unproven", "why": doubt}
                else:
                    goal |= value | {"verdict": "met" if value["worst_ratio"] <= most else "missed"}
                found.append(goal | phase(said.get("handover_ns", ())))
    return found


def rows(goals, human):
    """The closing table. Plain loops: what part these need where the verdict was made. Hand-overs: nanoseconds, median and extremes, while that was measured."""
    table = [["goal", "of", "sizes", "at most", "measured", "rounds", "at", "met at", "plain loops", "hand-over", "verdict"]]
    for g in goals:
        sizes = "all" if "from" not in g else f"{human(g['from'])} .. {human(g['to']) if g['to'] else ''}".strip()
        spread = f"{g['spread'][0]:.2f} .. {g['spread'][1]:.2f}" if "spread" in g else "-"
        met = f"{g['sizes_met']} of {g['sizes']}" if "sizes_met" in g else "-"
        value = "-" if "worst_ratio" not in g else f"{g['worst_ratio']:.2f}"
        at = human(g["worst_size"]) if g.get("worst_size") else "-"
        loops = f"{g['plain_loops']:.2f}" if g.get("plain_loops") else "-"
        table.append([g["metric"], g["stack"], sizes, f"{g['most']:.2f}", value, spread, at, met, loops, in_phase(g), g["verdict"]])
    return table


def reasons(goals):
    """Why goals are unproven or were not measured, each reason once, with what it is about."""
    about = {}
    for g in goals:
        if "why" in g:
            about.setdefault((g["verdict"], g["why"]), []).append(f"{g['metric']} ({g['stack']})")
    return [f"{verdict}: {', '.join(which) if len(which) < 4 else f'{len(which)} goals'}: {why}" for (verdict, why), which in about.items()]
