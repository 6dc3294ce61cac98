"""First come, first served without events: G/G/c customer by customer, a million and more a second.

Under FCFS a customer starts when it is there and a server is free, whichever comes later, and what comes after it
changes nothing. So one pass in order of arrival tells all (Lindley 1952 for one server; Kiefer and Wolfowitz 1955 for
several, here with a heap of the instants at which the servers are next free):

    start = max(arrival, earliest free server),   that server is next free at start + service

With a buffer, a customer is refused if it would have to wait and `buffer` earlier ones have not started yet.

The sums are the ones that the event queue makes, in its order, so both paths agree to the last bit. (The textbook's
cumulative maximum over cumulative sums is no faster than the compiled loop, and rounds differently.) The loops are
compiled by numba once enough customers have come to be worth it; before that, and where numba is missing, the same
recursion runs in plain Python, at a few million customers a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from heapq import heapreplace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from underload.queueing import arguments
from underload.request.errors import UnderloadError

Array = NDArray[np.float64]

ENGINES = ("auto", "compiled", "plain")

# To load numba and to compile takes a second or two, in which plain Python has served so many customers.
COMPILE_FROM = 3_000_000

_served = 0  # customers so far in this process: many short runs are worth compiling for, too


def fcfs(arrival: Array, service: Array, servers: int = 1, buffer: int | None = None, *, engine: str = "auto") -> Array:
    """When each customer starts, in s; NaN for those refused.

    Args:
        arrival: ascending, in s.
        service: in s, none negative; one for each arrival.
        servers: at least 1.
        buffer: how many may wait; None is no limit.
        engine: "compiled", "plain", or "auto", which compiles when that saves time. The results are the same.

    Raises:
        UnderloadError: arrivals that do not ascend, services that are negative or not as many, what is no finite
            number, servers below 1, a negative buffer, or an unknown engine.
    """
    global _served
    if engine not in ENGINES:
        raise UnderloadError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    servers = arguments.whole("servers", servers, least=1)
    buffer = None if buffer is None else arguments.whole("buffer", buffer, least=0)
    try:
        arrival, service = np.asarray(arrival, dtype=np.float64), np.asarray(service, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise UnderloadError("arrival and service must be rows of numbers in s; mend what made them") from None
    if arrival.ndim != 1 or arrival.shape != service.shape:
        raise UnderloadError(f"each arrival needs a service, got {arrival.shape} and {service.shape}; match the two")
    # Asked this way round, NaN fails too.
    if not (
        (arrival[1:] >= arrival[:-1]).all() and (service >= 0).all() and np.isfinite(arrival.sum() + service.sum())
    ):
        raise UnderloadError("arrivals must ascend and services be at least 0 s, all of them finite; sort or mend them")
    n = len(arrival)
    _served += n
    if engine == "compiled" or (engine == "auto" and n and _served >= COMPILE_FROM):
        kernels = _compiled()
        if kernels is not None:
            start = np.empty(n)
            if servers == 1 and buffer is None:
                kernels[0](arrival, service, start)
            else:
                # Beyond n servers none is ever needed.
                kernels[1](arrival, service, start, min(servers, max(n, 1)), n if buffer is None else min(buffer, n))
            return start
    if servers == 1 and buffer is None:
        return np.array(_one(arrival.tolist(), service.tolist()), dtype=np.float64)
    return np.array(_many(arrival.tolist(), service.tolist(), min(servers, max(n, 1)), buffer), dtype=np.float64)


def _one(arrival: list[float], service: list[float]) -> list[float]:
    start: list[float] = []
    append = start.append
    free = -math.inf
    for now, takes in zip(arrival, service):
        if now > free:
            free = now
        append(free)
        free += takes
    return start


def _many(arrival: list[float], service: list[float], servers: int, buffer: int | None) -> list[float]:
    start: list[float] = []
    append = start.append
    free = [-math.inf] * servers  # a heap
    if buffer is None:
        for now, takes in zip(arrival, service):
            begin = free[0]
            if now > begin:
                begin = now
            append(begin)
            heapreplace(free, begin + takes)
        return start
    admitted: list[float] = []  # starts of those admitted, ascending
    begun = 0  # how many of them have started by now
    for now, takes in zip(arrival, service):
        begin = free[0]
        if now >= begin:
            begin = now
        else:
            while begun < len(admitted) and admitted[begun] <= now:
                begun += 1
            if len(admitted) - begun >= buffer:
                append(math.nan)
                continue
        append(begin)
        admitted.append(begin)
        heapreplace(free, begin + takes)
    return start


@cache
def _compiled() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """The same two loops over arrays, compiled; None where numba is missing."""
    try:
        from numba import njit
    except ImportError:
        return None
    # Nothing is cached on disk: the library may lie where it cannot write. Both compile in about a second.
    return njit(nogil=True)(_one_kernel), njit(nogil=True)(_many_kernel)


def _one_kernel(arrival: Array, service: Array, start: Array) -> None:
    free = -np.inf
    for i in range(arrival.size):
        free = max(free, arrival[i])
        start[i] = free
        free += service[i]


def _many_kernel(arrival: Array, service: Array, start: Array, servers: int, buffer: int) -> None:
    n = arrival.size
    free = np.full(servers, -np.inf)
    admitted = np.empty(n)
    count = 0
    begun = 0
    for i in range(n):
        now = arrival[i]
        begin = free[0]
        if now >= begin:
            begin = now
        else:
            while begun < count and admitted[begun] <= now:
                begun += 1
            if count - begun >= buffer:
                start[i] = np.nan
                continue
        start[i] = begin
        admitted[count] = begin
        count += 1
        # Put the server back where it belongs: the root of the heap sinks.
        value = begin + service[i]
        parent = 0
        child = 1
        while child < servers:
            if child + 1 < servers and free[child + 1] < free[child]:
                child += 1
            if free[child] >= value:
                break
            free[parent] = free[child]
            parent = child
            child = 2 * parent + 1
        free[parent] = value
