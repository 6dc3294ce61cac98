"""What the machine did in a window of time, from many timelines.

A window is (start, end) in seconds, half open: [start, end). Without one it is the span of the timelines, from the
first arrival to the last token, both counted. A rate over no time at all is None.
"""

from collections.abc import Callable, Iterable

from underload.metrics.latency import succeeded
from underload.request.errors import UnderloadError
from underload.request.records import Timeline

Window = tuple[float, float]


def span(timelines: Iterable[Timeline]) -> Window | None:
    """From the first arrival to the last token (or the end of a request without tokens); None for no timelines."""
    timelines = list(timelines)
    if not timelines:
        return None
    ends = [
        max(t.arrival, t.last_token or t.arrival, t.finished if t.finished and not t.token_times else t.arrival)
        for t in timelines
    ]
    return min(t.arrival for t in timelines), max(ends)


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
    start, end = chosen
    if end < start:
        raise UnderloadError(f"a window must not end before it starts, got ({start}, {end})")
    if end == start:
        return None
    instants = (instant for timeline in timelines for instant in events(timeline))
    return sum(1 for instant in instants if window is None or start <= instant < end) / (end - start)
