"""`underload compare`: systems side by side under the same loads."""

from __future__ import annotations

import argparse
import copy
import math
import shlex
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from underload.cli import print_json
from underload.cli.generate import seconds_text
from underload.cli.plan_options import (
    NOTES,
    add_planning_options,
    add_system_options,
    asked_of,
    picture_file,
    save_picture,
    shares,
    system_line,
    system_of,
    workload_of,
)
from underload.cli.serve_options import EXAMPLES, policy_line
from underload.cli.simulate import step_time_line
from underload.cli.workload import summary_line
from underload.request import UnderloadError

EPILOG = (
    """\
examples:
  underload compare --step-time linear:20ms,1ms --rate 4 --requests 1000 --prompt 64 --output geometric:32 \\
      --slo ttft=1s,tpot=100ms --against "8 at once: --max-num-seqs 8"
  underload compare --step-time linear:20ms,1ms --prompt 64 --output geometric:32 --slo ttft=1s --replicas 4 \\
      --against "random: --router random" --loads 0.5,0.8,0.95 --picture routers.svg

An alternative is a name and the options in which it differs: step times, replicas, router, policies and limits. All
meet the same requests at the same instants, run by run, so that the interval of a difference is far narrower than those
of the figures. Without --loads the load comes at its own rate.

"""
    + NOTES
    + EXAMPLES
)


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `underload compare`."""
    parser = commands.add_parser(
        "compare",
        help="systems side by side under the same load: goodput, latencies, and the difference",
        description="Run a load through several systems, and say by how much they differ, with intervals.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_planning_options(parser)
    more = parser.add_argument_group("what is compared")
    more.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="NAME: OPTIONS",
        help="an alternative; more than one may be given",
    )
    more.add_argument(
        "--name", default="base", metavar="NAME", help="of the system of the other options (default: base)"
    )
    more.add_argument("--loads", metavar="LIST", help="shares of what the first does while its queue never empties")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from underload.planning import compare_systems
    from underload.planning.loads import mean_rate

    path = picture_file(args.picture)
    asked = asked_of(args)
    source = workload_of(args)
    if not args.name.strip():
        raise UnderloadError('--name is of the first system, got nothing; leave it out for "base"')
    variants = {args.name: args}
    for text in args.against:
        name, variant = _alternative(text, args)
        if name in variants:
            raise UnderloadError(f"two systems are called {name!r:.40}; give each its own name")
        variants[name] = variant
    systems = {name: system_of(variant, source.example) for name, variant in variants.items()}
    at: dict[str, Any] = (
        {"rates": [mean_rate(source.example.planned)]}
        if args.loads is None
        else {"loads": shares(args.loads, "--loads")}
    )
    began = time.perf_counter()
    rows = compare_systems(source.workload, asked.slo, systems, **at, **asked.how)
    took = time.perf_counter() - began
    if args.json:
        print_json(
            {
                "load": {"name": source.example.name, "notes": source.example.notes},
                "systems": {name: _in_full(variant, variants.values()) for name, variant in variants.items()},
                "slo_s": asked.slo.terms,
                "attainment": asked.how["attainment"],
                "computed_in_s": took,
                "rows": rows,
            }
        )
    else:
        print(f"load         {source.example.name}: {summary_line(source.example.planned)}")
        for name, variant in variants.items():
            words = _in_full(args, variants.values()) if variant is args else _beside(variant, args, args.name)
            print(f"{name:<12} {words}")
        for note in source.example.notes:
            print(f"note         {note}")
        _print(rows, asked.how["attainment"], args.name)
        print(f"\n{args.runs} runs each, {took:.1f} s")
    if path is not None:
        picture(rows, path)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UnderloadError(f"--against: {message}; it takes step time, replicas, router, policies and limits")


def _alternative(text: str, args: argparse.Namespace) -> tuple[str, argparse.Namespace]:
    """Name and options of "NAME: OPTIONS", over those of the command.

    Raises:
        UnderloadError: no name, no options, or options that are none of a system's.
    """
    name, colon, words = text.partition(":")
    name = name.strip()
    try:
        options = shlex.split(words)
    except ValueError as error:
        raise UnderloadError(f"--against {text!r:.60} cannot be read ({error}); close its quotes") from None
    if not colon or not name or not options:
        raise UnderloadError(f'--against takes a name and options, as in "random: --router random", got {text!r:.60}')
    parser = _Parser(prog="--against", add_help=False, allow_abbrev=False)
    add_system_options(parser)
    return name, parser.parse_args(options, namespace=copy.copy(args))


def _words(args: argparse.Namespace) -> str:
    return f"{system_line(args)}; {policy_line(args)}; {step_time_line(args)}"


def _in_full(args: argparse.Namespace, systems: Iterable[argparse.Namespace]) -> str:
    """A system in words, and its value of each option in which the systems differ, where the words do not tell it."""
    untold = []
    for other in systems:
        for name in _differing(other, args):
            swapped = argparse.Namespace(**vars(args) | {name: getattr(other, name)})
            if _words(swapped) == _words(args):
                untold.append(_option(name, getattr(args, name)))
    return "; ".join([_words(args), *dict.fromkeys(filter(None, untold))])


def _beside(args: argparse.Namespace, first: argparse.Namespace, name: str) -> str:
    """What a system has that the first has not."""
    options = [_option(one, getattr(args, one)) for one in _differing(args, first)]
    return f"as {name}, but {' '.join(options)}" if options else f"the same as {name}"


def _differing(args: argparse.Namespace, other: argparse.Namespace) -> list[str]:
    """The options of a system that two do not share."""
    parser = _Parser(add_help=False)
    add_system_options(parser)
    names = vars(parser.parse_args([]))
    return [name for name in names if getattr(args, name) != getattr(other, name)]


def _option(name: str, value: Any) -> str:
    """An option as it is typed; nothing where it was left out."""
    word = name.replace("_", "-")
    if value is None or (value is False and word.startswith("no-")):
        return ""
    if isinstance(value, bool):
        return f"--{word}" if value else f"--no-{word}"
    return f"--{word} {shlex.quote(str(value))}"


COLUMNS = (("goodput", "goodput"), ("attainment", "met SLO"), ("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "E2E"))


def _print(rows: Sequence[dict[str, Any]], attainment: float, first: str) -> None:
    percent = f"p{100 * attainment:g}"
    for rate in dict.fromkeys(row["rate"] for row in rows):
        here = [row for row in rows if row["rate"] == rate]
        print(f"\nat {rate:.4g} requests/s, load {here[0]['load']:.0%}; latencies are {percent}")
        width = max(12, *(len(row["system"]) for row in here)) + 1
        print(f"{'':<{width}}" + "".join(f"{title:>16}" for _, title in COLUMNS) + f"{'refused':>10}")
        for row in here:
            cells = "".join(f"{_cell(name, row[name]):>16}" for name, _ in COLUMNS)
            print(f"{row['system']:<{width}}{cells}{row['refused']:>10.1%}")
            between = [_between(name, row[name], row[f"{name}_low"], row[f"{name}_high"]) for name, _ in COLUMNS]
            if any(between):
                print(f"{'':<{width}}" + "".join(f"{text:>16}" for text in between).rstrip())
        for row in here:
            if row["system"] != first:
                parts = [text for name, title in COLUMNS if (text := _change(name, title, row))]
                print(
                    f"{row['system']} against {first}: " + ("; ".join(parts) if parts else "no difference to be seen")
                )


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    if name == "attainment":
        return f"{value:.1%}"
    return f"{value:.4g}/s" if name == "goodput" else seconds_text(value)


def _between(name: str, value: float | None, low: float | None, high: float | None) -> str:
    """An interval, in the unit in which `_cell` says the value."""
    if value is None or low is None or high is None:
        return ""
    if name == "attainment":
        return f"{max(low, 0):z.1%}–{min(high, 1):z.1%}"
    if name == "goodput":
        return f"{max(low, 0):.3g}–{high:.3g}"
    scale = 1.0 if value >= 1 else 1e3 if value >= 1e-3 else 1e6
    ends = (max(low, 0) * scale, high * scale)
    return "–".join(f"{end:.3g}" if end < 1000 else f"{end:,.0f}" for end in ends)


def _change(name: str, title: str, row: dict[str, Any]) -> str:
    """A difference that is one: its interval leaves out 0."""
    change, low, high = (row.get(f"{name}_change{part}") for part in ("", "_low", "_high"))
    if change is None or low is None or high is None or low <= 0 <= high:
        return ""
    sign = "+" if change > 0 else "−"
    if name == "attainment":
        size = abs(change)  # as it is a difference, it does not print as 0
        return f"{title} {sign}{f'{size:.1%}' if size >= 5e-4 else f'{100 * size:.2g}%'}"
    return f"{title} {sign}{_cell(name, abs(change))}"


def picture(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws goodput and the share that met the SLO against the rate; for one rate, by system."""
    from underload.figures import axes

    rates = list(dict.fromkeys(row["rate"] for row in rows))
    names = list(dict.fromkeys(row["system"] for row in rows))
    several = len(rates) > 1
    figure, (left, right) = axes(
        "rate" if several else "",
        ("goodput", "met the SLO"),
        xunit="requests/s" if several else "",
        yunit=("requests/s", "%"),
        cols=2,
        width=9.0,
    )
    for axis, figure_name, scale, most in ((left, "goodput", 1.0, math.inf), (right, "attainment", 100.0, 1.0)):
        for place, name in enumerate(names):
            mine = [row for row in rows if row["system"] == name]
            at = [row["rate"] for row in mine] if several else [place]
            values = [scale * row[figure_name] for row in mine]
            errors = [
                [
                    scale * (row[figure_name] - max(low, 0)) if (low := row[f"{figure_name}_low"]) is not None else 0
                    for row in mine
                ],
                [
                    scale * (min(high, most) - row[figure_name])
                    if (high := row[f"{figure_name}_high"]) is not None
                    else 0
                    for row in mine
                ],
            ]
            axis.errorbar(
                at,
                values,
                yerr=errors,
                marker="os^Dv<>"[place % 7],
                linestyle="-" if several else "",
                capsize=3,
                label=name,
            )
        if not several:
            crowded = sum(map(len, names)) > 40
            axis.set_xticks(
                range(len(names)), names, rotation=20 if crowded else 0, ha="right" if crowded else "center"
            )
            axis.set_xlim(-0.5, len(names) - 0.5)
        axis.set_ylim(bottom=0)
    if several:
        right.legend()
    save_picture(
        figure,
        path,
        alt=f"Goodput and the share of requests that met the SLO of {', '.join(names)}, at "
        f"{', '.join(f'{rate:.3g}' for rate in rates)} requests a second.",
    )
