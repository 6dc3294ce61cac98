"""What a formula accepts: one finite number each, in its range; all else is named with its limit and the remedy."""

import math
from collections.abc import Iterable

from underload.request.errors import UnderloadError

#: Rates, times and variabilities lie between these, or are 0. Beyond them squares and products leave the doubles, and
#: the formulas would answer NaN where they should have asked about a unit.
TINIEST, HUGEST = 1e-100, 1e100


def number(name: str, value: object) -> float:
    """`value` as a finite float.

    Raises:
        UnderloadError: text, an array, a truth value, NaN or infinity.
    """
    # NumPy's truth values and texts, 0-d arrays of them too, would pass through float().
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if isinstance(value, (bool, str, bytes)) or value is None or (kind and kind not in "fiuO"):
        raise UnderloadError(f"{name} must be a number, got {value!r:.60}; write it without quotes, as in {name}=2.5")
    try:
        if getattr(value, "ndim", 0):
            raise TypeError
        found = float(value)  # type: ignore[arg-type]
    except OverflowError:
        found = math.inf
    except (TypeError, ValueError):
        what = "several values" if isinstance(value, Iterable) else f"{value!r}"
        raise UnderloadError(
            f"{name} must be one number, got {what}; the formulas take one value each: call them in a loop"
        ) from None
    if not math.isfinite(found):
        raise UnderloadError(f"{name} must be a finite number, got {found}; mend what computed it")
    return found


def as_float(value: object) -> float:
    """`value` as a float, infinity too; NaN where it is no number. For checks made at every event."""
    if type(value) is float:
        return value
    try:
        return math.nan if isinstance(value, (str, bytes)) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def at_least_zero(name: str, value: object, unit: str) -> float:
    """`value` as a float of 0 or more; below 1e-100 it counts as 0.

    Raises:
        UnderloadError: not a number, negative, or too large for a formula (above 1e100).
    """
    found = number(name, value)
    if found < 0:
        raise UnderloadError(f"{name} must be at least 0{_in(unit)}, got {found:g}; check its sign")
    return within_reach(name, found, unit) if found >= TINIEST else 0.0


def above_zero(name: str, value: object, unit: str) -> float:
    """`value` as a float above 0.

    Raises:
        UnderloadError: not a number, zero, negative, or too large or too small for a formula (below 1e-100, above
            1e100).
    """
    found = number(name, value)
    if found <= 0:
        raise UnderloadError(f"{name} must be above 0{_in(unit)}, got {found:g}; check its sign and its unit")
    return within_reach(name, found, unit)


def within_reach(name: str, value: float, unit: str) -> float:
    """`value`, which is above 0, unless no formula can hold it.

    Raises:
        UnderloadError: below 1e-100, or above 1e100.
    """
    if not TINIEST <= value <= HUGEST:
        raise UnderloadError(
            f"{name} must lie between {TINIEST:g} and {HUGEST:g}{_in(unit)}, got {value:g}; check its unit, and what "
            "computed it"
        )
    return value


def whole(name: str, value: object, *, least: int, most: int = 10**8) -> int:
    """`value` as a whole number from `least` to `most`.

    Raises:
        UnderloadError: not a number, not whole, or outside.
    """
    found = number(name, value)
    if found != int(found) or not least <= found <= most:
        raise UnderloadError(f"{name} must be a whole number from {least} to {most:,}, got {found:g}; count them")
    return int(found)


def _in(unit: str) -> str:
    return f" (in {unit})" if unit else ""


def level(q: object) -> float:
    """P(T > t) at the q-th percentile: 0.01 for q = 99.

    Raises:
        UnderloadError: q below 0, or not below 100.
    """
    found = number("q", q)
    if not 0 <= found < 100:
        raise UnderloadError(f"a percentile of a law lies from 0 up to but not at 100, got {found:g}; write 99 for p99")
    return (100 - found) / 100
