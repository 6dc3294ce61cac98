"""Online: requests come while others run, and each is answered as a stream.

    OnlineEngine   a thread that runs an engine's loop; any thread or event loop may add, read and cancel
    Stream         one request's answer: iterate (for, async for), wait for its end, or cancel it
    Token          what a stream yields
    RequestFailed, EngineStopped    what reading a stream raises where there is nothing more to come

The engine itself belongs to one thread. Whoever wants something of it leaves a command, and the loop takes the commands
between two steps; nothing else is shared but the buffers of the streams.

What to rely on:

- The loop waits without turning while there is nothing to do, and a command wakes it at once.
- It waits for no reader. What a reader has not taken stays in its stream's buffer: at most max_tokens of each of the
  request's n samples, so that slow readers cost memory in proportion to what they asked for, and never time of others.
  How many requests there may be is for the scheduler to say (`scheduling.Shedding(max_queue=…)`).
- A request that fails, fails alone, also where the executor cannot compute a step because of it
  (`Scheduler(max_aborts=…)`), and the engine lives. If the loop itself dies, every stream says so, and so does every
  later call.
- Leaving an iteration before its end (break, an exception, a cancelled task) cancels the request: nobody reads on. A
  stream that is never iterated runs to its end.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import math
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from collections.abc import Sequence as Seq
from functools import partial
from itertools import count
from time import monotonic
from typing import Any, NamedTuple

from underload.engine.engine import Engine
from underload.request import (
    FinishReason,
    InvalidRequest,
    ProcessorClock,
    Request,
    SamplingParams,
    StepRecord,
    Timeline,
    UnderloadError,
    VirtualClock,
)
from underload.request.clock import LONGEST_WAIT
from underload.scheduling import Plan, Sampled, StepResult, Work

# A main thread waits in slices: where the system cannot interrupt a wait for a lock, Ctrl-C is heard between two.
_SLICE = 0.2  # s


class RequestFailed(UnderloadError):
    """A request ended without its answer: it failed, or the scheduler turned it away. The others go on."""


class EngineStopped(UnderloadError):
    """The loop has ended: it was closed, or something ended it (`__cause__`)."""


class Token(NamedTuple):
    """One token of a stream.

    sample: which of the request's n samples it belongs to.
    text: what can be shown now; "" while a character or a possible stop string is incomplete.
    finish_reason: set on the last token of its sample.
    draw: log-probabilities and the like, as the executor gave them.
    """

    sample: int
    token_id: int
    text: str
    finish_reason: FinishReason | None
    draw: Any


class Stream:
    """The answer to one request, token by token; `OnlineEngine.add_request` makes it. It has one reader.

        for token in stream: print(token.text, end="")         # in any thread
        async for token in stream: ...                         # in any event loop
        request = stream.wait()                                # or: request = await stream

    Attributes:
        request: the request; its sequences and timeline are complete when the stream is at its end.

    Raises, while it is iterated:
        RequestFailed: the request failed or was refused; the tokens before were yielded.
        EngineStopped: the loop ended before the request did.

    A request that was cancelled just ends; `request.timeline.finish_reason` says so.
    """

    def __init__(self, owner: OnlineEngine, request: Request) -> None:
        self.request = request
        self._owner = owner
        self._changed = threading.Condition()  # re-entrant: a reader may be collected, and cancel, anywhere
        self._tokens: deque[Token] = deque()
        self._over = False
        self._failure: UnderloadError | None = None
        self._waiters: list[asyncio.Future[None]] = []  # of readers in event loops
        self._blocked = 0  # readers in threads that wait
        self._told = [0] * len(request.sequences)  # tokens of each sample that were put in

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def finished(self) -> bool:
        """Whether no more tokens will come; some may still be unread."""
        return self._over

    def cancel(self) -> bool:
        """Let the request go; whether it was still live. Its blocks are free after at most one more step."""
        return self._owner._cancel(self)

    def wait(self, timeout: float | None = None) -> Request:
        """Return when the request is finished, whatever became of it; the tokens stay to be read.

        Raises:
            EngineStopped: the loop ended before.
            TimeoutError: after `timeout` s; the request goes on.
        """
        self._owner._not_from_the_loop("wait for")
        end = None if timeout is None else monotonic() + timeout
        with self._changed:
            while not self._over:
                left = None if end is None else end - monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"request {self.request_id!r} is not finished after {timeout} s")
                self._block(left)
        return self._whole()

    def __await__(self) -> Generator[Any, None, Request]:
        try:
            while True:
                with self._changed:
                    if self._over:
                        break
                    waiter = self._waiter()
                yield from waiter
        finally:
            self.cancel()
        return self._whole()

    def __iter__(self) -> Iterator[Token]:
        self._owner._not_from_the_loop("iterate over")
        try:
            while True:
                with self._changed:
                    while not self._tokens and not self._over:
                        self._block()
                    token = self._take()
                if token is None:
                    return
                yield token
        finally:
            self.cancel()

    async def __aiter__(self) -> AsyncIterator[Token]:
        try:
            while True:
                with self._changed:
                    token, waiter = None, None
                    if self._tokens or self._over:
                        token = self._take()
                    else:
                        waiter = self._waiter()
                if waiter is not None:
                    await waiter
                elif token is None:
                    return
                else:
                    yield token
        finally:
            self.cancel()

    # ---- the loop's side ----------------------------------------------------------------------------------------

    def _put(self, work: Work, sampled: list[Sampled]) -> list[asyncio.Future[None]]:
        """Add what a step drew; who in an event loop is to be woken."""
        sequences = self.request.sequences if work.samples > 1 else [work.sequence]
        tokens = []
        for sequence, one in zip(sequences, sampled):
            # One that failed was not appended, nor was one that was drawn before it was seen that its sample had ended.
            if len(sequence.tokens) - sequence.prompt_len > self._told[sequence.index]:
                self._told[sequence.index] += 1
                tokens.append(Token(sequence.index, one.token_id, one.text, sequence.finish_reason, one.draw))
        if not tokens:
            return []
        with self._changed:
            self._tokens += tokens
            return self._wake()

    def _end(self, failure: UnderloadError | None) -> list[asyncio.Future[None]]:
        """No more tokens will come; who in an event loop is to be woken."""
        with self._changed:
            self._over, self._failure = True, failure
            return self._wake()

    def _wake(self) -> list[asyncio.Future[None]]:
        if self._blocked:
            self._changed.notify_all()
        if not self._waiters:
            return []
        waiters, self._waiters = self._waiters, []
        return waiters

    # ---- the reader's side, its lock held ------------------------------------------------------------------------

    def _block(self, seconds: float | None = None) -> None:
        """Wait until something changes, or for so long; in the main thread a little while at most."""
        if threading.current_thread() is threading.main_thread():
            seconds = _SLICE if seconds is None else min(seconds, _SLICE)
        elif seconds is not None:
            seconds = min(seconds, LONGEST_WAIT)
        self._blocked += 1
        try:
            self._changed.wait(seconds)
        finally:
            self._blocked -= 1

    def _take(self) -> Token | None:
        """The next token, or None at the end."""
        if self._tokens:
            return self._tokens.popleft()
        if self._failure is not None:
            raise self._failure
        return None

    def _waiter(self) -> asyncio.Future[None]:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    def _whole(self) -> Request:
        if isinstance(self._failure, EngineStopped):
            raise self._failure
        return self.request


class _Frozen:
    """What was there before the first engine that runs: to look it through for garbage, all that torch has made among
    it, would stop each loop for longer than most requests take."""

    _lock = threading.Lock()
    _engines = 0

    @classmethod
    def begin(cls) -> None:
        with cls._lock:
            if not cls._engines:
                gc.freeze()
            cls._engines += 1

    @classmethod
    def end(cls) -> None:
        with cls._lock:
            cls._engines -= 1
            if not cls._engines:
                gc.unfreeze()


class OnlineEngine:
    """Runs an engine in a thread of its own, for callers in other threads and in event loops.

        with OnlineEngine(engine) as online:
            for token in online.add_request(prompt_ids, SamplingParams(max_tokens=64)):
                print(token.text, end="", flush=True)

    From here on the engine is this object's: its loop alone steps it, and its requests come through `add_request`. The
    `on_step` that the engine has is called as before, in the loop's thread; what it raises ends the loop.

    Leaving the `with` block drains: what was asked is answered. Leaving it by an exception, Ctrl-C among them, cancels.
    So does the end of the program. `async with` waits without blocking the event loop.

    While one runs, Python's garbage collector leaves alone what was there before (`gc.freeze`), as it does in servers
    written in Python. When the last one ends, it looks through everything again, also what the caller has frozen.

    Args:
        keep: steps and finished requests that the engine keeps in `steps` and `finished`, the latest ones (up to twice
            as many at times); None keeps all, and grows for as long as it runs.

    Raises:
        UnderloadError: an engine on a virtual clock, which nobody outside its loop could follow, or on a processor's,
            which stands still while the loop waits.
    """

    def __init__(self, engine: Engine, *, keep: int | None = 10_000) -> None:
        if isinstance(engine.clock, VirtualClock):
            raise UnderloadError(
                "an online engine runs in real time, and this one has a virtual clock; give it a WallClock, or use "
                "engine.run() or generate(engine, …)"
            )
        if isinstance(engine.clock, ProcessorClock):
            raise UnderloadError(
                "an online engine waits in real time, and its ProcessorClock stands still meanwhile; give it a "
                "WallClock, or use engine.run() or generate(engine, …)"
            )
        self.engine = engine
        self._keep = keep
        self._changed = threading.Condition()  # re-entrant, as a stream's is
        self._commands: deque[Callable[[], object]] = deque()
        self._streams: dict[str, Stream] = {}  # live, by id
        self._numbers = count()
        self._closing = False
        self._death: BaseException | None = None
        self._busy = True  # there is something to step for
        self._told = len(engine.finished)
        self._on_step = engine.on_step
        engine.on_step = self._see
        engine.sleep = self._sleep
        engine.more_to_come = True
        self._thread = threading.Thread(target=self._work, name="underload-engine", daemon=True)
        self._process = os.getpid()
        atexit.register(self._at_exit)
        self._thread.start()

    # ---- for everyone --------------------------------------------------------------------------------------------

    def add_request(
        self,
        prompt_ids: Seq[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        arrival: float | None = None,
        **more: Any,
    ) -> Stream:
        """Take a request; its answer comes as a stream. Returns at once, whatever the loop is at.

        Args:
            prompt_ids: token ids.
            request_id: a name that no live request has; one is made up when None.
            arrival: the instant (s) on the engine's clock for which the client meant it; now when None. One to come is
                waited for.
            more: `salt`, `adapter`, `tenant`, `priority`, `deadline` of the `Request`.

        Raises:
            InvalidRequest: a request that could never be served, an arrival at no instant (inf, nan), or an id that is
                in use; naming value and limit.
            EngineStopped: the loop has ended, or is being closed.
        """
        now = self.engine.clock.now()
        timeline = Timeline(now if arrival is None else arrival)
        if request_id is None:
            while (name := f"r{next(self._numbers)}") in self._streams:
                pass
        else:
            name = request_id
        if not math.isfinite(timeline.arrival):
            raise InvalidRequest(f"request {name!r} arrives at {timeline.arrival} s; give the instant it is meant for")
        request = Request(name, prompt_ids, params or SamplingParams(), timeline, **more)  # type: ignore[arg-type]
        timeline.sent = max(timeline.arrival, now)
        # Both only read what does not change; so a caller hears of its slip here, and not as a stream that fails.
        self.engine.scheduler.check(request)
        self.engine.executor.check(request)
        stream = Stream(self, request)
        with self._changed:
            self._require_open()
            if name in self._streams:
                raise InvalidRequest(f"request id {name!r} is in use; wait for it to finish, or choose another")
            self._streams[name] = stream
            self._command(partial(self._add, stream))
        return stream

    def cancel(self, request_id: str) -> bool:
        """Let a request go; whether there was one that was live. Its stream ends after at most one more step."""
        stream = self._streams.get(request_id)
        return stream is not None and self._cancel(stream)

    def close(self, *, drain: bool = True) -> None:
        """Take no more requests, and return when the loop has ended. Calling it again does no harm.

        Args:
            drain: answer what was asked; False cancels it, which takes at most one more step. A second call with False
                cuts short a drain that is under way.
        """
        with self._changed:
            self._closing = True
            self._command(self._drain if drain else self._abandon)
        if threading.current_thread() is self._thread:
            return
        while self._thread.is_alive():
            self._thread.join(_SLICE)

    @property
    def error(self) -> BaseException | None:
        """What ended the loop, if it did not end by `close`."""
        return self._death

    def __enter__(self) -> OnlineEngine:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(drain=kind is None)
        if kind is None and self._death is not None:
            raise self._stopped()

    async def __aenter__(self) -> OnlineEngine:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await asyncio.to_thread(self.close, drain=kind is None)
        if kind is None and self._death is not None:
            raise self._stopped()

    # ---- in the callers' threads ---------------------------------------------------------------------------------

    def _cancel(self, stream: Stream) -> bool:
        with self._changed:
            if stream.finished or self._streams.get(stream.request_id) is not stream:
                return False
            self._command(partial(self.engine.cancel, stream.request_id))
            return True

    def _command(self, command: Callable[[], object]) -> None:
        """Leave something for the loop to do; the lock is held."""
        self._commands.append(command)
        self._changed.notify_all()

    def _require_open(self) -> None:
        if self._death is not None:
            raise self._stopped()
        if self._closing:
            raise EngineStopped("the engine is closed and takes no more requests; make another OnlineEngine")

    def _stopped(self) -> EngineStopped:
        error = EngineStopped(
            f"the engine's loop ended: {type(self._death).__name__}: {self._death}; make a new engine and send what is "
            "unfinished again"
        )
        error.__cause__ = self._death
        return error

    def _not_from_the_loop(self, what: str) -> None:
        if threading.current_thread() is self._thread:
            raise UnderloadError(
                f"the engine's own thread cannot {what} a stream: it would wait for itself; read it in another thread"
            )

    def _at_exit(self) -> None:
        """The program ends: let the step that runs be the last. A fork of it has no such thread."""
        if os.getpid() == self._process:
            self.close(drain=False)

    # ---- in the loop's thread ------------------------------------------------------------------------------------

    def _work(self) -> None:
        _Frozen.begin()
        try:
            while self._obey():
                self._busy = self.engine.step()
                self._tell()
        except BaseException as error:
            self._death = error
        finally:
            _Frozen.end()
            self._finish()

    def _obey(self) -> bool:
        """Wait until there is something to do, and carry out what was asked; False when all is done and closed."""
        with self._changed:
            while not self._busy and not self._commands:
                if self._closing:
                    return False
                self._changed.wait()
            commands, self._commands = self._commands, deque()
        for command in commands:
            command()
        self._busy = self._busy or bool(commands)
        return True

    def _sleep(self, until: float) -> None:
        """The engine's way to wait for an instant: a command ends it early."""
        with self._changed:
            while not self._commands and (remaining := until - self.engine.clock.now()) > 0:
                self._changed.wait(min(remaining, LONGEST_WAIT))

    def _add(self, stream: Stream) -> None:
        try:
            self.engine.add(stream.request)
        except Exception as error:
            stream.request.error = str(error)
            self._end([(stream, self._failure(stream.request))])

    def _drain(self) -> None:
        self.engine.more_to_come = False

    def _abandon(self) -> None:
        self._drain()
        for name in [*self._streams, *self.engine.scheduler.requests]:
            self.engine.cancel(name)

    def _see(self, plan: Plan, result: StepResult, record: StepRecord) -> None:
        """A step was committed: hand its tokens out, then call whom the engine had before."""
        woken: list[asyncio.Future[None]] = []
        for work, sampled in zip(plan.work, result.sampled):
            request = work.sequence.request
            if not sampled or request is None:
                continue
            stream = self._streams.get(request.request_id)
            if stream is None or stream.request is not request:
                continue
            woken += stream._put(work, sampled)
        self._ring(woken)
        if self._on_step is not None:
            self._on_step(plan, result, record)

    def _tell(self) -> None:
        """Streams of requests that finished in the last step end; forget what need not be kept."""
        engine = self.engine
        ended = []
        for request in engine.finished[self._told :]:
            stream = self._streams.get(request.request_id)
            if stream is not None and stream.request is request:
                ended.append((stream, self._failure(request)))
        self._end(ended)
        if self._keep is not None:
            for kept in (engine.finished, engine.steps):
                if len(kept) > 2 * self._keep:
                    del kept[: len(kept) - self._keep]
        self._told = len(engine.finished)

    def _failure(self, request: Request) -> RequestFailed | None:
        match request.timeline.finish_reason:
            case FinishReason.ERROR | None:
                return RequestFailed(f"request {request.request_id!r} failed: {request.error}")
            case FinishReason.REFUSED:
                return RequestFailed(f"request {request.request_id!r} was refused: {request.error}")
        return None

    def _end(self, ended: Seq[tuple[Stream, UnderloadError | None]]) -> None:
        woken: list[asyncio.Future[None]] = []
        for stream, failure in ended:
            with self._changed:
                self._streams.pop(stream.request_id, None)
            woken += stream._end(failure)
        self._ring(woken)

    def _ring(self, woken: list[asyncio.Future[None]]) -> None:
        """Wake readers in event loops, with one call for each loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for waiter in woken:
            by_loop.setdefault(waiter.get_loop(), []).append(waiter)
        for loop, waiters in by_loop.items():
            with contextlib.suppress(RuntimeError):  # that loop is closed, and its readers are gone with it
                loop.call_soon_threadsafe(_resolve, waiters)

    def _finish(self) -> None:
        """The loop has ended. Nobody waits for ever."""
        self.engine.on_step = self._on_step
        self.engine.sleep = self.engine.clock.wait
        self.engine.more_to_come = False
        atexit.unregister(self._at_exit)
        with self._changed:
            self._closing = True
            left = list(self._streams.values())
        self._end([(stream, self._stopped()) for stream in left])


def _resolve(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
