"""`underload capacity`: the largest load at which an SLO holds, and what binds there."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from underload.cli import print_json
from underload.cli.generate import seconds_text
from underload.cli.plan_options import (
    NOTES,
    Source,
    add_planning_options,
    asked_of,
    picture_file,
    save_picture,
    system_line,
    system_of,
    workload_of,
)
from underload.cli.queue import number
from underload.cli.serve_options import EXAMPLES, policy_line
from underload.cli.simulate import step_time_line
from underload.cli.workload import seconds
from underload.request import UnderloadError

if TYPE_CHECKING:
    from underload.planning import Burst, Capacity, Headroom

EPILOG = (
    """\
examples:
  underload capacity --step-time linear:20ms,1ms --prompt 64 --output geometric:32 --slo ttft=1s,tpot=100ms
  underload capacity --step-time roofline:llama-3-8b,h100-sxm --trace synthetic:azure-conv --horizon 2min \\
      --slo ttft=1s,tpot=50ms --processes 2
  underload calibrate pocket --out steps.json
  underload capacity --step-time fitted:steps.json --prompt 64 --output 32 --slo ttft=1s --replicas 4 --down 1
  underload capacity --step-time linear:20ms,1ms --prompt 64 --output 32 --slo ttft=1s --picture capacity.svg

The SLO holds at a rate where --attainment of a run's requests meet every term, the rate is below what the system does
while its queue never empties, and the queue does not grow over the run. Each run crosses from one to the other at a
rate of its own; the capacity is the mean of these, with Student's interval over the runs.
The first example takes about a minute; a trace of an hour, with a model by the roofline, far longer.

"""
    + NOTES
    + EXAMPLES
)


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `underload capacity`."""
    parser = commands.add_parser(
        "capacity",
        help="the largest load at which an SLO holds, and what binds there",
        description="Find the largest rate at which a system keeps an SLO, by simulating the engine's own loop, "
        "scheduler and block pool.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_planning_options(parser)
    more = parser.add_argument_group("more about the answer")
    more.add_argument("--tolerance", metavar="SHARE", default="0.03", help="of a run's crossing (default: 0.03)")
    spare = more.add_mutually_exclusive_group()
    spare.add_argument("--down", type=int, metavar="N", help="the headroom for N replicas that are down")
    spare.add_argument("--burst", metavar="X,S", help="the headroom for X times the rate for S, as in 3,60s")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from underload.planning import capacity, headroom

    path = picture_file(args.picture)
    asked = asked_of(args)
    source = workload_of(args)
    system = system_of(args, source.example)
    how = asked.how | {"tolerance": number(args.tolerance, "--tolerance")}
    began = time.perf_counter()
    spare = None
    burst = _burst(args.burst)
    shown = not args.json and sys.stderr is not None and sys.stderr.isatty()
    if args.down is not None or burst is not None:
        with _bar(shown, searches=2) as progress:
            spare = headroom(source.workload, asked.slo, system, down=args.down, burst=burst, progress=progress, **how)
        found = spare.normal
    else:
        with _bar(shown) as progress:
            found = capacity(source.workload, asked.slo, system, progress=progress, **how)
    took = time.perf_counter() - began
    if args.json:
        print_json(
            {
                "step_time": args.step_time,
                "swap_time": args.swap_time,
                "load": {"name": source.example.name, "notes": source.example.notes},
                "policies": policy_line(args),
                "replicas": args.replicas,
                "computed_in_s": took,
                **found.as_dict(),
                "headroom": None if spare is None else spare.as_dict(),
            }
        )
    else:
        _print(args, source, found, spare, took)
    if path is not None:
        picture(found, path)


@contextmanager
def _bar(shown: bool, searches: int = 1) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error, and what moves it; it is gone when the answer is there."""
    if not shown:
        yield None
        return
    from tqdm import tqdm

    # Without the time that is left: the parts that come last take longest.
    form = "{desc} {percentage:3.0f} %|{bar}| {n_fmt} of {total_fmt} parts, {elapsed}"
    begun = 0
    with tqdm(desc="searching", bar_format=form, file=sys.stderr, leave=False, dynamic_ncols=True) as bar:

        def progress(done: int, parts: int) -> None:
            nonlocal begun
            if not done:
                begun += 1
                bar.set_description_str(f"search {begun} of {searches}" if searches > 1 else "searching", refresh=False)
            bar.total, bar.n = parts, done
            bar.refresh()

        yield progress


def _burst(text: str | None) -> Burst | None:
    """The burst of "3,60s".

    Raises:
        UnderloadError: text that names none.
    """
    from underload.planning import Burst

    if text is None:
        return None
    factor, comma, length = text.partition(",")
    if not comma:
        raise UnderloadError(f"--burst takes a factor and a time, as in 3,60s, got {text!r:.40}")
    return Burst(number(factor, "--burst"), seconds(length.strip(), "--burst") or 0.0)


def _print(args: argparse.Namespace, source: Source, found: Capacity, spare: Headroom | None, took: float) -> None:
    planned = source.example.planned
    prompt, output = (
        sum(getattr(one, f"{kind}_tokens") for one in planned) / len(planned) for kind in ("prompt", "output")
    )
    print(f"load         {source.example.name}: {prompt:,.0f} prompt and {output:,.0f} output tokens on average")
    print(f"system       {system_line(args)}; {policy_line(args)}; {step_time_line(args)}")
    for note in source.example.notes:
        print(f"note         {note}")
    terms = ", ".join(f"{name} ≤ {seconds_text(limit)}" for name, limit in found.slo.terms.items())
    print(f"objective    {found.attainment:.4g} of requests with {terms}\n")
    around = found.interval
    sure = f", {max(around.low, 0):.4g} to {around.high:.4g} with {around.confidence:.0%} confidence" if around else ""
    print(f"capacity     {found.rate:.4g} requests/s{sure}")
    print(f"             {found.load:.0%} of the {found.saturated:.4g} requests/s with a queue that never empties")
    if found.scale:
        own = found.rate / found.scale
        print(f"             {found.scale:.4g} times the load's own {own:.4g} requests/s")
    crossings = ", ".join(f"{at:.4g}" for at in found.crossings)
    print(f"each run     {crossings} requests/s; {found.requests:,} requests, {seconds_text(found.window)}")
    if found.binds is not None:
        print(f"binds        {found.binds}")
    if spare is not None:
        inside = f", {spare.interval.low:z.1%} to {spare.interval.high:z.1%}" if spare.interval else ""
        print(f"headroom     {spare.share:z.1%}{inside}, for {spare.what}: {spare.rate:.4g} requests/s at most")
    for note in found.notes:
        print(f"note         {note}")
    print(f"             {len(found.probes)} runs of the search, {took:.1f} s")


def picture(found: Capacity, path: Path) -> None:
    """Draws the share of requests that met the SLO in each run of the search, and the capacity with its interval.

    Raises:
        UnderloadError: nothing was run.
    """
    from underload.figures import COLORS, axes, look

    seen = [probe for probe in found.probes if probe.simulated]
    if not seen:
        raise UnderloadError("no run was made that could be drawn; leave --picture out")
    figure, axis = axes("rate", "met the SLO", xunit="requests/s", yunit="%")
    style = look("simulation") | {"linestyle": "-", "linewidth": 0.6}
    for place, run_number in enumerate(dict.fromkeys(p.run for p in seen)):
        mine = [p for p in seen if p.run == run_number]
        label = "the rates of one run" if place == 0 else None
        axis.plot([p.rate for p in mine], [100 * p.attainment for p in mine], **style, label=label)
    axis.axhline(100 * found.attainment, color=COLORS["limit"], linestyle="--", linewidth=1, label="wanted")
    axis.axvline(found.rate, color=COLORS["choice"], linewidth=1.4, label="capacity")
    if (around := found.interval) is not None:
        low, high = max(around.low, 0), around.high
        label = f"its interval, {around.confidence:.0%}"
        axis.axvspan(low, high, color=COLORS["choice"], alpha=0.15, linewidth=0, label=label)
        edges = [low, high, *(p.rate for p in seen)]
        room = 0.1 * (max(edges) - min(edges))
        axis.set_xlim(max(min(edges) - room, 0), max(edges) + room)
    # Beside the axes: dots lie in all of its corners.
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
    save_picture(
        figure,
        path,
        alt="The share of requests that met the SLO against the rate in requests a second: "
        + (
            f"it falls below {found.attainment:.4g} at {found.rate:.4g}."
            if found.rate
            else f"it is below {found.attainment:.4g} at all of them."
        ),
    )
