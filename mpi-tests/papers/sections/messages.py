"""Messages: copy against zero-copy, and the way through the kernel."""

from sections.words import GONE, HOLDS, PARTLY, Panel, Section, Table, gbs, time, times
from stacks import human

# ---- zero-copy ----


def mapped(f, source):
    """One copy without the kernel, out of memory that the receiver has mapped."""
    if not f.has(source, "mapped-alone"):
        return []
    one, both = "mapped-alone", "mapped-shared"
    start, kernel = f.wins_from(source, one, "stream"), f.wins_from(source, one, "alone")
    big = f.xs(source, "stream", "alone", one)[-1]
    at = [f.near(source, one, x) for x in (4096, 32768, big)]
    gains = ", ".join(f"{times(f.ratio(source, 'stream', one, x))} at {human(x)}" for x in dict.fromkeys(at))
    text = (
        f"Source {source}: one copy in user space, out of memory that both map (the preloaded heap, no kernel module), is quicker than "
        + (f"two copies from {human(start)} on" if start else "two copies at no upper range of sizes")
        + (f", and than the kernel's copy from {human(kernel)} on" if kernel else ", and than the kernel's copy at no upper range of sizes")
        + f". Two copies take so many times its time: {gains}."
    )
    shared = f.wins_from(source, both, one) if f.has(source, both) else None
    if shared:
        text += f" Both sides copying: from {human(shared)} on, {times(f.ratio(source, one, both, big))} times at {human(big)}."
    if start is None:
        return [(GONE, text)]
    # "Nearly useless below 4 KiB": it does not pay there, or little.
    small = [x for x in f.xs(source, "stream", one) if 256 <= x < 4096]
    most = max((f.ratio(source, "stream", one, x) for x in small), default=0)
    return [(HOLDS if most < 1.25 else GONE, text + f" Below 4 KiB they take at most {times(most)} times its time.")]


def by_kernel(f, source):
    """One copy by the kernel, by one side and by both."""
    if not f.has(source, "alone"):
        return []
    start = f.wins_from(source, "alone", "stream")
    four, big = f.near(source, "alone", 4096), f.xs(source, "stream", "alone")[-1]
    if start is None:
        return [(GONE, f"Source {source}: two copies are quicker than one by the kernel even at {human(big)}.")]
    gains = ", ".join(f"{times(f.ratio(source, 'stream', 'alone', x))} at {human(x)}" for x in (four, f.near(source, "alone", 32768), big))
    found = [
        (
            HOLDS if 4096 < start <= 65536 else PARTLY,
            f"Source {source}: one copy by the kernel is quicker than two from {human(start)} on (MX: above 32 KiB). Two copies take "
            f"so many times the time of one: {gains}.",
        )
    ]
    both = f.wins_from(source, "shared", "alone")
    if both:
        found.append(
            (
                None,
                f"Source {source}: what no paper had, both sides copying a part of one message, is quicker than one side from "
                f"{human(both)} on: {times(f.ratio(source, 'alone', 'shared', big))} times at {human(big)}.",
            )
        )
    return found


def zero_copy(f):
    return [said for source in ("reused", "fresh") for way in (by_kernel, mapped) for said in way(f, source)]


COPIES = [
    ("two copies, through the ring (stream)", "stream"),
    ("one copy by the kernel, one side (alone)", "alone"),
    ("one copy by the kernel, both sides (shared)", "shared"),
    ("one copy, memory that both map, one side (mapped-alone)", "mapped-alone"),
    ("one copy, memory that both map, both sides (mapped-shared)", "mapped-shared"),
]
SIZES = [1 << 8, 1 << 12, 1 << 14, 1 << 15, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 26]

ZERO_COPY = Section(
    "zero-copy",
    "Copy against zero-copy, by size",
    None,
    "Goglin 2006 (*High-Speed Networking in Clusters without OS-bypass and Zero-copy*), figure 1: taking the copy away is nearly "
    "useless below 4 KiB, because copying and sending are pipelined; MX copies messages up to 32 KiB.",
    "Between two processes of one host, the paper's copy is two copies through a ring of shared memory (the second overlaps the first), "
    "and its zero-copy is one copy from the sender's buffer to the receiver's: by the kernel, or in user space where the buffers lie in "
    "memory that the peer maps. *Reused*: the sender's buffer stays as it "
    "is, as in most benchmarks; *fresh*: it is rewritten before each message, as programs do.",
    [(source, way) for source in ("reused", "fresh") for way in ("stream", "alone", "mapped-alone", "mapped-shared")],
    [
        Panel(f"source {source}", "message size", "GB/s", [(label, source, way, gbs) for label, way in COPIES], least=256)
        for source in ("reused", "fresh")
    ],
    [Table(f"size ({source})", SIZES, [(way, source, way) for _, way in COPIES], time) for source in ("reused", "fresh")],
    zero_copy,
)


# ---- system calls ----


def calls(f):
    x = f.xs("latency", "user")[0]
    user, every, per = (f.at("latency", s, x) for s in ("user", "every-call", "per-message"))
    added, call, big = every - user, f.at("call", "system call", 0), f.xs("latency", "user")[-1]
    found = [
        (None, f"A system call that does nothing takes {time(call)} here (75 ns on the paper's Opteron)."),
        (
            HOLDS if added / user < 0.4 else GONE,
            f"With a system call for every call of the library, a message of {human(x)} takes {time(every)} instead of {time(user)}: "
            f"{added / user:+.0%} (2006: 3.3 µs instead of 2.4 µs, +38 %, and +20 % after tuning); with one for each send and receive "
            f"{per / user - 1:+.0%}. A call costs what it cost then, a message a fraction: beside 2.4 µs the same {time(abs(added))} "
            f"would be {added / 2400:+.0%}.",
        ),
    ]
    ratios = {s: f.ratio("latency", s, "user", big) for s in ("every-call", "per-message")}
    found.append(
        (
            HOLDS if ratios["per-message"] < 1.1 else GONE,
            f"Large messages lose little: at {human(big)}, one call a message {ratios['per-message'] - 1:+.0%}, one for every piece of 4 "
            f"KiB and every idle poll {ratios['every-call'] - 1:+.0%}. That is why long messages may well go through the kernel.",
        )
    )
    xs = f.xs("batch", "per-batch", "user")
    cheap = next((k for k in xs if f.ratio("batch", "per-batch", "user", k) < 1.25), None)
    found.append(
        (
            HOLDS if cheap else PARTLY,
            f"Batching pays for the call: streamed small messages cost {time(f.at('batch', 'user', xs[0]))} each without calls, "
            f"{time(f.at('batch', 'per-batch', xs[0]))} with one a message, {time(f.at('batch', 'per-batch', xs[-1]))} with one "
            f"for {xs[-1]:.0f}" + (f"; from {cheap:.0f} on it is within a quarter." if cheap else "; that is never within a quarter."),
        )
    )
    found.append(
        (
            None,
            f"The kernel's own path (a Unix socket, both sides spinning) takes {time(f.at('latency', 'socket', x))} at {human(x)}, "
            f"{f.ratio('latency', 'socket', 'user', x):.1f} times the ring's, and {f.ratio('latency', 'socket', 'user', big):.2f} times "
            f"at {human(big)}.",
        )
    )
    return found


PATHS = [
    ("user code only", "user"),
    ("a system call for every call", "every-call"),
    ("one for each send and receive", "per-message"),
    ("Unix socket", "socket"),
]

CALLS = Section(
    "calls",
    "User-level path against a system call each time",
    "calls",
    "Goglin 2006, figure 2: with every call of MX replaced by a system call, latency is 3.3 µs instead of 2.4 µs and bandwidth nearly "
    "the same for large messages; avoiding several calls in a busy loop won 300 ns back, net cost about 20 %.",
    "Ping-pong and stream through a ring of our own in shared memory, in pieces of 4 KiB, with a call that does nothing (`getppid`) "
    "added at the places named. It is the entry into the kernel that is measured, not work in it.",
    [("latency", s) for _, s in PATHS] + [("batch", "per-batch"), ("call", "system call")],
    [
        Panel("one way of a ping-pong", "message size", "time", [(label, "latency", s) for label, s in PATHS]),
        Panel(
            "streamed messages of 8 B",
            "messages for each system call",
            "time of a message",
            [("with system calls on both sides", "batch", "per-batch"), ("without", "batch", "user")],
        ),
    ],
    [Table("size", [8, 512, 8192, 32768, 131072, 524288], [(s, "latency", s) for _, s in PATHS], time)],
    calls,
)
