"""How many requests a percentile takes, and how sharp it is after so many, in one table."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from underload.metrics.percentiles import _ranks, samples_needed, whole


@dataclass(frozen=True)
class SamplesRow:
    """One percentile: the requests it takes, and at which percentiles of the sample its interval ends."""

    q: float
    upper_limit: int  # requests for a one-sided upper limit
    interval: int  # requests for a two-sided interval
    levels: dict[int, tuple[float, float] | None]  # requests -> (low, high) in per cent; None below `interval`


@dataclass(frozen=True)
class SamplesTable:
    """Requests needed by percentile; prints as a table."""

    confidence: float
    rows: tuple[SamplesRow, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; levels in per cent."""
        return {
            "confidence": self.confidence,
            "percentiles": {
                f"p{row.q:.12g}": {
                    "upper_limit": row.upper_limit,
                    "interval": row.interval,
                    "levels": {str(n): list(found) if found else None for n, found in row.levels.items()},
                }
                for row in self.rows
            },
        }

    def __str__(self) -> str:
        sizes = list(self.rows[0].levels) if self.rows else []
        lines = [
            f"Independent requests for {self.confidence * 100:g} % confidence, and what the interval spans",
            f"{'':<8}{'upper limit':>12}{'interval':>10}" + "".join(f"{f'at {n:,}':>20}" for n in sizes),
        ]
        for row in self.rows:
            cells = (f"p{found[0]:.5g} – p{found[1]:.5g}" if (found := row.levels[n]) else "–" for n in sizes)
            lines.append(
                f"{f'p{row.q:.12g}':<8}{row.upper_limit:>12,}{row.interval:>10,}"
                + "".join(f"{cell:>20}" for cell in cells)
            )
        return "\n".join(lines)

    __repr__ = __str__


def samples_table(
    percentiles: Iterable[float] = (50, 90, 95, 99, 99.9),
    *,
    sizes: Iterable[int] = (1_000, 10_000),
    confidence: float = 0.95,
) -> SamplesTable:
    """How many independent requests each percentile takes, and how sharp it is after `sizes` of them.

    Sharpness is said in percentiles of the sample, which needs no distribution: at 1,000 requests the interval of the
    p99 runs from the sample's p98.3 to its p99.7. What that is in seconds depends on the tail.

    Raises:
        UnderloadError: a percentile not between 0 and 100, confidence not between 0 and 1, or a size below 1.
    """
    sizes = [whole("a size", n, 1) for n in sizes]
    rows = []
    for q in percentiles:
        levels: dict[int, tuple[float, float] | None] = {}
        for n in sizes:
            ranks = _ranks(n, q, confidence)
            levels[n] = None if ranks is None else (100 * ranks[0] / n, 100 * ranks[1] / n)
        rows.append(
            SamplesRow(q, samples_needed(q, confidence, two_sided=False), samples_needed(q, confidence), levels)
        )
    return SamplesTable(confidence, tuple(rows))
