"""What a section is made of, and how its figures are put into words."""

import dataclasses
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
    least: float = 0  # the first x that is drawn


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
    engine: bool = False  # whether the engine's own program (provider/benches/reuse.rs) has figures for it


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
