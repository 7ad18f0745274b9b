"""What goes wrong without a monitor, and what one costs."""

from sections.words import GONE, HOLDS, PARTLY, Panel, Section, Table, pages, time

# ---- the monitor ----

CHANGES = ["munmap, then mmap at the same place", "mmap over it", "mremap of other memory over it", "none (MADV_DONTNEED)"]
PLACES = [
    ("nobody watches", "none"),
    ("another mapping is watched", "elsewhere"),
    ("this one is watched", "watched"),
    ("and the listener is on the same core", "same-core"),
]
OPERATIONS = [("munmap", "munmap"), ("mremap", "mremap"), ("madvise(MADV_DONTNEED)", "discard"), ("first touch", "touch")]


def monitor(f):
    deaf = [f.at("wrong", "deaf", x) for x in range(3)]
    found = [
        (
            HOLDS if min(deaf) > 0 else GONE,
            f"Without being told, {max(deaf):.0f} of 1000 sends carry old bytes after mappings changed between every second send (the "
            "rest are right by chance: eight areas take turns).",
        )
    ]
    if f.has("wrong", "watched"):
        wrong = sum(f.at("wrong", "watched", x) for x in f.xs("wrong", "watched"))
        found.append(
            (
                None,
                f"Told by the kernel: {wrong:.0f} wrong sends. What the articles asked of Linux is there: no module, no patched "
                "`munmap`, no privilege.",
            )
        )
    if f.has("munmap", "watched"):
        x = f.near("munmap", "watched", 16)
        told = [
            f"{label} {time(f.at(op, 'none', x))}, elsewhere {time(f.at(op, 'elsewhere', x))}, watched {time(f.at(op, 'watched', x))}"
            for label, op in OPERATIONS
        ]
        free = all(f.ratio(op, "elsewhere", "none", x) < 1.35 for _, op in OPERATIONS)
        found.append(
            (
                HOLDS if free else PARTLY,
                '"Only areas that hold registered pages pay" (VMA SPY), at 16 pages: '
                + "; ".join(told)
                + ". A watched call waits until the listener has read "
                "the event.",
            )
        )
    return found


MONITOR = Section(
    "monitor",
    "Wrong bytes without a monitor, and what a monitor costs",
    "monitor",
    "Goglin 2006 (both articles): a cache of registrations must follow changes of the address space; intercepting them in user space is "
    "difficult to do right; the kernel should tell. VMA SPY (2004): only areas that hold registered pages pay.",
    "A peer remembers where in shared memory a buffer of 16 KiB lies, by its address; the owner maps other memory there between sends. "
    "The kernel's word comes through `userfaultfd` in write-protect mode (unmap, remap, remove), where nothing is ever protected. This "
    "is the kernel's part; what becomes of the engine's own cache is counted by its torture tests (`torture.sh`), whose processes change "
    "their memory in every way that Linux has, between look-ups and messages and during them; *off* is the same engine that is not told.",
    [("wrong", "deaf"), ("wrong", "watched")] + [(op, place) for _, op in OPERATIONS for _, place in PLACES],
    [Panel(label, "pages", "time", [(name, op, place) for name, place in PLACES]) for label, op in OPERATIONS],
    [
        Table(
            "change between sends",
            [0, 1, 2, 3],
            [("wrong of 1000, nobody tells", "wrong", "deaf"), ("the kernel tells", "wrong", "watched")],
            lambda v: f"{v:.0f}",
            lambda n: CHANGES[int(n)],
        )
    ]
    + [
        Table(f"pages ({label})", [1, 16, 256], [(name, op, place) for name, place in PLACES], time, lambda n: f"{n:.0f}")
        for label, op in OPERATIONS
    ],
    monitor,
)
