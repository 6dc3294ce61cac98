"""A run as a trace that Perfetto (ui.perfetto.dev) and Chrome (chrome://tracing) draw.

    chrome_trace        steps and requests as one object in the Trace Event Format
    write_chrome_trace  the same into a file, packed where its name ends in .gz

What it shows: the steps in a row, with what each computed; counters of blocks, queue and batch beside them; and a track
for each request, cut into waiting, prefill and decode.

Format: Duffy et al., "Trace Event Format" (Google, 2016): complete events "X", counters "C", nestable async events "b"
and "e", metadata "M". Times are microseconds.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from underload.request import Request, StepRecord, Timeline

_ENGINE, _REQUESTS = 1, 2  # the two groups of tracks
_STEPS = 1  # the row of steps

Event = dict[str, Any]


def chrome_trace(steps: Iterable[StepRecord], requests: Iterable[Request]) -> dict[str, Any]:
    """A run in the Trace Event Format, ready for `json.dump`.

    A request's track begins at its arrival and is cut where it was first scheduled and where its first token came; one
    that was never scheduled has only waited. What is unfinished ends with the last instant of the run, and says so.

    Args:
        steps: `engine.steps`.
        requests: `engine.finished`, and others that are still live if they are to be seen.
    """
    steps, requests = list(steps), list(requests)
    end = max(
        [step.start + step.duration for step in steps] + [_last(request.timeline) for request in requests], default=0.0
    )
    events = [event for step in steps for event in _step(step)]
    if steps:
        events += _counters(steps[-1].start + steps[-1].duration, queue={"waiting": 0}, batch={"sequences": 0})
    for number, request in enumerate(requests):
        events += _request(number, request, end)
    # Stable: what one track says at one instant stays in its order, so that a phase ends before the next begins.
    events.sort(key=lambda event: event["ts"])
    return {"traceEvents": [*_names(), *events], "displayTimeUnit": "ms"}


def write_chrome_trace(path: str | Path, steps: Iterable[StepRecord], requests: Iterable[Request]) -> None:
    """Write `chrome_trace` to a file; one that ends in .gz is packed, and the viewers take it as it is."""
    trace = chrome_trace(steps, requests)
    if str(path).endswith(".gz"):
        with gzip.open(path, "wt", encoding="utf-8") as packed:
            json.dump(trace, packed, allow_nan=False)
    else:
        with open(path, "w", encoding="utf-8", newline="\n") as plain:
            json.dump(trace, plain, allow_nan=False)


def _names() -> list[Event]:
    """What the viewers write beside the tracks."""
    return [
        {"ph": "M", "name": "process_name", "pid": _ENGINE, "args": {"name": "engine"}},
        {"ph": "M", "name": "thread_name", "pid": _ENGINE, "tid": _STEPS, "args": {"name": "steps"}},
        {"ph": "M", "name": "process_name", "pid": _REQUESTS, "args": {"name": "requests"}},
    ]


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _step(step: StepRecord) -> Iterator[Event]:
    kinds = {"prefill": step.prefill_tokens, "decode": step.decode_tokens, "padding": step.padding_tokens}
    yield {
        "ph": "X",
        "cat": "step",
        "name": " + ".join(name for name, tokens in kinds.items() if tokens) or "copies",
        "pid": _ENGINE,
        "tid": _STEPS,
        "ts": _us(step.start),
        "dur": _us(step.start + step.duration) - _us(step.start),
        "args": {
            "batch_size": step.batch_size,
            "prefill_tokens": step.prefill_tokens,
            "decode_tokens": step.decode_tokens,
            "padding_tokens": step.padding_tokens,
            "context_tokens": step.context_tokens,
            "bytes_read": step.bytes_read,
            "flops": step.flops,
        },
    }
    # The batch and the queue are those of the step; the blocks are what it left behind.
    yield from _counters(step.start, queue={"waiting": step.queue_length}, batch={"sequences": step.batch_size})
    blocks = {"used": step.blocks_used, "cached": step.blocks_cached, "free": step.blocks_free}
    yield from _counters(step.start + step.duration, blocks=blocks)


def _counters(instant: float, **values: dict[str, int]) -> Iterator[Event]:
    for name, series in values.items():
        yield {"ph": "C", "name": name, "pid": _ENGINE, "ts": _us(instant), "args": series}


def _request(number: int, request: Request, end: float) -> Iterator[Event]:
    timeline = request.timeline
    stop = end if timeline.finished is None else timeline.finished
    # arrival ... scheduled: waiting     scheduled ... first token: prefill     first token ... finished: decode
    borders = [timeline.arrival]
    for instant in (timeline.scheduled, timeline.first_token):
        borders.append(stop if instant is None else instant)
    borders.append(stop)
    facts: dict[str, Any] = {
        "prompt_tokens": timeline.prompt_tokens,
        "cached_tokens": timeline.cached_tokens,
        "output_tokens": timeline.output_tokens,
        "preemptions": timeline.preemptions,
        "finish_reason": timeline.finish_reason or "unfinished",
    }
    if request.error:
        facts["error"] = request.error

    def event(phase: str, name: str, instant: float, **more: Any) -> Event:
        track = {"cat": "request", "id": number, "pid": _REQUESTS, "tid": 0}
        return {"ph": phase, "name": name, **track, "ts": _us(instant), **more}

    yield event("b", request.request_id, borders[0], args=facts)
    for name, begin, until in zip(("waiting", "prefill", "decode"), borders, borders[1:]):
        if begin < until:
            yield event("b", name, begin)
            yield event("e", name, until)
    yield event("e", request.request_id, stop)


def _last(timeline: Timeline) -> float:
    known = (timeline.arrival, timeline.scheduled, timeline.last_token, timeline.finished)
    return max(instant for instant in known if instant is not None)
