"""Whether a test met the student's own answer: what was tampered with, and what the library did in its place.

Tampering: `Fingerprint` remembers, before any student code, what the tests rely on: the modules of `underload`, the
builtins and the modules in `RELIED_ON`, most with their classes and the code of their functions. `restore` puts back
what differs and names it: before a test, after each of its checks, and before a cell of the source's own.

Library use: `Watch` looks at every call of a Python function during a test (`sys.setprofile`). A call into one of
the watched functions with a frame of the student's code anywhere above it means that the answer used it. So aliases,
`importlib`, `getattr`, `functools.partial` and copies made by `types.FunctionType` are found; a call by the test
itself, or by a check of `underload.labs` that takes the library as its oracle, is fine; a mention in a cell that no
test calls costs nothing. `held` looks through the values that the test takes from the student, which may be the
library's function itself, or an object or subclass of its class.

A generator counts where it is consumed: one of the library's that a test hands to an answer counts as used by it, so
a test hands over a list, or a generator expression of its own.

What it does not see: library code that numba compiled or that is written in C (it has no frames); a copy of the
library's source text, renamed (near-identical submissions are listed by the grader for a person to look at); a lazy
`map` over a library function that the answer hands back and the test consumes.

What none of this stops: the student's code runs in the process that is checked. Whoever looks for this module's own
objects there (through the stack, the garbage collector, IPython's shell) can change what they remember, or the points
themselves, and leave no trace. A person who reads the answer sees it at once.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from gc import get_referents
from itertools import chain
from operator import is_
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

#: Modules that tests and what runs them rely on: compared name by name.
RELIED_ON = (
    "builtins", "math", "cmath", "statistics", "random", "itertools", "functools", "collections", "operator", "json",
    "io", "contextlib", "warnings", "traceback", "hashlib", "html", "dataclasses", "copy", "types", "typing",
    "abc", "ast", "asyncio", "asyncio.base_events", "asyncio.events", "codecs", "enum", "linecache", "numbers", "re",
    "selectors", "signal", "socket", "threading", "importlib", "json.decoder", "json.encoder",
    "numpy", "numpy.random", "numpy.linalg", "numpy.testing", "pytest", "scipy.stats", "torch", "torch.testing",
)  # fmt: skip
#: Of these also the classes and the code of the functions. Not of all: in a fork the first look at an object copies the
#: page of memory that it lies in, and every test is a fork.
LOOKED_INTO = {
    "ast", "asyncio.base_events", "contextlib", "functools", "json.decoder", "linecache", "numpy", "numpy.testing",
    "random", "statistics", "traceback", "warnings",
}  # fmt: skip

#: No test takes anything from a picture, nor from what makes hand-outs and reports.
_NO_PART = ("underload.figures", "underload.course.")
_PART = {"underload", *(f"underload.course.{name}" for name in ("points", "inside", "watch", "wire", "sandbox"))}

#: Set anew by every `warnings.catch_warnings`, which nobody need have tampered with.
_TURNING = {("warnings", "filters"), ("warnings", "showwarning"), ("warnings", "_showwarnmsg_impl")}
#: Modules in which the grader itself changes something for every process or test; looked at name by name.
_BUSY = {"warnings", "threading", "underload.course.points", "underload.course.sandbox"}

#: Loaded before the fingerprint is taken: what a student's cell loads first has no former state to go back to.
EARLY = ("numpy.random", "numpy.linalg", "numpy.testing", "underload.request", "underload.shapes", "underload.metrics")

SWITCHED_OFF = "the watch over library calls was switched off"
_ABSENT = object()
_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_CONSTANT = (int, float, str, bytes, tuple, frozenset)
#: Most of what there is, with nothing in it that is looked at one by one.
_DATA = {type(None), bool, int, float, str, bytes, tuple, list, dict, set, frozenset}
_DEEP = 1000  # entries of a container that are looked at
#: What compares is Python's own, also where an answer has put another into builtins.
_all, _map, _len = all, map, len


class Fingerprint:
    """What the modules loaded so far are, before any student code ran."""

    def __init__(self) -> None:
        self.modules: dict[str, ModuleType] = {}
        self._kinds: dict[str, type] = {}
        self._attributes: dict[str, dict[str, Any]] = {}
        self._classes: dict[type, tuple[str, dict[str, Any]]] = {}
        self._functions: dict[int, _Function] = {}
        self._containers: list[tuple[str, Any, Any]] = []
        self._frozen: dict[int, tuple[str, Any, dict[str, Any]]] = {}
        for name in EARLY:
            importlib.import_module(name)
        with contextlib.suppress(ImportError):
            importlib.import_module("typing_extensions")  # which changes `typing` when it is first loaded
        finders: tuple[list[Any], ...] = (sys.meta_path, sys.path_hooks)
        self._finders = [(found, list(found)) for found in finders]
        self.add(list(sys.modules))
        self._settle()

    def add(self, names: Iterable[str]) -> None:
        """Remember these modules as they are now."""
        for name in names:
            module = sys.modules.get(name)
            ours = name in _PART or (name.startswith("underload.") and not name.startswith(_NO_PART))
            if isinstance(module, ModuleType) and (ours or name in RELIED_ON):
                self.modules[name] = module
                self._kinds[name] = type(module)
                self._attributes[name] = {
                    key: value for key, value in vars(module).items() if (name, key) not in _TURNING
                }
                if ours or name in LOOKED_INTO:
                    self._look_into(name, module, ours)
                self._settled = False

    def expect(self, module: str, **values: Any) -> None:
        """Set these in a module, and remember them as what it is from now on."""
        vars(sys.modules[module]).update(values)
        self._attributes[module].update(values)

    def _settle(self) -> None:
        """Keep what is there now in the form in which `_steady` compares it."""
        spaces = [vars(module) for name, module in self.modules.items() if name not in _BUSY]
        spaces += map(vars, self._classes)
        spaces += [record.former[2] for record in self._functions.values() if record.former[2]]
        spaces += [vars(value) for _, value, _ in self._frozen.values()]
        self._views: list[Collection[Any]] = [view for space in spaces for view in (space.keys(), space.values())]
        for _, container, _ in self._containers:
            self._views += [container, container.values()] if isinstance(container, dict) else [container]
        self._sizes = [*map(len, self._views)]
        self._stood = [*chain.from_iterable(self._views)]
        self._plain = [record.function for record in self._functions.values()]
        self._referred = get_referents(*self._plain)
        self._settled = True

    def _steady(self) -> bool:
        """Whether everything holds the very objects that it held when it was last gone through.

        In few calls: within a test each call from Python is also one of the watch's profile function, and each look at
        a function's code one of the audit hooks.
        """
        if not self._settled:  # something was added, and who knows what has happened to the rest
            return False
        referred = get_referents(*self._plain)
        return (
            [*_map(_len, self._views)] == self._sizes
            and _all(_map(is_, chain.from_iterable(self._views), self._stood))
            and _len(referred) == _len(self._referred)
            and _all(_map(is_, referred, self._referred))
            and _all(_map(is_, _map(type, self.modules.values()), self._kinds.values()))
            and _all(_map(is_, _map(sys.modules.get, self.modules), self.modules.values()))
        )

    def _look_into(self, name: str, module: ModuleType, ours: bool) -> None:
        for attribute, value in vars(module).items():
            path = f"{name}.{attribute}"
            if isinstance(value, type):
                if value.__module__ == name:
                    self._add_class(path, value)
            elif type(value) in (dict, list, set, tuple):
                if ours and len(value) <= _DEEP:
                    if not attribute.startswith("_") and not isinstance(value, tuple):
                        self._containers.append((path, value, value.copy()))
                    for one in value.values() if isinstance(value, dict) else value:
                        self._add_frozen(path, one)
            elif getattr(value, "__module__", None) == name:
                self._add_function(path, value)
                if ours:
                    self._add_frozen(path, value)

    def _add_frozen(self, path: str, value: Any) -> None:
        """A frozen dataclass's object, which nothing honest changes."""
        if type(value) in _DATA:
            return
        about = getattr(type(value), "__dataclass_params__", None)
        if about is not None and about.frozen and hasattr(value, "__dict__"):
            self._frozen.setdefault(id(value), (path, value, dict(vars(value))))

    def _add_class(self, path: str, cls: type) -> None:
        if cls in self._classes:
            return
        self._classes[cls] = path, dict(vars(cls))
        for attribute, value in vars(cls).items():
            self._add_function(f"{path}.{attribute}", value)
            if isinstance(value, type) and value.__module__ == cls.__module__ and attribute != "__class__":
                self._add_class(f"{path}.{attribute}", value)

    def _add_function(self, path: str, value: Any) -> None:
        if type(value) in _DATA:
            return
        for function in _functions(value):
            self._functions.setdefault(id(function), _Function(path, function))

    def restore(self) -> list[str]:
        """Put back what differs.

        Returns:
            its dotted names, sorted.
        """
        steady = self._steady()
        found = [] if steady else [record.path for record in self._functions.values() if record.restore()]
        for finders, first in self._finders:
            # Finders of packages that were imported since are none of our business, behind those that were there.
            if len(finders) < len(first) or any(one is not other for one, other in zip(finders, first, strict=False)):
                finders[:] = first + [one for one in finders if not any(one is other for other in first)]
        for name, module in self.modules.items():
            if steady and name not in _BUSY:
                continue
            if type(module) is not self._kinds[name]:  # its own `__getattribute__` would answer for it
                object.__setattr__(module, "__class__", self._kinds[name])
                found.append(name)
            if sys.modules.get(name) is not module:
                sys.modules[name] = module
                found.append(name)
            found += [f"{name}.{attribute}" for attribute in self._restore_module(module, self._attributes[name])]
        if steady:
            return sorted(set(found))
        for cls, (path, attributes) in self._classes.items():
            found += [f"{path}.{attribute}" for attribute in _restore_class(cls, attributes)]
        for path, container, former in self._containers:
            if not _same(container, former):
                container.clear()
                container.extend(former) if isinstance(container, list) else container.update(former)
                found.append(path)
        for path, value, attributes in self._frozen.values():
            present = vars(value)
            if any(present.get(name, _ABSENT) is not former for name, former in attributes.items()):
                present.update(attributes)
                found.append(path)
        self._settle()  # what still differs is none of our business
        return sorted(set(found))

    @staticmethod
    def _restore_module(module: ModuleType, former: Mapping[str, Any]) -> Iterator[str]:
        space = vars(module)
        if _untouched(space, former):
            return
        for name, value in former.items():
            # A private datum is a module's own state, such as what it has computed once; a private function or constant
            # is not.
            if space.get(name, _ABSENT) is not value and (
                callable(value) or not name.startswith("_") or (name.isupper() and type(value) in _CONSTANT)
            ):
                space[name] = value
                yield name
        for name in [name for name in space if name not in former]:
            # A new name is harmless (a submodule loaded since) unless the module's own code would find it in the
            # place of a builtin.
            if module is not builtins and hasattr(builtins, name) and not name.startswith("__"):
                del space[name]
                yield name


@dataclass
class _Function:
    path: str
    function: FunctionType

    def __post_init__(self) -> None:
        function = self.function
        self.former = function.__code__, function.__defaults__, function.__kwdefaults__
        self.keywords = dict(function.__kwdefaults__ or {})

    def restore(self) -> bool:
        function, (code, defaults, keywords) = self.function, self.former
        if (
            function.__code__ is code
            and function.__defaults__ is defaults
            and function.__kwdefaults__ is keywords
            and (keywords or {}) == self.keywords
        ):
            return False
        function.__code__, function.__defaults__ = code, defaults
        function.__kwdefaults__ = dict(self.keywords) if keywords is not None else None
        return True


def _functions(value: Any, depth: int = 3) -> Iterator[FunctionType]:
    """The plain functions in what stands in a module or class: through descriptors, wrappers and closures."""
    if depth == 0:
        return
    if isinstance(value, FunctionType):
        yield value
        inner: list[Any] = [value.__dict__.get("__wrapped__")]
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                inner.append(cell.cell_contents)
    elif isinstance(value, staticmethod | classmethod | MethodType):
        inner = [value.__func__]
    elif isinstance(value, property):
        inner = [value.fget, value.fset, value.fdel]
    elif isinstance(value, functools.cached_property | functools.partial):
        inner = [value.func]
    elif isinstance(value, functools._lru_cache_wrapper):
        inner = [value.__wrapped__]
    elif callable(value) and not isinstance(value, type):  # NumPy's dispatchers are such
        inner = [getattr(value, "__wrapped__", None)]
    else:
        return
    for part in inner:
        yield from _functions(part, depth - 1)


_CHANGING = {"__dict__", "__weakref__", "__doc__", "__abstractmethods__", "_abc_impl", "__annotations__"}


def _restore_class(cls: type, former: Mapping[str, Any]) -> Iterator[str]:
    if _untouched(vars(cls), former):
        return
    present = dict(vars(cls))
    for name, value in former.items():
        if name not in _CHANGING and present.get(name, _ABSENT) is not value:
            with contextlib.suppress(AttributeError, TypeError):
                type.__setattr__(cls, name, value)
                yield name
    for name, value in present.items():
        # Python itself adds to a class only caches of annotations and the like, none of them callable.
        if name not in former and name not in _CHANGING and (callable(value) or hasattr(value, "__get__")):
            with contextlib.suppress(AttributeError, TypeError):
                type.__delattr__(cls, name)
                yield name


def _untouched(space: Mapping[str, Any], former: Mapping[str, Any]) -> bool:
    """Whether names and values are the same objects in the same order. By identity: a student's object may be equal to
    anything. Most are, and this says so in compiled code."""
    if _len(space) != _len(former):
        return False
    return _all(_map(is_, space, former)) and _all(_map(is_, space.values(), former.values()))


def _same(container: Any, former: Any) -> bool:
    if len(container) != len(former):
        return False
    if isinstance(container, dict):
        return all(container.get(key, _ABSENT) is value for key, value in former.items())
    if isinstance(container, list):
        return all(one is other for one, other in zip(container, former))
    return bool(container == former)


# --- the library's own version -------------------------------------------------------------------------------------


def resolve(dotted: str) -> Any:
    """The function or class of a full dotted name, such as `underload.decoder.detokenize.Detokenizer.push`.

    Raises:
        LookupError: there is none.
    """
    parts = dotted.split(".")
    for split in range(len(parts) - 1, 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:split]))
        except ImportError:
            continue
        try:
            for part in parts[split:]:
                value = getattr(value, part)
        except AttributeError:
            continue
        return value
    raise LookupError(f"the library has no {dotted!r}: correct the lab's list of what an answer may not use")


def look(code: CodeType) -> tuple[Any, ...]:
    """What tells a code object from others. Code objects themselves compare their inline caches, which change."""
    constants = tuple(repr(one) for one in code.co_consts if not isinstance(one, CodeType))
    return code.co_qualname, code.co_firstlineno, code.co_code, code.co_names, code.co_varnames, constants


def looks(code: Iterable[CodeType]) -> set[tuple[Any, ...]]:
    """Those of code objects and of the functions and classes in them."""
    found: set[tuple[Any, ...]] = set()
    left = list(code)
    while left:
        one = left.pop()
        found.add(look(one))
        left += [constant for constant in one.co_consts if isinstance(constant, CodeType)]
    return found


class _Heard(str):
    """The name of an event as a dictionary's key, which calls a function when it is looked up."""

    then: Callable[[], None]

    def __new__(cls, name: str, then: Callable[[], None]) -> _Heard:
        heard = super().__new__(cls, name)
        heard.then = then
        return heard

    def __eq__(self, other: object) -> bool:
        self.then()
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@dataclass
class Watch:
    """Watches a test for calls of the library's own version by the student's code.

    library: full dotted names of functions and classes; test: the test's own code, as `looks` has it; given: that of
    the source's own cells; folder: the student's, whose modules count as theirs.
    `used` is the first that the student's code called, or SWITCHED_OFF. A lab's own checks count, too: an answer that
    calls one reads in its message what is wanted.

    Raises:
        LookupError: the library has no such function or class.
    """

    library: Sequence[str]
    test: Collection[tuple[Any, ...]] = ()
    given: Collection[tuple[Any, ...]] = ()
    folder: str = ""
    used: str = ""
    _codes: dict[tuple[str, str], str] = field(default_factory=dict)
    _exact: dict[CodeType, str] = field(default_factory=dict)
    _lines: set[int] = field(default_factory=set)
    _values: dict[int, tuple[Any, str]] = field(default_factory=dict)
    _classes: list[tuple[type, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._thread = threading.get_ident()
        self._on = False
        self._places: dict[int, tuple[CodeType, str]] = {}
        for dotted in self.library:
            value = resolve(dotted)
            self._values[id(value)] = value, dotted
            if isinstance(value, type):
                self._classes.append((value, dotted))
                for part in vars(value).values():
                    self._watch(part, dotted, value.__qualname__)
            else:
                self._watch(value, dotted)
        for name, module in list(sys.modules.items()):
            if name.startswith("underload.labs."):
                for attribute, value in list(vars(module).items()):
                    if attribute.startswith("check_") and isinstance(value, FunctionType):
                        self._watch(value, f"{name}.{attribute}")

    def _watch(self, value: Any, dotted: str, within: str = "") -> None:
        """Watch a function. A method of another class than `within`, which that one only has by name, is not its own:
        whoever derives from the other calls it as well."""
        home = getattr(sys.modules.get(getattr(value, "__module__", "")), "__file__", None)
        for function in _functions(value):
            code = function.__code__
            owner = function.__qualname__.rpartition(".")[0]
            if within and owner and "<locals>" not in owner and owner != within:
                continue
            if code.co_filename != home and not code.co_filename.startswith("<"):
                continue  # a wrapper that the function got from elsewhere, such as contextlib
            self._lines.add(code.co_firstlineno)
            if code.co_flags & _RESUMED:
                self._lines.update(line for _, _, line in code.co_lines() if line is not None)
            if code.co_filename.startswith("<"):  # made by dataclass and the like: such names occur many times over
                self._exact.setdefault(code, dotted)
            else:
                self._codes.setdefault((code.co_filename, code.co_qualname), dotted)

    def __enter__(self) -> Watch:
        self._seen = self._make()
        if self._lines:
            threading.setprofile(self._seen)
            sys.setprofile(self._seen)
            # A hook is told of every look at a frame's code: the dictionary, compiled, passes on only what it has.
            heard: Callable[..., Any] = {_Heard("sys.setprofile", self._touched): None}.get
            sys.addaudithook(heard)
            self._on = True
        return self

    def __exit__(self, *exception: object) -> None:
        if self._on:
            self._on = False
            if sys.getprofile() is not self._seen and not self.used:
                self.used = SWITCHED_OFF
            sys.setprofile(None)
            threading.setprofile(None)

    def _touched(self) -> None:
        """Somebody sets the profile function, and it is no thread that begins."""
        if self._on and not self.used:
            caller = sys._getframe(2).f_code
            if (caller.co_filename, caller.co_name) != (threading.__file__, "_bootstrap_inner"):
                self.used = SWITCHED_OFF

    def _make(self) -> Callable[[FrameType, str, Any], None]:
        codes, exact = self._codes, self._exact
        # By line, what was called there and whether it is watched: code objects are told apart by identity, since a
        # look at what is in them takes longer than most calls.
        met: dict[int, list[tuple[CodeType, str | None]]] = {line: [] for line in self._lines}

        def seen(frame: FrameType, event: str, argument: Any) -> None:
            # Called at every call and return in the test, so that most must be settled at once: by the line on which
            # the function begins, or its generator goes on. To ask a frame for its code tells all audit hooks.
            if event != "call" or frame.f_lineno not in met:
                return
            code = frame.f_code
            here = met[frame.f_lineno]
            for one, dotted in here:
                if one is code:
                    found = dotted
                    break
            else:
                found = codes.get((code.co_filename, code.co_qualname)) or exact.get(code)
                here.append((code, found))
            if found and not self.used and self._above(frame):
                self.used = found

        return seen

    def _above(self, frame: FrameType) -> bool:
        """Whether the student's code called this, directly or not. In a thread of its own, it started the thread."""
        if threading.get_ident() != self._thread:
            return True
        places = self._places
        above = frame.f_back
        while above is not None:
            code = above.f_code
            known = places.get(id(code))
            if known is None:
                known = places[id(code)] = code, self._place(code)
            place = known[1]
            if place == "test":
                return False  # the test's own call, even where the answer drew on something that the test gave it
            if place == "theirs" or (not place and self._foreign(above)):
                return True
            above = above.f_back
        return False

    def _place(self, code: CodeType) -> str:
        """Where code stands: in the "test", in a "given" cell, or in a cell or file of "theirs". A file's name is what
        `compile` was told, and proves nothing: of all other code, "", the frame must say whose it is."""
        found = look(code)
        if found in self.test:
            return "test"
        if found in self.given:
            return "given"
        file = code.co_filename
        return "theirs" if file.startswith("<cell ") or (self.folder and file.startswith(self.folder)) else ""

    @staticmethod
    def _foreign(frame: FrameType) -> bool:
        """Whether the globals of a frame are not those of the module that its code says it is of."""
        file, space = frame.f_code.co_filename, frame.f_globals
        # What `exec` compiled has the notebook's own globals, or new ones; a module's are the module's.
        name = space.get("__name__", "__main__")
        module = sys.modules.get(name) if isinstance(name, str) and name != "__main__" else None
        if not file.startswith("<"):
            return module is None or vars(module) is not space
        return name in ("__main__", "builtins")

    def held(self, values: Iterable[Any]) -> str:
        """The dotted name of the library's own version that one of these values is, holds, or is made from; or ""."""
        for value in values:
            if found := self._in(value, 4):
                return found
        return ""

    def _in(self, value: Any, depth: int) -> str:
        if depth == 0 or isinstance(value, ModuleType | str | bytes | int | float | complex | None):
            return ""
        if id(value) in self._values:
            return self._values[id(value)][1]
        kind = type(value)
        made_from = kind.__mro__ if not isinstance(value, type) else value.__mro__
        for cls, dotted in self._classes:
            if any(base is cls for base in made_from):
                return dotted
        inner: Iterable[Any] = ()
        if isinstance(value, FunctionType):
            code = value.__code__
            return self._codes.get((code.co_filename, code.co_qualname)) or self._exact.get(code, "")
        if isinstance(value, MethodType):
            inner = (value.__func__, value.__self__)
        elif isinstance(value, BuiltinFunctionType):
            return ""
        elif isinstance(value, staticmethod | classmethod):
            inner = (value.__func__,)
        elif isinstance(value, functools.partial):
            inner = (value.func,)
        elif isinstance(value, functools._lru_cache_wrapper):
            inner = (value.__wrapped__,)
        elif isinstance(value, type):
            inner = list(vars(value).values()) if value.__module__ == "__main__" else ()
        elif kind in (list, tuple, set, dict):
            if len(value) <= _DEEP:
                inner = list(value.values() if kind is dict else value)
        elif kind.__module__ == "__main__":  # an object of a class written in the notebook
            inner = [kind, *getattr(value, "__dict__", {}).values()]
        for part in inner:
            if found := self._in(part, depth - 1):
                return found
        return ""
