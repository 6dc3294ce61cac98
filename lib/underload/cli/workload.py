"""`underload workload`: what a load is like, where public traces are, and loads made to order."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from underload.cli import print_json
from underload.cli.queue import number, time
from underload.request import UnderloadError

if TYPE_CHECKING:
    from underload.workload import Arrivals, EmpiricalPairs, Lengths, Planned, Prompts, Tokens
    from underload.workload.readers import Record

EPILOG = """\
examples:
  underload workload list
  underload workload describe synthetic:azure-conv --plot azure.svg
  underload workload describe synthetic:mooncake-conversation
  underload workload generate --rate 5 --horizon 600 --out plan.jsonl
  underload workload generate --rate 5 --arrivals gamma --burstiness 0.25 --requests 1000 \\
      --prompt lognormal:mean=800,cv=1 --output geometric:200 --limit 4096 --beyond truncate
  underload workload generate --rate 0.5 --turns geometric:4 --think 20 --system 400 --horizon 10min

Rates are in 1/s. Times are in s, or with a unit: 20ms, 10min. Lengths are in tokens.
"""

PROMPT, OUTPUT = "lognormal:mean=500,cv=1", "lognormal:mean=200,cv=1"
LENGTHS = "a number, or uniform:LOW:HIGH, geometric:MEAN, lognormal:mean=M,cv=C, lognormal:median=M,sigma=S"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `underload workload`."""
    parser = commands.add_parser(
        "workload",
        help="loads: describe a trace, generate a plan of requests",
        description="What a load is like, where public traces are, and loads made to order.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="what to do", dest="workload", metavar="WHAT", required=True)
    _add_describe(actions)
    _add_generate(actions)
    listing = actions.add_parser("list", help="public traces by name, and which are here")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=run_list)


def run_list(args: argparse.Namespace) -> None:
    from underload.workload import PUBLIC, find_trace, trace_folders

    rows = []
    for name, public in PUBLIC.items():
        try:
            path: str | None = str(find_trace(name))
        except UnderloadError:
            path = None
        rows.append(
            {
                "name": name,
                "about": public.about,
                "file": path,
                "origin": public.origin,
                "stand_in": public.stand_in is not None,
            }
        )
    if args.json:
        print_json(rows)
        return
    print(f"Looked in {', '.join(map(str, trace_folders()))} (UNDERLOAD_TRACES names others).")
    for row in rows:
        state = "here" if row["file"] else "synthetic stand-in" if row["stand_in"] else "not here"
        print(f"{row['name']:<32}{state:<20}{row['about']}")


# ---- describe ----------------------------------------------------------------------------------------------------


def _add_describe(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "describe",
        help="rate, unevenness, lengths, sharing; is it Poisson?",
        description="What a trace is like. Formats: Azure 2023, BurstGPT, Mooncake, ShareGPT lengths, ServeGen, "
        "measured vLLM runs, and what `underload workload generate` writes; plain or gzip.",
    )
    parser.add_argument("trace", metavar="TRACE", help="a file, a name from `list`, or synthetic:NAME")
    parser.add_argument("--plot", metavar="FILE", help="draw it: .svg, .png or .pdf")
    parser.add_argument("--skip-bad", action="store_true", help="leave malformed rows out, and say so")
    parser.add_argument("--rows", type=int, metavar="N", help="read N rows at most")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_describe)


def run_describe(args: argparse.Namespace) -> None:
    from underload.workload import describe, load_trace

    if args.rows is not None and args.rows < 1:
        raise UnderloadError(f"--rows must be at least 1, got {args.rows}")
    if args.plot and Path(args.plot).suffix not in (".svg", ".png", ".pdf"):
        raise UnderloadError(f"--plot takes a .svg, .png or .pdf file, got {args.plot!r}")
    record = load_trace(args.trace, skip_bad=args.skip_bad, most=args.rows)
    description = describe(record)
    if args.json:
        print_json(description.as_dict())
    else:
        print(description)
    if args.plot:
        plot(record, Path(args.plot))
        print(f"drawn in {args.plot}", file=sys.stderr)


def plot(record: Record, path: Path) -> None:
    """Draws what a record shows: the rate over time, the gaps beside those of a Poisson process, the lengths.

    Raises:
        UnderloadError: a record with nothing to draw.
    """
    import numpy as np

    from underload.figures import axes, svg_file
    from underload.workload import ClientLengths, ClientWindows, Measured

    if isinstance(record, ClientLengths):
        raise UnderloadError(f"{record.name} holds laws of lengths; there are no requests to draw: leave --plot out")
    if isinstance(record, ClientWindows):
        figure, axis = axes("time", "rate", xunit="h", yunit="1/s")
        axis.step(np.arange(len(record)) * record.width / 3600, record.rate, where="post", linewidth=0.9)
        axis.set_title(record.name)
        alt = f"The rate of {record.name} over {len(record)} windows, up to {record.rate.max():.3g} requests a second."
    else:
        trace = record.trace() if isinstance(record, Measured) else record
        timed = trace.instants is not None and len(trace) > 1 and trace.instants[-1] > 0
        panels = 3 if timed else 1
        labels = ("time", "gap", "tokens") if timed else ("tokens",)
        values = ("rate", "share of gaps above", "share above") if timed else ("share above",)
        units = ("min", "s", "") if timed else ("",)
        figure, grid = axes(
            labels, values, xunit=units, yunit=("1/s", "", "")[:panels], rows=panels, height=2.6 * panels + 0.4
        )
        panes = list(np.atleast_1d(grid).flat)
        if timed:
            _draw_rate(panes[0], trace.times)
            _draw_gaps(panes[1], np.diff(trace.spread()), coarse=trace.step is not None)
        _draw_lengths(panes[-1], trace.prompt_tokens[trace.usable], trace.output_tokens[trace.usable])
        panes[0].set_title(trace.name)
        alt = f"Load of {trace.name}: {len(trace)} requests" + (
            ", their rate over time, the gaps beside those of a Poisson process, and their lengths." if timed else "."
        )
    if path.suffix == ".svg":
        path.write_text(svg_file(figure, alt=alt), encoding="utf-8")
    else:
        figure.savefig(path, dpi=160, facecolor="white", transparent=False)


def _draw_rate(axis: Any, instants: Any) -> None:
    import numpy as np

    from underload.figures import COLORS

    span = float(instants[-1])
    width = max(span / 240, min(60.0, span / 10))  # a minute where that gives a readable number of steps
    edges = np.arange(int(span / width) + 1) * width  # whole steps only: what is left would look like a fall
    counts, _ = np.histogram(instants, edges)
    axis.stairs(counts / width, edges / 60, linewidth=1.2, color=COLORS["measurement"], label="counted")
    mean = (len(instants) - 1) / span
    axis.axhline(mean, linestyle="--", linewidth=1, color=COLORS["quiet"], label="mean")
    axis.set_ylim(0, max(counts.max() / width, mean) * 1.3)
    axis.legend(loc="upper right", ncols=2)


def _draw_gaps(axis: Any, gaps: Any, *, coarse: bool) -> None:
    import numpy as np

    from underload.figures import COLORS

    ordered = np.sort(gaps[gaps > 0])
    if not len(ordered):
        return
    above = 1 - np.arange(len(ordered)) / len(ordered)
    label = "counted, spread within the clock's steps" if coarse else "counted"
    axis.step(ordered, above, where="post", color=COLORS["measurement"], label=label)
    low = max(float(ordered[0]), float(gaps.mean()) / 300)  # below it nothing is to be seen on this scale
    at = np.geomspace(low, ordered[-1], 200)
    axis.plot(at, np.exp(-at / gaps.mean()), linestyle="--", color=COLORS["prediction"], label="Poisson of this rate")
    axis.set_xscale("log")
    axis.set_xlim(left=low)
    axis.set_yscale("log")
    axis.set_ylim(0.5 / len(ordered), 1.5)
    axis.legend()


def _draw_lengths(axis: Any, prompts: Any, outputs: Any) -> None:
    import numpy as np

    from underload.figures import COLORS

    for name, values, colour in (("prompt", prompts, "prefill"), ("answer", outputs, "decode")):
        ordered = np.sort(values)
        above = 1 - np.arange(len(ordered)) / max(len(ordered), 1)
        axis.step(ordered, above, where="post", color=COLORS[colour], label=name)
    axis.set_xscale("log")
    axis.set_ylim(0, 1.02)
    axis.legend()


# ---- generate ----------------------------------------------------------------------------------------------------


def _add_generate(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "generate",
        help="write a plan of requests as lines of JSON",
        description="Write a plan: for each request its arrival, its lengths, and what its prompt shares. The same "
        "seed gives the same plan, and a longer horizon only adds to it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_load_options(parser, required=True)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument("--out", metavar="FILE", help="where to (default: standard output); .gz packs it")
    parser.set_defaults(run=run_generate)


def add_load_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """The options that make a load; for every command that has one made to order.

    Args:
        required: there is no other way to say what the load is.
    """
    when = parser.add_argument_group("when requests come")
    when.add_argument(
        "--rate", required=required, metavar="1/S", help="mean arrivals per second (conversations, with --turns)"
    )
    when.add_argument(
        "--arrivals",
        choices=("poisson", "gamma", "deterministic", "onoff", "diurnal"),
        default="poisson",
        help="the process (default: poisson)",
    )
    when.add_argument(
        "--burstiness", metavar="B", help="gamma: CV of the gaps is 1/√B; 1 is Poisson, below it burstier"
    )
    when.add_argument("--on", metavar="S", help="onoff: mean time with arrivals; the rate then is rate × (on + off)/on")
    when.add_argument("--off", metavar="S", help="onoff: mean time without")
    when.add_argument("--swing", metavar="SHARE", help="diurnal: rate × (1 ± SHARE) (default: 0.5)")
    when.add_argument("--period", metavar="S", help="diurnal: length of a day (default: 24h)")
    until = when.add_mutually_exclusive_group(required=required)
    until.add_argument("--horizon", metavar="S", help="all that arrive before")
    until.add_argument("--requests", type=int, metavar="N", help="the first N arrivals")
    what = parser.add_argument_group("what they ask")
    what.add_argument("--prompt", metavar="LENGTH", help=f"{LENGTHS} (default: {PROMPT})")
    what.add_argument("--output", metavar="LENGTH", help=f"likewise (default: {OUTPUT})")
    what.add_argument("--correlation", metavar="R", help="of the two, by a Gaussian copula (default: 0)")
    what.add_argument("--like", metavar="TRACE", help="pairs of lengths drawn from this trace instead")
    what.add_argument("--limit", type=int, metavar="N", help="most tokens of prompt and answer together")
    what.add_argument("--beyond", choices=("truncate", "redraw"), help="what to do with a pair beyond the limit")
    shared = parser.add_argument_group("what prompts share")
    shared.add_argument("--groups", type=int, metavar="N", help="N system prompts, one before each prompt")
    shared.add_argument("--prefix", metavar="LENGTH", help="their length (default: 500)")
    shared.add_argument("--skew", metavar="A", help="group k is chosen with weight 1/k^A (default: 0)")
    shared.add_argument("--turns", metavar="LENGTH", help="conversations of so many turns: a number or a law, as above")
    shared.add_argument("--think", metavar="S", help="between an answer and the next turn (default: 10)")
    shared.add_argument("--system", type=int, metavar="N", help="tokens that all conversations begin with")


def run_generate(args: argparse.Namespace) -> None:
    from underload.workload import write_plan

    planned = planned_load(args)
    with _output(args.out) as to:
        write_plan(planned, to)
    print(summary_line(planned), file=sys.stderr)


def planned_load(args: argparse.Namespace) -> list[Planned]:
    """The plan that the options make.

    Raises:
        UnderloadError: an option missing, out of place or out of range.
    """
    from underload.workload import Workload

    prompts = sharing(args)
    return Workload(arrivals(args), lengths(args), prompts).plan(
        args.seed, horizon=seconds(args.horizon, "--horizon"), requests=args.requests
    )


def summary_line(planned: list[Planned]) -> str:
    """How many, how long, how much, on one line."""
    if not planned:
        return "0 requests: none arrived before the horizon; take a longer one"
    last = planned[-1].arrival
    prompt, output = (sum(r.prompt_tokens for r in planned), sum(r.output_tokens for r in planned))
    return f"{len(planned):,} requests in {last:.4g} s, {prompt:,} prompt and {output:,} output tokens"


@contextlib.contextmanager
def _output(name: str | None) -> Iterator[TextIO]:
    if name is None:
        yield sys.stdout
    elif name.endswith(".gz"):
        with gzip.open(name, "wt", encoding="utf-8") as packed:
            yield packed
    else:
        with open(name, "w", encoding="utf-8", newline="\n") as plain:
            yield plain


def arrivals(args: argparse.Namespace) -> Arrivals:
    """The process that the options name.

    Raises:
        UnderloadError: an option missing, out of place or out of range.
    """
    from underload.workload import Deterministic, Diurnal, Gamma, OnOff, Poisson

    belongs = {"burstiness": "gamma", "on": "onoff", "off": "onoff", "swing": "diurnal", "period": "diurnal"}
    for option, process in belongs.items():
        if getattr(args, option) is not None and args.arrivals != process:
            raise UnderloadError(
                f"--{option} belongs to --arrivals {process}, not {args.arrivals}; leave one of them out"
            )
    rate = number(args.rate, "--rate")
    match args.arrivals:
        case "poisson":
            return Poisson(rate)
        case "deterministic":
            return Deterministic(rate)
        case "gamma":
            return Gamma(rate, number(_needed(args, "burstiness"), "--burstiness"))
        case "onoff":
            on, off = (_seconds(_needed(args, name), f"--{name}") for name in ("on", "off"))
            return OnOff(rate * (on + off) / on if on > 0 else rate, 0.0, on, off)
    period = 86400.0 if args.period is None else _seconds(args.period, "--period")
    return Diurnal(rate, 0.5 if args.swing is None else number(args.swing, "--swing"), period)


def _needed(args: argparse.Namespace, name: str) -> str:
    value = getattr(args, name)
    if value is None:
        raise UnderloadError(f"--arrivals {args.arrivals} needs --{name}; see underload workload generate --help")
    return str(value)


def lengths(args: argparse.Namespace) -> Lengths | EmpiricalPairs:
    """The lengths that the options name.

    Raises:
        UnderloadError: one that is no length, or a trace without.
    """
    from underload.workload import Lengths, Measured, Trace, load_trace

    if args.like is not None:
        for option in ("prompt", "output", "correlation"):
            if getattr(args, option) is not None:
                raise UnderloadError(f"--like takes the lengths of its trace; leave out --{option}, or --like")
        record = load_trace(args.like)
        trace = record.trace() if isinstance(record, Measured) else record
        if not isinstance(trace, Trace):
            raise UnderloadError(f"{args.like} has no pairs of a prompt and an answer; name a trace of requests")
        return trace.lengths(limit=args.limit, beyond=args.beyond)
    return Lengths(
        tokens(_given(args.prompt, PROMPT), "--prompt"),
        tokens(_given(args.output, OUTPUT), "--output"),
        number(_given(args.correlation, "0"), "--correlation"),
        limit=None if args.turns else args.limit,
        beyond=None if args.turns else args.beyond,
    )


def sharing(args: argparse.Namespace) -> Prompts:
    """What prompts share by the options.

    Raises:
        UnderloadError: groups and turns at once, or a number out of range.
    """
    from underload.workload import Conversations, SharedPrefix, Unshared

    for options, owner in ((("prefix", "skew"), "groups"), (("think", "system"), "turns")):
        for option in options:
            if getattr(args, option) is not None and getattr(args, owner) is None:
                raise UnderloadError(f"--{option} belongs to --{owner}; give that too, or leave --{option} out")
    if args.groups is not None and args.turns is not None:
        raise UnderloadError("--groups and --turns are two ways to share; give one (--system is a prefix of all turns)")
    if args.groups is not None:
        return SharedPrefix(
            args.groups, tokens(_given(args.prefix, "500"), "--prefix"), number(_given(args.skew, "0"), "--skew")
        )
    if args.turns is None:
        return Unshared()
    if args.beyond is not None:
        raise UnderloadError("with --turns a turn beyond the limit ends its conversation; leave --beyond out")
    return Conversations(
        tokens(args.turns, "--turns"),
        _seconds(_given(args.think, "10"), "--think"),
        system=_given(args.system, 0),
        limit=args.limit,
    )


def tokens(text: str, option: str) -> Tokens:
    """A law of lengths from its text.

    Raises:
        UnderloadError: text that names none.
    """
    from underload.workload import FixedTokens, GeometricTokens, LognormalTokens, UniformTokens

    kind, _, rest = text.partition(":")
    parts = rest.split(":") if rest else []
    if kind.isdecimal() and not parts:
        return FixedTokens(int(kind))
    if kind == "uniform" and len(parts) == 2 and all(part.isdecimal() for part in parts):
        return UniformTokens(int(parts[0]), int(parts[1]))
    if kind == "geometric" and len(parts) == 1:
        return GeometricTokens(number(parts[0], option))
    if kind == "lognormal":
        named = dict(part.partition("=")[::2] for part in rest.split(","))
        if set(named) == {"mean", "cv"}:
            return LognormalTokens.of(number(named["mean"], option), number(named["cv"], option))
        if set(named) == {"median", "sigma"}:
            return LognormalTokens(number(named["median"], option), number(named["sigma"], option))
    raise UnderloadError(f"{option} takes {LENGTHS}; got {text!r}")


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value


def seconds(text: str | None, option: str) -> float | None:
    """`_seconds`, or None where nothing was given."""
    return None if text is None else _seconds(text, option)


def _seconds(text: str, option: str) -> float:
    """A time as `underload queue` takes it, and in min and h besides."""
    for unit, scale in (("min", 60.0), ("h", 3600.0)):
        if text.endswith(unit):
            return number(text.removesuffix(unit), option) * scale
    return time(text, option)
