"""The sections of the page: what a paper claimed, how it is measured again, what is shown, and what the figures say about the claim.

Every verdict is computed from the figures, so that a page of another machine says what is true there."""

import dataclasses
import statistics
import typing

from stacks import human

HOLDS, PARTLY, GONE = "Holds", "Holds in part", "No longer holds"


@dataclasses.dataclass
class Panel:
    """One plot: lines are (label, figure, series) or (label, figure, series, change of (x, value))."""

    title: str
    x: str
    y: str
    lines: list
    log: tuple = (True, True)


@dataclasses.dataclass
class Table:
    """Rows are x values; columns (head, figure, series); show makes a cell of a value."""

    x: str
    xs: list
    columns: list
    show: typing.Callable
    name: typing.Callable = human


@dataclasses.dataclass
class Section:
    id: str
    title: str
    program: str | None  # None: rustmx compare
    claim: str
    how: str
    needs: list  # (figure, series) without which something is broken
    panels: list
    tables: list
    verdict: typing.Callable  # Figures -> [(word or None, sentence)]


def time(ns):
    for unit, name in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if ns >= unit:
            return f"{ns / unit:.3g} {name}"
    return f"{ns:.3g} ns"


def rate(mbs):
    return f"{mbs / 1000:.3g} GB/s"


def times(ratio):
    return f"{ratio:.2f}"


def pages(n):
    return f"{n:.0f} page{'' if n == 1 else 's'} ({human(int(n) * 4096)})"


def gbs(x, ns):
    return x / ns


def thousands(_, value):
    return value / 1000


# ---- zero-copy ----


def zero_copy(f):
    found = []
    for source in ("reused", "fresh"):
        if not f.has(source, "alone"):
            continue
        start = f.wins_from(source, "alone", "stream")
        four, big = f.near(source, "alone", 4096), f.xs(source, "stream", "alone")[-1]
        gains = ", ".join(f"{times(f.ratio(source, 'stream', 'alone', x))} at {human(x)}" for x in (four, f.near(source, "alone", 32768), big))
        if start is None:
            found.append((GONE, f"Source {source}: two copies are quicker than one by the kernel even at {human(big)}."))
            continue
        word = HOLDS if 4096 < start <= 65536 else PARTLY
        found.append((word, f"Source {source}: one copy by the kernel is quicker than two from {human(start)} on (MX: above 32 KiB). Two copies take so "
                            f"many times the time of one: {gains}."))
        both = f.wins_from(source, "shared", "alone")
        if both:
            found.append((None, f"Source {source}: what no paper had, both sides copying a part of one message, is quicker than one side from "
                                f"{human(both)} on: {times(f.ratio(source, 'alone', 'shared', big))} times at {human(big)}."))
        if f.has(source, "mapped"):
            mapped = f.wins_from(source, "mapped", "alone")
            found.append((None, f"Source {source}: memory that both sides map (the preloaded heap) beats the kernel's copy "
                                + (f"from {human(mapped)} on." if mapped else "at no upper range of sizes.")))
    return found


COPIES = [("two copies, through the ring (stream)", "stream"), ("one copy by the kernel, one side (alone)", "alone"),
          ("one copy by the kernel, both sides (shared)", "shared"), ("one copy, memory that both map (mapped)", "mapped")]
SIZES = [1 << 8, 1 << 12, 1 << 14, 1 << 15, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 26]

ZERO_COPY = Section(
    "zero-copy", "Copy against zero-copy, by size", None,
    "Goglin 2006 (*High-Speed Networking in Clusters without OS-bypass and Zero-copy*), figure 1: taking the copy away is nearly useless below 4 KiB, because "
    "copying and sending are pipelined; MX copies messages up to 32 KiB.",
    "Between two processes of one host, the paper's copy is two copies through a ring of shared memory (the second overlaps the first), and its zero-copy is one "
    "copy from the sender's buffer to the receiver's by the kernel. *Reused*: the sender's buffer stays as it is, as in most benchmarks; *fresh*: it is "
    "rewritten before each message, as programs do.",
    [(source, way) for source in ("reused", "fresh") for way in ("stream", "alone")],
    [Panel(f"source {source}", "message size", "GB/s", [(label, source, way, gbs) for label, way in COPIES]) for source in ("reused", "fresh")],
    [Table(f"size ({source})", SIZES, [(way, source, way) for _, way in COPIES], time) for source in ("reused", "fresh")],
    zero_copy,
)

# ---- system calls ----


def calls(f):
    x = f.xs("latency", "user")[0]
    user, every, per = (f.at("latency", s, x) for s in ("user", "every-call", "per-message"))
    added, call, big = every - user, f.at("call", "system call", 0), f.xs("latency", "user")[-1]
    found = [(None, f"A system call that does nothing takes {time(call)} here (75 ns on the paper's Opteron)."),
             (HOLDS if added / user < 0.4 else GONE,
              f"With a system call for every call of the library, a message of {human(x)} takes {time(every)} instead of {time(user)}: {added / user:+.0%} "
              f"(2006: 3.3 µs instead of 2.4 µs, +38 %, and +20 % after tuning); with one for each send and receive {per / user - 1:+.0%}. The network of 2006 hid "
              f"the call, shared memory does not: on its 2.4 µs the same {time(abs(added))} would be {added / 2400:+.0%}.")]
    ratios = {s: f.ratio("latency", s, "user", big) for s in ("every-call", "per-message")}
    found.append((HOLDS if ratios["per-message"] < 1.1 else GONE,
                  f"Large messages lose little: at {human(big)}, one call a message {ratios['per-message'] - 1:+.0%}, one for every piece of 4 KiB and every idle poll "
                  f"{ratios['every-call'] - 1:+.0%}. That is why long messages may well go through the kernel."))
    xs = f.xs("batch", "per-batch", "user")
    cheap = next((k for k in xs if f.ratio("batch", "per-batch", "user", k) < 1.25), None)
    found.append((HOLDS if cheap else PARTLY, f"Batching pays for the call: streamed small messages cost {time(f.at('batch', 'user', xs[0]))} each without calls, "
                  f"{time(f.at('batch', 'per-batch', xs[0]))} with one a message, {time(f.at('batch', 'per-batch', xs[-1]))} with one for {xs[-1]:.0f}"
                  + (f"; from {cheap:.0f} on it is within a quarter." if cheap else "; that is never within a quarter.")))
    found.append((None, f"The kernel's own path (a Unix socket, both sides spinning) takes {time(f.at('latency', 'socket', x))} at {human(x)}, "
                        f"{f.ratio('latency', 'socket', 'user', x):.1f} times the ring's, and {f.ratio('latency', 'socket', 'user', big):.2f} times at {human(big)}."))
    return found


PATHS = [("user code only", "user"), ("a system call for every call", "every-call"), ("one for each send and receive", "per-message"),
         ("Unix socket", "socket")]

CALLS = Section(
    "calls", "User-level path against a system call each time", "calls",
    "Goglin 2006, figure 2: with every call of MX replaced by a system call, latency is 3.3 µs instead of 2.4 µs and bandwidth nearly the same for large messages; "
    "avoiding several calls in a busy loop won 300 ns back, net cost about 20 %.",
    "Ping-pong and stream through a ring of our own in shared memory, in pieces of 4 KiB, with a call that does nothing (`getppid`) added at the places named. It is the "
    "entry into the kernel that is measured, not work in it.",
    [("latency", s) for _, s in PATHS] + [("batch", "per-batch"), ("call", "system call")],
    [Panel("one way of a ping-pong", "message size", "time", [(label, "latency", s) for label, s in PATHS]),
     Panel("streamed messages of 8 B", "messages for each system call", "time of a message",
           [("with system calls on both sides", "batch", "per-batch"), ("without", "batch", "user")])],
    [Table("size", [8, 512, 8192, 32768, 131072, 524288], [(s, "latency", s) for _, s in PATHS], time)],
    calls,
)

# ---- non-temporal copies ----


def non_temporal(f):
    xs = f.xs("sum", "plain", "non-temporal")
    hurt = next((x for x in xs if f.at("victim", "plain", x) > 1.1), None)
    better = [x for x in xs if f.ratio("sum", "non-temporal", "plain", x) < 0.97]
    saved = [x for x in xs if f.at("victim", "plain", x) > 1.1 and f.at("victim", "non-temporal", x) < 1 + (f.at("victim", "plain", x) - 1) / 2]
    some = [f.near("copy", "plain", x) for x in (65536, 1 << 20)]
    costs = " and ".join(f"{times(f.ratio('copy', 'non-temporal', 'plain', x))} times at {human(x)}" for x in dict.fromkeys(some))
    found = [(None, f"The non-temporal copy itself takes {costs} as long as the plain one; reading its result on the other core takes "
                    + " and ".join(f"{times(f.ratio('reader', 'non-temporal', 'plain', x))} times at {human(x)}" for x in dict.fromkeys(some)) + ".")]
    if hurt is None:
        found.append((GONE, "A plain copy hurts the computation at no size measured."))
    elif saved:
        found.append((PARTLY if len(saved) < len([x for x in xs if x >= hurt]) else HOLDS,
                      f"A plain copy of {human(hurt)} or more pushes the computation's 1 MiB out of the cache; non-temporal stores avoid more than half of "
                      f"that at {', '.join(map(human, saved))}: reading the source fills the cache as well."))
    else:
        found.append((GONE, f"A plain copy of {human(hurt)} or more pushes the computation's 1 MiB out of the cache, and non-temporal stores save less than half "
                            "of that at any size: reading the source fills the cache as well."))
    found.append((PARTLY if better else GONE,
                  "Copy, computation and reader together " + (f"gain by non-temporal stores at {', '.join(map(human, better))} only" if better else
                                                              "gain by non-temporal stores at no size") + f", of {len(xs)} sizes measured. So they are off."))
    return found


def kinds(figure, change=None):
    return [(name, figure, name) + ((change,) if change else ()) for name in ("plain", "non-temporal")]


NON_TEMPORAL = Section(
    "non-temporal", "Non-temporal copies and a victim that lives in the cache", "copies",
    "Goglin 2006: copies pollute the cache; non-temporal stores would avoid that.",
    "A message is copied into shared memory by plain `memcpy` or by SSE2 non-temporal stores. Before and after it a computation on the same core passes over 1 MiB of its own, "
    "line by line, each depending on the one before; then the other core reads the message.",
    [(figure, kind) for figure in ("copy", "victim", "reader", "sum") for kind in ("plain", "non-temporal")],
    [Panel("the copy", "message size", "GB/s", kinds("copy", gbs), (True, False)),
     Panel("the computation afterwards", "message size", "times its undisturbed time", kinds("victim"), (True, False)),
     Panel("copy + computation + reader", "message size", "time", kinds("sum"))],
    [Table("size", [1 << s for s in (16, 18, 19, 20, 21, 22, 24)],
           [("copy, plain", "copy", "plain"), ("non-temporal", "copy", "non-temporal"), ("sum, plain", "sum", "plain"),
            ("non-temporal", "sum", "non-temporal")], time),
     Table("size", [1 << s for s in (16, 18, 19, 20, 21, 22, 24)],
           [("computation after plain", "victim", "plain"), ("after non-temporal", "victim", "non-temporal")], times)],
    non_temporal,
)

# ---- offload ----

HELPERS = [("free core, spinning", "free-spinning"), ("free core, woken", "free-sleeping"), ("busy core, woken", "busy"), ("own core, woken", "same")]


def offload(f):
    def gain(series):
        """From which size on it gains, in words."""
        xs = f.xs("time", series)
        from_ = None
        for x in reversed(xs):
            if f.at("time", series, x) > 0.9:
                break
            from_ = x
        least = min(xs, key=lambda x: f.at("time", series, x))
        text = f"at best {times(f.at('time', series, least))} of the time at {human(least)}"
        return from_, (f"gains from {human(from_)} on, " if from_ else "gains at no upper range of sizes, ") + text

    spinning, sleeping, busy, same = (gain(s) for _, s in HELPERS)
    free = spinning[0] or sleeping[0]
    return [
        (HOLDS if free else PARTLY, f"With a free core a helper that spins {spinning[1]}; one that must be woken {sleeping[1]}. Half of the time is what one can win: the copy "
                                    "and a computation of the same length."),
        (None, f"On a core where somebody else computes, a woken helper {busy[1]}; what it wins its owner, that computation loses."),
        (None, f"On the owner's own core it {same[1]}: it is a thread, not the DMA engine of 2006, which needed no core."),
        (None, "A spinning helper needs a core of its own, a woken one costs the wake-up; MPI ranks usually fill all cores. rustmx lets the waiting receiver copy instead: "
               "it has a free core by definition."),
    ]


OFFLOAD = Section(
    "offload", "Copies offloaded to somebody else, with and without a free core", "offload",
    "Goglin 2006: a DMA engine (I/OAT) would take the copies off the processor, to run behind computation.",
    "No such engine is in this machine; a helper thread stands in for it. Its owner computes as long as the copy takes, in registers; told is the time until both are done, "
    "by the time of one after the other on one core.",
    [("time", s) for _, s in HELPERS],
    [Panel("copy and computation together", "message size", "times one after the other", [(label, "time", s) for label, s in HELPERS], (True, True))],
    [Table("size", [1 << s for s in (14, 16, 18, 20, 22, 24)], [(label, "time", s) for label, s in HELPERS], times)],
    offload,
)

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
        crossings.append(warm)
        told = f"{names[s]}: {time(whole(s, xs[0]))} for one page there and back, {time(slope)} for each further one; cheaper than the copy from "
        told += f"{pages(warm)} on" if warm else "no number of pages on"
        told += f", of cold memory from {pages(cold)} on." if cold else ", of cold memory never."
        found.append((None, told))
    copied = f.xs("copy", "plain")
    slope = (f.at("copy", "plain", copied[-1]) - f.at("copy", "plain", copied[0])) / (copied[-1] - copied[0])
    found.append((None, f"Copying: {time(f.at('copy', 'plain', copied[0]))} for the first page, {time(slope)} for each further one (cache and memory together)."))
    few = [c for c in crossings if c]
    word = HOLDS if few and max(few) <= 4 else GONE if not few or min(few) > 8 else PARTLY
    found.append((word, f"\"Copy only a few pages at most\": the crossing lies at {', '.join(f'{c:.0f}' for c in few) or 'no number of'} pages, by kind."
                        + (" A system call costs little beside a card of 2004, but copies got quicker still: it pays to copy more than it did, not less." if word == GONE else "")))
    x = f.near("register", there[0], 64)
    shares = {s: f.at("deregister", s, x) / whole(s, x) for s in there}
    word = HOLDS if min(shares.values()) > 0.5 else GONE if max(shares.values()) < 0.5 else PARTLY
    found.append((word, "\"Deregistration is the main part\": at 64 pages it is " + ", ".join(f"{share:.0%} ({names[s]})" for s, share in shares.items()) + " of both."))
    return found


REGISTRATION = Section(
    "registration", "Registration and deregistration by pages, against copying", "register",
    "Goglin, Prylli and Glück 2004 (*Optimizations of Client's side communications in a Distributed File System within a Myrinet Cluster*), figure 3a: registering with the card "
    "costs far more than a message, deregistration is the main part; replace registration by a copy only for a few pages at most.",
    "No card is here. What Linux has instead: `mlock`, watching a range for changes (`userfaultfd`, write-protect mode, no privileges), mapping and touching memory of a peer, and pinning "
    "a buffer for `io_uring`, which is what a driver does. Pages are 4 KiB and present.",
    [("register", s) for _, s in REGISTERING] + [("deregister", s) for _, s in REGISTERING] + [("copy", "plain"), ("copy", "cold")],
    [Panel("registration", "pages", "time", [(label, "register", s) for label, s in REGISTERING] + [("copy", "copy", "plain"), ("copy of cold memory", "copy", "cold")]),
     Panel("deregistration", "pages", "time", [(label, "deregister", s) for label, s in REGISTERING] + [("copy", "copy", "plain")])],
    [Table("pages", [1, 4, 16, 64, 256, 1024, 4096],
           [(f"{label}, {what}", figure, s) for label, s in REGISTERING for what, figure in (("there", "register"), ("back", "deregister"))] + [("copy", "copy", "plain"), ("cold copy", "copy", "cold")],
           time, lambda n: f"{n:.0f}")],
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
            found.append((None, f"{what}, {human(size)}: {rate(none)} with registration each time, {rate(all_)} with all hits ({gains[-1]:+.0%}), {rate(copies[size])} through a copy: "
                                + ends.get(even[kind, size], f"the cache is worth more from {even[kind, size] or 0:.0f} % hits on") + "."))
    found.append((HOLDS if min(gains) > 0.25 else PARTLY, f"\"A cache gains more than 25 % over registration each time\": here {min(gains):.0%} to {max(gains):.0%}."))
    first, last = sizes[0], sizes[-1]
    small, large = (copies[size] / f.at(f"map-{size}", "cache", 100) for size in (first, last))
    found.append((HOLDS if small > 0.8 and large < small else PARTLY,
                  f"\"Copying matches the cache for small requests and wastes processor time for large ones\": it reaches {small:.0%} of a cache that always hits at {human(first)}, {large:.0%} at "
                  f"{human(last)}. Without many hits, though, the cache of small buffers is far worse than the copy: caching pays for buffers that come again."))
    return found


def cache_panels():
    return [Panel(f"requests of {human(size)}", "% hits", "GB/s",
                  [("cache of mappings", f"map-{size}", "cache", thousands), ("cache of mlock", f"lock-{size}", "cache", thousands),
                   ("copy", f"map-{size}", "copy", thousands)], (False, False))
            for size in (4096, 65536, 1 << 20)]


CACHE = Section(
    "cache", "A registration cache, registration each time, and copying, by hit ratio", "cache",
    "The same paper, figure 3b: a pin-down cache raises the throughput of remote reads by more than 25 % over registering and deregistering at each request; "
    "copying into a registered buffer matches it for small requests and wastes processor time for large ones.",
    "64 buffers are read in turn from memory of another descriptor; a miss undoes one registration and makes another. Moving the data is one `memcpy` (ORFA: a card and a wire), "
    "through a copy it is two. 0 % hits is registration each time.",
    [("map-4096", "cache"), ("map-4096", "copy"), ("lock-4096", "cache")],
    cache_panels(),
    [Table("% hits", [0, 50, 80, 90, 100],
           [(f"{label}, {human(size)}", f"{kind}-{size}", series) for size in (4096, 65536, 1 << 20)
            for label, kind, series in (("mappings", "map", "cache"), ("mlock", "lock", "cache"), ("copy", "map", "copy"))], rate, lambda n: f"{n:.0f}")],
    cached,
)

# ---- the monitor ----

CHANGES = ["munmap, then mmap at the same place", "mmap over it", "mremap of other memory over it", "none (MADV_DONTNEED)"]
PLACES = [("nobody watches", "none"), ("another mapping is watched", "elsewhere"), ("this one is watched", "watched"), ("and the listener is on the same core", "same-core")]
OPERATIONS = [("munmap", "munmap"), ("mremap", "mremap"), ("madvise(MADV_DONTNEED)", "discard"), ("first touch", "touch")]


def monitor(f):
    deaf = [f.at("wrong", "deaf", x) for x in range(3)]
    found = [(HOLDS if min(deaf) > 0 else GONE, f"Without being told, {max(deaf):.0f} of 1000 sends carry old bytes after mappings changed between every second send (the rest are right by chance: "
                                                "eight areas take turns).")]
    if f.has("wrong", "watched"):
        wrong = sum(f.at("wrong", "watched", x) for x in f.xs("wrong", "watched"))
        found.append((None, f"Told by the kernel: {wrong:.0f} wrong sends. What the articles asked of Linux is there: no module, no patched `munmap`, no privilege."))
    if f.has("munmap", "watched"):
        x = f.near("munmap", "watched", 16)
        told = [f"{label} {time(f.at(op, 'none', x))}, elsewhere {time(f.at(op, 'elsewhere', x))}, watched {time(f.at(op, 'watched', x))}" for label, op in OPERATIONS]
        free = all(f.ratio(op, "elsewhere", "none", x) < 1.35 for _, op in OPERATIONS)
        found.append((HOLDS if free else PARTLY, "\"Only areas that hold registered pages pay\" (VMA SPY), at 16 pages: " + "; ".join(told) + ". A watched call waits until the listener has read "
                                                "the event."))
    return found


MONITOR = Section(
    "monitor", "Wrong bytes without a monitor, and what a monitor costs", "monitor",
    "Goglin 2006 (both articles): a cache of registrations must follow changes of the address space; intercepting them in user space is difficult to do right; the kernel should tell. VMA SPY (2004): only areas "
    "that hold registered pages pay.",
    "A peer remembers where in shared memory a buffer of 16 KiB lies, by its address; the owner maps other memory there between sends. The kernel's word comes through `userfaultfd` in write-protect mode "
    "(unmap, remap, remove), where nothing is ever protected. This is the kernel's part; how the engine's own cache stands it is the business of its torture test.",
    [("wrong", "deaf"), ("wrong", "watched")] + [(op, place) for _, op in OPERATIONS for _, place in PLACES],
    [Panel(label, "pages", "time", [(name, op, place) for name, place in PLACES]) for label, op in OPERATIONS],
    [Table("change between sends", [0, 1, 2, 3], [("wrong of 1000, nobody tells", "wrong", "deaf"), ("the kernel tells", "wrong", "watched")],
           lambda v: f"{v:.0f}", lambda n: CHANGES[int(n)])]
    + [Table(f"pages ({label})", [1, 16, 256], [(name, op, place) for name, place in PLACES], time, lambda n: f"{n:.0f}") for label, op in OPERATIONS],
    monitor,
)

SECTIONS = [ZERO_COPY, CALLS, NON_TEMPORAL, OFFLOAD, REGISTRATION, CACHE, MONITOR]
