"""What `underload capacity` and `underload compare` have in common: a load at any rate, a system, and who computes.

add_planning_options    the options, for both
add_system_options      those of a system alone: what an alternative may change
workload_of, system_of  what they name
picture_file            where a picture goes
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from underload.cli.queue import number
from underload.cli.report import slo_of
from underload.cli.serve_options import (
    LoadPlan,
    add_engine_options,
    add_source_options,
    load_of,
    policies_of,
    pool_of,
    require_room,
)
from underload.cli.simulate import add_swap_time, num_blocks_of, step_time_of, with_swaps
from underload.cli.workload import arrivals, lengths, sharing
from underload.request import UnderloadError

if TYPE_CHECKING:
    from underload.metrics import Slo
    from underload.planning import System
    from underload.scheduling import Scheduler
    from underload.simulation import Router
    from underload.workload import Load, Planned

ROUTERS = ("random", "round-robin", "shortest-queue", "two-choices", "least-kv", "prefix-affine")

NOTES = """\
Step times are those of `underload simulate`: see underload simulate --help. A load is drawn (--prompt, --output,
--arrivals, …) or a trace. To reach another rate it is squeezed in time: every gap is multiplied by one factor, lengths
and think times stay. Each of --runs has its own random numbers; of a trace, the further runs exchange its requests.
"""


def add_system_options(parser: argparse.ArgumentParser) -> None:
    """Step times, replicas, router, policies and limits."""
    parser.add_argument("--step-time", metavar="MODEL", help="what a step takes, such as linear:20ms,1ms")
    add_swap_time(parser)
    system = parser.add_argument_group("the system")
    system.add_argument("--replicas", type=int, default=1, metavar="N", help="engines behind a front door (default: 1)")
    system.add_argument("--router", choices=ROUTERS, help="to which a request goes (default: shortest-queue)")
    add_engine_options(parser)


def add_planning_options(parser: argparse.ArgumentParser) -> None:
    """All options of a command that plans."""
    add_system_options(parser)
    add_source_options(parser)
    asked = parser.add_argument_group("what is asked")
    asked.add_argument("--slo", metavar="TERMS", help="such as ttft=500ms,tpot=50ms (needed)")
    asked.add_argument("--attainment", metavar="SHARE", default="0.99", help="of requests to meet it (default: 0.99)")
    asked.add_argument("--warmup", metavar="SHARE", help="of each run that does not count (default: 0.1; a trace: 0)")
    asked.add_argument("--runs", type=int, default=4, metavar="N", help="of which intervals are made (default: 4)")
    work = parser.add_argument_group("how it is computed, and what is printed")
    work.add_argument("--processes", type=int, default=1, metavar="N", help="at once (default: 1)")
    work.add_argument("--scheduler", metavar="ADDRESS", help="of a Dask cluster that does the work instead")
    work.add_argument("--picture", metavar="FILE", help="draw it: .svg, .png or .pdf")
    work.add_argument("--json", action="store_true", help="print JSON")


@dataclass(frozen=True)
class Asked:
    """The options that the library's functions take as they are."""

    slo: Slo
    how: dict[str, Any]


def asked_of(args: argparse.Namespace) -> Asked:
    """The SLO, and the arguments of `planning.capacity` and `planning.compare_systems`.

    Raises:
        UnderloadError: no SLO, or a number that is none.
    """
    slo = slo_of(args.slo)
    if slo is None:
        raise UnderloadError("say what is to hold: --slo, such as --slo ttft=500ms,tpot=50ms")
    how = {
        "attainment": number(args.attainment, "--attainment"),
        "warmup": None if args.warmup is None else number(args.warmup, "--warmup"),
        "runs": args.runs,
        "seed": args.seed,
        "processes": args.processes,
        "scheduler": args.scheduler,
        "requests": args.requests if args.trace is None else None,
    }
    return Asked(slo, how)


@dataclass(frozen=True)
class Source:
    """What is served.

    workload: a load to draw from, or the plan of a trace.
    example: a plan of it, for checks and words.
    """

    workload: Load | list[Planned]
    example: LoadPlan


def workload_of(args: argparse.Namespace) -> Source:
    """The load that the options name.

    Raises:
        UnderloadError: two are named, or what none can have.
    """
    if args.trace is not None:
        load = load_of(args)
        return Source(load.planned, load)
    if args.horizon is not None:
        raise UnderloadError("--horizon is a time, and runs at many rates are compared: give --requests N instead")
    if args.rate is None:
        args.rate = "1"  # what is drawn at 1/s is squeezed to any rate
    if args.requests is None:
        args.requests = 2000
    example = load_of(args)
    name = f"{args.arrivals} arrivals, seed {args.seed}"
    from underload.cli.wishes import Wishing
    from underload.workload import Workload

    made = Workload(arrivals(args), lengths(args), sharing(args))
    return Source(Wishing(made, args), LoadPlan(example.planned, name, example.notes))


@dataclass(frozen=True)
class Schedulers:
    """Makes the scheduler that the options name, in any process."""

    args: argparse.Namespace
    num_blocks: int

    def __call__(self) -> Scheduler:
        from underload.scheduling import Scheduler

        return Scheduler(pool_of(self.args, self.num_blocks), **policies_of(self.args, []))


def system_of(args: argparse.Namespace, example: LoadPlan) -> System:
    """The system that the options name, once it is known to take the load.

    Raises:
        UnderloadError: an option missing, out of place or out of range.
    """
    from underload.planning import System
    from underload.simulation import EngineReplica

    if args.step_time is None:
        raise UnderloadError(
            "say what a step takes: --step-time, such as linear:20ms,1ms; see underload simulate --help"
        )
    if args.num_blocks is not None and args.kv_memory is not None:
        raise UnderloadError("--num-blocks and --kv-memory both say how large the cache is; leave one of them out")
    if (kind := (args.predictor or "").partition(":")[0]) in ("oracle", "noisy"):
        raise UnderloadError(
            f"--predictor {kind} knows the answers of one plan, and each run here has its own; take max-tokens, or "
            "underload simulate"
        )
    if args.router is not None and args.replicas == 1:
        raise UnderloadError(
            f"--router {args.router} has one replica to choose from; add --replicas N, or leave it out"
        )
    step_time = step_time_of(args.step_time)
    made = Schedulers(args, num_blocks_of(args, step_time))
    step_time = with_swaps(args, step_time)
    pool = made().pool
    require_room(example, args.max_model_len, pool.num_blocks * pool.block_size)
    return System(EngineReplica(step_time, made, args.max_tokens), args.replicas, _router(args.router))


def _router(name: str | None) -> Router | None:
    from underload.simulation import router

    make: dict[str, Callable[[], Router]] = dict(
        zip(
            ROUTERS,
            (
                router.Random,
                router.RoundRobin,
                router.JoinShortestQueue,
                router.PowerOfChoices,
                router.LeastKvUsed,
                router.PrefixAffine,
            ),
        )
    )
    return None if name is None else make[name]()


def system_line(args: argparse.Namespace) -> str:
    """Replicas and router in words."""
    if args.replicas == 1:
        return "one replica"
    return f"{args.replicas} replicas, {args.router or 'shortest-queue'}"


def picture_file(name: str | None) -> Path | None:
    """Where the picture goes.

    Raises:
        UnderloadError: a kind of file that nobody draws, or a place where it cannot be written.
    """
    if name is None:
        return None
    path = Path(name)
    if path.suffix.lower() not in (".svg", ".png", ".pdf"):
        raise UnderloadError(f"--picture takes a .svg, .png or .pdf file, got {name!r:.60}")
    # Now, not when all has been computed.
    if not path.parent.is_dir():
        raise UnderloadError(f"--picture {name!r:.120}: there is no folder {str(path.parent)!r:.120}; make it")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UnderloadError(f"--picture {name!r:.120} cannot be written; name another file")
    return path


def save_picture(figure: Any, path: Path, *, alt: str) -> None:
    """Write a figure of `figures.axes` to a file of one of these kinds."""
    from underload.figures import svg_file

    if path.suffix.lower() == ".svg":
        path.write_text(svg_file(figure, alt=alt), encoding="utf-8")
    else:
        figure.savefig(path, dpi=160, facecolor="white", transparent=False)


def shares(text: str, option: str) -> Sequence[float]:
    """Numbers separated by commas.

    Raises:
        UnderloadError: what is no number.
    """
    return [number(part.strip(), option) for part in text.split(",")]
