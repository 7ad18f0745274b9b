"""What rustmx asks of itself between hosts beside libfabric's tcp provider, and whether measured rounds meet it. Arithmetic and words only;
ci/compare-tcp.py measures."""

import statistics

from goals import KIB, in_phase, phase

# test, what it is beside, from and to which size, at most which part of the other's time (for rates and bandwidths: of its time for each
# message or byte)
GOALS = (
    ("rate", "tcp", 8, 8, 1 / 10),
    ("latency", "tcp", 8, 8, 1.0),
    ("bw", "tcp", 64 * KIB, None, 1 / 1.3),
)
# Of a link whose rate is limited TCP leaves so much to its user; rustmx gets all of that but a twentieth.
LINK = ("bw", "link", 64 * KIB, None, 1 / 0.95)
LESS_IS_BETTER = ("latency",)
# As many of the rounds must say the same as the median does; else noise hides it.
AGREE = 0.8
UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}


def link_of(faults, mtu=1500, family="IPv4"):
    """What a link of which the rate is limited leaves to who uses TCP over it, in MB/s: packets have a head of Ethernet, of IP, of TCP with
    its time stamps. None: it is not limited, or not by a word that is known."""
    for fault in faults:
        kind, *words = fault.split()
        if kind == "rate" and words and words[0].lower().endswith("bit"):
            digits = words[0].lower()[:-3]
            unit = digits[-1:] if digits[-1:] in ("k", "m", "g") else ""
            try:
                bits = float(digits[:len(digits) - len(unit)]) * UNITS[unit]
            except ValueError:
                return None
            heads = 52 if family == "IPv4" else 72
            return bits / 8e6 * (mtu - heads) / (mtu + 14) if bits > 0 else None
    return None


def parts(sizes_of, test, who, beside, size, link=None):
    """In each round the part of the other's time that one needs; below 1 is better."""
    ours = sizes_of.get(who, {}).get(size, {})
    others = dict.fromkeys(ours, link) if beside == "link" else sizes_of.get(beside, {}).get(size, {})
    return [ours[r] / others[r] if test in LESS_IS_BETTER else others[r] / ours[r] for r in ours if others.get(r)]


def decided(values, most):
    """Whether these rounds meet it: True, False, or None if too few agree with their median."""
    met = statistics.median(values) <= most
    return met if sum((v <= most) == met for v in values) >= AGREE * len(values) else None


def judge(goal, place, sizes_of, proved, link=None):
    """One goal at one place: what was measured at the size that decides. Sizes at which plain sockets in the same rounds do not reach what is
    asked are the limit, not a miss; the worst of those where they do decides, if there is one."""
    test, beside, first, last, most = goal
    told = {"metric": test, "beside": beside, "place": place, "from": first, "to": last, "most": round(most, 3)}
    here = {}
    for size in sorted(sizes_of.get("rustmx", {})):
        values = parts(sizes_of, test, "rustmx", beside, size, link)
        if values and first <= size and (last is None or size <= last):
            here[size] = values
    if not here:
        return told | {"verdict": "not measured"}
    plain = {size: parts(sizes_of, test, "raw", beside, size, link) for size in here}
    out_of_reach = {size for size in here if plain[size] and statistics.median(plain[size]) > most}
    ruled = {size: decided(values, most) for size, values in here.items()}

    def rank(size):
        """A miss first, then what is hidden, then the limit; among equals the largest part."""
        order = 3 if ruled[size] is False and size not in out_of_reach else 2 if ruled[size] is None else 1 if ruled[size] is False else 0
        return order, statistics.median(here[size])

    worst = max(here, key=rank)
    verdict = ("met", "limit", "unproven", "missed")[rank(worst)[0]]
    to_raw = parts(sizes_of, test, "rustmx", "raw", worst)
    return told | {
        "verdict": verdict if proved else "unproven", "worst_ratio": round(statistics.median(here[worst]), 3), "worst_size": worst,
        "spread": [round(min(here[worst]), 3), round(max(here[worst]), 3)], "rounds": len(here[worst]),
        "sizes_met": sum(met is True for met in ruled.values()), "sizes": len(here), "sizes_limit": len(out_of_reach),
        "plain_sockets": round(statistics.median(plain[worst]), 3) if plain[worst] else None,
        # For what plain sockets do in a second, how much rustmx does.
        "of_plain_sockets": round(1 / statistics.median(to_raw), 3) if to_raw else None,
    }


def judged(samples, unsteady=(), hands=None, link=None):
    """All goals. `samples`: (place, test) -> provider -> size -> {round: value}; of `unsteady` (place, test) nothing is proved."""
    places = sorted({place for place, _ in samples})
    found = []
    for place in places:
        # Of one host the cable is not used, so a limit of it is none.
        for goal in GOALS + ((LINK,) if link and place == "two" else ()):
            where = (place, goal[0])
            one = judge(goal, place, samples.get(where, {}), where not in unsteady, link)
            found.append(one | phase((hands or {}).get(where, ())))
    return found


WORDS = {"rate": "messages of 8 bytes", "latency": "half a round trip", "bw": "a window of 64"}
PLACES = {"one": "one host", "two": "two hosts"}


def rows(goals, human):
    """The closing table."""
    table = [["goal", "beside", "where", "sizes", "at most", "measured", "rounds", "at", "met at", "plain sockets", "of theirs", "hand-over", "verdict"]]
    for g in goals:
        sizes = human(g["from"]) if g["from"] == g["to"] else f"{human(g['from'])} .. {human(g['to']) if g['to'] else ''}".strip()
        measured = "worst_ratio" in g
        table.append([
            WORDS[g["metric"]], g["beside"], PLACES[g["place"]], sizes, f"{g['most']:.2f}",
            f"{g['worst_ratio']:.2f}" if measured else "-", f"{g['spread'][0]:.2f} .. {g['spread'][1]:.2f}" if measured else "-",
            human(g["worst_size"]) if measured else "-", f"{g['sizes_met']} of {g['sizes']}" if measured else "-",
            f"{g['plain_sockets']:.2f}" if g.get("plain_sockets") else "-", f"{g['of_plain_sockets']:.2f}" if g.get("of_plain_sockets") else "-",
            in_phase(g), g["verdict"]])
    return table
