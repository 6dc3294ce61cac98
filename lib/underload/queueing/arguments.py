"""What a formula accepts: one finite number each, in its range; all else is named with its limit and the remedy."""

import math
from collections.abc import Iterable

from underload.request.errors import UnderloadError


def number(name: str, value: object) -> float:
    """`value` as a finite float.

    Raises:
        UnderloadError: text, an array, a truth value, NaN or infinity.
    """
    if isinstance(value, (bool, str, bytes)) or value is None:
        raise UnderloadError(f"{name} must be a number, got {value!r}; write it without quotes, as in {name}=2.5")
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


def at_least_zero(name: str, value: object, unit: str) -> float:
    """`value` as a float of 0 or more.

    Raises:
        UnderloadError: not a number, or negative.
    """
    found = number(name, value)
    if found < 0:
        raise UnderloadError(f"{name} must be at least 0{_in(unit)}, got {found:g}; check its sign")
    return found


def above_zero(name: str, value: object, unit: str) -> float:
    """`value` as a float above 0.

    Raises:
        UnderloadError: not a number, zero, or negative.
    """
    found = number(name, value)
    if found <= 0:
        raise UnderloadError(f"{name} must be above 0{_in(unit)}, got {found:g}; check its sign and its unit")
    return found


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
