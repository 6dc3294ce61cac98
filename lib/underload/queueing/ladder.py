"""The wait and the time in system in M/G/1 for any service law, numerically.

The wait is the sum of a geometric number of residual services (Pollaczek–Khinchine, read as a random walk's ladder):

    P(N = n) = (1 - rho) rho^n,   P(residual > x) = E[max(S - x, 0)] / E[S]

The residual has a density whatever the service law, so it goes on a grid of width h with an error of order h², the
compound law comes out of one power series, and three grids (h, h/2, h/4) give an extrapolated value and an estimate of
its error. Source: Asmussen, "Applied Probability and Queues" (2nd ed., 2003), section VIII.5; the grid is ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from underload.queueing.service import Service
from underload.queueing.waits import Wait, invert
from underload.request.errors import UnderloadError

#: The finest grid, in cells.
FINEST = 1 << 18
#: The largest relative error of P(T > t), as the three grids tell it, that is passed on.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class LadderWait(Wait):
    """The wait (with `served`, the time in system) of an M/G/1 of this load, above 0 and below 1."""

    load: float
    law: Service
    served: bool = False

    def tail(self, t: float) -> float:
        if t < 0:
            return 1.0
        if t == 0:
            return float(self.law.tail(0.0)) if self.served else self.load
        cells = self._cells(t)
        coarse, rough, fine = (self._at_end(t, size) for size in (cells // 4, cells // 2, cells))
        best, before = fine + (fine - rough) / 3, rough + (rough - coarse) / 3
        if abs(best - before) > TOLERANCE * max(best, 1e-8):
            raise UnderloadError(
                f"P(T > {t:g} s) of this law is {best:.3g} give or take {abs(best - before):.1g}, too rough to give "
                f"({t / self.law.mean:,.0f} mean services); simulate it, or ask for a lower percentile"
            )
        return min(1.0, max(best, 0.0))

    def isf(self, share: float) -> float:
        if share >= (float(self.law.tail(0.0)) if self.served else self.load):
            return 0.0
        high = 8 * self.law.mean
        while self._at_end(high, self._cells(high, rough=True)) > share:
            high *= 2
            if high > 1e9 * self.law.mean:
                raise UnderloadError(
                    f"more than {share:.3g} of these times exceed a thousand million mean services; the tail of this "
                    "law is too heavy for that percentile to mean anything: ask for a lower one"
                )

        # The whole curve on a rough grid tells where to look, and how steeply it falls there.
        curve = self._curve(high, self._cells(high, rough=True))
        step = high / (curve.size - 1)
        place = max(1, int(np.argmax(curve <= share)))
        t = float(step) * float(place - (share - curve[place]) / max(curve[place - 1] - curve[place], 1e-300))
        atoms = self.law.atoms() if self.served else None
        if atoms is not None:  # those who need not wait make the law jump at each value of the service: met exactly
            for value in atoms[0][np.abs(atoms[0] - t) < 3 * step][:4].tolist():
                if self.tail(value) <= share < self.tail(math.nextafter(value, 0)):
                    return float(value)
        past = min(place + 4, curve.size - 1)
        before = max(past - 12, 0)
        slope = math.log(max(curve[past], 1e-300) / curve[before]) / (step * (past - before))
        slope = min(slope, -1e-6 / high)
        miss = math.inf
        for _ in range(8):
            found = math.log(max(self.tail(t), 1e-300) / share)
            if abs(found) > miss / 2:
                break  # a kink or a jump, where the slope says little
            miss = abs(found)
            if miss < 1e-9 + 1e-11 / share:  # the transform's own noise
                return t
            t = float(max(t - found / slope, t / 2))
        return invert(self.tail, share, t, 1e-11)

    def _cells(self, t: float, *, rough: bool = False) -> int:
        if rough:  # to find the place only
            wanted, most = max(2_048, 16 * t / self.law.mean), FINEST >> 4
        else:
            wanted, most = max(8_192, 96 * t / self.law.mean), FINEST
            if self.law.atoms() is not None:
                wanted *= 4  # jumps fall between the points of a grid, and extrapolation does not mend that
        return int(min(1 << math.ceil(math.log2(wanted)), most))

    def _at_end(self, t: float, cells: int) -> float:
        return float(self._curve(t, cells, last=True)[-1])

    def _curve(self, t: float, cells: int, *, last: bool = False) -> NDArray[np.float64]:
        """P(T > x) on the grid from 0 to t; with `last`, only the end need be right."""
        grid = np.linspace(0.0, t, cells + 1)
        waits = self._wait_tails(grid)
        if not self.served:
            return waits
        atoms = self.law.atoms()
        if last and atoms is not None:
            values, weights = atoms
            return np.array([weights @ np.where(values > t, 1.0, np.interp(t - values, grid, waits))])
        beyond = np.asarray(self.law.tail(grid), dtype=float)
        mass = beyond[:-1] - beyond[1:]
        middle = (waits[:-1] + waits[1:]) / 2
        if last:
            return np.array([beyond[-1] + mass @ middle[::-1]])
        size = 2 * cells
        spread = np.fft.irfft(np.fft.rfft(mass, size) * np.fft.rfft(middle, size), size)[:cells]
        return beyond + np.concatenate([[0.0], spread])

    def _wait_tails(self, grid: NDArray[np.float64]) -> NDArray[np.float64]:
        """P(W > x) at each point of an even grid from 0."""
        mean = self.law.mean
        # One cell past the end, which gives the end its share.
        left = np.asarray(self.law.excess(np.append(grid, 2 * grid[-1] - grid[-2])), dtype=float) / mean
        mass = np.maximum(left[:-1] - left[1:], 0.0) / 2
        # Half of a cell's mass at each of its ends: the trapezium rule, whose error is of order h².
        mass[1:] += mass[:-1].copy()
        size = 4 * (grid.size - 1)
        # Tilted by r^j, what wraps around in the transform is smaller by r^size = 1e-13.
        tilt = np.exp(np.log(1e-13) / size * np.arange(grid.size))
        steps = np.fft.rfft(mass * tilt, size)
        sums = np.fft.irfft((1 - self.load) / (1 - self.load * steps), size)[: grid.size] / tilt
        found = 1 - (np.cumsum(sums) - sums / 2)
        found[0] = self.load
        return np.minimum(found, self.load)
