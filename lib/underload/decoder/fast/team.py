"""Threads that help with a step, when they are awake to help.

A step is never waited for by name: its pieces are handed out by a ticket (`step.py`), the calling thread takes what
the helpers do not, and a helper that sleeps or is gone costs speed and nothing else. So there is no barrier to hang
on, no count of threads to get wrong, and nothing to repair after an exception, an interrupt, or a fork.

After a step a helper looks for the next one for about a millisecond, offering its core to others all the while;
then it blocks, and costs nothing until it is woken.
"""

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

Job = tuple[Callable[..., None], np.ndarray, tuple[Any, ...]]  # work(thread, patience, control, *rest)

_PATIENCE = 1500  # times a helper offers its core before it blocks
# Words of `control` (int64), each on a cache line of its own.
TICKET, DONE, STOP, CONTROL_WORDS = 0, 8, 16, 24  # the ticket, pieces done of this phase, "helpers, come back"
END = (1 << 15) - 1  # the phase after the last
OVER = END << 48  # the ticket when there is nothing to do


class Team:
    """The caller and `threads - 1` helpers; shared by all models of a process that ask for as many threads."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        # One step at a time. Reentrant, since a collected model calls `let_go` wherever its thread happens to be.
        self._lock = threading.RLock()
        self._let_go: deque[Job] = deque()  # jobs of collected models that the lock's holder still has to forget
        self._job: Job | None = None
        self._steps = 0
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._closed = False
        self._asleep = [False] * self.threads
        self._wake = [threading.Semaphore(0) for _ in range(self.threads)]
        self._helpers = [
            threading.Thread(target=self._help, args=(i,), name=f"underload-{i}", daemon=True)
            for i in range(1, self.threads)
        ]
        for helper in self._helpers:
            helper.start()

    def run(self, job: Job, before: Callable[[], None]) -> None:
        """Call `before`, which offers the step's first ticket, then work until the step is over.

        One step at a time: a second caller waits. Helpers may look at the job's arrays until `forget`, or another job.
        """
        if self._process != os.getpid():
            self._recover()
        with self._lock:
            work, control, rest = job
            if self._job is not job:
                self._call_back()
                control[STOP] = 0
                self._job = job
            if control[TICKET] != OVER:  # an interrupt hit the caller in the middle of its last step
                work(0, 0, control, *rest)
            self._steps += 1
            try:
                before()
                for i in range(1, self.threads):
                    if self._asleep[i]:
                        self._asleep[i] = False
                        self._wake[i].release()
            finally:
                # Also when an interrupt came: helpers that have begun write into arrays that the caller, on its way
                # out, would give back. Where nothing was offered yet this returns at once.
                work(0, 0, control, *rest)
            while self._let_go:
                self.forget(self._let_go.pop())

    def let_go(self, job: Job) -> None:
        """`forget` for the garbage collector. It may strike any thread anywhere, also a helper inside the semaphore
        that the lock's holder is about to release; so this never waits, and leaves the job to the holder instead."""
        if not self._lock.acquire(blocking=False):
            self._let_go.append(job)
            return
        try:
            self.forget(job)
        finally:
            self._lock.release()

    def forget(self, job: Job | None) -> None:
        """Let go of a job that will not run again. A step of it that two interrupts left half done is finished first:
        its arrays are about to be used for other things, and a helper may still be at work on it."""
        if self._process != os.getpid():
            self._recover()  # or the lock may be one that a thread of the parent held
        with self._lock:
            if job is not None:
                work, control, rest = job
                work(0, 0, control, *rest)  # returns at once when the step is over
            if self._job is job:
                self._call_back()
                self._job = None

    def _call_back(self) -> None:
        if self._job is not None:
            self._job[1][STOP] = 1

    def _recover(self) -> None:
        """A forked child has no threads but the one that forked, and a step half done elsewhere is nobody's."""
        if self._job is not None:
            self._job[1][TICKET] = OVER
            self._job = None
        self._lock = threading.RLock()
        self._start()

    def _help(self, index: int) -> None:
        while not self._closed:
            job, steps = self._job, self._steps
            if job is not None:
                work, control, rest = job
                work(index, _PATIENCE, control, *rest)
                del work, control, rest
            same = self._job is job and self._steps == steps
            del job
            if not same:
                continue
            self._asleep[index] = True
            if self._steps != steps or self._closed:
                self._asleep[index] = False
                continue
            self._wake[index].acquire()

    def close(self) -> None:
        """End the helpers, and wait for them: none may be inside compiled code when the interpreter goes."""
        self._closed = True
        self._call_back()
        if self._process == os.getpid():
            for wake in self._wake:
                wake.release()
            for helper in self._helpers:
                helper.join()


_teams: dict[int, Team] = {}
_teams_lock = threading.Lock()


def team(threads: int) -> Team:
    """The process's team of that size, made when first asked for."""
    with _teams_lock:
        if threads not in _teams:
            _teams[threads] = Team(threads)
        return _teams[threads]


def _after_fork() -> None:
    global _teams_lock
    _teams_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _close_all() -> None:
    for one in _teams.values():
        one.close()
    _teams.clear()
