"""What was measured of one section: medians over the rounds, and questions about them."""

import math
import statistics


def spread(values):
    """How far the middle half is apart, as a part of the median; of so few that they have none, all of them."""
    ordered, last = sorted(values), len(values) - 1
    middle = statistics.median(ordered)
    low, high = (last // 4, last * 3 // 4) if len(values) >= 4 else (0, last)
    return (ordered[high] - ordered[low]) / middle if middle else 0.0


class Figures:
    def __init__(self, points, missing):
        """points: figure -> series -> x -> values of the rounds; missing: lines that say what is not to be had here."""
        self.points, self.missing = points, missing

    @staticmethod
    def read(record):
        points = {}
        for p in record["points"]:
            points.setdefault(p["figure"], {}).setdefault(p["series"], {})[p["x"]] = p["rounds"]
        return Figures(points, record["missing"])

    def record(self):
        """The form of the JSON file."""
        return {
            "points": [
                {
                    "figure": figure,
                    "series": series,
                    "x": x,
                    "median": statistics.median(values),
                    "spread": round(spread(values), 4),
                    "rounds": values,
                }
                for figure, by_series in self.points.items()
                for series, by_x in by_series.items()
                for x, values in sorted(by_x.items())
            ],
            "missing": sorted(self.missing),
        }

    def has(self, figure, series=None):
        return bool(self.points.get(figure, {}).get(series) if series else self.points.get(figure))

    def xs(self, figure, *series):
        """The x that all these series have; of all series if none is named, those that any has."""
        sets = [set(self.points.get(figure, {}).get(s, {})) for s in series]
        sets = sets or [set().union(*(self.points.get(figure, {}).values()))]
        return sorted(set.intersection(*sets))

    def at(self, figure, series, x):
        values = self.points.get(figure, {}).get(series, {}).get(x)
        return statistics.median(values) if values else None

    def spread(self, figure, series, x):
        values = self.points.get(figure, {}).get(series, {}).get(x)
        return spread(values) if values else None

    def near(self, figure, series, x):
        """The x of a series that is nearest to this one, in powers."""
        return min(self.xs(figure, series), key=lambda have: abs(math.log((have + 1) / (x + 1))))

    def ratio(self, figure, series, other, x, other_figure=None):
        """One series by another, at the same x."""
        a, b = self.at(figure, series, x), self.at(other_figure or figure, other, x)
        return a / b if a is not None and b else None

    def wins_from(self, figure, series, other, less=True):
        """The smallest x at which a series is better, and from which on it is never worse; None if there is none. What differs by
        no more than it varies is neither."""
        found = None
        for x in reversed(self.xs(figure, series, other)):
            a, b = self.at(figure, series, x), self.at(figure, other, x)
            noise = max(self.spread(figure, series, x), self.spread(figure, other, x)) * max(a, b)
            if abs(a - b) <= noise:
                continue
            if (a < b) != less:
                break
            found = x
        return found
