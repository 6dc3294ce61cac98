"""`underload queue KIND`: what a formula says of a queue, a batch or a tail, as a small table or as JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from underload.cli import print_json
from underload.request import UnderloadError

if TYPE_CHECKING:
    from underload.queueing import Service

EPILOG = """\
examples:
  underload queue mmc --arrival-rate 8 --service-rate 1 --servers 10
  underload queue mg1 --arrival-rate 8 --law lognormal --mean 100ms --scv 4 --percentile 99.9
  underload queue bulk --arrival-rate 400 --batch-size 32 --overhead 20ms --per-item 1ms
  underload queue hedged --law lognormal --mean 50ms --scv 2 --after p95

Rates are in 1/s. Times are in s, or with a unit: 20ms, 300us, 1.5s. Each KIND explains itself: underload queue KIND -h.
"""

UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
#: The laws by name, and what each takes besides its mean.
LAWS: dict[str, tuple[str, ...]] = {
    "deterministic": (),
    "exponential": (),
    "erlang": ("phases",),
    "hyperexponential": ("scv",),
    "lognormal": ("scv",),
    "pareto": ("shape",),
}


@dataclass(frozen=True)
class Kind:
    """One KIND: its words, its options and what it computes."""

    help: str
    description: str
    example: str
    options: Sequence[str]
    compute: Callable[[argparse.Namespace], Any]


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `underload queue` and its kinds."""
    parser = commands.add_parser(
        "queue",
        help="formulas: what a queue, a batch or a tail must be like",
        description="What a formula says, in steady state: waits, times in system, percentiles where they are known.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(title="kinds", dest="kind_of_queue", metavar="KIND", required=True)
    for name, kind in KINDS.items():
        one = kinds.add_parser(
            name,
            help=kind.help,
            description=kind.description,
            epilog=f"example:\n  underload queue {name} {kind.example}\n",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for option in kind.options:
            OPTIONS[option](one)
        one.add_argument(
            "--percentile",
            default="50,95,99",
            metavar="LIST",
            help="percentiles to print, in percent, separated by commas (default: 50,95,99)",
        )
        one.add_argument("--json", action="store_true", help="print JSON; what is infinite or not known is null")
        one.set_defaults(run=run, kind=kind)


def run(args: argparse.Namespace) -> None:
    found = args.kind.compute(args)
    asked = percentiles(args.percentile)
    parts = {"bound": found.bound, "approximation": found.approximation} if hasattr(found, "bound") else {"": found}
    if args.json:
        made = {name: part.as_dict() | known_percentiles(part, asked) for name, part in parts.items()}
        print_json(made.get("", made))
        return
    for number, part in enumerate(parts.values()):
        if number:
            print()
        print(str(part).splitlines()[0])
        rows = part.rows(asked)
        width = max(len(label) for label, _ in rows) + 2
        for label, value in rows:
            print(f"  {label:<{width}}{value}")


def known_percentiles(part: Any, asked: Sequence[float]) -> dict[str, dict[str, float | None]]:
    """For each law the result has: percentile in percent -> s, None where it is not known."""
    made: dict[str, dict[str, float | None]] = {}
    for word in ("quantile", "wait_quantile", "first_wait_quantile", "sojourn_quantile"):
        if (ask := getattr(part, word, None)) is None:
            continue
        made[f"{word}s"] = {}
        for q in asked:
            try:
                made[f"{word}s"][f"{q:.12g}"] = float(ask(q))
            except UnderloadError:
                made[f"{word}s"][f"{q:.12g}"] = None
    return made


# ---- options ---------------------------------------------------------------------------------------------------


def number(text: str, option: str) -> float:
    """A plain number.

    Raises:
        UnderloadError: text that is none.
    """
    try:
        return float(text)
    except ValueError:
        raise UnderloadError(f"{option} takes a number, got {text!r}; write 0.5 or 8") from None


def time(text: str, option: str) -> float:
    """Seconds of "0.02", "20ms" or "300us".

    Raises:
        UnderloadError: text that is no time.
    """
    for unit, scale in UNITS.items():
        if text.endswith(unit) and text[: -len(unit)].strip():
            try:
                return float(text[: -len(unit)]) * scale
            except ValueError:
                continue
    try:
        return float(text)
    except ValueError:
        raise UnderloadError(f"{option} takes a time in s or with a unit, got {text!r}; write 0.02 or 20ms") from None


def percentiles(text: str) -> list[float]:
    """The percentiles of "50,95,99.9", in percent.

    Raises:
        UnderloadError: one that is no number from 0 up to but not at 100.
    """
    found = [number(part.strip().removeprefix("p"), "--percentile") for part in text.split(",")]
    for q in found:
        if not 0 <= q < 100:
            raise UnderloadError(f"--percentile lies from 0 up to but not at 100, got {q:g}; write 99 for p99")
    return found


def _add(name: str, unit: str, words: str, *, needed: bool = True) -> Callable[[argparse.ArgumentParser], None]:
    """An option `--name` whose text `value` turns into a number."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(f"--{name}", required=needed, metavar=unit.upper(), help=words)

    return add


def _choose(name: str, choices: Sequence[str], words: str) -> Callable[[argparse.ArgumentParser], None]:
    """An option with a few answers, of which the first is the default."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(f"--{name}", default=choices[0], choices=choices, help=f"{words} (default: {choices[0]})")

    return add


def value(args: argparse.Namespace, name: str) -> Any:
    """The number behind an option, None where it was not given."""
    text = getattr(args, name.replace("-", "_"))
    if text is None:
        return None
    return (time if name in TIMES else number)(text, f"--{name}")


TIMES = ("mean-service", "mean", "timeout", "overhead", "per-item", "slo")


def _add_law(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the law of a time", "a named one, or the values you measured")
    group.add_argument("--law", choices=LAWS, help="its name")
    group.add_argument("--mean", metavar="TIME", help="its mean")
    group.add_argument("--scv", metavar="NUMBER", help="variance / mean² (hyperexponential, lognormal)")
    group.add_argument("--phases", metavar="NUMBER", help="phases of an Erlang law")
    group.add_argument("--shape", metavar="NUMBER", help="exponent of a Pareto law's tail, above 1")
    group.add_argument("--values", metavar="FILE", help="measured times in s, one a line (- reads standard input)")


OPTIONS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "arrival-rate": _add("arrival-rate", "rate", "requests/s"),
    "arrival-rate?": _add("arrival-rate", "rate", "requests/s; without it, only the line", needed=False),
    "service-rate": _add("service-rate", "rate", "requests/s that one server completes when busy"),
    "mean-service": _add("mean-service", "time", "mean time in service"),
    "mean-service?": _add("mean-service", "time", "mean time in service, with --scv instead of a law", needed=False),
    "servers": _add("servers", "number", "servers"),
    "buffer": _add("buffer", "number", "requests that may wait; K is one more"),
    "arrival-scv": _add("arrival-scv", "number", "variance / mean² of the gaps between arrivals (Poisson: 1)"),
    "service-scv": _add("service-scv", "number", "variance / mean² of the service (constant 0, exponential 1)"),
    "batch-size": _add("batch-size", "number", "the most requests in a batch"),
    "batch-size?": _add(
        "batch-size", "number", "the most requests in a batch; without it the best is found", needed=False
    ),
    "timeout": _add("timeout", "time", "the longest the first of a batch waits"),
    "overhead": _add("overhead", "time", "o of o + bt: what a batch takes whoever is in it"),
    "per-item": _add("per-item", "time", "t of o + bt: what one more request adds"),
    "per-item?": _add("per-item", "time", "t of o + bt: what one more request adds (default: 0)", needed=False),
    "slo": _add("slo", "time", "a limit on the time in system: prints the arrival rate it allows", needed=False),
    "n": _add("n", "number", "calls, of which the slowest counts"),
    "after": _add("after", "when", "when the backup goes: a time (5ms) or a percentile of the first copy (p95)"),
    "rule": _choose("rule", ("greedy", "full", "bailey"), "who is taken"),
    "full-rule": _choose("rule", ("greedy", "full"), "who is taken"),
    "service": _choose("service", ("constant", "exponential"), "law of a batch's service"),
    "on": _add(
        "on",
        "what",
        "what SLO and best batch go by: mean, or a percentile such as p99, which takes seconds (default: mean)",
        needed=False,
    ),
    "law": _add_law,
}


def law(args: argparse.Namespace) -> Service:
    """The law that the options name.

    Raises:
        UnderloadError: none or two of them, or a number that it needs and lacks.
    """
    from underload import queueing

    if (args.law is None) == (args.values is None):
        raise UnderloadError("name one law: --law exponential --mean 20ms, or --values FILE with measured times")
    takes = {"values"} if args.values is not None else {"law", "mean", *LAWS[args.law]}
    for option in ("mean", "scv", "phases", "shape"):
        if getattr(args, option) is not None and option not in takes:
            whose = "--values" if args.values is not None else f"--law {args.law}"
            raise UnderloadError(f"{whose} takes no --{option}; leave it out")
    if args.values is not None:
        if args.values == "-" and sys.stdin is None:
            raise UnderloadError("standard input is closed; give --values a file")
        text = (
            sys.stdin.read() if args.values == "-" else Path(args.values).read_text(encoding="utf-8", errors="replace")
        )
        return queueing.Empirical([time(word, "--values") for word in text.split()])

    def need(name: str) -> Any:
        found = value(args, name)
        if found is None:
            raise UnderloadError(f"--law {args.law} needs --{name}")
        return found

    mean = need("mean")
    if args.law == "deterministic":
        return queueing.Deterministic(mean)
    if args.law == "exponential":
        return queueing.Exponential(mean)
    if args.law == "erlang":
        return queueing.Erlang(mean, need("phases"))
    if args.law == "hyperexponential":
        return queueing.Hyperexponential.of(mean, need("scv"))
    if args.law == "lognormal":
        return queueing.Lognormal(mean, need("scv"))
    return queueing.Pareto.of(mean, need("shape"))


# ---- kinds -----------------------------------------------------------------------------------------------------


def _plain(function: str, *names: str) -> Callable[[argparse.Namespace], Any]:
    """Calls a formula with the options of its arguments' names."""

    def compute(args: argparse.Namespace) -> Any:
        from underload import queueing

        return getattr(queueing, function)(**{name.replace("-", "_"): value(args, name) for name in names})

    return compute


def _mg1(args: argparse.Namespace) -> Any:
    from underload import queueing

    rate, moments = value(args, "arrival-rate"), value(args, "mean-service")
    if args.law is None and args.values is None:
        for option in ("mean", "phases", "shape"):
            if getattr(args, option) is not None:
                raise UnderloadError(f"--{option} belongs to a law: name one with --law, or leave it out")
        return queueing.mg1(rate, mean_service=moments, scv=value(args, "scv"))
    if moments is not None:
        raise UnderloadError("--mean-service goes with --scv alone; a law has its own --mean")
    return queueing.mg1(rate, law(args))


def _bulk(args: argparse.Namespace) -> Any:
    from underload import queueing

    return queueing.bulk_service(
        value(args, "arrival-rate"),
        batch_size=value(args, "batch-size"),
        overhead=value(args, "overhead"),
        per_item=value(args, "per-item") or 0.0,
        kind=args.rule,
        service=args.service,
    )


def _max(args: argparse.Namespace) -> Any:
    from underload import queueing

    return queueing.max_of_n(law(args), n=value(args, "n"))


def _hedged(args: argparse.Namespace) -> Any:
    from underload import queueing

    if args.after.startswith("p"):
        return queueing.hedged(law(args), percentile=number(args.after[1:], "--after"))
    return queueing.hedged(law(args), delay=time(args.after, "--after"))


@dataclass(frozen=True)
class LineReport:
    """What `underload queue linear` prints: the line, and what the arrival rate and the SLO ask of it."""

    made: dict[str, Any]
    lines: list[tuple[str, str]]

    def as_dict(self) -> dict[str, Any]:
        return self.made

    def rows(self, percentiles: Sequence[float] = ()) -> list[tuple[str, str]]:
        return self.lines

    def __str__(self) -> str:
        return f"T(B) = o + Bt with o = {self.made['overhead']:g} s, t = {self.made['per_item']:g} s"


def _linear(args: argparse.Namespace) -> LineReport:
    from underload import queueing
    from underload.queueing import arguments
    from underload.queueing.measures import seconds

    line = queueing.linear_batch(overhead=value(args, "overhead"), per_item=value(args, "per-item"))
    percentile = None if args.on in (None, "mean") else number(args.on.removeprefix("p"), "--on")
    what = "mean" if percentile is None else f"p{percentile:g}"
    rate, size, slo = value(args, "arrival-rate"), value(args, "batch-size"), value(args, "slo")
    made: dict[str, Any] = {"overhead": line.o, "per_item": line.t, "rule": args.rule, "on": what}
    rows: list[tuple[str, str]] = []

    def tell(name: str, found: Any, label: str, text: str) -> None:
        made[name] = found
        rows.append((label, text))

    tell("most", line.most, "throughput at most", f"{line.most:.6g} /s")
    if line.t:
        tell("knee", line.knee, "knee o/t", f"{line.knee:.6g} (half of that throughput)")
    if rate is not None:
        least = line.smallest_stable_batch(rate)
        tell("smallest_stable_batch", least, "smallest stable batch", f"{least:.0f}")
        if size is None:
            size, _ = line.best_batch(rate, kind=args.rule, percentile=percentile)
            tell("best_batch", size, f"best batch by the {what}", f"{size}")
    if size is not None:
        size = arguments.whole("batch_size", size, least=1, most=10_000)
        tell("batch_size", size, "batch size", f"{size}")
        tell("throughput", line.throughput(size), "throughput there", f"{line.throughput(size):.6g} /s")
        tell("service_time", line.step_time(size), "service of a full batch", seconds(line.step_time(size)))
    if rate is not None and size is not None:
        found = line.latency(rate, batch_size=size, kind=args.rule, percentile=percentile)
        tell("load", line.load(rate, size), "load", f"{line.load(rate, size):.6g}")
        tell("latency", found, f"{what} time in system", seconds(found))
    if slo is not None:
        if size is None:
            raise UnderloadError("--slo needs --batch-size, or --arrival-rate to find the best one")
        limit = line.capacity(slo, batch_size=size, kind=args.rule, percentile=percentile)
        tell("capacity", limit, f"rate with {what} within {seconds(slo)}", f"{limit:.6g} /s")
    return LineReport(made, rows)


KINDS: dict[str, Kind] = {
    "mm1": Kind(
        "M/M/1: exponential service, one server",
        "Poisson arrivals, exponential service, one server, first come first served.",
        "--arrival-rate 0.9 --service-rate 1",
        ("arrival-rate", "service-rate"),
        _plain("mm1", "arrival-rate", "service-rate"),
    ),
    "mm1k": Kind(
        "M/M/1/K: the same with a finite buffer",
        "M/M/1 where at most BUFFER requests wait and more are turned away; waits are those of the admitted.",
        "--arrival-rate 1.5 --service-rate 1 --buffer 9",
        ("arrival-rate", "service-rate", "buffer"),
        _plain("mm1k", "arrival-rate", "service-rate", "buffer"),
    ),
    "mmc": Kind(
        "M/M/c: one queue, many servers (Erlang C)",
        "Poisson arrivals, exponential service, one queue for all servers.",
        "--arrival-rate 8 --service-rate 1 --servers 10",
        ("arrival-rate", "service-rate", "servers"),
        _plain("mmc", "arrival-rate", "service-rate", "servers"),
    ),
    "md1": Kind(
        "M/D/1: constant service",
        "Poisson arrivals, a constant service, one server; percentiles are exact.",
        "--arrival-rate 8 --mean-service 100ms",
        ("arrival-rate", "mean-service"),
        _plain("md1", "arrival-rate", "mean-service"),
    ),
    "mg1": Kind(
        "M/G/1: any service law (Pollaczek–Khinchine)",
        "Poisson arrivals, any service law, one server. --mean-service with --scv gives means, a law percentiles too.",
        "--arrival-rate 8 --law lognormal --mean 100ms --scv 4",
        ("arrival-rate", "mean-service?", "law"),
        _mg1,
    ),
    "ps": Kind(
        "M/G/1-PS: one server that all share",
        "Poisson arrivals, any service law, one server shared evenly by all inside.",
        "--arrival-rate 8 --mean-service 100ms",
        ("arrival-rate", "mean-service"),
        _plain("mg1_ps", "arrival-rate", "mean-service"),
    ),
    "gg1": Kind(
        "G/G/1 from two moments: Kingman's bound and VUT",
        "Any arrivals, any service, one server: Kingman's upper bound on the mean wait, and the VUT approximation.",
        "--arrival-rate 8 --mean-service 100ms --arrival-scv 4 --service-scv 1",
        ("arrival-rate", "mean-service", "arrival-scv", "service-scv"),
        _plain("gg1", "arrival-rate", "mean-service", "arrival-scv", "service-scv"),
    ),
    "fill": Kind(
        "the wait for a full batch",
        "How long requests wait until BATCH-SIZE of them are there, without a timer; the server is always free.",
        "--arrival-rate 200 --batch-size 32",
        ("arrival-rate", "batch-size"),
        _plain("batch_fill", "arrival-rate", "batch-size"),
    ),
    "timeout": Kind(
        "the wait until a batch is full or a timer runs out",
        "A batch leaves when it is full, or TIMEOUT after its first request; the server is always free.",
        "--arrival-rate 200 --batch-size 32 --timeout 50ms",
        ("arrival-rate", "batch-size", "timeout"),
        _plain("size_or_timeout", "arrival-rate", "batch-size", "timeout"),
    ),
    "bulk": Kind(
        "a server that takes batches: greedy, full or bailey",
        "A batch of b takes o + bt. greedy takes whoever waits, full only full batches, bailey runs by the clock.",
        "--arrival-rate 400 --batch-size 32 --overhead 20ms --per-item 1ms",
        ("arrival-rate", "batch-size", "overhead", "per-item?", "rule", "service"),
        _bulk,
    ),
    "linear": Kind(
        "o + bt: throughput, knee, best batch, rate within an SLO",
        "What the line o + bt says, alone and with an arrival rate and an SLO.",
        "--overhead 20ms --per-item 1ms --arrival-rate 400 --slo 100ms",
        ("overhead", "per-item", "arrival-rate?", "batch-size?", "full-rule", "on", "slo"),
        _linear,
    ),
    "max": Kind(
        "fan-out: the slowest of n",
        "The slowest of n independent calls of one law.",
        "--n 100 --law lognormal --mean 50ms --scv 2",
        ("n", "law"),
        _max,
    ),
    "hedged": Kind(
        "a backup copy after a delay",
        "A request sent once more when no answer is there in time; the first answer counts. Copies are independent.",
        "--law lognormal --mean 50ms --scv 2 --after p95",
        ("law", "after"),
        _hedged,
    ),
}
