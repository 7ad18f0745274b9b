"""The page of the papers: text, tables, and plots as SVG."""

import io
import re

import matplotlib

matplotlib.use("svg")
from figures import Figures  # noqa: E402
from matplotlib import pyplot, ticker  # noqa: E402
from sections import SECTIONS  # noqa: E402
from sections.words import GONE, time  # noqa: E402

HEAD = """<!-- Written by mpi-tests/papers/run.sh from what it measured; sections/ has the text. -->
# What the papers claimed, measured again

Papers of 2004 and 2006 stand behind rustmx: about copies, registration, system calls, caches and their monitors. Here their
figures are measured again, with today's Linux, on one host without a network card, by `mpi-tests/papers/run.sh`. Figures are
medians over rounds in which everything takes turns; after ± is how far the middle half of the rounds is apart, as a part of the
median; bands in the plots are that middle half. Verdicts are computed from the figures: **Holds**, **Holds in part**, **No longer
holds**.
"""

STYLE = {
    # Text stays text: smaller files, and it can be searched. A fixed salt: the same figures give the same file.
    "svg.fonttype": "none",
    "svg.hashsalt": "rustmx",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "figure.facecolor": "white",
    "font.family": "sans-serif",
}


def write_page(data, directory):
    """README.md and plots/*.svg into a directory."""
    (directory / "plots").mkdir(parents=True, exist_ok=True)
    sections = [s for s in SECTIONS if s.id in data["sections"]]
    parts = [HEAD, circumstances(data, sections), summary(data, sections)]
    for s in sections:
        parts.append(told(s, data, directory))
    (directory / "README.md").write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")


def circumstances(data, sections):
    lines = []
    for when in unique(data["sections"][s.id]["measured"] for s in sections):
        names = [s.id for s in sections if data["sections"][s.id]["measured"] == when]
        which = "All sections" if len(names) == len(sections) else ", ".join(names)
        hand = sorted(when["handover_ns"])
        lines.append(
            f"* {which}: {when['time'][:16].replace('T', ' ')} UTC, {when['cpu']}, {when['cores']} cores, "
            f"Linux {when['kernel']}, commit {when['commit']}; "
            f"{when['rounds']} rounds; a cache line from core to core took {hand[0]:.0f} to {hand[-1]:.0f} ns."
        )
        if when["provisional"]:
            lines.append(f"  **Provisional:** {'; '.join(when['provisional'])}.")
    return "\n".join(lines) + "\n"


def unique(values):
    found = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def summary(data, sections):
    lines = ["| section | verdicts |", "|---|---|"]
    for s in sections:
        words = [word for word, _ in verdicts(s, data) if word]
        counts = ", ".join(f"{word}{f' ({words.count(word)} times)' if words.count(word) > 1 else ''}" for word in unique(words))
        anchor = re.sub(r"[^a-z0-9 -]", "", s.title.lower()).replace(" ", "-")
        lines.append(f"| [{s.title}](#{anchor}) | {counts or 'see there'} |")
    gone = [text for s in sections for word, text in verdicts(s, data) if word == GONE]
    if gone:
        lines += ["", "Where the papers no longer hold, on this machine:", "", *(f"* {text}" for text in gone)]
    return "\n".join(lines) + "\n"


def verdicts(section, data):
    figures = Figures.read(data["sections"][section.id])
    try:
        return section.verdict(figures)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as why:
        # A figure that could not be had here is no reason to have no page.
        if not figures.missing:
            raise
        return [(None, f"No verdict: something could not be measured here ({why}).")]


def told(section, data, directory):
    figures = Figures.read(data["sections"][section.id])
    command = "rustmx compare" if section.program is None else f"{section.program}.c"
    lines = [
        f"## {section.title}",
        "",
        f"**Claim.** {section.claim}",
        "",
        f"**How.** {section.how} Measured by `{command}`: `mpi-tests/papers/run.sh --only {section.id}`.",
        "",
    ]
    lines += [f"* {f'**{word}.** ' if word else ''}{text}" for word, text in verdicts(section, data)] + [""]
    if section.id == "monitor" and data.get("torture"):
        lines += tortured(data["torture"])
    if figures.missing:
        lines += ["Not measured: " + "; ".join(figures.missing) + ".", ""]
    draw(section, figures, directory / "plots" / f"{section.id}.svg")
    lines += [f"![{section.title}](plots/{section.id}.svg)", ""]
    for table in section.tables:
        lines += rows(table, figures)
    return "\n".join(lines)


def tortured(runs):
    """A table of the engine's torture tests."""
    lines = ["| the engine's torture tests | allocator | monitor | rounds | compared | wrong |", "|---|---|---|---|---|---|"]
    lines += [f"| {r['test']} | {r['allocator']} | {r['monitor']} | {r['rounds']} | {r['checked']} | {r['wrong']} |" for r in runs]
    return [*lines, ""]


def rows(table, figures):
    columns = [(head, figure, series) for head, figure, series in table.columns if figures.has(figure, series)]
    found = []
    for x in table.xs:
        cells = []
        for _, figure, series in columns:
            value, apart = figures.at(figure, series, x), figures.spread(figure, series, x)
            cells.append("" if value is None else f"{table.show(value)} ± {apart:.0%}" if apart else table.show(value))
        if any(cells):
            found.append(f"| {table.name(x)} | {' | '.join(cells)} |")
    if not found:
        return []
    return [f"| {table.x} | {' | '.join(head for head, _, _ in columns)} |", "|---" * (len(columns) + 1) + "|", *found, ""]


def line_of(figures, line, least):
    """x, and the median and the middle half of what is drawn there."""
    label, figure, series, *change = line
    points = []
    for x in figures.xs(figure, series):
        ordered = sorted(change[0](x, v) if change else v for v in figures.points[figure][series][x])
        last = len(ordered) - 1
        points.append(
            (
                x,
                ordered[last // 2] if last % 2 == 0 else (ordered[last // 2] + ordered[last // 2 + 1]) / 2,
                ordered[last // 4],
                ordered[-(-last * 3 // 4)],
            )
        )
    return label, [p for p in points if p[0] >= least]


def draw(section, figures, path):
    # What could not be measured, or a quick look left out, is no empty frame.
    panels = [p for p in section.panels if any(figures.has(*line[1:3]) for line in p.lines)]
    # Many lines of the same names: told once, below, where they hide nothing.
    names = [[line[0] for line in panel.lines] for panel in panels]
    once = len(panels) > 1 and len(names[0]) > 3 and all(these == names[0] for these in names)
    with matplotlib.rc_context(STYLE):
        wide = min(len(panels), 2) or 1
        high = -(-len(panels) // wide) or 1
        below = 0.2 * -(-len(names[0]) // 2) + 0.1 if once else 0
        figure, axes = pyplot.subplots(high, wide, figsize=(4.8 * wide, 3.3 * high + below), squeeze=False)
        for i, panel in enumerate(panels):
            axis = axes[i // wide][i % wide]
            for number, line in enumerate(panel.lines):
                if not figures.has(*line[1:3]):
                    continue
                label, points = line_of(figures, line, panel.least)
                xs, middle, low, high_ = zip(*points)
                # One colour for one name, whatever else is missing.
                (drawn,) = axis.plot(xs, middle, marker=".", linewidth=1.2, label=label, color=f"C{number}")
                axis.fill_between(xs, low, high_, alpha=0.2, linewidth=0, color=drawn.get_color())
            dress(axis, panel, not once)
        for i in range(len(panels), wide * high):
            axes[i // wide][i % wide].axis("off")
        figure.tight_layout(rect=(0, below / figure.get_figheight(), 1, 1))
        if once:
            drawn = {label: line for axis in figure.axes for line, label in zip(*axis.get_legend_handles_labels())}
            there = [name for name in names[0] if name in drawn]
            figure.legend([drawn[n] for n in there], there, loc="lower center", ncols=2, fontsize=7, frameon=False)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    path.write_text(smaller(text.getvalue()), encoding="utf-8")


def smaller(svg):
    """The same picture in half of the bytes."""
    # A tenth of a point is finer than any screen.
    svg = re.sub(r"-?\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", svg)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: sans-serif", svg)
    return re.sub(r" \n(?=[LMzCQ])", " ", svg)


def dress(axis, panel, legend):
    axis.set_title(panel.title, fontsize=9)
    axis.set_xlabel(panel.x)
    axis.set_ylabel(panel.y)
    if panel.log[0]:
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_locator(ticker.LogLocator(base=2, numticks=9))
        axis.xaxis.set_minor_locator(ticker.NullLocator())
        axis.xaxis.set_major_formatter(lambda x, _: brief(x) if "size" in panel.x else f"{x:.0f}")
    value = time if panel.y.startswith("time") and "times" not in panel.y else "{:g}".format
    axis.yaxis.set_major_formatter(lambda y, _: value(y))
    if panel.log[1]:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(lambda y, _: value(y))
        if narrow(axis):
            axis.yaxis.set_minor_formatter(lambda y, _: value(y) if f"{y:e}"[0] in "25" else "")
        else:
            axis.yaxis.set_minor_locator(ticker.NullLocator())
    else:
        axis.set_ylim(bottom=0)
    if legend and axis.has_data():
        axis.legend(fontsize=7, frameon=False)


def narrow(axis):
    """Whether hardly a power of ten would be labelled."""
    low, high = axis.get_ylim()
    return high / low < 100


def brief(size):
    """A size for an axis: 64k."""
    size = round(size)
    return f"{size >> 20}m" if size >= 1 << 20 else f"{size >> 10}k" if size >= 1 << 10 else str(size)
