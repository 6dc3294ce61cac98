"""What the machine did in a window of time, from many timelines.

A window is (start, end) in seconds, half open: [start, end). Without one it is the span of the timelines, from the
first arrival to the last token, both counted. A rate over no time at all is None.
"""

import math
from collections.abc import Callable, Iterable

from underload.metrics.latency import succeeded
from underload.request.errors import UnderloadError
from underload.request.records import Timeline

Window = tuple[float, float]


def span(timelines: Iterable[Timeline]) -> Window | None:
    """From the first arrival to the last token (or the end of a request without tokens); None for no timelines.

    Raises:
        UnderloadError: an instant that is NaN.
    """
    timelines = list(timelines)
    if not timelines:
        return None
    ends = []
    for t in timelines:
        last = t.finished if t.last_token is None else t.last_token  # 0 s is an instant
        ends.append(t.arrival if last is None else max(t.arrival, last))
        if t.arrival != t.arrival or last != last:
            raise UnderloadError(f"an instant is NaN: arrival {t.arrival}, end {last}; mend what stamped it")
    return min(t.arrival for t in timelines), max(ends)


def checked(window: Window) -> Window:
    """The window itself.

    Raises:
        UnderloadError: it is no pair of finite instants in their order.
    """
    try:
        start, end = window
        if -math.inf < start <= end < math.inf:
            return start, end
    except (TypeError, ValueError):
        pass
    raise UnderloadError(
        f"a window is (start, end) in s, both finite, and must not end before it starts; got {window!r:.60}"
    )


def throughput(timelines: Iterable[Timeline], window: Window | None = None) -> float | None:
    """Output tokens a second: the tokens handed over in the window, also those of unfinished and failed requests."""
    return _rate(timelines, window, lambda timeline: timeline.token_times)


def request_throughput(timelines: Iterable[Timeline], window: Window | None = None) -> float | None:
    """Requests a second that succeeded, counted at their last token."""
    return _rate(timelines, window, lambda timeline: timeline.token_times[-1:] if succeeded(timeline) else [])


def _rate(
    timelines: Iterable[Timeline], window: Window | None, events: Callable[[Timeline], list[float]]
) -> float | None:
    """Events in the window, per second. `events` gives the instants at which a timeline counts."""
    timelines = list(timelines)
    chosen = window if window is not None else span(timelines)
    if chosen is None:
        return None
    start, end = checked(chosen)
    if end == start:
        return None
    instants = (instant for timeline in timelines for instant in events(timeline))
    return sum(1 for instant in instants if window is None or start <= instant < end) / (end - start)
