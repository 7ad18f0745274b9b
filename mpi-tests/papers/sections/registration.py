"""Registration: what it costs, and what a cache of it saves."""

import math
import statistics

from sections.words import GONE, HOLDS, PARTLY, Panel, Section, Table, pages, rate, thousands, time
from stacks import human

# ---- registration ----

REGISTERING = [("mlock", "mlock"), ("userfaultfd watch", "watch"), ("map a peer's memory", "map"), ("io_uring buffer", "io_uring")]


def registration(f):
    def whole(series, x):
        return f.at("register", series, x) + f.at("deregister", series, x)

    def from_page(series, copy):
        found = None
        for x in reversed(f.xs("register", series)):
            if whole(series, x) > f.at("copy", copy, x):
                break
            found = x
        return found

    # One that was refused from some size on has no slope.
    there = [s for _, s in REGISTERING if f.has("register", s) and not any(line.startswith(f"register, {s}: ") for line in f.missing)]
    found, crossings = [], []
    names = {s: label for label, s in REGISTERING}
    for s in there:
        xs = f.xs("register", s)
        slope = (whole(s, xs[-1]) - whole(s, xs[0])) / (xs[-1] - xs[0])
        warm, cold = from_page(s, "plain"), from_page(s, "cold")
        # One that never gets cheaper than the copy crosses it beyond all sizes.
        crossings.append(warm or math.inf)
        told = f"{names[s]}: {time(whole(s, xs[0]))} for one page there and back, {time(slope)} for each further one; "
        told += "cheaper than the copy from "
        told += f"{pages(warm)} on" if warm else "no number of pages on"
        told += f", of cold memory from {pages(cold)} on." if cold else ", of cold memory never."
        found.append((None, told))
    copied = f.xs("copy", "plain")
    slope = (f.at("copy", "plain", copied[-1]) - f.at("copy", "plain", copied[0])) / (copied[-1] - copied[0])
    found.append(
        (
            None,
            f"Copying: {time(f.at('copy', 'plain', copied[0]))} for the first page, {time(slope)} for each further one (cache and memory "
            "together).",
        )
    )
    word = HOLDS if max(crossings) <= 4 else GONE if min(crossings) > 8 else PARTLY
    found.append(
        (
            word,
            f'"Copy only a few pages at most": the crossing lies at '
            f"{', '.join('never' if math.isinf(c) else f'{c:.0f}' for c in crossings)} pages, by kind."
            + (
                " A system call costs little beside a card of 2004, but copies got quicker still: it pays to copy more than it did, not "
                "less."
                if word == GONE
                else ""
            ),
        )
    )
    x = f.near("register", there[0], 64)
    shares = {s: f.at("deregister", s, x) / whole(s, x) for s in there}
    word = HOLDS if min(shares.values()) > 0.5 else GONE if max(shares.values()) < 0.5 else PARTLY
    found.append(
        (
            word,
            '"Deregistration is the main part": at 64 pages it is '
            + ", ".join(f"{share:.0%} ({names[s]})" for s, share in shares.items())
            + " of both.",
        )
    )
    return found


REGISTRATION = Section(
    "registration",
    "Registration and deregistration by pages, against copying",
    "register",
    "Goglin, Prylli and Glück 2004 (*Optimizations of Client's side communications in a Distributed File System within a Myrinet "
    "Cluster*), figure 3a: registering with the card costs far more than a message, deregistration is the main part; replace "
    "registration by a copy only for a few pages at most.",
    "No card is here. What Linux has instead: `mlock`, watching a range for changes (`userfaultfd`, write-protect mode, no privileges), "
    "mapping and touching memory of a peer, and pinning a buffer for `io_uring`, which is what a driver does. Pages are 4 KiB and "
    "present.",
    [("register", s) for _, s in REGISTERING] + [("deregister", s) for _, s in REGISTERING] + [("copy", "plain"), ("copy", "cold")],
    [
        Panel(
            "registration",
            "pages",
            "time",
            [(label, "register", s) for label, s in REGISTERING] + [("copy", "copy", "plain"), ("copy of cold memory", "copy", "cold")],
        ),
        Panel("deregistration", "pages", "time", [(label, "deregister", s) for label, s in REGISTERING] + [("copy", "copy", "plain")]),
    ],
    [
        Table(
            "pages",
            [1, 4, 16, 64, 256, 1024, 4096],
            [
                (f"{label}, {what}", figure, s)
                for label, s in REGISTERING
                for what, figure in (("there", "register"), ("back", "deregister"))
            ]
            + [("copy", "copy", "plain"), ("cold copy", "copy", "cold")],
            time,
            lambda n: f"{n:.0f}",
        )
    ],
    registration,
)


# ---- the cache ----


def cached(f):
    found, gains, even = [], [], {}
    sizes = [size for size in (4096, 65536, 1 << 20) if f.has(f"map-{size}", "cache")]
    copies = {size: statistics.median(f.at(f"map-{size}", "copy", x) for x in f.xs(f"map-{size}", "copy")) for size in sizes}
    for kind, what in (("map", "Mappings of a peer's memory"), ("lock", "Locked buffers")):
        for size in sizes:
            figure = f"{kind}-{size}"
            if not f.has(figure, "cache"):
                continue
            none, all_ = f.at(figure, "cache", 0), f.at(figure, "cache", 100)
            gains.append(all_ / none - 1)
            even[kind, size] = f.wins_from(figure, "cache", "copy", less=False)
            ends = {None: "no cache beats the copy", 0: "the copy loses even to registration each time"}
            found.append(
                (
                    None,
                    f"{what}, {human(size)}: {rate(none)} with registration each time, {rate(all_)} with all hits ({gains[-1]:+.0%}), "
                    f"{rate(copies[size])} through a copy: "
                    + ends.get(even[kind, size], f"the cache is worth more from {even[kind, size] or 0:.0f} % hits on")
                    + ".",
                )
            )
    found.append(
        (
            HOLDS if min(gains) > 0.25 else PARTLY,
            f'"A cache gains more than 25 % over registration each time": here ' f"{min(gains):.0%} to {max(gains):.0%}.",
        )
    )
    first, last = sizes[0], sizes[-1]
    small, large = (copies[size] / f.at(f"map-{size}", "cache", 100) for size in (first, last))
    found.append(
        (
            HOLDS if small > 0.8 and large < small else PARTLY,
            f'"Copying matches the cache for small requests and wastes processor time for large ones": it reaches {small:.0%} '
            f"of a cache that always hits at {human(first)}, {large:.0%} at {human(last)}. Without many hits, though, the cache of small "
            "buffers is far worse than the copy: caching pays for buffers that come again.",
        )
    )
    return found + of_engine(f, sizes)


def of_engine(f, sizes):
    """What the engine's own registration cache makes of it."""
    found, again, new = [], {}, {}
    for size in sizes:
        figure = f"map-{size}"
        if not f.has(figure, "engine") or not f.has(figure, "engine-new"):
            continue
        again[size], new[size] = (f.ratio(figure, series, "cache", 0) for series in ("engine", "engine-new"))
        ends = [(f.at(figure, s, x), f.at(figure, lent, x)) for s, lent, x in (("engine", "lent", 0), ("engine-new", "lent-new", 0), ("engine", "lent", 100))]
        (same, same_lent), (other, other_lent), (hit, hit_lent) = ends
        found.append(
            (
                None,
                f"The engine's own cache, whole messages of {human(size)}: {rate(same)} if each buffer is unmapped and comes back at its address "
                f"({same_lent:.0f} % are lent), {rate(other)} if it comes back elsewhere ({other_lent:.0f} %), {rate(hit)} if all stay "
                f"({hit_lent:.0f} %): {again[size]:.2f}, {new[size]:.2f} and {f.ratio(figure, 'engine', 'cache', 100):.2f} times the plain "
                "cache of mappings, which has no monitor and no message around it.",
            )
        )
    if found:
        found.append(
            (
                None,
                "A plain cache pays for every miss. The engine registers no buffer that it sees for the first time, but copies it through the ring; "
                "whoever unmaps what is registered waits for the monitor, which is what the misses of a message cost here.",
            )
        )
    return found


def cache_panels():
    return [
        Panel(
            f"requests of {human(size)}",
            "% hits",
            "GB/s",
            [
                ("cache of mappings", f"map-{size}", "cache", thousands),
                ("cache of mlock", f"lock-{size}", "cache", thousands),
                ("copy", f"map-{size}", "copy", thousands),
                ("engine, buffers come back at their address", f"map-{size}", "engine", thousands),
                ("engine, buffers come back elsewhere", f"map-{size}", "engine-new", thousands),
            ],
            (False, False),
        )
        for size in (4096, 65536, 1 << 20)
    ]


CACHE = Section(
    "cache",
    "A registration cache, registration each time, and copying, by hit ratio",
    "cache",
    "The same paper, figure 3b: a pin-down cache raises the throughput of remote reads by more than 25 % over registering and "
    "deregistering at each request; copying into a registered buffer matches it for small requests and wastes processor time for large "
    "ones.",
    "64 buffers are read in turn from memory of another descriptor; a miss undoes one registration and makes another. Moving the data "
    "is one `memcpy` (ORFA: a card and a wire), through a copy it is two. 0 % hits is registration each time. Beside these loops the "
    "engine itself (`provider/benches/reuse.rs`): messages between two endpoints of one process out of 32 buffers, sealed memfds that the "
    "receiver maps; before a miss the buffer is unmapped and mapped again, and its cache hears of that from the kernel.",
    [("map-4096", "cache"), ("map-4096", "copy"), ("lock-4096", "cache"), ("map-4096", "engine")],
    cache_panels(),
    [
        Table(
            "% hits",
            [0, 50, 80, 90, 100],
            [
                (f"{label}, {human(size)}", f"{kind}-{size}", series)
                for size in (4096, 65536, 1 << 20)
                for label, kind, series in (
                    ("mappings", "map", "cache"),
                    ("mlock", "lock", "cache"),
                    ("copy", "map", "copy"),
                    ("engine", "map", "engine"),
                    ("engine, elsewhere", "map", "engine-new"),
                )
            ],
            rate,
            lambda n: f"{n:.0f}",
        )
    ],
    cached,
    engine=True,
)
