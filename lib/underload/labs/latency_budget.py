"""Lab 1, "The latency budget": what its tasks start from, and checks that say what is wrong with a value.

    Server          a request's way through a server, call by call: the real decoder and a scripted one both speak it
    ScriptedServer  a server whose every call takes a known time on a virtual clock: stamps can be checked exactly
    observe         a finished timeline of one request, for the tasks that start from one
    example_log     a log of timelines, the same on every machine
    check_*         raise AssertionError with the wrong value, what it is instead, and what was wanted
    draw_*          the pictures of the lab

Torch-free: the lab's set-up cell puts the real decoder behind `Server`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from underload import figures
from underload.request import Clock, Timeline, VirtualClock

STAGES = ("client", "tokenise", "queue", "prefill", "decode")

# ------------------------------------------------------------------ a server, call by call


class Server(Protocol):
    """What a server does for one request, in the order in which it happens."""

    def encode(self, text: str) -> list[int]:
        """Turn text into token ids."""
        ...

    def turn(self) -> None:
        """Return when the decoder is free for this request."""
        ...

    def prefill(self, ids: list[int]) -> int:
        """Run the whole prompt through the model; the id of the first output token."""
        ...

    def decode(self, token: int) -> int:
        """Run one more token, the latest, through the model; the id of the next."""
        ...

    def to_text(self, token: int) -> str:
        """The text that this token makes safe to send: often one piece, sometimes none yet."""
        ...

    def rest(self) -> str:
        """The text still held back when the last token has come."""
        ...


@dataclass
class ScriptedServer:
    """A server that plays a script: each call moves the virtual clock on by a known time.

    Args:
        clock: the clock that the calls move.
        pieces: the text of each output token; "" where a token shows nothing yet.
        tail: what `rest` returns.
        encode_seconds, turn_seconds, prefill_seconds, rest_seconds: time of these calls, s.
        decode_seconds: time of each decode step in order, s; the last one repeats.
        text_seconds: time of each `to_text`, s.
    """

    clock: VirtualClock
    pieces: Sequence[str] = ("One", " or", " two", ".")
    tail: str = ""
    encode_seconds: float = 0.002
    turn_seconds: float = 0.300
    prefill_seconds: float = 0.040
    decode_seconds: Sequence[float] = (0.010,)
    text_seconds: float = 0.001
    rest_seconds: float = 0.0005
    events: list[tuple[str, float]] = field(default_factory=list)  # (what had just happened, when)
    prompt_ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._count("start", 0.0)
        self.steps = 0
        self.shown = 0

    def _count(self, event: str, seconds: float) -> None:
        self.clock.wait(self.clock.now() + seconds)
        self.events.append((event, self.clock.now()))

    def when(self, event: str) -> float:
        """The instant at which `event` had just happened."""
        return next(instant for name, instant in self.events if name == event)

    def encode(self, text: str) -> list[int]:
        self._count("encode() had returned", self.encode_seconds)
        self.prompt_ids = list(text.encode())
        return list(self.prompt_ids)

    def turn(self) -> None:
        self._count("turn() had returned", self.turn_seconds)

    def prefill(self, ids: list[int]) -> int:
        assert list(ids) == self.prompt_ids, (
            f"prefill() was given {len(ids)} ids, not the {len(self.prompt_ids)} that encode() made"
        )
        self._count("prefill() had returned", self.prefill_seconds)
        return 0

    def decode(self, token: int) -> int:
        assert token == self.steps, f"decode() was given token {token}; the latest one is {self.steps}"
        seconds = self.decode_seconds[min(self.steps, len(self.decode_seconds) - 1)]
        self.steps += 1
        self._count(f"decode() number {self.steps} had returned", seconds)
        return self.steps

    def to_text(self, token: int) -> str:
        assert token == self.shown, f"to_text() was given token {token}; the next one to show is {self.shown}"
        self.shown += 1
        self._count(f"the text of token {self.shown} was ready", self.text_seconds)
        return self.pieces[token] if token < len(self.pieces) else ""

    def rest(self) -> str:
        self._count("rest() had returned", self.rest_seconds)
        return self.tail

    def nearest(self, instant: float) -> str:
        """What had just happened at `instant`, in words; "" when nothing had."""
        name, when = min(self.events, key=lambda event: abs(event[1] - instant))
        return name if abs(when - instant) < 1e-9 else ""


class _Watched:
    """A server seen from outside: passes each call on and writes down when it began and ended."""

    def __init__(self, server: Server, clock: Clock) -> None:
        self._server, self._clock = server, clock
        self.spans: list[tuple[str, float, float]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._server, name)

        def timed(*args: Any) -> Any:
            began = self._clock.now()
            value = call(*args)
            self.spans.append((name, began, self._clock.now()))
            return value

        return timed


def observe(
    server: Server, clock: Clock, text: str, max_tokens: int, arrival: float | None = None
) -> tuple[str, Timeline]:
    """Have `server` answer `text` with `max_tokens` tokens; the answer and its timeline.

    For the tasks that need a timeline before yours can be trusted. It watches the calls from outside, as a tracing
    tool would, instead of stamping from inside.
    """
    arrival = clock.now() if arrival is None else arrival
    watched = _Watched(server, clock)
    ids = watched.encode(text)
    watched.turn()
    answer, token = "", watched.prefill(ids)
    for remaining in reversed(range(max_tokens)):
        answer += watched.to_text(token)
        token = watched.decode(token) if remaining else token
    answer += watched.rest()
    spans: dict[str, list[tuple[float, float]]] = {}
    for name, began, ended in watched.spans:
        spans.setdefault(name, []).append((began, ended))
    return answer, Timeline(
        arrival=arrival,
        sent=spans["encode"][0][0],
        queued=spans["encode"][0][1],
        scheduled=spans["prefill"][0][0],
        token_times=[ended for _, ended in spans["to_text"]],
        finished=spans["rest"][0][1],
        prompt_tokens=len(ids),
        detokenize_seconds=sum(ended - began for began, ended in spans["to_text"] + spans["rest"]),
        finish_reason="length",
    )


# ------------------------------------------------------------------ a log that is the same everywhere


def scripted_timeline(
    arrival: float,
    *,
    client: float = 0.0,
    tokenise: float = 0.001,
    queue: float = 0.0,
    prefill: float = 0.050,
    gaps: Sequence[float] = (0.010,) * 4,
    prompt_tokens: int = 32,
) -> Timeline:
    """A timeline with these stages, in seconds; `gaps` lie between its output tokens (a gap of 0: the same chunk)."""
    instant = arrival + client + tokenise + queue + prefill
    token_times = [instant]
    for gap in gaps:
        token_times.append(token_times[-1] + gap)
    return Timeline(
        arrival=arrival,
        sent=arrival + client,
        queued=arrival + client + tokenise,
        scheduled=arrival + client + tokenise + queue,
        token_times=token_times,
        finished=token_times[-1],
        prompt_tokens=prompt_tokens,
        finish_reason="length",
    )


def example_log(
    requests: int = 120, seed: int = 7, *, floor: float = 0.020, per_token: float = 0.0005
) -> list[Timeline]:
    """Timelines of `requests` requests with known causes: prefill takes `floor` + `per_token` x prompt tokens.

    Prompt lengths are spread evenly over the doublings from 16 to 2,048 tokens; one request in four also waits in a
    queue; a few per cent of noise lie on every stage. The same list for the same arguments on every machine.
    """
    draw = random.Random(seed)
    log, now = [], 0.0
    for _ in range(requests):
        now += draw.expovariate(2.0)
        prompt = round(2 ** draw.uniform(4, 11))
        noise = [draw.uniform(0.97, 1.03) for _ in range(3)]
        log.append(
            scripted_timeline(
                now,
                client=0.0002 * draw.random(),
                tokenise=2e-6 * prompt * noise[0],
                queue=draw.expovariate(4.0) if draw.random() < 0.25 else 0.0,
                prefill=(floor + per_token * prompt) * noise[1],
                gaps=[0.015 * draw.uniform(0.95, 1.05) for _ in range(draw.randint(4, 60))],
                prompt_tokens=prompt,
            )
        )
    return log


# ------------------------------------------------------------------ checks


def _close(value: Any, wanted: float | None, tolerance: float = 1e-9) -> bool:
    if wanted is None or value is None:
        return value is wanted
    try:
        return abs(float(value) - wanted) <= tolerance * max(1.0, abs(wanted))
    except (TypeError, ValueError):
        return False


def _shown(value: Any) -> str:
    return f"{value:.4f} s" if isinstance(value, float) else repr(value)


def check_stamps(serve: Callable[[Server, Clock, str, int, float], tuple[str, Timeline]], **script: Any) -> str:
    """Run `serve` on a scripted server and compare every stamp. Returns a line of praise.

    Args:
        serve: the function of task 1.
        script: changes to the script, see `ScriptedServer`; `text`, `max_tokens` and `late` (seconds between the
            intended arrival and the call) are ours.

    Raises:
        AssertionError: naming the field, its value, which instant that value is, and which was wanted.
    """
    text, max_tokens, late = script.pop("text", "A prompt."), script.pop("max_tokens", 4), script.pop("late", 0.050)
    clock = VirtualClock(start=10.0)
    arrival = clock.now()
    clock.wait(arrival + late)
    server = ScriptedServer(clock, **script)
    called = clock.now()
    returned = serve(server, clock, text, max_tokens, arrival)
    assert isinstance(returned, tuple) and len(returned) == 2, (
        f"serve() must return (text, timeline), got {type(returned).__name__}"
    )
    answer, line = returned
    assert isinstance(line, Timeline), f"the second thing returned must be a Timeline, got {type(line).__name__}"

    assert server.shown == max_tokens, f"{server.shown} tokens were turned into text; {max_tokens} were asked for"
    steps = server.steps
    assert steps == max_tokens - 1, (
        f"decode() ran {steps} times for {max_tokens} tokens; it should run {max_tokens - 1} times: "
        "prefill() gives the first token, and nothing needs the one after the last"
    )
    whole = "".join(server.pieces[:max_tokens]) + server.tail
    assert answer == whole, f"the text is {answer!r}; all that to_text() and rest() returned is {whole!r}"

    calls = [name.partition("(")[0] for name, _ in server.events]
    order = "a request is tokenised, waits for its turn, is prefilled and decoded, and hands over the rest"
    for call in ("encode", "turn", "prefill", "rest"):
        assert call in calls, f"{call}() was never called; {order}"
    assert calls.index("encode") < calls.index("turn") < calls.index("prefill"), (
        f"turn() was called {'before encode' if calls.index('turn') < calls.index('encode') else 'after prefill'}(); "
        + order
    )

    def instant(name: str, value: float | None, wanted: float, meaning: str) -> None:
        if _close(value, wanted):
            return
        if value is None:
            raise AssertionError(f"{name} was never stamped; it is the instant when {meaning}, {_shown(wanted)}")
        instead = "when serve() was called" if _close(value, called) else server.nearest(float(value))
        instead = (
            f", the instant when {instead}"
            if instead and not instead.startswith("when")
            else f", {instead}"
            if instead
            else ""
        )
        raise AssertionError(
            f"{name} is {_shown(float(value))}{instead}; it is the instant when {meaning}, {_shown(wanted)}"
        )

    assert _close(line.arrival, arrival), (
        f"arrival is {_shown(line.arrival)}; it is the intended arrival that was passed in, {_shown(arrival)}"
        + (": stamping the clock instead hides how late the client was" if _close(line.arrival, called) else "")
    )
    instant("sent", line.sent, called, "serve() was called")
    instant("queued", line.queued, server.when("encode() had returned"), "the prompt had become tokens")
    instant("scheduled", line.scheduled, server.when("turn() had returned"), "its turn had come")
    times = line.token_times
    assert len(times) == max_tokens, (
        f"token_times has {len(times)} entries for {max_tokens} tokens: one for each, the first included"
    )
    for index, value in enumerate(times, start=1):
        instant(
            f"token_times[{index - 1}]",
            value,
            server.when(f"the text of token {index} was ready"),
            f"token {index} was handed over as text",
        )
    instant("finished", line.finished, server.when("rest() had returned"), "the last of the text was handed over")
    assert line.prompt_tokens == len(server.prompt_ids), (
        f"prompt_tokens is {line.prompt_tokens}; encode() made {len(server.prompt_ids)}"
    )
    wanted = server.text_seconds * max_tokens + server.rest_seconds
    assert _close(line.detokenize_seconds, wanted, 1e-6), (
        f"detokenize_seconds is {_shown(float(line.detokenize_seconds))}; "
        f"{max_tokens} calls of to_text() and one of rest() took {_shown(wanted)} in all"
    )
    return f"All {4 + max_tokens} stamps are right, and so is the text: {answer!r}."


def check_times(
    times_of: Callable[[Timeline], Mapping[str, Any]],
    line: Timeline,
    wanted: Mapping[str, Any],
    hint: Mapping[str, str] | None = None,
) -> None:
    """Compare `times_of(line)` with `wanted`, name by name.

    Raises:
        AssertionError: naming the quantity, its value, what was wanted, and which slip gives that value.
    """
    got = times_of(line)
    assert isinstance(got, Mapping), f"times_of() must return a dictionary, got {type(got).__name__}"
    for name, right in wanted.items():
        assert name in got, f"{name!r} is missing; the names are {', '.join(wanted)}"
        value = got[name]
        if isinstance(right, list):
            assert isinstance(value, list), f"{name} must be a list of gaps, got {value!r}"
            assert len(value) == len(right), (
                f"{name} has {len(value)} gaps; {line.output_tokens} tokens have {len(right)} between them"
            )
            for index, (mine, theirs) in enumerate(zip(value, right, strict=True)):
                assert _close(mine, theirs, 1e-9), f"{name}[{index}] is {_shown(mine)}; it should be {_shown(theirs)}"
            continue
        if _close(value, right):
            continue
        slip = _slip(name, value, line)
        wanted_text = "None: there is no such number here" if right is None else _shown(float(right))
        raise AssertionError(f"{name} is {_shown(value)}{slip}; it should be {wanted_text}")


def _slip(name: str, value: Any, line: Timeline) -> str:
    """Which common slip gives `value`, in words."""
    if not isinstance(value, (int, float)) or not line.token_times:
        return ""
    n, first, last = line.output_tokens, line.token_times[0], line.token_times[-1]
    if n == 1 and name in ("tpot", "longest_stall"):
        return " (one token has no gap to its name)"
    slips = {
        "ttft": [
            (first - (line.scheduled or 0), "counted from when it was scheduled"),
            (first - (line.sent or 0), "counted from when it was sent"),
        ],
        "tpot": [
            ((last - line.arrival) / n, "the whole time over all tokens, the wait for the first one included"),
            ((last - first) / n, f"divided by {n} tokens, but there are {n - 1} gaps"),
            (
                (last - line.arrival) / max(n - 1, 1),
                "counted from the arrival, so it holds the wait for the first token",
            ),
        ],
        "e2e": [
            ((line.finished or 0) - line.arrival, "up to `finished`, not to the last token"),
            (last - (line.sent or 0), "counted from when it was sent"),
            (last - first, "counted from the first token"),
        ],
        "longest_stall": [
            (max((b - a for a, b in zip(line.token_times, line.token_times[1:], strict=False)), default=0.0), "")
        ],
    }
    return next((f" ({words})" for slip, words in slips.get(name, []) if words and _close(value, slip)), "")


def check_budget(budget: Callable[[Timeline], Mapping[str, float]], line: Timeline) -> None:
    """Compare a budget with the timeline it was made of, stage by stage, then the sum.

    Raises:
        AssertionError: naming the stage, its value and what was wanted.
    """
    assert line.sent is not None and line.queued is not None and line.scheduled is not None
    ends = (line.arrival, line.sent, line.queued, line.scheduled, line.token_times[0], line.token_times[-1])
    got = budget(line)
    assert list(got) == list(STAGES), (
        f"the stages are {', '.join(STAGES)}, in this order; got {', '.join(map(str, got))}"
    )
    for stage, begin, end in zip(STAGES, ends, ends[1:], strict=False):
        assert _close(got[stage], end - begin), (
            f"{stage} is {_shown(float(got[stage]))}; it runs from {begin - line.arrival:.4f} s "
            f"to {end - line.arrival:.4f} s after the arrival, so it takes {_shown(end - begin)}"
        )
    total = sum(got.values())
    assert _close(total, ends[-1] - ends[0]), (
        f"the stages add up to {_shown(total)}; arrival to last token is {_shown(ends[-1] - ends[0])}"
    )


def check_buckets(by_length: Callable[..., list[float | None]]) -> None:
    """Five requests in four buckets.

    Raises:
        AssertionError: naming the bucket, its value and what was wanted.
    """
    lengths = {10: (0.10, 0.30, 0.11), 100: (0.50,), 399: (0.90,)}
    log = [
        scripted_timeline(0.0, prefill=seconds - 0.001, prompt_tokens=length)
        for length, group in lengths.items()
        for seconds in group
    ]
    edges = (1, 50, 100, 200, 400)
    got = by_length(log, edges)
    assert len(got) == len(edges) - 1, f"{len(edges)} edges make {len(edges) - 1} buckets, got {len(got)}"
    wanted = [0.11, None, 0.50, 0.90]
    why = {
        0: "three requests at 0.10, 0.11 and 0.30 s: the median, so that one slow request does not speak for all",
        1: "no prompt has 50 to 99 tokens; no data gives no number",
        2: "a prompt of exactly 100 tokens belongs to the bucket that starts at 100",
        3: "one prompt of 399 tokens",
    }
    for index, (value, right) in enumerate(zip(got, wanted, strict=True)):
        low, high = edges[index], edges[index + 1]
        assert _close(value, right), (
            f"the bucket [{low}, {high}) holds {_shown(value)}; it should hold {_shown(right)} ({why[index]})"
        )


def check_line(fit: Callable[[Sequence[float], Sequence[float]], tuple[float, float]]) -> None:
    """Points on a line, and points near one.

    Raises:
        AssertionError: naming the constant, its value and what was wanted.
    """
    lengths = [16, 64, 256, 1024]
    cases = (
        ([0.02 + 0.0005 * length for length in lengths], 0.02, 0.0005, "points exactly on 0.02 + 0.0005 P"),
        ([0.010, 0.010, 0.010, 0.010], 0.010, 0.0, "the same time at every length"),
        # Residuals +, -, -, + at 0, 10, 20, 30: by hand, slope 0.006 and floor 0.01 (see the text of task 4).
        ([0.020, 0.060, 0.120, 0.200], 0.010, 0.006, "0.020, 0.060, 0.120, 0.200 s at 0, 10, 20, 30 tokens"),
    )
    for seconds, floor, slope, words in cases:
        xs = [0, 10, 20, 30] if seconds[-1] == 0.200 else lengths
        got = fit(xs, seconds)
        assert isinstance(got, tuple | list) and len(got) == 2, (
            f"fit_line() must return (floor, per_token), got {got!r}"
        )
        for name, value, right in zip(("floor", "per_token"), got, (floor, slope), strict=True):
            swapped = (
                " (floor and per_token are swapped)"
                if _close(got[0], slope, 1e-7) and _close(got[1], floor, 1e-7)
                else ""
            )
            assert _close(value, right, 1e-7), (
                f"{name} is {float(value):.6f}, it should be {right:.6f}, for {words}{swapped}"
            )


def check_stream(make: Callable[[str], Any], pieces: Sequence[bytes], stop: str, wanted: Sequence[str]) -> None:
    """Push `pieces` one by one; `wanted` is what each push, and at the end `finish`, must return.

    Raises:
        AssertionError: naming the piece, what came out, what was wanted, and why it matters.
    """
    stream = make(stop)
    sent = ""
    for index, (piece, right) in enumerate(zip([*pieces, None], wanted, strict=True)):
        came = stream.finish() if piece is None else stream.push(piece)
        call = "finish()" if piece is None else f"push({piece!r}), call {index + 1},"
        assert isinstance(came, str), f"{call} returned {came!r}, not a string"
        if came == right:
            sent += came
            continue
        if "\ufffd" in came:
            why = "half a character became a replacement mark: keep its bytes until the other half has come"
        elif stop and came.startswith(right):
            why = "part of a stop string went out, and what has been sent cannot be called back"
        elif right.startswith(came):
            why = "this text was safe to send and was kept"
        else:
            why = "this is not the text of these bytes"
        raise AssertionError(f"{call} returned {came!r}; it should return {right!r} ({why}). Sent before: {sent!r}")


def check_shares(shares: Callable[[Sequence[Timeline]], Mapping[str, float]], log: Sequence[Timeline]) -> None:
    """Compare each stage's share of all the seconds of `log`.

    Raises:
        AssertionError: naming the stage, its share, what was wanted, and the mean of shares when that is what came.
    """
    ends = [
        (line.arrival, line.sent, line.queued, line.scheduled, line.token_times[0], line.token_times[-1])
        for line in log
    ]
    spans = [dict(zip(STAGES, (b - a for a, b in pairwise(e)), strict=True)) for e in ends]  # type: ignore[operator]
    total = sum(sum(span.values()) for span in spans)
    got = shares(log)
    assert list(got) == list(STAGES), (
        f"the stages are {', '.join(STAGES)}, in this order; got {', '.join(map(str, got))}"
    )
    for stage in STAGES:
        right = sum(span[stage] for span in spans) / total
        if _close(got[stage], right):
            continue
        mean = sum(span[stage] / sum(span.values()) for span in spans) / len(spans)
        slip = (
            " (the mean of the requests' own shares: short requests count too much)" if _close(got[stage], mean) else ""
        )
        slip = " (seconds, not a share of them)" if _close(got[stage], right * total) else slip
        raise AssertionError(f"the share of {stage} is {float(got[stage]):.4f}{slip}; it should be {right:.4f}")


def check_random_streams(make: Callable[[str], Any], rounds: int = 300, seed: int = 5) -> None:
    """Random texts, cut into random pieces: the right text, nothing sent too early, nothing held too long.

    Raises:
        AssertionError: naming text, pieces and stop string of the case that failed.
    """
    draw = random.Random(seed)
    for _ in range(rounds):
        text = "".join(draw.choice(("a", "b", "é", "🚉")) for _ in range(draw.randint(1, 24)))
        stop = "".join(draw.choice(("a", "b", "é")) for _ in range(draw.randint(1, 4))) if draw.random() < 0.8 else ""
        raw, pieces = text.encode(), []
        while raw:
            size = draw.randint(1, 6)
            pieces.append(raw[:size])
            raw = raw[size:]
        whole = text[: text.index(stop)] if stop and stop in text else text
        stream, sent, got = make(stop), "", b""
        case = f"text {text!r} in pieces {pieces}, stop {stop!r}"
        for piece in pieces:
            sent += stream.push(piece)
            got += piece
            known = got.decode(errors="ignore")  # the complete characters so far
            assert whole.startswith(sent), f"{sent!r} was sent, but the text is {whole!r}: {case}"
            safe = whole if stop and stop in known else _safe(known, stop)
            assert len(sent) >= len(safe), f"only {sent!r} was sent when {safe!r} was safe: {case}"
        sent += stream.finish()
        assert sent == whole, f"all that was sent is {sent!r}; it should be {whole!r}: {case}"


def _safe(known: str, stop: str) -> str:
    """All of `known` but the longest ending that begins `stop`."""
    waits = next((k for k in range(min(len(stop) - 1, len(known)), 0, -1) if known.endswith(stop[:k])), 0)
    return known[: len(known) - waits]


def check_head_start(
    head_start: Callable[[Sequence[float], float], float], token_times: Sequence[float], rate: float, wanted: float
) -> None:
    """Compare the least delay that hides every stall.

    Raises:
        AssertionError: naming the delay, what was wanted, and what a shorter or longer one does.
    """
    got = head_start(token_times, rate)
    if _close(got, wanted, 1e-6):
        return
    word = "the buffer runs dry" if got < wanted else "the user waits longer than needed"
    raise AssertionError(
        f"the head start is {_shown(float(got))} at {rate:g} tokens/s, and {word}; it should be {_shown(wanted)}"
    )


# ------------------------------------------------------------------ the book's own numbers


def book() -> dict[str, Any]:
    """What the book's machine measured: {"machine", "date", "command", "seconds": {name: s}}.

    Recorded by tests/benchmarks/latency_budget.py.
    """
    return json.loads(Path(__file__).with_suffix(".json").read_text())


# ------------------------------------------------------------------ pictures


def draw_budget(
    budgets: Mapping[str, Mapping[str, float]], *, name: str = "budget", caption: str = ""
) -> figures.Picture:
    """One bar a request, its stages end to end, in milliseconds."""
    fig, ax = figures.axes(xlabel="time since arrival", xunit="ms", ylabel="", height=1.5 + 0.5 * len(budgets))
    longest = max((sum(stages.values()) for stages in budgets.values()), default=0.0)
    for row, stages in enumerate(budgets.values()):
        left = 0.0
        for stage, seconds in stages.items():
            colour = figures.COLORS[stage if stage in STAGES[1:] else "quiet"]
            ax.barh(row, 1e3 * seconds, left=1e3 * left, color=colour, height=0.6, label=stage if row == 0 else None)
            left += seconds
        ax.annotate(" " + figures.quantity(left, "s"), (1e3 * left, row), va="center")
    ax.set_yticks(range(len(budgets)), list(budgets))
    ax.invert_yaxis()
    ax.set_xlim(0, 1e3 * longest * 1.18 or 1)
    ax.legend(ncols=len(STAGES), loc="upper center", bbox_to_anchor=(0.5, 1.0 + 0.35 / len(budgets)))
    named = list(next(iter(budgets.values()), {}))
    data: dict[str, list[Any]] = {"request": list(budgets)}
    data |= {f"{stage} (ms)": [round(1e3 * budget[stage], 3) for budget in budgets.values()] for stage in named}
    spoken = "; ".join(
        f"{label}: " + ", ".join(f"{stage} {figures.quantity(seconds, 's')}" for stage, seconds in budget.items())
        for label, budget in budgets.items()
    )
    return figures.show(
        fig, alt=f"Stages of each request, end to end. {spoken}.", caption=caption, data=data, name=name
    )


def draw_streams(lines: Mapping[str, Timeline], *, name: str = "streams", caption: str = "") -> figures.Picture:
    """Tokens on the screen against the time since arrival, a staircase for each timeline."""
    fig, ax = figures.axes(xlabel="time since arrival", xunit="ms", ylabel="tokens on the screen")
    for variant, (label, line) in enumerate(lines.items()):
        instants = [1e3 * (instant - line.arrival) for instant in line.token_times]
        ax.step(
            [0, *instants],
            range(len(instants) + 1),
            where="post",
            label=label,
            **figures.look("decode", variant, marker=""),
        )
    ax.set_ylim(bottom=0)
    ax.legend()
    spoken = "; ".join(
        f"{label}: {line.output_tokens} tokens, "
        f"the first after {figures.quantity(line.token_times[0] - line.arrival, 's')}, "
        f"the last after {figures.quantity(line.token_times[-1] - line.arrival, 's')}"
        for label, line in lines.items()
    )
    return figures.show(fig, alt=f"Tokens on the screen against time. {spoken}.", caption=caption, name=name)


def draw_ttft(
    lengths: Sequence[float],
    seconds: Sequence[float],
    floor: float,
    per_token: float,
    *,
    at: float | None = None,
    held_out: tuple[float, float] | None = None,
    name: str = "ttft",
    caption: str = "",
) -> figures.Picture:
    """Time to first token against prompt length: measured points, the line fitted to them, and what it says elsewhere.

    Args:
        at: a length whose prediction is marked.
        held_out: (length, seconds) of a measurement that the line has not seen.
    """
    fig, ax = figures.axes(xlabel="prompt", xunit="tokens", ylabel="time to first token", yunit="ms")
    ends = [0.0, max([*lengths, at or 0, held_out[0] if held_out else 0])]
    ax.plot(lengths, [1e3 * s for s in seconds], **figures.look("measurement"), label="measured")
    ax.plot(ends, [1e3 * (floor + per_token * x) for x in ends], **figures.look("prediction"), label="the fitted line")
    spoken = (
        f"Time to first token at {len(lengths)} prompt lengths, and a line from {figures.quantity(floor, 's')} "
        f"rising {figures.quantity(per_token, 's')} a token."
    )
    if at is not None:
        ax.plot([at], [1e3 * (floor + per_token * at)], **figures.look("choice"), label=f"predicted at {at:g} tokens")
        spoken += f" At {at:g} tokens it says {figures.quantity(floor + per_token * at, 's')}."
    if held_out is not None:
        ax.plot([held_out[0]], [1e3 * held_out[1]], **figures.look("live"), label="measured afterwards")
        spoken += f" Measured afterwards at {held_out[0]:g} tokens: {figures.quantity(held_out[1], 's')}."
    ax.set_ylim(bottom=0)
    ax.legend()
    return figures.show(fig, alt=spoken, caption=caption, name=name, data=True)
