"""Copies: past the cache, and by somebody else."""

from sections.words import GONE, HOLDS, PARTLY, Panel, Section, Table, gbs, time, times
from stacks import human

# ---- non-temporal copies ----


def non_temporal(f):
    xs = f.xs("sum", "plain", "non-temporal")
    hurt = next((x for x in xs if f.at("victim", "plain", x) > 1.1), None)
    better = [x for x in xs if f.ratio("sum", "non-temporal", "plain", x) < 0.97]
    saved = [
        x for x in xs if f.at("victim", "plain", x) > 1.1 and f.at("victim", "non-temporal", x) < 1 + (f.at("victim", "plain", x) - 1) / 2
    ]
    some = [f.near("copy", "plain", x) for x in (65536, 1 << 20)]
    costs = " and ".join(f"{times(f.ratio('copy', 'non-temporal', 'plain', x))} times at {human(x)}" for x in dict.fromkeys(some))
    found = [
        (
            None,
            f"The non-temporal copy itself takes {costs} as long as the plain one; reading its result on the other core takes "
            + " and ".join(f"{times(f.ratio('reader', 'non-temporal', 'plain', x))} times at {human(x)}" for x in dict.fromkeys(some))
            + ".",
        )
    ]
    if hurt is None:
        found.append((GONE, "A plain copy hurts the computation at no size measured."))
    elif saved:
        found.append(
            (
                PARTLY if len(saved) < len([x for x in xs if x >= hurt]) else HOLDS,
                f"A plain copy of {human(hurt)} or more pushes the computation's 1 MiB out of the cache; non-temporal stores avoid more "
                f"than half of that at {', '.join(map(human, saved))}: reading the source fills the cache as well.",
            )
        )
    else:
        found.append(
            (
                GONE,
                f"A plain copy of {human(hurt)} or more pushes the computation's 1 MiB out of the cache, and non-temporal stores save "
                "less than half of that at any size: reading the source fills the cache as well.",
            )
        )
    sizes = ", ".join(map(human, better))
    found.append(
        (
            GONE if not better else HOLDS if len(better) > len(xs) / 2 else PARTLY,
            f"Copy, computation and reader together gain by non-temporal stores at {len(better)} of {len(xs)} sizes"
            + (f": {sizes}. " if better else ". ")
            + "The provider leaves them off all the same (`FI_RUSTMX_COPY`): here a whole message goes into memory that nobody has in a cache, there "
            "it goes by cells that both caches have, or once, to where it is read. `provider/docs/adr/0018-copy-engines.md` has its own figures.",
        )
    )
    return found


def kinds(figure, change=None):
    return [(name, figure, name) + ((change,) if change else ()) for name in ("plain", "non-temporal")]


NON_TEMPORAL = Section(
    "non-temporal",
    "Non-temporal copies and a victim that lives in the cache",
    "copies",
    "Goglin 2006: copies pollute the cache; non-temporal stores would avoid that.",
    "A message is copied into shared memory by plain `memcpy` or by SSE2 non-temporal stores. Before and after it a computation on the "
    "same core passes over 1 MiB of its own, line by line, each depending on the one before; then the other core reads the message.",
    [(figure, kind) for figure in ("copy", "victim", "reader", "sum") for kind in ("plain", "non-temporal")],
    [
        Panel("the copy", "message size", "GB/s", kinds("copy", gbs), (True, False)),
        Panel("the computation afterwards", "message size", "times its undisturbed time", kinds("victim"), (True, False)),
        Panel("copy + computation + reader", "message size", "time", kinds("sum")),
    ],
    [
        Table(
            "size",
            [1 << s for s in (16, 18, 19, 20, 21, 22, 24)],
            [
                ("copy, plain", "copy", "plain"),
                ("non-temporal", "copy", "non-temporal"),
                ("sum, plain", "sum", "plain"),
                ("non-temporal", "sum", "non-temporal"),
            ],
            time,
        ),
        Table(
            "size",
            [1 << s for s in (16, 18, 19, 20, 21, 22, 24)],
            [("computation after plain", "victim", "plain"), ("after non-temporal", "victim", "non-temporal")],
            times,
        ),
    ],
    non_temporal,
)


# ---- offload ----

HELPERS = [
    ("free core, spinning", "free-spinning"),
    ("free core, woken", "free-sleeping"),
    ("busy core, woken", "busy"),
    ("own core, woken", "same"),
]


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
        (
            HOLDS if free else PARTLY,
            f"With a free core a helper that spins {spinning[1]}; one that must be woken {sleeping[1]}. Half of the time is what one can "
            "win: the copy and a computation of the same length.",
        ),
        (
            None,
            f"On a core where somebody else computes, a woken helper {busy[1]}; what it wins its owner, that computation loses; and it "
            "may have to wait for a whole time slice, which is milliseconds.",
        ),
        (None, f"On the owner's own core it {same[1]}: it is a thread, not the DMA engine of 2006, which needed no core."),
        (
            None,
            "A spinning helper needs a core of its own, a woken one costs the wake-up; MPI ranks usually fill all cores. rustmx lets "
            "the waiting receiver copy instead: it has a free core by definition.",
        ),
    ]


OFFLOAD = Section(
    "offload",
    "Copies offloaded to somebody else, with and without a free core",
    "offload",
    "Goglin 2006: a DMA engine (I/OAT) would take the copies off the processor, to run behind computation.",
    "No such engine is in this machine; a helper thread stands in for it. Its owner computes as long as the copy takes, in registers; "
    "told is the time until both are done, by the time of one after the other on one core.",
    [("time", s) for _, s in HELPERS],
    [
        Panel(
            "copy and computation together",
            "message size",
            "times one after the other",
            [(label, "time", s) for label, s in HELPERS],
            (True, True),
        )
    ],
    [Table("size", [1 << s for s in (14, 16, 18, 20, 22, 24)], [(label, "time", s) for label, s in HELPERS], times)],
    offload,
)
