"""What one request felt, from its timeline. All in seconds; None where the thing has not happened.

    arrival      sent   queued  scheduled        first token             last token
       |---------|-------|---------|----------------|----|--|-------|----|
       |<------- queue time ------>|                |<- ITL, one a gap ->|
       |<----------------- TTFT ------------------->|
       |<----------------------------- E2E ----------------------------->|

Everything starts at `arrival`, the instant the client meant to send: a client that is late must not hide a wait.
"""

from itertools import groupby, pairwise

from underload.request.errors import UnderloadError
from underload.request.records import Timeline
from underload.request.sequence import FinishReason

SUCCESSES = frozenset({FinishReason.STOP, FinishReason.LENGTH})


def queue_time(timeline: Timeline) -> float | None:
    """First scheduled - arrival: client, tokenising and waiting together."""
    return None if timeline.scheduled is None else timeline.scheduled - timeline.arrival


def ttft(timeline: Timeline) -> float | None:
    """Time to first token: first token - arrival."""
    return None if timeline.first_token is None else timeline.first_token - timeline.arrival


def e2e(timeline: Timeline) -> float | None:
    """End-to-end latency: last token - arrival. It says nothing of success: ask `succeeded` too."""
    return None if timeline.last_token is None else timeline.last_token - timeline.arrival


def tpot(timeline: Timeline) -> float | None:
    """Time per output token, (last token - first token)/(n - 1); missing when n < 2, since one token has no gap."""
    times = timeline.token_times
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None


def itl(timeline: Timeline) -> list[float]:
    """Inter-token latencies: the n - 1 gaps between a request's tokens, one per token.

    A chunk of k tokens is k tokens: the gap before it is spread evenly over them. So the gaps number n - 1 and add
    up to last token - first token however the text was cut. `chunk_gaps` and `longest_stall` show what that hides.
    """
    gaps: list[float] = []
    previous: float | None = None
    for time, size in chunks(timeline):
        if previous is None:
            gaps += [0.0] * (size - 1)  # the first chunk's further tokens came with its first
        else:
            gaps += [(time - previous) / size] * size
        previous = time
    return gaps


def chunk_gaps(timeline: Timeline) -> list[float]:
    """The gaps between chunks, as a reader sees them: nothing, then several words at once."""
    times = [time for time, _ in chunks(timeline)]
    return [later - earlier for earlier, later in pairwise(times)]


def longest_stall(timeline: Timeline) -> float | None:
    """The longest gap between chunks; None when all came at once."""
    return max(chunk_gaps(timeline), default=None)


def chunks(timeline: Timeline) -> list[tuple[float, int]]:
    """(instant, tokens) of each chunk: the tokens handed over at one instant."""
    return [(time, len(list(tokens))) for time, tokens in groupby(timeline.token_times)]


def succeeded(timeline: Timeline) -> bool:
    """Whether the request ran to its own end (a stop, or its length) with at least one token."""
    return timeline.finish_reason in SUCCESSES and bool(timeline.token_times)


def check(timeline: Timeline) -> None:
    """Check that the instants that are there come in the order in which they must happen.

    Raises:
        UnderloadError: one comes before its predecessor; the message names both.
    """
    named = [
        ("arrival", timeline.arrival),
        ("sent", timeline.sent),
        ("queued", timeline.queued),
        ("scheduled", timeline.scheduled),
        *((f"token {index}", time) for index, time in enumerate(timeline.token_times)),
        ("finished", timeline.finished),
    ]
    known = [(name, time) for name, time in named if time is not None]
    for (before, earlier), (after, later) in pairwise(known):
        if not earlier <= later:
            raise UnderloadError(
                f"a timeline runs backwards: {before} at {earlier} s, {after} at {later} s; stamp both with one clock"
            )
