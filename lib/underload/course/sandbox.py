"""What a process that runs a student's cells may touch: its own folder, and nothing else of the machine.

Two fences, one behind the other.

- Python's audit hooks, everywhere: opening, listing or removing what lies outside, starting a program, a connection
  and signals to others are refused with a message that says what to do instead. They see Python's own calls only:
  code that goes past them (`ctypes`, an extension module, the hook's own state looked up in memory) goes on.
- Landlock and seccomp, on Linux where the kernel has them: the kernel itself refuses, whatever the code. The process
  may read the interpreter, its packages, the system's libraries and the package `underload`; it may write into its
  own folder; it starts no program (nothing is executable), opens no connection (a kernel with Landlock 4, or
  seccomp), sends no signal to others (Landlock 6).

What neither protects against:

- On macOS, and on Linux without Landlock, a student who goes past the audit hooks on purpose reaches whatever the
  user who grades may reach. Grade there what you would also run by hand, or grade in a container or virtual machine.
- The names, sizes and times of files anywhere can be seen (`os.stat`).
- A student's function runs in the same process as the test that calls it, hidden checks included: it could look up
  the stack and read them, or forge the answer. Where and how the test is kept from the cells: see process.py; what
  is put back, and what cannot be: watch.py.
- A test's fork works in the student's own folder: what an answer writes down there while it is checked (its hidden
  inputs, say), a later cell can read and print into that student's feedback.
- The disk: single files are limited, their number is not. The processor: other processes slow down.
- Faults of the kernel or of the processor (caches, timing).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

_MB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What a cell or test may use.

    cell_seconds: processor seconds of a cell; three times that by the clock, since a busy machine
        must cost nobody points.
    check_seconds: the same for one check within a test.
    memory: bytes above what the process had at its fork.
    output: characters of a cell's output that are kept.
    file_size: bytes of one file.
    """

    cell_seconds: float = 60.0
    check_seconds: float = 20.0
    memory: int = 2048 * _MB
    output: int = 200_000
    file_size: int = 50 * _MB


#: Kept free above the limit on memory, for the answer of a process that has run into it.
SPARE = 128 * _MB

# Landlock (linux/landlock.h)
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_EVERYTHING_1 = (1 << 13) - 1
_BIND_TCP, _CONNECT_TCP = 1, 2
_SCOPE_SOCKETS, _SCOPE_SIGNALS = 1, 2
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_NO_NEW_PRIVILEGES, _GET_SECCOMP, _SET_SECCOMP = 38, 21, 22  # prctl

#: What the system itself is read from. Not all of /usr and /etc: the project may lie there, and passwords do.
_SYSTEM = (
    "/bin", "/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/share",
    "/usr/local/lib", "/usr/local/lib64", "/usr/local/share", "/usr/local/cuda",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/timezone", "/etc/os-release",
    "/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/hosts", "/etc/mime.types", "/etc/fonts",
    "/etc/matplotlibrc",
    "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/uptime", "/proc/version",
    "/proc/filesystems", "/proc/sys", "/sys/devices/system", "/sys/fs/cgroup",
    "/dev/urandom", "/dev/random", "/dev/zero",
    "/System", "/Library", "/opt/homebrew", "/private/etc/localtime", "/var/db/timezone",
)  # fmt: skip
_ENVIRONMENT = ("lib", "lib64", "Lib", "share", "etc", "ssl", "pyvenv.cfg")
_WRITABLE = ("/dev/null",)


def readable() -> tuple[str, ...]:
    """The folders and files that a process shut in from here may read: see the module's text."""
    prefixes = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)  # may be /usr: not all of it
    found = [os.path.join(prefix, part) for prefix in prefixes for part in _ENVIRONMENT]
    found.append(os.path.dirname(os.__file__))
    found += [entry for entry in sys.path if os.path.basename(entry) in ("site-packages", "dist-packages")]
    # Packages that lie elsewhere (installed editable, or found through PYTHONPATH): their own folders, no parent.
    for name, module in list(sys.modules.items()):
        if "." not in name and isinstance(module, ModuleType) and name != "__main__":
            folders = getattr(module, "__path__", None)
            file = getattr(module, "__file__", None)
            found += list(folders) if folders is not None else [file] if isinstance(file, str) else []
    found += [folder for folder in (_matplotlib_cache(), os.environ.get("NUMBA_CACHE_DIR")) if folder]
    real = {os.path.realpath(path) for path in (*found, *_SYSTEM) if isinstance(path, str) and os.path.exists(path)}
    kept: list[str] = []
    for path in sorted(real):  # a folder comes before what lies in it
        if path != "/" and not (kept and _within(path, kept[-1])):
            kept.append(path)
    return tuple(kept)


def shut_in(folder: Path, limits: Limits, reading: Sequence[str]) -> None:
    """Shut this process in, for good: files, programs, connections, memory, file sizes."""
    own = os.path.realpath(folder)
    scratch = os.path.join(own, ".scratch")
    os.makedirs(scratch, exist_ok=True)
    tempfile.tempdir = scratch
    if cache := _matplotlib_cache():
        os.environ["MPLCONFIGDIR"] = cache
    os.environ.update(TMPDIR=scratch, HOME=own, XDG_CACHE_HOME=scratch, XDG_CONFIG_HOME=scratch)
    _quiet_numba()
    _limit(limits)
    if landlock_version():
        _landlock(own, reading)
    if sys.platform == "linux":
        _seccomp()
    _hook(own, reading)


def protection() -> str:
    """What holds a student's cells on this machine, in one sentence."""
    version = landlock_version()
    if not version:
        return (
            "Cells are held by Python's audit hooks alone, which a determined student can get past"
            " (this system has no Landlock): grade in a container if you do not trust what was handed in."
        )
    held = ["files (Landlock)", "programs (Landlock)"]
    if _filter() or version >= 4:
        held.append(f"connections ({'seccomp' if _filter() else 'Landlock, TCP only'})")
    if version >= 6:
        held.append("signals (Landlock)")
    return f"The kernel keeps cells to their own folder: {', '.join(held)}; Python's audit hooks say so first."


@functools.cache
def landlock_version() -> int:
    """The version of Landlock's interface in this kernel; 0 where there is none."""
    if sys.platform != "linux":
        return 0
    return max(0, _libc().syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


@contextlib.contextmanager
def spare() -> Iterator[None]:
    """Let the body use the memory kept free above the limit: it has to answer even if the cells left nothing."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def data_bytes() -> int:
    """Private memory this process may write to, as the limit counts it; 0 where the system does not say."""
    try:
        with open("/proc/self/status") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("VmData:")), 0)
    except OSError:
        return 0


_forking = False


@contextlib.contextmanager
def may_fork() -> Iterator[None]:
    """Let the body fork this process: what runs the cells does, they may not."""
    global _forking
    _forking = True
    try:
        yield
    finally:
        _forking = False


def _limit(limits: Limits) -> None:
    import resource

    def lower(what: int, soft: int, hard: int) -> None:
        _, present = resource.getrlimit(what)
        if present != resource.RLIM_INFINITY:
            soft, hard = min(soft, present), min(hard, present)
        with contextlib.suppress(ValueError, OSError):  # a system may lack one; the grader watches from outside too
            resource.setrlimit(what, (soft, hard))

    lower(resource.RLIMIT_CORE, 0, 0)
    lower(resource.RLIMIT_FSIZE, limits.file_size, limits.file_size)
    if used := data_bytes():
        lower(resource.RLIMIT_DATA, used + limits.memory, used + limits.memory + SPARE)


def _matplotlib_cache() -> str | None:
    """Where matplotlib has its list of fonts: made anew it would take seconds."""
    named = os.environ.get("MPLCONFIGDIR")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = named or os.path.join(base, "matplotlib")
    return folder if os.path.isdir(folder) else None


def _quiet_numba() -> None:
    """Numba keeps what it compiles where it found its cache, which nobody may write to here: then it is not kept."""
    caching = sys.modules.get("numba.core.caching")
    if caching is None:
        return  # imported later it looks for a folder that it may write to, and finds one
    keep = caching.Cache.save_overload

    def save_overload(self: Any, *arguments: Any) -> None:
        with contextlib.suppress(OSError):
            keep(self, *arguments)

    caching.Cache.save_overload = save_overload


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


# --- the kernel ----------------------------------------------------------------------------------------------------


def _landlock(own: str, reading: Sequence[str]) -> None:
    version = landlock_version()
    everything = _EVERYTHING_1 | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    network = _BIND_TCP | _CONNECT_TCP if version >= 4 else 0
    scopes = _SCOPE_SOCKETS | _SCOPE_SIGNALS if version >= 6 else 0
    attributes = struct.pack("QQQ", everything, network, scopes)[: 8 if version < 4 else 16 if version < 6 else 24]
    libc = _libc()
    rules = libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    if rules < 0:
        raise OSError(ctypes.get_errno(), "Landlock refuses the rules for this process")
    writing = everything & ~_EXECUTE
    # Of /proc only what is this process's own: the environment of others may hold secrets.
    allowed = [(path, _READ_FILE | _READ_DIR) for path in (*reading, f"/proc/{os.getpid()}")]
    allowed += [(path, writing) for path in (own, *_WRITABLE)]
    try:
        for path, rights in allowed:
            _allow(rules, path, rights)
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        if libc.syscall(_RESTRICT, rules, ctypes.c_uint32(0)):
            raise OSError(ctypes.get_errno(), "Landlock does not shut this process in")
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # gone since it was listed
        return
    try:
        if not os.path.isdir(path):
            rights &= _WRITE_FILE | _READ_FILE | _TRUNCATE
        rule = struct.pack("=Qi", rights, handle)
        if _libc().syscall(_ADD, rules, 1, rule, ctypes.c_uint32(0)):
            raise OSError(ctypes.get_errno(), f"Landlock refuses a rule for {path}")
    finally:
        os.close(handle)


# The machine's number (linux/audit.h), and those of the calls connect, bind, execve, execveat, ptrace and
# io_uring_setup (a way round all others); socket.
_CALLS = {
    "x86_64": (0xC000003E, (42, 49, 59, 322, 101, 425), 41),
    "aarch64": (0xC00000B7, (203, 200, 221, 281, 117, 425), 198),
}


def _filter() -> bytes:
    """A filter of system calls: no connection, no program, no look into other processes, no socket but between the
    process's own ends; empty for a machine whose numbers are not known."""
    if sys.platform != "linux" or platform.machine() not in _CALLS or struct.calcsize("P") != 8:
        return b""
    if _libc().prctl(_GET_SECCOMP, 0, 0, 0, 0) < 0:  # a kernel without it
        return b""
    machine, refused, opening = _CALLS[platform.machine()]
    load, equal, less, give = 0x20, 0x15, 0x35, 0x06
    go, no = 0x7FFF0000, 0x00050000 | 13  # allow; fail with EACCES
    steps = [(load, 0, 0, 4), (equal, 1, 0, machine), (give, 0, 0, no), (load, 0, 0, 0)]
    if machine == 0xC000003E:  # the x32 numbers of the same calls
        steps += [(less, 0, 1, 0x40000000), (give, 0, 0, no)]
    for number in refused:
        steps += [(equal, 0, 1, number), (give, 0, 0, no)]
    # socket(): the family is the first argument; 1 is AF_UNIX
    steps += [(equal, 0, 3, opening), (load, 0, 0, 16), (equal, 1, 0, 1), (give, 0, 0, no), (give, 0, 0, go)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _seccomp() -> None:
    code = _filter()
    if not code:
        return
    steps = ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(steps)))
    libc = _libc()
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    # SECCOMP_MODE_FILTER
    if libc.prctl(_SET_SECCOMP, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp does not shut this process in")


# --- Python --------------------------------------------------------------------------------------------------------

_hooked = False
_BESIDE = "put the file beside the notebook"
_PROGRAMS = (
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.forkpty", "pty.spawn", "os.startfile",
)  # fmt: skip
_CONNECTIONS = (
    "socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname",
    "socket.gethostbyaddr", "urllib.Request",
)  # fmt: skip
_CHANGES = {
    "os.remove": 1, "os.rmdir": 1, "os.mkdir": 1, "os.rename": 2, "os.link": 2, "os.chmod": 1, "os.chown": 1,
    "os.truncate": 1, "os.utime": 1, "os.setxattr": 1, "os.removexattr": 1, "shutil.rmtree": 1,
}  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _hook(own: str, reading: Sequence[str]) -> None:
    global _hooked
    if _hooked:  # a fork of a process that is shut in: same folder, same rules
        return
    _hooked = True
    realpath, fsdecode, getpid = os.path.realpath, os.fsdecode, os.getpid
    homes = tuple(reading)

    def outside(path: Any, writing: bool) -> str | None:
        if isinstance(path, int):
            return None
        real = realpath(fsdecode("." if path is None else path))
        if _within(real, own) or real in _WRITABLE:
            return None
        if not writing and _within(real, f"/proc/{getpid()}"):
            return None
        return real if writing or not any(_within(real, home) for home in homes) else None

    def refuse(doing: str, path: str) -> None:
        raise PermissionError(f"a graded notebook may not {doing} ({path}); {_BESIDE}")

    def opening(event: str, args: tuple[Any, ...]) -> None:
        writing = isinstance(args[2], int) and bool(args[2] & _WRITES)
        if path := outside(args[0], writing):
            refuse("write outside its folder" if writing else "read outside its folder", path)

    def listing(event: str, args: tuple[Any, ...]) -> None:
        if path := outside(args[0], False):
            refuse("list a folder outside its own", path)

    def changing(event: str, args: tuple[Any, ...]) -> None:
        for path in args[: _CHANGES[event]]:
            if found := outside(path, True):
                refuse("change what lies outside its folder", found)

    def program(event: str, args: tuple[Any, ...]) -> None:
        raise PermissionError(f"a graded notebook may not start programs ({_shown(args)}); do it in Python")

    def connection(event: str, args: tuple[Any, ...]) -> None:
        raise PermissionError(f"a graded notebook may not connect to anything ({_shown(args)}); {_BESIDE}")

    def fork(event: str, args: tuple[Any, ...]) -> None:
        if not _forking:
            raise PermissionError("a graded notebook may not start processes; use one process, or threads")

    def signalling(event: str, args: tuple[Any, ...]) -> None:
        if event != "os.kill" or args[0] != getpid():
            raise PermissionError(f"a graded notebook may not send signals to other processes ({args[0]})")

    def database(event: str, args: tuple[Any, ...]) -> None:
        if args[0] not in (":memory:", b":memory:", "") and (path := outside(args[0], True)):
            refuse("open a database outside its folder", path)

    checks: dict[str, Callable[[str, tuple[Any, ...]], None]] = {
        "open": opening,
        "os.listdir": listing,
        "os.scandir": listing,
        "os.fork": fork,
        "os.kill": signalling,
        "os.killpg": signalling,
        "sqlite3.connect": database,
    }
    checks |= dict.fromkeys(_CHANGES, changing) | dict.fromkeys(_PROGRAMS, program)
    checks |= dict.fromkeys(_CONNECTIONS, connection)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        check = checks.get(event)
        if check is not None:
            check(event, args)

    sys.addaudithook(hook)


def _shown(args: tuple[Any, ...]) -> str:
    for value in args:
        if isinstance(value, str | bytes):
            return os.fsdecode(value)[:80]
        if isinstance(value, list | tuple) and value:
            return " ".join(str(part) for part in value)[:80]
    return "?"
