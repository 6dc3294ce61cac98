"""What runs in a process that runs cells: one IPython namespace, and the commands of the grader (process.py).

Cells run as in a notebook: magics, `display`, top-level `await`, and a running event loop, so that `asyncio.run`
fails here as it does there. Nobody answers `input`, no program is started, and nothing is drawn.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import ctypes
import functools
import getpass
import io
import linecache
import os
import re
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from underload.course import points, sandbox, watch, wire

_SAID = 4000  # characters of a message or of what a check printed
_TRACEBACK = 20_000
_GRACE = 0.5  # seconds that threads get to end before a fork, which would lose them
_AFTER_ENDLESS = 2.0  # seconds of a check where one before it in the same test never ended
_HERE = os.path.dirname(__file__) + os.sep
_PLAIN = (int, float, str, bytes, bool)  # bound again to an equal one, a name is what it was
_NUMBER = r"\w+ = \d+"  # the student's own number, set before every test: nothing of the library is in it
_TOP_LEVEL_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


class Printed(io.TextIOBase):
    """Takes what is printed and keeps its beginning and its end."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.clear()

    def clear(self) -> None:
        self._head: list[str] = []
        self._left = self.limit // 2
        self._tail: list[str] = []
        self._held = 0
        self._count = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        # No lock: a thread that prints while the process forks would leave it locked in the fork.
        self._count += len(text)
        rest = text
        if self._left > 0:
            taken = rest[: self._left]
            self._head.append(taken)
            self._left -= len(taken)
            rest = rest[len(taken) :]
        if rest:
            room = self.limit - self.limit // 2
            self._tail.append(rest[-room:] if room else "")
            self._held += min(len(rest), room)
            if self._held > 2 * room:
                kept = "".join(self._tail)[-room:] if room else ""
                self._tail, self._held = [kept], len(kept)
        return len(text)

    def result(self) -> tuple[str, bool]:
        """What was printed, cut in its middle if it was too much; and whether it was."""
        room = self.limit - self.limit // 2
        head, tail = "".join(self._head), "".join(self._tail)[-room:] if room else ""
        lost = self._count - len(head) - len(tail)
        if lost <= 0:
            return head + tail, False
        return f"{head}\n… {lost:,} characters left out …\n{tail}", True


class Loop(asyncio.SelectorEventLoop):
    """An event loop that survives a fork: it holds nothing in the kernel that both sides would share."""

    def __init__(self) -> None:
        super().__init__(selectors.PollSelector() if hasattr(selectors, "PollSelector") else selectors.SelectSelector())

    def renew(self) -> None:
        """In a fork: a pipe of its own to wake itself with."""
        self._close_self_pipe()  # type: ignore[attr-defined]
        self._make_self_pipe()  # type: ignore[attr-defined]


class TimeOver(BaseException):
    """A check took too long. No Exception, so that an answer's `except Exception` does not catch it."""


def main(handle: int) -> None:
    """Be a process that runs cells, commanded over the socket `handle`."""
    commands = socket.socket(fileno=handle)
    os.set_inheritable(handle, False)
    process = Inside(commands)
    try:
        process.serve()
    finally:
        os._exit(0)


class Inside:
    """The process: its namespace, what its cells bound, and the commands it obeys."""

    def __init__(self, commands: socket.socket) -> None:
        self.commands = commands
        self.limits = sandbox.Limits()
        self.folder = os.getcwd()
        self.shut = False
        self.output = Printed(self.limits.output)
        self.loop = Loop()
        self.given: dict[str, Any] = {}  # what the source's own cells bound: name -> object
        self.given_code: set[tuple[Any, ...]] = set()  # what their code looks like
        self.put_back: list[str] = []  # what cells had changed and a given cell found put back
        self.cells: dict[str, str] = {}  # file name -> source of all cells so far
        self.bound: set[str] = set()  # names that other cells bound
        self.running = False
        self.forks: set[int] = set()
        self.waited_for: set[int] = set()  # threads that were not over when a fork waited for them
        self.fingerprint: watch.Fingerprint | None = None
        self.reading: tuple[str, ...] | None = None
        if sys.platform == "linux":
            _prctl(36, 1)  # subreaper: whatever a fork leaves behind stays below this process, and goes with it
        asyncio.set_event_loop(self.loop)
        sys.stdin = open(os.devnull)  # noqa: SIM115 - for the life of the process
        sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = self.output  # type: ignore[misc,assignment]
        builtins.input = getpass.getpass = _nobody
        warnings.filterwarnings("ignore", "To exit: use", UserWarning)  # IPython's advice at `sys.exit`
        self.shell = _shell(self)
        self.shell.builtin_trap.activate()  # for good: `display` and `get_ipython` are builtins as others are
        signal.signal(signal.SIGCHLD, lambda *_: self._reap_forks())

    # --- commands

    def serve(self) -> None:
        """Obey until the grader is gone."""
        with open(os.devnull, "w") as nowhere:  # what went wrong until here was for the grader
            os.dup2(nowhere.fileno(), 2)
        wire.send(self.commands, {"hello": os.getpid()})
        while True:
            try:
                command, passed = wire.receive(self.commands)
            except (EOFError, OSError):
                return
            self._reap()
            if command["do"] == "run":
                self._run(command)
            elif command["do"] == "fork":
                self._fork(command, passed[0])
            elif command["do"] == "test":
                self._test(passed[0])

    def _run(self, command: dict[str, Any]) -> None:
        given = command["given"] or not self.shut
        cell = self.file_name(command["name"], command["code"])
        before = dict(self.shell.user_ns)
        if given and self.shut and self.fingerprint is not None and not re.fullmatch(_NUMBER, command["code"]):
            self.put_back = sorted({*self.put_back, *self.fingerprint.restore()})
        if given:
            self.given_code |= self._looks(command["python"], cell)
        if not self.shut:
            self.fingerprint = self.reading = None
        loaded = set(sys.modules)
        self.output.limit = self.limits.output
        self.output.clear()
        sys.stdout = sys.stderr = self.output
        error = self._execute(command["code"], cell, command["python"] if given and self.shut else None)
        with sandbox.spare() if self.shut else contextlib.nullcontext():
            try:
                reply = self._told(error)
            except MemoryError:
                reply = {"error": "MemoryError", "traceback": "", "output": "", "cut": True}
            # What tracebacks hold would stay as long as they do.
            for name in ("last_type", "last_value", "last_traceback", "last_exc"):
                if hasattr(sys, name):
                    delattr(sys, name)
            changed = {
                name: value
                for name, value in self.shell.user_ns.items()
                if before.get(name, before) is not value and not name.startswith("_") and name not in ("In", "Out")
            }
            before.clear()
            if given:
                if self.fingerprint is not None:
                    self.fingerprint.add(sys.modules.keys() - loaded)
                self.given.update(changed)
                self.bound.difference_update(changed)
            else:
                self.bound.update(changed)
            reply["full"] = isinstance(error, MemoryError) and self._full()
            reply["number"] = command["number"]
            wire.send(self.commands, reply)

    def file_name(self, name: str, code: str) -> str:
        """What a cell is compiled under: its name, told apart from another cell's of the same name."""
        name = re.sub(r"[^\w .:+#()-]", "_", name)[:80]
        file, count = f"<cell {name}>", 1
        while self.cells.setdefault(file, code) != code:
            count += 1
            file = f"<cell {name} ({count})>"
        return file

    def _looks(self, python: str, cell: str) -> set[tuple[Any, ...]]:
        """What the code of a cell looks like that is Python already."""
        with contextlib.suppress(Exception):  # what is wrong with it is told when it runs
            return watch.looks(_statements(python, cell, self.shell.compile.flags))
        return set()

    def _full(self) -> bool:
        """Whether a cell that ran out of memory left so much of it occupied that the next ones would too."""
        import gc
        import mmap

        gc.collect()
        try:  # asked for and never touched: whether there still is room
            mmap.mmap(-1, sandbox.SPARE + self.limits.memory // 2, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
        except OSError:
            return self.shut
        return False

    def _told(self, error: BaseException | None) -> dict[str, Any]:
        output, cut = self.output.result()
        return {
            "error": "" if error is None else said(error),
            "traceback": "" if error is None else trace(error),
            "output": output,
            "cut": cut,
        }

    def _execute(self, code: str, cell: str, python: str | None) -> BaseException | None:
        """Run a cell; what it raised. python: of a given cell after a student's, run past IPython, whose transformers
        and hooks they may have set."""
        signal.signal(signal.SIGINT, self._interrupt)
        self.shell.cell_name = cell
        self.shell.failure = None
        task = self.loop.create_task(self._cell(code) if python is None else self._plain_cell(python, cell))
        try:
            self.running = True
            try:
                self.loop.run_until_complete(task)
            except KeyboardInterrupt as error:  # while the cell waited for something
                self.running = False
                task.cancel()
                with contextlib.suppress(BaseException):
                    self.loop.run_until_complete(task)
                return error
            finally:
                self.running = False
        except KeyboardInterrupt as error:
            return error
        except BaseException as error:  # raised by the notebook's machinery, not by the cell's code
            return error
        finally:
            self._close_figures()
        failure = self.shell.failure
        self.shell.failure = None
        return failure

    def show(self, value: object) -> None:
        """Print a cell's value, whatever its code has done to `print` and `sys.stdout`."""
        (self.output if sys.stdout is None else sys.stdout).write(f"{value}\n")

    async def _cell(self, code: str) -> None:
        shell = self.shell
        try:
            transformed, problem = shell.transform_cell(code), None
        except Exception:
            transformed, problem = code, sys.exc_info()
        result = await shell.run_cell_async(
            code, store_history=True, transformed_cell=transformed, preprocessing_exc_tuple=problem
        )
        shell.failure = result.error_before_exec or result.error_in_exec or shell.failure
        shell.last_execution_result = None
        result.result = None

    async def _plain_cell(self, python: str, cell: str) -> None:
        space = self.shell.user_ns
        space["__builtins__"] = builtins
        await _evaluate(_statements(python, cell, self.shell.compile.flags), space)

    def own_loop(self) -> Loop:
        """The event loop without what a cell has put in front of its methods."""
        self.loop.__class__ = Loop
        for name in [name for name, value in vars(self.loop).items() if callable(value) and hasattr(Loop, name)]:
            delattr(self.loop, name)
        return self.loop

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.running:
            raise KeyboardInterrupt

    @staticmethod
    def _close_figures() -> None:
        # as a notebook does after every cell
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None:
            with contextlib.suppress(BaseException):
                pyplot.close("all")

    # --- forks

    def _fork(self, command: dict[str, Any], commands: socket.socket) -> None:
        me = os.getpid()
        try:
            if command["shut_in"] and not self.shut:
                self._look()
            here = self._split()
        except Exception as error:
            wire.send(commands, {"failed": said(error)})
            if os.getpid() != me:
                os._exit(1)
            here = True
        if here:
            commands.close()
            return
        try:
            self.commands.close()
            self.commands = commands
            self.limits = sandbox.Limits(**command["limits"])
            os.chdir(command["folder"])
            self.folder = os.path.realpath(command["folder"])
            if command["shut_in"] and not self.shut:
                sys.path.append("")  # modules beside the notebook, after everybody else's
                self.bound.clear()
                sandbox.shut_in(Path(self.folder), self.limits, self.reading or ())
                self.shut = True
            wire.send(self.commands, {"hello": os.getpid()})
        except BaseException as error:
            with contextlib.suppress(OSError):
                wire.send(commands, {"failed": said(error)})
            os._exit(1)

    def _look(self) -> None:
        """Remember what things are like before any student code; again only after a cell has run."""
        if self.fingerprint is None:
            self.fingerprint = watch.Fingerprint()
        if self.reading is None:
            self.reading = sandbox.readable()

    def _split(self) -> bool:
        """Fork; True in the process that was there before."""
        end = time.monotonic() + _GRACE
        for thread in threading.enumerate():
            # A fork has no thread but the one that forks: let those end that are about to.
            if thread is not threading.current_thread() and thread.ident not in self.waited_for:
                thread.join(max(0.0, end - time.monotonic()))
                if thread.is_alive() and thread.ident is not None:
                    self.waited_for.add(thread.ident)
        random = sys.modules.get("random")
        state = random.getstate() if random else None
        with sandbox.may_fork(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads that a student left running
            pid = os.fork()
        if pid:
            self.forks.add(pid)
            return True
        self.forks = set()
        self.waited_for = set()
        if sys.platform == "linux":
            _prctl(1, signal.SIGKILL)  # go when the parent goes
            _prctl(36, 1)
        os.setsid()
        self.loop.renew()
        if random:
            random.setstate(state)  # Python seeds it anew in a fork; to the cells there is no fork
        return False

    def _reap_forks(self) -> None:
        for pid in list(self.forks):
            with contextlib.suppress(OSError):
                if os.waitpid(pid, os.WNOHANG) == (0, 0):
                    continue
            self.forks.discard(pid)

    def _reap(self) -> None:
        """Between cells: also what forks left behind."""
        self._reap_forks()
        with contextlib.suppress(OSError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass

    # --- tests

    def _test(self, answers: socket.socket) -> None:
        if self.fingerprint is None and not self.shut:
            self._look()
        if self._split():
            answers.close()
            return
        self.commands.close()
        try:
            sys.setprofile(None)
            sys.settrace(None)
            restored = self.fingerprint.restore() if self.fingerprint else []
            wire.send(answers, {"hello": os.getpid()})
            message, _ = wire.receive(answers)
            reply = Test(self, message, answers).run(restored)
            with sandbox.spare() if self.shut else contextlib.nullcontext():
                wire.send(answers, reply)
        except BaseException as error:
            with contextlib.suppress(BaseException):
                wire.send(answers, {"failed": said(error)})
        os._exit(0)


class Test:
    """One test cell, in a fork that ends after it."""

    def __init__(self, process: Inside, message: dict[str, Any], answers: socket.socket) -> None:
        self.process = process
        self.message = message
        self.answers = answers
        self.cell = process.file_name(message["name"], message["code"])
        self.seconds = float(message["check_seconds"])
        self.endless = False  # whether a check has run into that limit
        self.watch: watch.Watch | None = None
        self.put_back: set[str] = set()

    def run(self, restored: list[str]) -> dict[str, Any]:
        """Run it; what to answer. restored: what had been tampered with, and is put right."""
        process, message = self.process, self.message
        output = process.output
        output.clear()
        sys.stdout = sys.stderr = output
        space, more = self._space(set(message["given"]))
        self.put_back.update(restored, more, process.put_back)
        set_up = {"hidden_seed": bytes.fromhex(message["hidden_seed"]), "around": lambda what: Around(self, what)}
        vars(points).update(set_up)
        if process.fingerprint is not None:
            process.fingerprint.expect(points.__name__, **set_up)
        earned: Any = None
        failure: BaseException | None = None
        used = ""
        try:
            code, names = self._compiled(message["code"])
            folder = process.folder if process.shut else ""
            theirs = [space[name] for name in sorted((process.bound - set(message["given"])) & names) if name in space]
            if message["library"] is not None:
                self.watch = watch.Watch(message["library"], watch.looks(code), process.given_code, folder)
                used = self.watch.held(theirs)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            with self.watch or contextlib.nullcontext():
                earned = process.own_loop().run_until_complete(_evaluate(code, space))
        except BaseException as error:
            failure = error
        self.restore()
        used = used or (self.watch.used if self.watch else "")
        return self._reply(earned, failure, used, sorted(self.put_back))

    def restore(self) -> list[str]:
        """Put back what the answer has changed since the test began; its names."""
        found = self.process.fingerprint.restore() if self.process.fingerprint else []
        self.put_back.update(found)
        return found

    def _space(self, given: set[str]) -> tuple[dict[str, Any], list[str]]:
        """A copy of the namespace in which the source's own names are what they were, and builtins are builtins."""
        process = self.process
        space = dict(process.shell.user_ns)
        restored = []
        for name in sorted(given & process.given.keys()):
            present, former = space.get(name, self), process.given[name]
            if present is not former and not (type(present) is type(former) in _PLAIN and present == former):
                space[name] = former
                restored.append(name)
        shadowing = [name for name in space if hasattr(builtins, name) and name not in given]
        for name in shadowing:
            del space[name]
        if restored or shadowing:  # the source's own functions find their globals here, not among the student's
            for name in given & space.keys():
                space[name] = _moved(space[name], process.shell.user_ns, space)
        space["__builtins__"] = builtins
        space["__name__"] = "__main__"
        return space, restored

    def _compiled(self, source: str) -> tuple[list[CodeType], set[str]]:
        """The cell's code: what runs, and last the expression that is its result. And the names it reads."""
        linecache.cache[self.cell] = (len(source), None, source.splitlines(keepends=True), self.cell)
        tree = ast.parse(source, self.cell)
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        end = tree.body.pop() if tree.body else None
        if not isinstance(end, ast.Expr):
            raise SyntaxError("a test cell must end in points.earned()")
        last = ast.Expression(end.value)
        return [
            compile(tree, self.cell, "exec", _TOP_LEVEL_AWAIT),
            compile(last, self.cell, "eval", _TOP_LEVEL_AWAIT),
        ], names

    def _reply(self, earned: Any, failure: BaseException | None, used: str, restored: list[str]) -> dict[str, Any]:
        error = ""
        if failure is not None:
            error = said(failure)
        elif type(earned) is not points.Earned:
            error = f"the test cell ends in {type(earned).__name__}; it must end in points.earned()"
        checks = [] if error else list(earned.checks)
        output, _ = self.process.output.result()
        return {
            "nonce": self.message["nonce"],
            "total": 0.0 if error else float(earned.total),
            "checks": [_plain(check) for check in checks],
            "error": error,
            "traceback": "" if failure is None else trace(failure),
            "used": used,
            "restored": restored,
            "output": output,
        }

    def tell(self, sofar: list[points.Check], what: str, worth: float) -> None:
        """Say that a check begins: should it never end, those before it count."""
        wire.send(
            self.answers,
            {
                "nonce": self.message["nonce"],
                "checks": [_plain(check) for check in sofar],
                "now": [what, worth],
                "used": self.watch.used if self.watch else "",
            },
        )


class Around:
    """Around a check: a limit on its time and on what it prints, and everything it raises made a failure of it."""

    def __init__(self, test: Test, what: str) -> None:
        self.test, self.what = test, what
        # What never ends would take the whole limit once more in every check of the test.
        self.seconds = min(test.seconds, _AFTER_ENDLESS) if test.endless else test.seconds
        self.active = False

    def __enter__(self) -> None:
        check = sys._getframe(1).f_locals  # of Points.check: its Points, and what the check is worth
        made = check.get("self")
        sofar = made.checks if isinstance(made, points.Points) else []
        self.test.tell(sofar, self.what, float(check.get("worth", 0.0)))
        # Points.check takes what is printed; this keeps a function that prints without end from filling the memory
        sys.stdout, sys.stderr = _Cut(sys.stdout), _Cut(sys.stderr)
        self.active = True
        for number in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(number, self._over)
        signal.setitimer(signal.ITIMER_PROF, self.seconds, 0.1)
        signal.setitimer(signal.ITIMER_REAL, 3 * self.seconds, 0.1)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: Any) -> None:
        self.active = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        changed = self.test.restore()
        if error is None and changed:
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            raise RuntimeError(f"the answer changed {', '.join(changed[:3])}{more} while it was checked")
        if isinstance(error, TimeOver):
            self.test.endless = True
            less = f" (no longer, since a check before it took all of {self.test.seconds:g} s)"
            said = f"did not end within {self.seconds:g} s{less if self.seconds < self.test.seconds else ''}"
            raise TimeoutError(said).with_traceback(tb) from None
        if isinstance(error, MemoryError):
            traceback.clear_frames(tb)  # else what they hold stays until the message is made, and leaves no room for it
            raise MemoryError(str(error) or "needed more memory than there is for a test") from None
        if error is not None and not isinstance(error, Exception | SystemExit):
            raise RuntimeError(f"ended in {type(error).__name__}").with_traceback(tb) from None

    def _over(self, number: int, frame: FrameType | None) -> None:
        # What a profile function raises switches it off, so not within the watch: the timer rings again in a moment.
        if self.active and not _within_watch(frame):
            raise TimeOver


def _within_watch(frame: FrameType | None) -> bool:
    for _ in range(6):  # the watch calls no deeper
        if frame is None:
            return False
        if frame.f_code.co_filename == watch.__file__:
            return True
        frame = frame.f_back
    return False


class _Cut(io.TextIOBase):
    """Passes on the first characters that are printed."""

    def __init__(self, target: Any) -> None:
        self._target, self._left = target, 4 * _SAID

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._left > 0:
            self._target.write(text[: self._left])
            self._left -= len(text)
        return len(text)


def _moved(value: Any, old: dict[str, Any], new: dict[str, Any]) -> Any:
    """A plain function of one namespace, with another for its globals; anything else as it is."""
    if type(value) is not FunctionType or value.__globals__ is not old:
        return value
    moved = FunctionType(value.__code__, new, value.__name__, value.__defaults__, value.__closure__)
    moved.__kwdefaults__ = value.__kwdefaults__
    return functools.update_wrapper(moved, value, updated=("__dict__",))


def _statements(python: str, cell: str, flags: int) -> list[CodeType]:
    """A cell's code, each statement by itself as IPython does it: the bytecode depends on what stands beside."""
    return [
        compile(ast.Module([node], []), cell, "exec", flags | _TOP_LEVEL_AWAIT, dont_inherit=True)
        for node in ast.parse(python, cell).body
    ]


async def _evaluate(code: list[CodeType], space: dict[str, Any]) -> Any:
    result = None
    for part in code:
        result = eval(part, space)
        if asyncio.iscoroutine(result) and part.co_flags & 0x80:  # CO_COROUTINE: the cell itself awaits
            result = await result
    return result


def _plain(check: points.Check) -> dict[str, Any]:
    return {
        "what": str(check.what)[:_SAID],
        "worth": float(check.worth),
        "earned": float(check.earned),
        "said": str(check.said)[:_SAID],
        "printed": str(check.printed)[:_SAID],
        "missing": bool(check.missing),
    }


def said(error: BaseException) -> str:
    """An exception in one line."""
    name = type(error).__name__
    try:
        text = str(error).strip().split("\n")[0]
    except BaseException:  # a student's own exception, whose text fails
        text = ""
    if isinstance(error, KeyError) and error.args:
        text = repr(error.args[0])[:_SAID]
    return (f"{name}: {text}" if text else name)[:_SAID]


def trace(error: BaseException) -> str:
    """The traceback, with the frames of the student's code and of what it called."""
    try:
        told = traceback.TracebackException.from_exception(error)
        _thin(told)
        text = "".join(told.format())
    except BaseException:  # a student's own exception, or no memory left
        text = type(error).__name__
    if len(text) <= _TRACEBACK:
        return text
    return text[: _TRACEBACK // 2] + "\n…\n" + text[-_TRACEBACK // 2 :]


def _thin(told: traceback.TracebackException) -> None:
    """Leave out the frames of what runs the cells: before the first cell's, and this package's own."""
    one: traceback.TracebackException | None = told
    while one is not None:
        frames = list(one.stack)
        first = next((i for i, frame in enumerate(frames) if frame.filename.startswith("<cell ")), len(frames))
        one.stack[:] = [frame for frame in frames[first:] if not frame.filename.startswith(_HERE)]
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _nobody(prompt: object = "", stream: object = None) -> str:
    raise EOFError("nobody answers input() when a notebook is graded; write the value into the cell")


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _shell(process: Inside) -> Any:
    """IPython's shell, as quiet as a grader needs it."""
    from IPython.core.compilerop import CachingCompiler
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.text import SList
    from traitlets import Type
    from traitlets.config import Config

    class Compiler(CachingCompiler):
        def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
            return Shell.instance().cell_name

    class Hook(DisplayHook):
        def write_output_prompt(self) -> None:
            pass

        def write_format_data(self, format_dict: dict[str, Any], md_dict: Any = None) -> None:
            process.show(format_dict.get("text/plain", ""))

        def finish_displayhook(self) -> None:
            self._is_active = False

    class Publisher(DisplayPublisher):
        def publish(self, data: Any, *arguments: Any, **more: Any) -> None:
            if "text/plain" in data:
                process.show(data["text/plain"])

        def clear_output(self, wait: bool = False) -> None:
            pass

    class Shell(InteractiveShell):
        displayhook_class = Type(Hook)
        display_pub_class = Type(Publisher)
        compiler_class = Type(Compiler)
        cell_name = "<cell>"
        failure: BaseException | None = None

        def showtraceback(
            self,
            exc_tuple: Any = None,
            filename: Any = None,
            tb_offset: Any = None,
            exception_only: bool = False,
            running_compiled_code: bool = False,
        ) -> None:
            self.failure = (exc_tuple or sys.exc_info())[1]

        def _format_exception_for_storage(self, *arguments: Any, **more: Any) -> Any:
            return {}  # of the history, which nobody reads

        def showsyntaxerror(self, filename: Any = None, running_compiled_code: bool = False) -> None:
            self.failure = sys.exc_info()[1]

        def ask_exit(self) -> None:
            print("exit() does nothing in a graded notebook")

        def enable_gui(self, gui: Any = None) -> None:
            pass

        def enable_matplotlib(self, gui: Any = None) -> tuple[str, str]:
            return "agg", "agg"

        def _not_run(self, command: str) -> None:
            print(f"not run in a graded notebook: {command[:200]}")

        def system(self, cmd: str) -> None:
            if process.shut:
                return self._not_run(cmd)
            return self.system_raw(cmd)

        def getoutput(self, cmd: str, split: bool = True, depth: int = 0) -> Any:
            if process.shut:
                self._not_run(cmd)
                return SList() if split else ""
            return super().getoutput(cmd, split=split, depth=depth)

    config = Config()
    config.HistoryManager.enabled = False  # else it keeps a thread, and a fork has only one
    config.HistoryAccessor.enabled = False
    shell = Shell.instance(config=config, ipython_dir=os.path.join(process.folder, ".ipython"))
    assert shell.display_formatter is not None
    shell.display_formatter.active_types = ["text/plain"]
    return shell


if __name__ == "__main__":
    raise SystemExit("underload.course.process starts this; it is no program of its own")
