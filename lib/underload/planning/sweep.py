"""Many runs at once: on this process, on several of this machine, or on a Dask cluster; the caller's code is the same.

    workers(processes=4)                     local processes
    workers(scheduler="tcp://host:8786")     the workers of a Dask cluster; `underload` must be installed there
    sweep(function, {"batch": [1, 8], "seed": range(3)})     one row a point of the grid

Both give a `concurrent.futures.Executor`. Results come in the order of the points, whoever was done first, and what is
computed does not depend on where.
"""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import count, product
from typing import Any

from underload.queueing import arguments
from underload.request import UnderloadError

CONNECT_SECONDS = 10.0
MOST_PROCESSES = 1000


class Here(Executor):
    """Runs what is submitted at once, on the calling thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Watched(Executor):
    """Hands work on to another executor, and says how much of it is done.

    Args:
        executor: who does it.
        parts: how many pieces will be submitted, at most.
        progress: called with (done, parts), first with none done; perhaps from another thread.
    """

    def __init__(self, executor: Executor, parts: int, progress: Callable[[int, int], None]) -> None:
        self._executor, self._parts, self._progress = executor, parts, progress
        self._done = count(1)
        progress(0, parts)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = self._executor.submit(fn, *args, **kwargs)
        future.add_done_callback(self._one_more)
        return future

    def _one_more(self, future: Future[Any]) -> None:
        if not future.cancelled():
            self._progress(next(self._done), self._parts)


@contextmanager
def workers(processes: int = 1, scheduler: str | None = None) -> Iterator[Executor]:
    """Who does the work: this thread, so many processes, or the workers of a Dask scheduler at that address.

    Raises:
        UnderloadError: processes below 1, both ways asked for, Dask missing, or nobody at the address, or there no
            worker within `CONNECT_SECONDS`.
    """
    processes = arguments.whole("processes", processes, least=1, most=MOST_PROCESSES)
    if scheduler is None and processes == 1:
        yield Here()
        return
    if scheduler is None:
        # Ctrl-C reaches the workers as well: they end without a word, and the caller tells of it.
        pool = ProcessPoolExecutor(processes, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_DFL))
        try:
            yield pool
        except BrokenExecutor as error:
            raise UnderloadError(
                f"one of {processes} processes ended before its work was done ({error!s:.120}); it may have been short "
                "of memory: take fewer processes"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)
        return
    if processes > 1:
        raise UnderloadError(f"give processes (got {processes}) or a scheduler (got {scheduler!r:.60}), not both")
    if not isinstance(scheduler, str):
        raise UnderloadError(f"a scheduler is named by its address, such as tcp://host:8786, got {scheduler!r:.60}")
    try:
        from distributed import Client
    except ImportError:
        raise UnderloadError(
            "a scheduler is Dask's, and Dask distributed is not installed: pip install 'underload[cluster]', or leave "
            "the scheduler out and give processes"
        ) from None
    try:
        client = Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise UnderloadError(
            f"no Dask scheduler answers at {scheduler!r:.60} within {CONNECT_SECONDS:g} s ({error!s:.80}); start one "
            "(dask scheduler), or name its address"
        ) from None
    try:
        try:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError:
            raise UnderloadError(
                f"the Dask scheduler at {scheduler!r:.60} has no worker after {CONNECT_SECONDS:g} s; start one "
                f"(dask worker {scheduler:.60})"
            ) from None
        yield client.get_executor()
    finally:
        client.close()


def sweep(
    function: Callable[..., Any],
    grid: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]],
    *,
    processes: int = 1,
    scheduler: str | None = None,
) -> list[dict[str, Any]]:
    """Call `function` at every point of a grid; one row a point, in the order of the points.

        sweep(step_seconds, {"batch": [1, 8, 64], "context": [512, 4096]}, processes=2)

    Args:
        function: takes a point's values by name. What it gives back is merged into the row if it is a mapping, and
            stands under "result" if not. For processes it must be a named function at the top of a module.
        grid: values by name, of which all combinations are taken, the last name fastest; or the points themselves.
        processes, scheduler: as `workers` says.

    Raises:
        UnderloadError: no point; a function that cannot be sent to another process; a name that is both the point's and
            the result's; what the function raised, with the point.
    """
    points = _points(grid)
    if processes > 1:
        check_sendable(function)
    with workers(processes, scheduler) as executor:
        futures = [executor.submit(function, **point) for point in points]
        try:
            return [_row(point, future) for point, future in zip(points, futures)]
        except BaseException:
            for future in futures:
                future.cancel()
            raise


def _points(grid: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    try:
        if isinstance(grid, Mapping):
            points = [dict(zip(grid, values)) for values in product(*map(list, grid.values()))]
        else:
            points = [dict(point) for point in grid]
    except (TypeError, ValueError):
        raise UnderloadError(
            f"a grid is a list of values for each name, or a list of points by name, got {grid!r:.60}"
        ) from None
    if not points or not all(isinstance(name, str) for point in points for name in point):
        raise UnderloadError(f"a grid has a point at least, and names are texts, got {grid!r:.60}")
    return points


def _row(point: dict[str, Any], future: Future[Any]) -> dict[str, Any]:
    try:
        result = future.result()
    except UnderloadError as error:
        raise UnderloadError(f"at {_named(point)}: {error}") from error
    except Exception as error:
        error.add_note(f"at {_named(point)}")
        raise
    found = dict(result) if isinstance(result, Mapping) else {"result": result}
    if both := point.keys() & found.keys():
        raise UnderloadError(f"{sorted(both)[0]!r} is a name of the grid and of what the function gives; rename one")
    return point | found


def _named(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value!r:.60}" for name, value in point.items()) or "the only point"


def check_sendable(what: Any) -> None:
    """Raises:
    UnderloadError: it cannot be sent to another process.
    """
    try:
        pickle.dumps(what)
    except Exception as error:
        raise UnderloadError(
            f"{getattr(what, '__name__', what)!s:.60} cannot be sent to another process ({error!s:.120}); make "
            "functions named ones at the top of a module, or leave processes at 1"
        ) from None
