"""How long a batch takes: t(rows, longest), from a prior, from measurements at load, and from the steps that ran.

The base is a straight line, `fixed + slope · rows · longest`, until measurements at load replace it by a grid of rungs
and lengths. The steps that run refine it: an affine map of the base is fitted to them, which for the line is the fit
of `fixed` and `slope` themselves. It knows nothing of requests or clocks.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

PRIOR_FIXED_S = 0.010
PRIOR_SLOPE_S = 0.002 / 100
"""Before anything is measured: 10 ms a batch, and 2 ms a padded second of audio (a frame is 10 ms)."""

REMEMBERED_STEPS = 200
"""Steps that the fit remembers, about: an older one counts for less with every new one."""

PRIOR_WEIGHT = 1.0
"""What the base weighs in the fit, in steps: it keeps the fit defined while all batches look alike."""

MIN_TIME_S = 1e-6

MAX_TIME_S = 1e9
MIN_SCALE = 1e-3

MAX_SURPRISE = 10.0
"""A step counts for at most so many times what it was estimated to take."""

Sums = tuple[float, float, float, float, float]
"""Of the remembered steps: their weight, x, y, xx and xy, where x is a step's base and y what it took."""

NO_SUMS: Sums = (0.0, 0.0, 0.0, 0.0, 0.0)

MAX_KNOWN = 1 << 12
"""Lengths of which the time of a batch is kept once it is worked out, for each number of rows."""


class _Row(dict[int, float]):
    """What batches of so many rows take by their longest one, each worked out when it is first asked for."""

    def __init__(self, work_out: Callable[[int], float]) -> None:
        super().__init__()
        self._work_out = work_out

    def __missing__(self, longest: int) -> float:
        if len(self) >= MAX_KNOWN:
            self.clear()
        time_s = self[longest] = self._work_out(longest)
        return time_s


class CostTable:
    """The time of a batch by its rows and its longest row, in seconds and frames of 10 ms."""

    def __init__(self, fixed_s: float = PRIOR_FIXED_S, slope_s: float = PRIOR_SLOPE_S) -> None:
        """Start from `fixed_s` a batch and `slope_s` a padded frame."""
        self._fixed_s, self._slope_s = fixed_s, slope_s
        # rows → [(longest, seconds)], both ascending.
        self._grid: dict[int, list[tuple[int, float]]] = {}
        self._rungs: list[int] = []
        # What was read off the grid before: selections ask for the same batches again and again.
        self._known: dict[int, _Row] = {}
        self._sums: Sums = NO_SUMS
        self._offset_s, self._scale = 0.0, 1.0

    def measure(self, num_rows: int, longest: int, seconds: float) -> None:
        """Take a measurement made at load; the base then goes through it.

        A disturbance only lengthens a batch: one that took longer than a larger or longer one counts as long as that,
        and one that took longer than its rows in smaller batches, one after the other, counts as long as those.
        """
        grid = {rows: dict(points) for rows, points in self._grid.items()}
        grid.setdefault(num_rows, {})[longest] = seconds
        self._rungs = sorted(grid)
        for points in grid.values():
            for longer, shorter in pairwise(sorted(points, reverse=True)):
                points[shorter] = min(points[shorter], points[longer])
        for larger, smaller in pairwise(reversed(self._rungs)):
            for frames in grid[larger].keys() & grid[smaller].keys():
                grid[smaller][frames] = min(grid[smaller][frames], grid[larger][frames])
        for smaller, larger in pairwise(self._rungs):
            for frames in grid[larger].keys() & grid[smaller].keys():
                one_by_one_s = grid[smaller][frames] * larger / smaller
                grid[larger][frames] = min(grid[larger][frames], one_by_one_s)
        self._grid = {rows: sorted(points.items()) for rows, points in grid.items()}
        self._known.clear()
        self._sums = NO_SUMS
        self._offset_s, self._scale = 0.0, 1.0

    def is_measured(self, num_rows: int, longest: int) -> bool:
        """Tell whether a batch of exactly that shape was measured."""
        return any(frames == longest for frames, _ in self._grid.get(num_rows, ()))

    def observe(self, num_rows: int, longest: int, seconds: float) -> None:
        """Learn from a step that ran: O(1). One that took far longer than estimated, as when the machine slept, counts
        as MAX_SURPRISE times the estimate."""
        if not seconds > 0:
            return
        seconds = min(seconds, MAX_SURPRISE * self.batch_time_s(num_rows, longest))
        base = self._base_s(num_rows, longest)
        keep = 1 - 1 / REMEMBERED_STEPS
        seen = (1.0, base, seconds, base * base, base * seconds)
        weight, x, y, xx, xy = (
            kept * keep + new for kept, new in zip(self._sums, seen, strict=True)
        )
        self._sums = (weight, x, y, xx, xy)
        self._fit()

    def batch_time_s(self, num_rows: int, longest: int) -> float:
        """Return the estimated time of a batch, in seconds, above 0."""
        base = self._base_s(num_rows, longest)
        time_s = self._offset_s + self._scale * base
        return time_s if time_s > MIN_TIME_S else MIN_TIME_S

    @property
    def line(self) -> tuple[float, float] | None:
        """The table as (fixed, slope) of fixed + slope · rows · longest; None once it has measurements at load."""
        if self._grid:
            return None
        return self._offset_s + self._scale * self._fixed_s, self._scale * self._slope_s

    def batch_times_s(self, num_rows: int, lengths: Sequence[int]) -> list[float]:
        """Return `batch_time_s` of so many rows for each longest row, quickly."""
        offset_s, scale = self._offset_s, self._scale
        if self._grid:
            row = self._row(num_rows)
            times_s = [offset_s + scale * row[longest] for longest in lengths]
        else:
            fixed_s, frame_s = self._fixed_s, self._slope_s * num_rows
            times_s = [offset_s + scale * (fixed_s + frame_s * longest) for longest in lengths]
        if min(times_s, default=MIN_TIME_S) < MIN_TIME_S:
            return [max(MIN_TIME_S, time_s) for time_s in times_s]
        return times_s

    def as_dict(self) -> dict[str, Any]:
        """Return the whole table as plain data, for a file; `from_dict` reads it."""
        return {
            "fixed_s": self._fixed_s,
            "slope_s_per_frame": self._slope_s,
            "offset_s": self._offset_s,
            "scale": self._scale,
            "fit": self._sums,
            "grid": {str(rows): points for rows, points in self._grid.items()},
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CostTable:
        """Build a table from what `as_dict` gave; it goes on learning from there.

        Raises ValueError, TypeError, KeyError, AttributeError or OverflowError for anything else.
        """
        _check(data)
        table = cls(data["fixed_s"], data["slope_s_per_frame"])
        for rows, points in data["grid"].items():
            for longest, seconds in points:
                table.measure(int(rows), longest, seconds)
        table._offset_s, table._scale = data["offset_s"], data["scale"]
        weight, x, y, xx, xy = data["fit"]
        table._sums = (weight, x, y, xx, xy)
        return table

    def _base_s(self, num_rows: int, longest: int) -> float:
        if not self._grid:
            return self._fixed_s + self._slope_s * num_rows * longest
        return self._row(num_rows)[longest]

    def _row(self, num_rows: int) -> _Row:
        row = self._known.get(num_rows)
        if row is None:
            row = self._known[num_rows] = _Row(partial(self._measured_s, num_rows))
        return row

    def _measured_s(self, num_rows: int, longest: int) -> float:
        index = bisect_left(self._rungs, num_rows)
        if index == len(self._rungs):  # beyond the top rung, in proportion to it
            top = self._rungs[-1]
            return _interpolate(self._grid[top], longest) * num_rows / top
        above = self._rungs[index]
        time_above = _interpolate(self._grid[above], longest)
        if above == num_rows or index == 0:
            return time_above
        below = self._rungs[index - 1]
        time_below = _interpolate(self._grid[below], longest)
        return time_below + (time_above - time_below) * (num_rows - below) / (above - below)

    def _fit(self) -> None:
        """Fit seconds = offset + scale · base by least squares, drawn to the base in proportion.

        The base enters as two points on the line through the origin and the steps' mean, at 0 and at twice the mean.
        So batches that all look alike scale the base, and different ones soon outweigh it. What a batch of nothing
        takes is kept from 0 up, or large batches that are slower than thought would make small ones free. Where it was
        measured, it is kept between that and twice that: rows that now and then take twice as long would look like a
        fixed cost, and long ones that are slower than measured would make a measured gain of batches a loss.
        """
        steps, sum_x, sum_y, sum_xx, sum_xy = self._sums
        mean_x, mean_y = sum_x / steps, sum_y / steps
        weight = PRIOR_WEIGHT / 2
        total = steps + PRIOR_WEIGHT
        x, y = sum_x + weight * 2 * mean_x, sum_y + weight * 2 * mean_y
        xx, xy = sum_xx + weight * 4 * mean_x**2, sum_xy + weight * 4 * mean_x * mean_y
        spread = total * xx - x * x
        scale = (total * xy - x * y) / spread if spread > 0 else 1.0
        scale = max(scale, MIN_SCALE)  # noise: a longer batch is never quicker
        offset_s = (y - scale * x) / total
        of_nothing_s = self._base_of_nothing_s()
        least_s, most_s = (0.0, of_nothing_s) if self._grid else (-of_nothing_s, math.inf)
        shift_s = min(max(offset_s / scale, least_s), most_s)
        if shift_s != offset_s / scale:
            # Least squares of seconds = scale · (base + shift), where the shift is given.
            shifted = xx + 2 * shift_s * x + shift_s**2 * total
            scale = max((xy + shift_s * y) / shifted, MIN_SCALE)
            offset_s = scale * shift_s
        self._scale, self._offset_s = scale, offset_s

    def _base_of_nothing_s(self) -> float:
        """Return what the base says of the smallest batch without any audio."""
        if not self._grid:
            return self._fixed_s
        return _interpolate(self._grid[self._rungs[0]], 0)


def _interpolate(points: list[tuple[int, float]], longest: int) -> float:
    """Return the time at `longest` on the line through the two points beside it, above 0."""
    if len(points) == 1:
        return points[0][1]
    index = min(max(1, bisect_left(points, longest, key=lambda point: point[0])), len(points) - 1)
    (x0, y0), (x1, y1) = points[index - 1], points[index]
    return max(MIN_TIME_S, y0 + (y1 - y0) * (longest - x0) / (x1 - x0))


def _check(data: dict[str, Any]) -> None:
    """Refuse numbers that no table has: every time in it is from 0 to MAX_TIME_S."""
    times_s = [data["fixed_s"], data["slope_s_per_frame"], *data["fit"]]
    for rows, points in data["grid"].items():
        if int(rows) < 1:
            raise ValueError(f"it has a batch of {rows} rows")
        times_s += [seconds for frames, seconds in points if _checked(frames, 0, math.inf)]
        if not points:
            raise ValueError(f"it has no times of batches of {rows} rows")
    for seconds in times_s:
        _checked(seconds, 0, MAX_TIME_S)
    _checked(data["offset_s"], -MAX_TIME_S, MAX_TIME_S)
    _checked(data["scale"], MIN_SCALE, MAX_TIME_S)


def _checked(number: float, low: float, high: float) -> bool:
    if not (math.isfinite(number) and low <= number <= high):
        raise ValueError(f"it holds {number}")
    return True
