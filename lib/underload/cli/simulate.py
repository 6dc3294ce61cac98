"""`underload simulate`: the serving engine on a virtual clock, with a model of what a step costs."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from underload.cli import print_json
from underload.cli.model import parse_size
from underload.cli.queue import number
from underload.cli.report import print_report, report_of, slo_of
from underload.cli.serve_options import (
    EXAMPLES,
    LoadPlan,
    add_serving_options,
    load_of,
    policies_of,
    policy_line,
    pool_of,
    require_room,
)
from underload.cli.workload import seconds, summary_line
from underload.request import UnderloadError

if TYPE_CHECKING:
    from underload.simulation import StepTime

EPILOG = (
    """\
examples:
  underload simulate --step-time linear:20ms,1ms --rate 5 --requests 2000 --prompt 64 --output geometric:32
  underload simulate --step-time linear:20ms,1ms --rate 2 --requests 2000 --prompt 64 --output geometric:32 \\
      --batching greedy --batch-size 16
  underload simulate --step-time roofline:llama-3-8b,h100-sxm --trace synthetic:azure-conv --horizon 2min \\
      --slo ttft=1s,tpot=50ms
  underload calibrate pocket --out steps.json
  underload simulate --step-time fitted:steps.json --rate 5 --horizon 10min --prompt 64 --output geometric:32 \\
      --trace-out run.json.gz

step times:
  linear:O,T[,C]            O + T a token + C a token of context, each a time
  overlap:A,C,B,D           max(m, c) + D·min(m, c), m = A + C a token of context, c = B a token (times; D from 0 to 1)
  roofline:SHAPE,DEVICE[,O] by bytes and FLOPs in 16 bits (underload model info), and O on top
  fitted:FILE               what `underload calibrate MODEL --out FILE` measured
  table:FILE,MODEL,HARDWARE,GPUS    timings in the format of Splitwise's

"""
    + EXAMPLES
    + """\
Without --num-blocks or --kv-memory, a roofline's device keeps 90 % of its memory for weights and cache; others have no
limit that matters.
"""
)

_AMPLE = 100_000  # blocks, where nothing says how many there are


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `underload simulate`."""
    parser = commands.add_parser(
        "simulate",
        help="serve a load on a virtual clock: policies compared in a moment",
        description="Serve a load with the engine's own loop, scheduler and block pool on a virtual clock. What a step "
        "takes is said by a model of it; underload bench serve takes the same options and a real decoder.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--step-time", required=True, metavar="MODEL", help="what a step takes; see below")
    add_swap_time(parser)
    add_serving_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from underload.engine import write_chrome_trace
    from underload.simulation import simulate_serving

    slo, warmup = slo_of(args.slo), seconds(args.warmup, "--warmup") or 0.0
    step_time = step_time_of(args.step_time)
    load = load_of(args)
    options = policies_of(args, load.planned)
    pool = pool_of(args, num_blocks_of(args, step_time))
    step_time = with_swaps(args, step_time)
    require_room(load, args.max_model_len, pool.num_blocks * pool.block_size)
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run = simulate_serving(
            load.planned, step_time, pool=pool, max_tokens=args.max_tokens, seed=args.seed, **options
        )
    took = time.perf_counter() - began
    report = report_of(run.requests, run.steps, block_size=args.block_size, warmup=warmup, slo=slo)
    notes = [*load.notes, *dict.fromkeys(str(one.message) for one in told)]
    if args.json:
        print_json(
            {
                "step_time": args.step_time,
                "swap_time": args.swap_time,
                "load": {"name": load.name, "requests": len(load.planned)},
                "policies": policy_line(args),
                "notes": notes,
                "simulated_in_s": took,
                **report,
            }
        )
    else:
        _print(args, load, report, notes, took)
    if args.trace_out:  # last: a place that cannot be written costs no figures
        write_chrome_trace(args.trace_out, run.steps, run.requests)


def _print(args: argparse.Namespace, load: LoadPlan, report: dict[str, Any], notes: list[str], took: float) -> None:
    print(f"load         {load.name}: {summary_line(load.planned)}")
    print(f"engine       {policy_line(args)}; {step_time_line(args)}")
    for note in notes:
        print(f"note         {note}")
    span = report["window_s"][1] if report["window_s"] else 0.0
    tokens = sum(report["steps"]["tokens"].values())
    print(f"simulated    {span / took:,.0f} times as fast as real time, {tokens / took:,.0f} tokens/s\n")
    print_report(report)


def step_time_of(text: str) -> StepTime:
    """The model of a step's time that the text names.

    Raises:
        UnderloadError: text that names none, or values it cannot have.
    """
    kind, colon, rest = text.partition(":")
    make = _STEP_TIMES.get(kind)
    if make is None or not colon or not rest:
        raise UnderloadError(
            f"--step-time takes linear:O,T[,C], overlap:A,C,B,D, roofline:SHAPE,DEVICE[,O], fitted:FILE or "
            f"table:FILE,MODEL,HARDWARE,GPUS, got {text!r}; see underload simulate --help"
        )
    return make(rest)


def add_swap_time(parser: argparse.ArgumentParser) -> None:
    """The time of a swap, which is no part of a step time that was measured or fitted without one."""
    parser.add_argument(
        "--swap-time", metavar="S", help="with --preemption swap: for each block that goes to the host or comes back"
    )


def with_swaps(args: argparse.Namespace, step_time: StepTime) -> StepTime:
    """The step time, and that of the blocks that are swapped.

    Raises:
        UnderloadError: swaps without a time, or a time without swaps.
    """
    from underload.simulation import SwapStepTime

    each = seconds(args.swap_time, "--swap-time")
    if args.preemption != "swap":
        if each is not None:
            raise UnderloadError("--swap-time belongs to --preemption swap; give that too, or leave --swap-time out")
        return step_time
    if each is None:
        raise UnderloadError(
            "--preemption swap takes time: add --swap-time S, a block's bytes over the link's bytes/s, such as 40us, "
            "or 0s to leave it out of account"
        )
    if not 0 <= each <= 1e6:
        raise UnderloadError(f"--swap-time is 0 s to 1e6 s for a block, got {args.swap_time}")
    return SwapStepTime(step_time, each)


def step_time_line(args: argparse.Namespace) -> str:
    """What a step takes, in words, for the head of a report."""
    return args.step_time + (f", a swapped block {args.swap_time}" if args.swap_time else "")


def num_blocks_of(args: argparse.Namespace, step_time: Any) -> int:
    """Blocks of the simulated cache.

    Raises:
        UnderloadError: a memory for a model whose shape nobody named, or one in which nothing fits.
    """
    from underload.simulation import RooflineStepTime

    if args.num_blocks is not None:
        return int(args.num_blocks)
    if not isinstance(step_time, RooflineStepTime):
        if args.kv_memory is not None:
            raise UnderloadError(
                "what --kv-memory holds depends on a model's shape, and this step time has none: give --num-blocks N, "
                "or --step-time roofline:SHAPE,DEVICE"
            )
        return _AMPLE
    shape, device = step_time.shape, step_time.device
    each = shape.kv_bytes_per_token(step_time.kv_bytes) * max(args.block_size, 1)
    if args.kv_memory is not None:
        memory, source = parse_size(args.kv_memory), f"--kv-memory {args.kv_memory}"
    else:
        memory = 0.9 * device.memory - shape.num_parameters * step_time.weight_bytes
        source = f"what 90 % of the {device.memory / 1e9:,.0f} GB of {device.name} leaves beside the weights"
    if memory < each:
        raise UnderloadError(
            f"one block of {args.block_size} tokens takes {each / 1e6:,.2f} MB, and {source} is "
            f"{memory / 1e6:,.2f} MB; take a larger device, or a smaller shape or block"
        )
    return int(memory // each)


def _linear(rest: str) -> StepTime:
    from underload.simulation import LinearStepTime

    return LinearStepTime(*_times("linear:O,T[,C]", rest, 2, 3))


def _overlap(rest: str) -> StepTime:
    from underload.simulation import OverlapStepTime

    parts = _parts("overlap:A,C,B,D", rest, 4, 4)
    base, context, token = (_seconds(part) for part in parts[:3])
    return OverlapStepTime(base, context, token, number(parts[3], "--step-time overlap:A,C,B,D"))


def _roofline(rest: str) -> StepTime:
    from underload.shapes import device, shape
    from underload.simulation import RooflineStepTime

    name, hardware, *overhead = _parts("roofline:SHAPE,DEVICE[,O]", rest, 2, 3)
    return RooflineStepTime(shape(name), device(hardware), overhead=_seconds(overhead[0]) if overhead else 0.0)


def _fitted(rest: str) -> StepTime:
    from underload.simulation import FittedStepTime

    return FittedStepTime.load(rest)


def _table(rest: str) -> StepTime:
    from underload.simulation import TableStepTime
    from underload.workload import find_trace, read_columns

    file, model, hardware, gpus = _parts("table:FILE,MODEL,HARDWARE,GPUS", rest, 4, 4)
    columns = read_columns(find_trace(file))
    parallel = number(gpus, "--step-time table:…,GPUS")
    return TableStepTime.of_columns(columns, model=model, hardware=hardware, tensor_parallel=int(parallel))


_STEP_TIMES: dict[str, Callable[[str], StepTime]] = {
    "linear": _linear,
    "overlap": _overlap,
    "roofline": _roofline,
    "fitted": _fitted,
    "table": _table,
}


def _parts(form: str, text: str, least: int, most: int) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not least <= len(parts) <= most or not all(parts):
        raise UnderloadError(f"--step-time {form} has {least} to {most} parts, separated by commas, got {text!r}")
    return parts


def _times(form: str, text: str, least: int, most: int) -> list[float]:
    return [_seconds(part) for part in _parts(form, text, least, most)]


def _seconds(text: str) -> float:
    return seconds(text, "--step-time") or 0.0
