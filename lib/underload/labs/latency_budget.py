"""Lab 1, "The latency budget": what its tasks start from, and checks that say what is wrong with a value.

    Server          a request's way through a server, call by call: the real decoder and a scripted one both speak it
    ScriptedServer  a server whose every call takes a known time on a virtual clock: stamps can be checked exactly
    observe         a finished timeline of one request, for the tasks that start from one
    example_log     a log of timelines, the same on every machine
    personal_log    a log of a machine that a student's own number draws
    drawn_*         inputs for checks that must not be known beforehand
    stage_of        a stage by any of its spellings; by_stage a budget with such keys
    check_*         raise AssertionError with the wrong value, what it is instead, and what was wanted
    draw_*          the pictures of the lab

Torch-free: the lab's set-up cell puts the real decoder behind `Server`.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, AnyStr, Protocol

from underload import figures
from underload.labs.answers import as_list, shown
from underload.labs.answers import check_guess as check_guess
from underload.labs.answers import or_library as or_library
from underload.request import Clock, Timeline, VirtualClock

if TYPE_CHECKING:
    from numpy.random import Generator

STAGES = ("client", "tokenise", "queue", "prefill", "decode")
_SPELT = {
    "tokenize": "tokenise",
    "tokenizing": "tokenise",
    "tokenising": "tokenise",
    "tokenization": "tokenise",
    "tokenisation": "tokenise",
    "queueing": "queue",
    "queuing": "queue",
    "prefilling": "prefill",
    "decoding": "decode",
}
"""Other ways to write a stage."""

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

    It goes on whatever it is given, and keeps in `misused` what was wrong with it: a wrong argument must not cost the
    stamps that came out right.

    Args:
        clock: the clock that the calls move.
        pieces: the text of each output token; "" where a token shows nothing yet.
        tail: what `rest` returns.
        encode_seconds, turn_seconds, prefill_seconds, rest_seconds: time of these calls, s.
        decode_seconds: time of each decode step in order, s; the last one repeats.
        text_seconds: time of each `to_text`, s.
    """

    clock: VirtualClock
    pieces: Sequence[str] = ("One", "", " or two", ".")
    tail: str = ""
    encode_seconds: float = 0.002
    turn_seconds: float = 0.300
    prefill_seconds: float = 0.040
    decode_seconds: Sequence[float] = (0.010,)
    text_seconds: float = 0.001
    rest_seconds: float = 0.0005
    events: list[tuple[str, float]] = field(default_factory=list)  # (what had just happened, when)
    prompt_ids: list[int] = field(default_factory=list)
    misused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._count("start", 0.0)
        self.steps = 0
        self.shown = 0

    def _count(self, event: str, seconds: float) -> None:
        self.clock.wait(self.clock.now() + seconds)
        self.events.append((event, self.clock.now()))

    def when(self, event: str) -> float | None:
        """The instant at which `event` had just happened; None if it never did."""
        return next((instant for name, instant in self.events if name == event), None)

    def encode(self, text: str) -> list[int]:
        self._count("encode() had returned", self.encode_seconds)
        self.prompt_ids = list(text.encode())
        return list(self.prompt_ids)

    def turn(self) -> None:
        self._count("turn() had returned", self.turn_seconds)

    def prefill(self, ids: list[int]) -> int:
        if not isinstance(ids, Sequence) or list(ids) != self.prompt_ids:
            self.misused.append(f"prefill() was given {_shown(ids)}, not the {len(self.prompt_ids)} ids of encode()")
        self._count("prefill() had returned", self.prefill_seconds)
        return 0

    def decode(self, token: int) -> int:
        if token != self.steps:
            self.misused.append(f"decode() was given token {_shown(token)}; the latest one is {self.steps}")
        seconds = self.decode_seconds[min(self.steps, len(self.decode_seconds) - 1)]
        self.steps += 1
        self._count(f"decode() number {self.steps} had returned", seconds)
        return self.steps

    def to_text(self, token: int) -> str:
        if token != self.shown:
            self.misused.append(f"to_text() was given token {_shown(token)}; the next one to show is {self.shown}")
        self.shown += 1
        self._count(f"the text of token {self.shown} was ready", self.text_seconds)
        return self.pieces[token] if token in range(len(self.pieces)) else ""

    def rest(self) -> str:
        self._count("rest() had returned", self.rest_seconds)
        return self.tail

    def nearest(self, instant: float) -> str:
        """What had just happened at `instant`, in words; "" when nothing had."""
        name, when = min(self.events, key=lambda event: abs(event[1] - instant))
        return name if abs(when - instant) < 1e-6 else ""


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
    rest: float = 0.0,
) -> Timeline:
    """A timeline with these stages, in seconds; `gaps` lie between its output tokens (a gap of 0: the same chunk).

    `rest` passes between the last token and the end of the request.
    """
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
        finished=token_times[-1] + rest,
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
                rest=0.002,
            )
        )
    return log


def personal_log(seed: int, requests: int = 80) -> list[Timeline]:
    """Timelines of one machine that `seed` draws: its prefill takes 15 to 40 ms, and 0.3 to 0.8 ms a prompt token.

    Prompt lengths are spread evenly over the doublings from 16 to 2,048 tokens, and every fourth of them, in the order
    of length, also waited 0.2 to 0.3 s for its turn. So a line through all of them comes out about 60 ms too high
    and hardly too steep, whatever the seed. The same list for the same seed on every machine.
    """
    draw = random.Random(f"personal log {seed}")
    floor, per_token = draw.uniform(0.015, 0.040), draw.uniform(0.0003, 0.0008)
    lengths = [round(2 ** (4 + 7 * (place + draw.random()) / requests)) for place in range(requests)]
    waits = [draw.uniform(0.2, 0.3) if place % 4 == 1 else 0.0 for place in range(requests)]
    log, now = [], 0.0
    for prompt, wait in draw.sample(list(zip(lengths, waits, strict=True)), requests):
        now += draw.expovariate(2.0)
        log.append(
            scripted_timeline(
                now,
                client=0.0002 * draw.random(),
                tokenise=2e-6 * prompt,
                queue=wait,
                prefill=(floor + per_token * prompt) * draw.uniform(0.99, 1.01),
                gaps=[0.015 * draw.uniform(0.95, 1.05) for _ in range(draw.randint(4, 60))],
                prompt_tokens=prompt,
                rest=0.002,
            )
        )
    return log


# ------------------------------------------------------------------ inputs that nobody can know beforehand


def drawn_scripts(draw: Generator, rounds: int = 4) -> Iterator[dict[str, Any]]:
    """Scripts for the checks of task 1: the first of one token; of the others, the second token has no text yet."""
    for number in range(rounds):
        tokens = 1 if number == 0 else int(draw.integers(3, 9))
        pieces = [str(piece) for piece in draw.choice(["", "na", "ïve", " on", "x"], size=tokens)]
        if tokens > 1:
            pieces[1] = ""
        yield {
            "text": "A prompt" + " in words" * int(draw.integers(1, 6)),
            "max_tokens": tokens,
            "late": float(draw.uniform(0.01, 0.5)),
            "pieces": tuple(pieces),
            "tail": "!" * int(draw.integers(1, 3)),
            "encode_seconds": float(draw.uniform(0.002, 0.03)),
            "turn_seconds": float(draw.uniform(0.1, 0.9)),
            "prefill_seconds": float(draw.uniform(0.02, 0.09)),
            "decode_seconds": tuple(float(seconds) for seconds in draw.uniform(0.005, 0.3, size=tokens)),
            "text_seconds": float(draw.uniform(0.001, 0.004)),
            "rest_seconds": float(draw.uniform(0.001, 0.004)),
        }


def drawn_timeline(draw: Generator, *, chunks: bool = False) -> Timeline:
    """A timeline of five to eight instants. The wait for the first token is longer than any stall; with `chunks` it is
    shorter, and some instants bring several tokens, the first and the one after the longest gap among them."""
    instants = int(draw.integers(5, 9))
    sizes = [int(size) for size in draw.integers(1, 4, size=instants)] if chunks else [1] * instants
    gaps = draw.uniform(0.01, 0.2, size=instants - 1)
    stall = int(draw.integers(1, instants))
    gaps[stall - 1] = draw.uniform(0.5, 2.0)
    if chunks:
        sizes[0], sizes[stall] = 2, 3
    line = scripted_timeline(
        float(draw.uniform(1, 100)),
        client=float(draw.uniform(0.01, 0.2)),
        queue=float(draw.uniform(0.05, 0.15) if chunks else draw.uniform(2.0, 3.0)),
        gaps=[float(gap) for gap in gaps],
        rest=float(draw.uniform(0.01, 0.1)),
    )
    line.token_times = [instant for instant, size in zip(line.token_times, sizes, strict=True) for _ in range(size)]
    return line


# ------------------------------------------------------------------ checks


def _close(value: Any, wanted: float | None, tolerance: float = 1e-6) -> bool:
    if wanted is None or value is None or isinstance(value, str):
        return value is wanted
    try:
        return math.isclose(float(value), wanted, rel_tol=tolerance, abs_tol=1e-9)
    except (TypeError, ValueError):
        return False


def _shown(value: Any, unit: str = " s") -> str:
    """A value in a message: seconds with four places, anything else as Python writes it, cut."""
    if isinstance(value, Real) and not isinstance(value, bool):
        return f"{float(value):.4f}{unit}"
    return shown(value)


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


# ---- task 1

Serve = Callable[[Server, Clock, str, int, float], tuple[str, Timeline]]


@dataclass(frozen=True)
class _Rehearsal:
    """What `serve` made of a script."""

    server: ScriptedServer
    tokens: int  # asked for
    arrival: float
    called: float
    answer: Any
    line: Timeline

    def instant(self, name: str, value: Any, wanted: float, meaning: str) -> None:
        """Raise AssertionError unless `value` is `wanted`: naming the stamp, its instant, and the one it should be."""
        if _close(value, wanted, 1e-7):
            return
        assert value is not None, f"{name} was never stamped; it is the instant when {meaning}, {_shown(wanted)}"
        assert isinstance(value, Real), (
            f"{name} is {_shown(value)}; it should be an instant in seconds, from clock.now()"
        )
        instead = ""
        if _close(value, self.called, 1e-7):
            instead = ", when serve() was called"
        elif self.server.nearest(float(value)):
            instead = f", the instant when {self.server.nearest(float(value))}"
        raise AssertionError(f"{name} is {_shown(value)}{instead}; it is the instant when {meaning}, {_shown(wanted)}")


def _rehearse(serve: Serve, script: dict[str, Any]) -> _Rehearsal:
    """Run `serve` on a scripted server; `text`, `max_tokens` and `late` (seconds between the intended arrival and the
    call) are ours, the rest of `script` is the server's."""
    text, tokens, late = script.pop("text", "A prompt."), script.pop("max_tokens", 4), script.pop("late", 0.050)
    clock = VirtualClock(start=10.0)
    arrival = clock.now()
    clock.wait(arrival + late)
    server = ScriptedServer(clock, **script)
    called = clock.now()
    returned = serve(server, clock, text, tokens, arrival)
    assert isinstance(returned, tuple | list) and len(returned) == 2, (
        f"serve() must return (answer, line), got {type(returned).__name__}"
    )
    answer, line = returned
    assert isinstance(line, Timeline), f"the second thing returned must be a Timeline, got {type(line).__name__}"
    return _Rehearsal(server, tokens, arrival, called, answer, line)


def check_calls(serve: Serve, **script: Any) -> None:
    """Run `serve` on a scripted server and compare the order of its calls, their number, and the text.

    Args:
        serve: the function of task 1.
        script: changes to the script, see `ScriptedServer`; `text`, `max_tokens` and `late` (seconds between the
            intended arrival and the call) are ours.

    Raises:
        AssertionError: naming the call that is missing, too many or in the wrong place.
    """
    run = _rehearse(serve, script)
    server, tokens = run.server, run.tokens
    calls = [name.partition("(")[0] for name, _ in server.events]
    order = "a request is tokenised, waits for its turn, is prefilled and decoded, and hands over the rest"
    for call in ("encode", "turn", "prefill", "rest"):
        assert call in calls, f"{call}() was never called; {order}"
    assert calls.index("encode") < calls.index("turn") < calls.index("prefill"), (
        f"turn() was called {'before encode' if calls.index('turn') < calls.index('encode') else 'after prefill'}(); "
        + order
    )
    assert server.shown == tokens, f"{_many(server.shown, 'token')} went through to_text(); {tokens} asked for"
    assert server.steps == tokens - 1, (
        f"decode() ran {_many(server.steps, 'time')} for {_many(tokens, 'token')}; "
        f"it should run {_many(tokens - 1, 'time')}: "
        "prefill() gives the first token, and nothing needs the one after the last"
    )
    for number in range(1, tokens):
        shown, step = (
            server.when(f"the text of token {number} was ready"),
            server.when(f"decode() number {number} had returned"),
        )
        assert shown is not None and step is not None and shown < step, (
            f"token {number} was turned into text after decode() number {number}; "
            "hand each token over before the next step begins, or its reader waits for a token that is there"
        )
    assert calls[-1] == "rest", f"rest() was called before the last to_text(); {order}"
    assert not server.misused, server.misused[0]
    whole = "".join(server.pieces[:tokens]) + server.tail
    assert run.answer == whole, f"the text is {_shown(run.answer)}; all that to_text() and rest() returned is {whole!r}"


def check_waiting(serve: Serve, **script: Any) -> None:
    """Run `serve` on a scripted server and compare the stamps from the arrival to the request's turn.

    Where a call is missing, its stamp is the instant at which it would have stood. Arguments as in `check_calls`.

    Raises:
        AssertionError: naming the field, its value, which instant that value is, and which was wanted.
    """
    run = _rehearse(serve, script)
    line, server = run.line, run.server
    assert _close(line.arrival, run.arrival, 1e-7), (
        f"arrival is {_shown(line.arrival)}; it is the intended arrival that was passed in, {_shown(run.arrival)}"
        + (": stamping the clock instead hides how late the client was" if _close(line.arrival, run.called) else "")
    )
    run.instant("sent", line.sent, run.called, "serve() was called")
    queued = server.when("encode() had returned")
    assert queued is not None, "encode() was never called, so that the prompt never became tokens"
    run.instant("queued", line.queued, queued, "the prompt had become tokens")
    prefilled = server.when("prefill() had returned")
    assert prefilled is not None, "prefill() was never called"
    scheduled = server.when("turn() had returned")
    run.instant(
        "scheduled",
        line.scheduled,
        prefilled - server.prefill_seconds if scheduled is None else scheduled,
        "its turn had come",
    )


def check_tokens(serve: Serve, **script: Any) -> None:
    """Run `serve` on a scripted server and compare the instants of its tokens. Arguments as in `check_calls`.

    Raises:
        AssertionError: naming the token, its instant, which instant that is, and which was wanted.
    """
    run = _rehearse(serve, script)
    times = as_list(run.line.token_times, "token_times must be a list of instants")
    assert len(times) == run.tokens, (
        f"token_times has {_many(len(times), 'instant')} for {_many(run.tokens, 'token')}: one for each, "
        "the first included, whether it has text to show or not"
    )
    for number, value in enumerate(times, start=1):
        wanted = run.server.when(f"the text of token {number} was ready")
        assert wanted is not None, f"token {number} was never turned into text, so that it has no instant"
        run.instant(f"token_times[{number - 1}]", value, wanted, f"token {number} was handed over as text")


def check_totals(serve: Serve, **script: Any) -> None:
    """Run `serve` on a scripted server and compare the end, the prompt's tokens and the seconds of detokenising.

    Arguments as in `check_calls`.

    Raises:
        AssertionError: naming the field, its value and what was wanted.
    """
    run = _rehearse(serve, script)
    line, server = run.line, run.server
    rested = server.when("rest() had returned")
    ended = server.events[-1][1] if rested is None else rested
    run.instant("finished", line.finished, ended, "the last of the text was handed over")
    assert _close(line.prompt_tokens, len(server.prompt_ids)), (
        f"prompt_tokens is {_shown(line.prompt_tokens, '')}; encode() made {len(server.prompt_ids)}"
    )
    wanted = server.text_seconds * server.shown + (0.0 if rested is None else server.rest_seconds)
    assert _close(line.detokenize_seconds, wanted), (
        f"detokenize_seconds is {_shown(line.detokenize_seconds)}; {_many(server.shown, 'call')} of to_text() "
        f"{'and none' if rested is None else 'and one'} of rest() took {_shown(wanted)} in all"
    )


# ---- task 2


def check_times(times_of: Callable[[Timeline], Mapping[str, Any]], line: Timeline, wanted: Mapping[str, Any]) -> None:
    """Compare `times_of(line)` with `wanted`, name by name; names that are not in `wanted` are not looked at.

    Raises:
        AssertionError: naming the quantity, its value, what was wanted, and which slip gives that value.
    """
    got = times_of(line)
    assert isinstance(got, Mapping), f"times_of() must return a dictionary, got {type(got).__name__}"
    for name, right in wanted.items():
        assert name in got, f"{name!r} is missing; the keys are {_shown(list(got))}"
        value = got[name]
        if isinstance(right, list):
            gaps = as_list(value, f"{name} must be a list of gaps")
            assert len(gaps) == len(right), (
                f"{name} has {_many(len(gaps), 'gap')}; it should have {len(right)}, "
                f"between {_many(line.output_tokens, 'token')}"
            )
            for index, (mine, theirs) in enumerate(zip(gaps, right, strict=True)):
                assert _close(mine, theirs), f"{name}[{index}] is {_shown(mine)}; it should be {_shown(theirs)}"
            continue
        if _close(value, right):
            continue
        wanted_text = "None: there is no such number here" if right is None else _shown(right)
        raise AssertionError(f"{name} is {_shown(value)}{_slip(name, value, line)}; it should be {wanted_text}")


def _slip(name: str, value: Any, line: Timeline) -> str:
    """Which common slip gives `value`, in words."""
    if not isinstance(value, Real) or not line.token_times:
        return ""
    n, first, last = line.output_tokens, line.token_times[0], line.token_times[-1]
    if n == 1 and name in ("tpot", "longest_stall"):
        return " (one token has no gap to its name)"
    gaps = [later - earlier for earlier, later in pairwise(line.token_times)]
    if name == "longest_stall" and not any(gaps):
        return " (all tokens came in one chunk, and no stall comes before the first)"
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
            (first - line.arrival, "the wait for the first token, which is no stall"),
            *(
                (
                    gap / line.token_times.count(later),
                    "one token's part of the gap before its chunk; the stall is all of it",
                )
                for gap, later in zip(gaps, line.token_times[1:], strict=True)
            ),
        ],
    }
    return next((f" ({words})" for slip, words in slips.get(name, []) if words and _close(value, slip)), "")


# ---- task 3


def _spans(line: Timeline) -> dict[str, tuple[float, float]]:
    """Where each stage begins and ends."""
    assert line.sent is not None and line.queued is not None and line.scheduled is not None
    borders = (line.arrival, line.sent, line.queued, line.scheduled, line.token_times[0], line.token_times[-1])
    return dict(zip(STAGES, pairwise(borders), strict=True))


def stage_of(word: Any) -> Any:
    """The stage that `word` names, in any case and spelling ("Tokenize", "queuing"); `word` itself if it names none."""
    plain = str(word).strip().lower()
    stage = _SPELT.get(plain, plain)
    return stage if stage in STAGES else word


def by_stage(budget: Mapping[Any, Any]) -> dict[Any, Any]:
    """A budget or shares under the names of STAGES, however its keys are spelt; further keys stay."""
    return {stage_of(key): value for key, value in budget.items()}


def _stages(got: Any, words: str) -> Mapping[str, Any]:
    assert isinstance(got, Mapping), f"{words} must return a dictionary, got {type(got).__name__}"
    got = by_stage(got)
    missing = [stage for stage in STAGES if stage not in got]
    assert not missing, f"{', '.join(missing)} is missing; the stages are {', '.join(STAGES)}; got {_shown(list(got))}"
    return got


def check_prediction(**guesses: Any) -> None:
    """Whether each guess names a stage; which one does not matter.

    Raises:
        NotImplementedError: one is None: nothing was written yet.
        AssertionError: one is something else than a stage.
    """
    for name, guess in guesses.items():
        if guess is None:
            raise NotImplementedError(f"{name} is None")
        assert stage_of(guess) in STAGES, (
            f"{name} is {_shown(guess)}; write one of {', '.join(STAGES)}: any of them earns the point"
        )


def check_budget(budget: Callable[[Timeline], Mapping[str, float]], line: Timeline) -> None:
    """Compare a budget with the timeline it was made of, stage by stage; their order does not matter.

    Raises:
        AssertionError: naming the stage, its value and what was wanted.
    """
    got = _stages(budget(line), "budget()")
    for stage, (begin, end) in _spans(line).items():
        assert _close(got[stage], end - begin), (
            f"{stage} is {_shown(got[stage])}; it runs from {begin - line.arrival:.4f} s "
            f"to {end - line.arrival:.4f} s after the arrival, so it takes {_shown(end - begin)}"
        )


def check_shares(
    shares: Callable[[Sequence[Timeline]], Mapping[str, float]],
    log: Sequence[Timeline],
    budget: Callable[[Timeline], Mapping[str, float]] | None = None,
) -> None:
    """Compare each stage's share of all the seconds of `log`.

    Args:
        shares: the function under test.
        log: the timelines it is given.
        budget: the student's own `budget`. Shares that follow from it are right too: a slip there has cost its points
            already. Not where it makes the share of all seconds and the mean of shares the same.

    Raises:
        AssertionError: naming the stage, its share, what was wanted, and the mean of shares when that is what came.
    """
    spans = [{stage: end - begin for stage, (begin, end) in _spans(line).items()} for line in log]
    got = _stages(shares(log), "shares()")
    own = _own_shares(budget, log)
    if own and all(_close(got[stage], share) for stage, share in own.items()):
        return
    mean = _mean_share(spans)
    for stage, right in _share_of_all(spans).items():
        value = got[stage]
        if _close(value, right):
            continue
        seconds = sum(span[stage] for span in spans)
        slip = (
            " (the mean of the requests' own shares: short requests count too much)"
            if _close(value, mean[stage])
            else " (seconds, not a share of them)"
            if _close(value, seconds)
            else " (the mean seconds of a request, not a share of all)"
            if _close(value, seconds / len(spans))
            else " (per cent; a share lies between 0 and 1)"
            if _close(value, 100 * right)
            else ""
        )
        shown = f"{float(value):.4g}" if isinstance(value, Real) else _shown(value)
        raise AssertionError(f"the share of {stage} is {shown}{slip}; it should be {right:.4g}")


def _share_of_all(spans: Sequence[Mapping[str, float]]) -> dict[str, float]:
    total = sum(float(span[stage]) for span in spans for stage in STAGES)
    return {stage: sum(float(span[stage]) for span in spans) / total for stage in STAGES}


def _mean_share(spans: Sequence[Mapping[str, float]]) -> dict[str, float]:
    shares = [_share_of_all([span]) for span in spans]
    return {stage: statistics.mean(share[stage] for share in shares) for stage in STAGES}


def _own_shares(
    budget: Callable[[Timeline], Mapping[str, float]] | None, log: Sequence[Timeline]
) -> dict[str, float] | None:
    """Each stage's share of all seconds by a student's own `budget`; None where nothing follows from it."""
    if budget is None:
        return None
    try:
        own = [{stage: float(got[stage]) for stage in STAGES} for got in map(by_stage, map(budget, log))]
        shares, mean = _share_of_all(own), _mean_share(own)
    except Exception:  # whatever their code raises, or a budget of no seconds
        return None
    telling = any(abs(shares[stage] - mean[stage]) > 1e-3 for stage in STAGES)
    return shares if telling and all(map(math.isfinite, shares.values())) else None


# ---- task 4


def check_medians(
    by_length: Callable[..., Sequence[float | None]], log: Sequence[Timeline], edges: Sequence[int]
) -> None:
    """Compare the median TTFT of each bucket of prompt lengths.

    Raises:
        AssertionError: naming the bucket, its value, what was wanted, and which slip gives that value.
    """
    got = as_list(by_length(list(log), edges), "ttft_by_length() must return a list")
    assert len(got) == len(edges) - 1, f"{len(edges)} edges make {len(edges) - 1} buckets, got {len(got)}"
    for value, (low, high) in zip(got, pairwise(edges), strict=True):
        lines = [line for line in log if low <= line.prompt_tokens < high]
        name = f"the bucket [{low}, {high})"
        if not lines:
            assert value is None, (
                f"{name} holds {_shown(value)}; it should hold None: "
                f"no prompt has {low} to {high - 1} tokens, and no data gives no number"
            )
            continue
        seconds = [line.token_times[0] - line.arrival for line in lines]
        right = statistics.median(seconds)
        if _close(value, right):
            continue
        scheduled = statistics.median(line.token_times[0] - (line.scheduled or 0.0) for line in lines)
        slip = (
            " (the mean: one slow request speaks for all)"
            if _close(value, statistics.mean(seconds))
            else " (counted from when it was scheduled, not from the arrival)"
            if _close(value, scheduled)
            else ""
        )
        of = ", ".join(f"{s:.2f}" for s in sorted(seconds)[:5]) + (" …" if len(seconds) > 5 else "")
        lengths = ", ".join(str(line.prompt_tokens) for line in lines[:5]) + (" …" if len(lines) > 5 else "")
        raise AssertionError(
            f"{name} holds {_shown(value)}{slip}; it should hold {_shown(right)}, "
            f"the median TTFT of its {_many(len(lines), 'prompt')} ({lengths} tokens; {of} s)"
        )


def check_borders(by_length: Callable[..., Sequence[float | None]], draw: Generator | None = None) -> None:
    """Buckets with one prompt each, on their borders, and one bucket with none. With `draw`, at drawn lengths.

    Raises:
        AssertionError: naming the bucket, its value and what was wanted.
    """
    lengths, edges = [10, 100, 399], [1, 50, 100, 200, 400]
    if draw is not None:
        edges = [int(edge) for edge in 100 * draw.permutation(20)[:6] + draw.integers(5, 60, size=6)]
        edges.sort()
        empty = int(draw.integers(1, 4))
        lengths = [
            low if number % 2 else high - 1
            for number, (low, high) in enumerate(pairwise(edges), start=int(draw.integers(2)))
            if number % 5 != empty
        ]
    log = [
        scripted_timeline(0.0, tokenise=0.0, prefill=round(0.1 + 0.002 * length, 4), prompt_tokens=length)
        for length in lengths
    ]
    check_medians(by_length, log, edges)


def check_line(
    fit: Callable[[Sequence[float], Sequence[float]], tuple[float, float]], xs: Sequence[float], ys: Sequence[float]
) -> None:
    """Compare (floor, per_token) with the least-squares line through the points.

    Raises:
        AssertionError: naming the constant, its value, what was wanted, and which slip gives that value.
    """
    line = statistics.linear_regression(xs, ys)
    got = as_list(fit(list(xs), list(ys)), "fit_line() must return (floor, per_token)")
    assert len(got) == 2, f"fit_line() must return (floor, per_token), got {len(got)} values"
    ends = (ys[-1] - ys[0]) / (xs[-1] - xs[0])
    origin = sum(x * y for x, y in zip(xs, ys, strict=True)) / sum(x * x for x in xs)
    slip = ""
    if _close(got[0], line.slope) and _close(got[1], line.intercept):
        slip = " (floor and per_token are swapped)"
    elif _close(got[1], ends) and not _close(line.slope, ends):
        slip = " (the slope from the first point to the last; all the others count too)"
    elif _close(got[1], origin) and not _close(line.slope, origin):
        slip = " (the slope of a line through the origin, which has no floor)"
    shown = ", ".join(f"{y:.4g}" for y in ys[:6])
    at = ", ".join(f"{x:g}" for x in xs[:6])
    for name, value, right in zip(("floor", "per_token"), got, (line.intercept, line.slope), strict=True):
        wrote = f"{float(value):.6f}" if isinstance(value, Real) else _shown(value)
        assert _close(value, right), (
            f"{name} is {wrote}{slip}, it should be {right:.6f}, for {shown}{' …' if len(ys) > 6 else ''} s "
            f"at {at}{' …' if len(xs) > 6 else ''} tokens"
        )


def least_squares(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """(floor, per_token) of the least-squares line: for the cells that go on from it, not for the task's answer."""
    line = statistics.linear_regression(xs, ys)
    return line.intercept, line.slope


def check_floor(floor: Any, log: Sequence[Timeline]) -> None:
    """Whether `floor` (s) is what the machine behind `log` takes for a prompt of no length, within a tenth.

    Raises:
        NotImplementedError: it is None: nothing was written yet.
        AssertionError: naming the value, and which slip gives it.
    """
    _written("my_floor", floor)
    right, all_of_it = _prefill_line(log)[0], _ttft_line(log)[0]
    slip = (
        ": a line through all requests has this floor, those that waited for their turn among them"
        if _near(floor, all_of_it)
        else ": these look like milliseconds; write seconds"
        if _near(floor, 1e3 * right)
        else ", more than a tenth above what this log says of a prompt of no length: is the wait for a turn still in "
        "some of the times?"
        if isinstance(floor, Real) and right < float(floor) < all_of_it
        else ", more than a tenth off what this log says of a prompt of no length"
    )
    assert _near(floor, right), f"my_floor is {_shown(floor)}{slip}"


def check_per_token(per_token: Any, log: Sequence[Timeline]) -> None:
    """Whether `per_token` (s) is what the machine behind `log` takes for each prompt token more, within a tenth.

    Raises:
        NotImplementedError: it is None: nothing was written yet.
        AssertionError: naming the value, and which slip gives it.
    """
    _written("my_per_token", per_token)
    right = _prefill_line(log)[1]
    slip = ": these look like milliseconds; write seconds" if _near(per_token, 1e3 * right) else ""
    wrote = f"{float(per_token):.6f} s" if isinstance(per_token, Real) else _shown(per_token)
    assert _near(per_token, right), (
        f"my_per_token is {wrote}{slip or ', more than a tenth off what this log says of one prompt token more'}"
    )


def _written(name: str, value: Any) -> None:
    if value is None:
        raise NotImplementedError(f"{name} is None")


def _near(value: Any, wanted: float) -> bool:
    return _close(value, wanted, 0.1)


def _prefill_line(log: Sequence[Timeline]) -> tuple[float, float]:
    line = statistics.linear_regression(
        [line.prompt_tokens for line in log], [line.token_times[0] - (line.scheduled or 0.0) for line in log]
    )
    return line.intercept, line.slope


def _ttft_line(log: Sequence[Timeline]) -> tuple[float, float]:
    line = statistics.linear_regression(
        [line.prompt_tokens for line in log], [line.token_times[0] - line.arrival for line in log]
    )
    return line.intercept, line.slope


# ---- task 5


def check_stream(make: Callable[[str], Any], pieces: Sequence[bytes], stop: str, wanted: Sequence[str]) -> None:
    """Push `pieces` one by one; `wanted` is what each push, and at the end `finish`, must return.

    Raises:
        AssertionError: naming the piece, what came out, what was wanted, and why it matters.
    """
    stream = make(stop)
    sent = ""
    for index, (piece, right) in enumerate(zip([*pieces, None], wanted, strict=True)):
        came, call = _push(stream, piece, index)
        if came == right:
            sent += came
            continue
        if "\ufffd" in came and "\ufffd" not in right:
            why = "half a character became a replacement mark: keep its bytes until the other half has come"
        elif stop and came.startswith(right):
            why = "part of a stop string went out, and what has been sent cannot be called back"
        elif right.startswith(came):
            why = "this text was safe to send and was kept"
        else:
            why = "this is not the text of these bytes"
        after = f"after {list(pieces[:index])}, stop {stop!r}. " if index else f"stop {stop!r}. "
        raise AssertionError(
            f"{call} returned {came!r}; it should return {right!r} ({why}); {after}Sent before: {sent!r}"
        )


def check_stop(make: Callable[[str], Any], pieces: Sequence[bytes], stop: str) -> None:
    """Push `pieces`, whose text has `stop` in it: all that comes before it is sent at last, and nothing else ever.

    How long a text is kept does not matter here. `pieces` are cut between characters.

    Raises:
        AssertionError: naming the pieces, what was sent too much or too little, and the text up to the stop string.
    """
    text = b"".join(pieces).decode()
    whole = text[: text.index(stop)]
    stream, sent, known = make(stop), "", ""
    case = f"pieces {list(pieces)}, stop {stop!r}"
    for index, piece in enumerate(pieces):
        came, call = _push(stream, piece, index)
        sent, known = sent + came, known + piece.decode()
        assert whole.startswith(sent), (
            f"{call} returned {came!r}, and {sent!r} has been sent; the text ends before the stop string, "
            f"at {whole!r}, and what has been sent cannot be called back: {case}"
        )
        assert bool(stream.stopped) is (stop in known), (
            f"stopped is {stream.stopped!r} after {call} and the text so far is {known!r}: {case}"
        )
    came, call = _push(stream, None, len(pieces))
    assert sent + came == whole, f"all that was sent is {sent + came!r}; it should be {whole!r}: {case}"


def _push(stream: Any, piece: bytes | None, index: int) -> tuple[str, str]:
    """What a stream returns for a piece, or at its end for None; and how to name that call."""
    came = stream.finish() if piece is None else stream.push(piece)
    call = "finish()" if piece is None else f"push({piece!r}), call {index + 1},"
    assert isinstance(came, str), f"{call} returned {_shown(came)}, not a string"
    return came, call


def check_drawn_characters(make: Callable[[str], Any], draw: Generator, rounds: int = 60) -> None:
    """Texts without a stop string, cut anywhere: each character as soon as it is complete, half of one only at the end.

    Raises:
        AssertionError: as `check_stream` does.
    """
    for _ in range(rounds):
        raw = "".join(str(letter) for letter in draw.choice(list("abé€🚉"), size=draw.integers(2, 16))).encode()
        pieces = _cut(raw, draw)
        known = [b"".join(pieces[: count + 1]).decode(errors="ignore") for count in range(len(pieces))]
        check_stream(make, pieces, "", [later[len(earlier) :] for earlier, later in pairwise(["", *known])] + [""])
    for half in (b"\xf0\x9f\x9a", b"\xe2\x82"):  # the end came within a character
        check_stream(make, [b"ab" + half], "", ["ab", "\ufffd"])


def check_drawn_stops(make: Callable[[str], Any], draw: Generator, rounds: int = 100) -> None:
    """Texts with a stop string in them, which may begin within its own beginning. Cut between characters.

    Raises:
        AssertionError: as `check_stop` does.
    """
    for stop, before in (("aab", "a"), ("ababc", "ab"), ("abac", "aba")):
        check_stop(make, [before.encode(), f"{stop}b".encode(), b"x"], stop)
        check_stop(make, [letter.encode() for letter in f"{before}{stop}b"], stop)
    for _ in range(rounds):
        letters = ["".join(str(c) for c in draw.choice(list("abé"), size=draw.integers(2, 9))) for _ in range(3)]
        before, stop, after = letters[0], letters[1][:4], letters[2]
        check_stop(make, [piece.encode() for piece in _cut(before + stop + after, draw)], stop)


def check_drawn_holds(make: Callable[[str], Any], draw: Generator, rounds: int = 100) -> None:
    """Texts in which a stop string begins again and again and is never complete: what waits, and what comes at the end.

    No letter occurs twice in a stop string, and the cuts lie between characters.

    Raises:
        AssertionError: as `check_stream` does.
    """
    for _ in range(rounds):
        stop = "".join(str(letter) for letter in draw.permutation(list("abcdé"))[: draw.integers(2, 6)])
        starts = [stop[: int(draw.integers(0, len(stop)))] + "x" * int(draw.integers(0, 2)) for _ in range(5)]
        text = "".join(starts)
        while stop in text:
            text = text.replace(stop, "")
        pieces = _cut(text, draw)
        known = ["".join(pieces[: count + 1]) for count in range(len(pieces))]
        safe = ["", *(_safe(part, stop) for part in known), text]
        check_stream(
            make,
            [piece.encode() for piece in pieces],
            stop,
            [later[len(earlier) :] for earlier, later in pairwise(safe)],
        )


def _cut(text: AnyStr, draw: Generator) -> list[AnyStr]:
    pieces = []
    while text:
        size = int(draw.integers(1, 5))
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def _safe(known: str, stop: str) -> str:
    """All of `known` but the longest ending that begins `stop`."""
    waits = next((k for k in range(min(len(stop) - 1, len(known)), 0, -1) if known.endswith(stop[:k])), 0)
    return known[: len(known) - waits]


# ---- task 6


def check_head_start(
    head_start: Callable[[Sequence[float], float], float], token_times: Sequence[float], rate: float, wanted: float
) -> None:
    """Compare the least delay that hides every stall.

    Raises:
        AssertionError: naming the delay, what was wanted, and what a shorter or longer one does.
    """
    got = head_start(list(token_times), rate)
    if _close(got, wanted):
        return
    word = ""
    if isinstance(got, Real):
        word = (
            ", and nobody can begin before the first token"
            if got < 0
            else ", and the buffer runs dry"
            if got < wanted
            else ", and the user waits longer than needed"
        )
    times = ", ".join(f"{instant:.2f}" for instant in token_times[:6]) + (" …" if len(token_times) > 6 else "")
    raise AssertionError(
        f"the head start is {_shown(got)} at {rate:g} tokens/s{word}; it should be {_shown(wanted)}, "
        f"for {_many(len(token_times), 'token')} at {times} s"
    )


# ------------------------------------------------------------------ the book's own numbers


def book() -> dict[str, Any]:
    """What the book's machine measured: {"machine", "date", "command", "seconds": {name: s}}.

    Recorded by tests/benchmarks/latency_budget.py.
    """
    return json.loads(Path(__file__).with_suffix(".json").read_text())


# ------------------------------------------------------------------ pictures


_HATCHED: dict[str, Any] = {
    "facecolor": figures.COLORS["surface"],
    "edgecolor": figures.COLORS["quiet"],
    "hatch": "//////",
    "linewidth": 0.8,
}


def draw_budget(
    budgets: Mapping[str, Mapping[str, float]], *, name: str = "budget", caption: str = ""
) -> figures.Picture:
    """One bar a request, its stages end to end, in milliseconds."""
    budgets = {label: by_stage(stages) for label, stages in budgets.items()}
    fig, ax = figures.axes(xlabel="time since arrival", xunit="ms", ylabel="", height=1.5 + 0.5 * len(budgets))
    longest = max((sum(stages.values()) for stages in budgets.values()), default=0.0)
    surface = figures.COLORS["surface"]
    for row, stages in enumerate(budgets.values()):
        left = 0.0
        for stage, seconds in stages.items():
            # The queue is grey: what no colour stands for is hatched, so that the two are told apart.
            plain = {"color": figures.COLORS[stage]} if stage in STAGES[1:] else _HATCHED
            ax.barh(row, 1e3 * seconds, left=1e3 * left, height=0.6, label=stage if row == 0 else None, **plain)
            left += seconds
        ax.annotate(
            figures.quantity(left, "s"),
            (1e3 * left, row),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            bbox={"facecolor": surface, "edgecolor": "none", "pad": 2.0},  # hides the grid line behind the number
        )
    ax.set_yticks(range(len(budgets)), list(budgets))
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    ax.set_xlim(0, 1e3 * longest * 1.2 or 1)
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
    floor: float | None = None,
    per_token: float | None = None,
    *,
    at: float | None = None,
    held_out: tuple[float, float] | None = None,
    name: str = "ttft",
    caption: str = "",
) -> figures.Picture:
    """Time to first token against prompt length: measured points, the line fitted to them, and what it says elsewhere.

    Without `floor` or `per_token`, the points alone.

    Args:
        at: a length whose prediction is marked.
        held_out: (length, seconds) of a measurement that the line has not seen.
    """
    fig, ax = figures.axes(xlabel="prompt", xunit="tokens", ylabel="time to first token", yunit="ms")
    ax.plot(lengths, [1e3 * s for s in seconds], **figures.look("measurement"), label="measured")
    spoken = f"Time to first token at {len(lengths)} prompt lengths"
    if floor is None or per_token is None:
        spoken += f", from {figures.quantity(min(seconds), 's')} to {figures.quantity(max(seconds), 's')}."
    else:
        ends = [0.0, max([*lengths, at or 0, held_out[0] if held_out else 0])]
        line = [1e3 * (floor + per_token * x) for x in ends]
        ax.plot(ends, line, **figures.look("prediction"), label="the fitted line")
        spoken += f", and a line from {figures.quantity(floor, 's')} rising {figures.quantity(per_token, 's')} a token."
        if at is not None:
            said = floor + per_token * at
            ax.plot([at], [1e3 * said], **figures.look("choice"), label=f"predicted at {at:g} tokens")
            spoken += f" At {at:g} tokens it says {figures.quantity(said, 's')}."
    if held_out is not None:
        ax.plot([held_out[0]], [1e3 * held_out[1]], **figures.look("live"), label="measured afterwards")
        spoken += f" Measured afterwards at {held_out[0]:g} tokens: {figures.quantity(held_out[1], 's')}."
    ax.set_ylim(bottom=0)
    ax.legend()
    return figures.show(fig, alt=spoken, caption=caption, name=name, data=True)


def draw_log(
    log: Sequence[Timeline],
    floor: float | None = None,
    per_token: float | None = None,
    *,
    name: str = "log",
    caption: str = "",
) -> figures.Picture:
    """The TTFT of every request in a log against its prompt's length, and a line where both its numbers are there."""
    lines = sorted(log, key=lambda line: line.prompt_tokens)
    seconds = [line.token_times[0] - line.arrival for line in lines]
    return draw_ttft([line.prompt_tokens for line in lines], seconds, floor, per_token, name=name, caption=caption)
