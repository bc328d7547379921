"""Draw charts as SVG that stands in HTML: with a legend, a description, and their numbers as a table."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tfdist.diagnostics.report.markup import details, escape, number, slug, table

_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 18, 30, 50
_TICKS = 5
_MOST_POINTS, _MOST_MARKERS, _MOST_ROWS = 400, 12, 100
_MOST_APART = 100  # marks, or bands; of more, those that nobody could tell apart are drawn as one
_LEAST_APART = 4.0  # between two of them
_LARGEST = 1e30  # what is larger is no measurement, and its differences could be infinite
_ROOM = 0.06  # above and below the values, as a part of their range
_LEAST_PART = 1e-9  # of a number: a shorter axis would have no round numbers
_COLOURS = 6
# Of a size that suits any stroke width; around the origin.
_SHAPES = (
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
    "M-4,-4h8v8h-8z",
    "M0,-5L5,4H-5z",
    "M0,-5.5L5.5,0L0,5.5L-5.5,0z",
    "M0,5L5,-4H-5z",
    "M-1.5,-5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z",
)
_Drawn = TypeVar("_Drawn")
_MARKS = {"fault": "M-5,-5L5,5M-5,5L5,-5", "restart": "M-4,-5L5,0L-4,5z", "checkpoint": "M0,-5L5,0L0,5L-5,0z"}


@dataclass(frozen=True)
class Series:
    """A line through points (x, y), which breaks where x goes back.

    Attributes:
        name: What the legend says.
        points: The points; those that are not finite are left out.
        style: The number of its colour and shape; the line of an odd one is dashed.
    """

    name: str
    points: Sequence[tuple[float, float]]
    style: int = 0

    @property
    def look(self) -> str:
        """Return the classes of its colour and line."""
        return f"c{self.style}{' dashed' if self.style % 2 else ''}"


@dataclass(frozen=True)
class Mark:
    """Something that happened at an x: a fault, a restart or a checkpoint."""

    x: float
    kind: str
    text: str


@dataclass(frozen=True)
class Band:
    """Something that lasted from an x to another."""

    begin: float
    end: float
    text: str


@dataclass(frozen=True)
class Chart:
    """A chart's content; its y axis ends where no value can be above, at `most`."""

    title: str
    x_name: str
    y_name: str
    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    bands: Sequence[Band] = ()
    from_zero: bool = False
    most: float = math.inf
    format_y: Callable[[float], str] = field(default=number)


class _Scale:
    """The places of numbers on an axis."""

    def __init__(
        self, values: Sequence[float], begin: float, end: float, room: float = 0.0, most: float = math.inf
    ) -> None:
        low, high = min(values), max(values)
        if high - low <= _LEAST_PART * max(abs(low), abs(high), 1e-200):
            low, high = low - (abs(low) / 2 or 1), high + (abs(high) / 2 or 1)
        self.low, self.high = low - room * (high - low), min(high + room * (high - low), max(most, *values))
        self._begin, self._end = begin, end

    def __call__(self, value: float) -> float:
        part = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self._begin + part * (self._end - self._begin)

    def ticks(self, *, whole: bool = False) -> list[float]:
        """Return round numbers on the axis, or whole ones."""
        rough = (self.high - self.low) / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
        step = max(step, 1.0) if whole else step
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, min(last, first + 2 * _TICKS) + 1)]


def draw_chart(chart: Chart) -> str:
    """Return a figure of HTML and SVG; empty if no series has a point."""
    series = [curve for curve in map(_cleaned, chart.series) if curve.points]
    if not series:
        return ""
    name = slug(chart.title)
    drawn = [replace(curve, points=_thinned(curve.points)) for curve in series]
    return (
        f'<figure class="chart"><figcaption><h3>{escape(chart.title)}</h3></figcaption>'
        f"{_legend(chart, drawn)}{_svg(chart, drawn, name)}"
        f"{details('The numbers', _numbers(chart, series))}</figure>\n"
    )


def _cleaned(series: Series) -> Series:
    points = [(x, y) for x, y in series.points if abs(x) < _LARGEST and abs(y) < _LARGEST]
    return Series(series.name, points, series.style % _COLOURS)


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return fewer points of the same outline: of each group its least and its greatest."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    size = math.ceil(2 * len(points) / _MOST_POINTS)
    kept = []
    for start in range(0, len(points), size):
        group = range(start, min(start + size, len(points)))
        ends = {min(group, key=lambda row: points[row][1]), max(group, key=lambda row: points[row][1])}
        kept += [points[row] for row in sorted(ends)]
    return [*kept, points[-1]] if kept[-1] != points[-1] else kept


def _svg(chart: Chart, series: Sequence[Series], name: str) -> str:
    xs = [x for curve in series for x, _ in curve.points]
    ys = [y for curve in series for _, y in curve.points]
    xs += [mark.x for mark in chart.marks] + [end for band in chart.bands for end in (band.begin, band.end)]
    across = _Scale(xs, _LEFT, _WIDTH - _RIGHT)
    ys, room = ([*ys, 0.0], 0.0) if chart.from_zero else (ys, _ROOM)
    up = _Scale(ys, _HEIGHT - _BOTTOM, _TOP, room, chart.most)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="{name}-t {name}-d">',
        f'<title id="{name}-t">{escape(chart.title)}</title>',
        f'<desc id="{name}-d">{escape("; ".join(_described(chart, curve) for curve in series))}</desc>',
        *(_band(band, across) for band in _joined_bands(chart.bands, across)),
        _axes(chart, across, up),
        *(_mark(mark, across) for mark in _joined_marks(chart.marks, across)),
        *(_line(curve, across, up, chart) for curve in series),
        "</svg>",
    ]
    return "".join(parts)


def _described(chart: Chart, series: Series) -> str:
    (first_x, first_y), (last_x, last_y) = series.points[0], series.points[-1]
    ends = f"{chart.format_y(first_y)} at {number(first_x)}, {chart.format_y(last_y)} at {number(last_x)}"
    ys = [y for _, y in series.points]
    return (
        f"{series.name}: {ends} {chart.x_name}; from {chart.format_y(min(ys))} to {chart.format_y(max(ys))}"
    )


def _axes(chart: Chart, across: _Scale, up: _Scale) -> str:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = [f'<path class="axis" d="M{_LEFT},{_TOP}V{bottom}H{right}"/>']
    for value in up.ticks():
        y = up(value)
        parts.append(f'<path class="grid" d="M{_LEFT},{y:.1f}H{right}"/>')
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y:.1f}" dy=".35em" class="end">{escape(chart.format_y(value))}</text>'
        )
    is_whole = all(float(x).is_integer() for curve in chart.series for x, _ in curve.points)
    for index, value in enumerate(across.ticks(whole=is_whole)):
        odd = " odd" if index % 2 else ""  # a narrow page leaves these out
        x = across(value)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 20}" class="mid{odd}">{escape(number(value))}</text>')
    parts.append(f'<text x="{right}" y="{_HEIGHT - 6}" class="end name">{escape(chart.x_name)}</text>')
    parts.append(f'<text x="4" y="16" class="name">{escape(chart.y_name)}</text>')
    return "".join(parts)


def _joined_bands(bands: Sequence[Band], across: _Scale) -> list[Band]:
    """Return bands in order of time; of many, one for those between which a reader would see no gap."""
    if len(bands) <= _MOST_APART:
        return list(bands)
    ordered = sorted(bands, key=lambda band: band.begin)
    groups = _groups(ordered, lambda before, band: across(band.begin) - across(before[0].begin))
    return [
        Band(group[0].begin, max(band.end for band in group), _text_of(group[0].text, len(group)))
        for group in groups
    ]


def _joined_marks(marks: Sequence[Mark], across: _Scale) -> list[Mark]:
    """Return marks; of many, one for those of a kind that would hide one another."""
    if len(marks) <= _MOST_APART:
        return list(marks)
    joined = []
    for kind in dict.fromkeys(mark.kind for mark in marks):
        own = sorted((mark for mark in marks if mark.kind == kind), key=lambda mark: mark.x)
        groups = _groups(own, lambda before, mark: across(mark.x) - across(before[0].x))
        joined += [replace(group[0], text=_text_of(group[0].text, len(group))) for group in groups]
    return joined


def _groups(
    ordered: Sequence[_Drawn], distance: Callable[[list[_Drawn], _Drawn], float]
) -> list[list[_Drawn]]:
    """Return what is drawn in groups, each with all that is near its first."""
    groups: list[list[_Drawn]] = []
    for each in ordered:
        if groups and distance(groups[-1], each) < _LEAST_APART:
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def _text_of(first: str, size: int) -> str:
    return first if size == 1 else f"{first}, and {size - 1:,} more"


def _band(band: Band, across: _Scale) -> str:
    begin, end = across(band.begin), across(band.end)
    return (
        f'<rect class="band" x="{begin:.1f}" y="{_TOP}" width="{max(end - begin, 1):.1f}"'
        f' height="{_HEIGHT - _BOTTOM - _TOP}"><title>{escape(band.text)}</title></rect>'
    )


def _mark(mark: Mark, across: _Scale) -> str:
    x = across(mark.x)
    line = f'<path class="stem" d="M0,0V{_HEIGHT - _BOTTOM - _TOP + 6}"/>'
    return (
        f'<g class="mark {mark.kind}" transform="translate({x:.1f},{_TOP - 6})">'
        f'<title>{escape(mark.text)}</title>{line}<path class="sign" d="{_MARKS[mark.kind]}"/></g>'
    )


def _line(series: Series, across: _Scale, up: _Scale, chart: Chart) -> str:
    places = [(across(x), up(y)) for x, y in series.points]
    steps: list[str] = []
    before = -math.inf
    for (x, _), (left, top) in zip(series.points, places, strict=True):
        steps.append(f"{'L' if x >= before and steps else 'M'}{left:.1f},{top:.1f}")
        before = x
    every = math.ceil(len(places) / _MOST_MARKERS)
    dots = "".join(
        f'<path d="{_SHAPES[series.style]}" transform="translate({left:.1f},{top:.1f})">'
        f"<title>{escape(f'{series.name}: {chart.format_y(y)} at {number(x)} {chart.x_name}')}</title></path>"
        for (x, y), (left, top) in list(zip(series.points, places, strict=True))[::every]
    )
    line = f'<path class="line" d="{"".join(steps)}"/>'
    return f'<g class="{series.look}">{line}<g class="dots">{dots}</g></g>'


def _legend(chart: Chart, series: Sequence[Series]) -> str:
    entries = [
        f'<li><svg viewBox="-14 -7 28 14" width="28" height="14" aria-hidden="true"><g class="{curve.look}">'
        f'<path class="line" d="M-14,0H14"/>'
        f'<g class="dots"><path d="{_SHAPES[curve.style]}"/></g></g></svg>{escape(curve.name)}</li>'
        for curve in series
    ]
    for kind in dict.fromkeys(mark.kind for mark in chart.marks):
        entries.append(
            '<li><svg viewBox="-8 -7 16 14" width="16" height="14" aria-hidden="true">'
            f'<g class="mark {kind}"><path class="sign" d="{_MARKS[kind]}"/></g></svg>{kind}</li>'
        )
    if chart.bands:
        swatch = '<rect class="band" width="16" height="14"/>'
        entries.append(f'<li><svg width="16" height="14" aria-hidden="true">{swatch}</svg>evaluation</li>')
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _numbers(chart: Chart, series: Sequence[Series]) -> str:
    """Return the points as a table, all series side by side; of many points only some."""
    rows: dict[float, dict[int, str]] = {}
    for column, curve in enumerate(series):
        for x, y in curve.points[:: math.ceil(len(curve.points) / _MOST_ROWS)]:
            rows.setdefault(x, {})[column] = chart.format_y(y)
    cells = [
        [number(x), *(row.get(column, "") for column in range(len(series)))]
        for x, row in sorted(rows.items())
    ]
    return table([chart.x_name, *(curve.name for curve in series)], cells, label=f"Numbers of {chart.title}")
