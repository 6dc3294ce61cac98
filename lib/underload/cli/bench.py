"""`underload bench`: what a decode step takes here, batch by batch, and how a load is served (`bench_serve`)."""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
from typing import TYPE_CHECKING, Any

from underload import metrics
from underload.cli import bench_serve, print_json
from underload.cli.generate import add_model_options, change_text, seconds_text
from underload.request import UnderloadError
from underload.shapes import StepLine, fit_step_time

if TYPE_CHECKING:
    from underload.decoder import Ceilings, Model

EPILOG = """\
examples:
  underload bench decode
  underload bench decode --batch 1,2,3,4,6,8 --path plain,fast
  underload bench decode --model shape:bench-s --context 512 --json

Each row times one decode step: a token for each of B sequences that have CONTEXT tokens in the cache. The bytes are
those that the model's shape demands (weights once, each sequence's keys and values), the ceilings are measured in the
same process. The line T(B) = o + Bt is fitted to the medians, with the least squared relative error.
Other programs disturb the figures: look at the spread and at the load.
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `underload bench decode|serve`."""
    parser = commands.add_parser("bench", help="time the decoder here, beside what the machine could do at best")
    benches = parser.add_subparsers(title="what to time", dest="bench", metavar="WHAT", required=True)
    decode = benches.add_parser(
        "decode",
        help="decode steps at several batch sizes",
        description="Time decode steps at several batch sizes, beside the machine's ceilings, and fit T(B) = o + Bt.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    decode.add_argument("--batch", default="1,2,4,8,16", metavar="SIZES", help="batch sizes (default: 1,2,4,8,16)")
    decode.add_argument("--context", type=int, default=128, metavar="N", help="tokens in each cache (default: 128)")
    decode.add_argument("--steps", type=int, default=8, metavar="N", help="timed steps a row (default: 8)")
    decode.add_argument("--warmup", type=int, default=2, metavar="N", help="untimed steps before them (default: 2)")
    add_model_options(decode, default="shape:smollm2-135m", many_paths=True)
    decode.add_argument("--json", action="store_true", help="print JSON")
    decode.set_defaults(run=run_decode)
    bench_serve.register(benches)


def run_decode(args: argparse.Namespace) -> None:
    sizes = batch_sizes(args.batch)
    paths = list(dict.fromkeys(name.strip() for name in args.path.split(",")))
    if unknown := [path for path in paths if path not in ("auto", "plain", "fast")]:
        raise UnderloadError(f"--path takes plain, fast and auto, separated by commas; {unknown[0]!r} is none of them")
    if args.steps < 1 or args.warmup < 0:
        raise UnderloadError(f"--steps must be at least 1 and --warmup at least 0, got {args.steps} and {args.warmup}")

    from underload.decoder import ceilings, load_model, machine

    result: dict[str, Any] = {"machine": machine(), "load_before": load_average(), "context": args.context, "paths": []}
    for path in paths:
        model = load_model(args.model, device=args.device, dtype=args.dtype, path=path)
        most = ceilings(model.device, model.dtype)
        if not result["paths"]:
            result |= describe(args.model, model, most)
            if not args.json:
                print_head(result)
        elif any(run["path"] == model.path for run in result["paths"]):
            continue  # "auto" is one that was measured already
        rows = []
        for size in sizes:
            rows.append(measure(model, size, args.context, args.steps, args.warmup, most))
            if not args.json:
                print_row(model.path, rows[-1])
        run = {"path": model.path, "rows": rows, "line": fitted(rows)}
        result["paths"].append(run)
        if not args.json:
            print_line(run)
        model.close()
    if args.json:
        print_json(result)


def batch_sizes(text: str) -> list[int]:
    """The sizes of "1,2,4", ascending, each once.

    Raises:
        UnderloadError: something that is no size.
    """
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 1:
        raise UnderloadError(f"--batch takes whole numbers from 1 on, separated by commas, as in 1,2,4,8; got {text!r}")
    return sizes


def describe(name: str, model: Model, most: Ceilings) -> dict[str, Any]:
    """What is measured, and what it is measured against."""
    return {
        "model": name,
        "parameters": model.shape.num_parameters,
        "weight_bytes": model.weight_bytes,
        "kv_bytes_per_token": model.shape.kv_bytes_per_token(model.dtype.itemsize),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "ceilings": dataclasses.asdict(most),
    }


def measure(model: Model, size: int, context: int, steps: int, warmup: int, most: Ceilings) -> dict[str, Any]:
    """One row: the median step of `steps`, and the fastest and slowest beside it."""
    from underload.decoder import decode_steps

    records = decode_steps(model, size, context, steps=steps, warmup=warmup)
    seconds = [record.duration for record in records]
    median = statistics.median(seconds)
    rates = metrics.step_rates(
        dataclasses.replace(records[0], duration=median), bandwidth=most.read_bandwidth, flops=most.flops
    )
    assert rates is not None
    return {
        "batch": size,
        "step_s": median,
        "step_s_min": min(seconds),
        "step_s_max": max(seconds),
        "tokens_per_s": rates.tokens_per_second,
        "bytes_per_s": rates.bytes_per_second,
        "bandwidth_fraction": rates.bandwidth_fraction,
        "flops_fraction": rates.flops_fraction,
    }


def fitted(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """o and t of the rows, and how far off each is; None for a single batch size."""
    if len(rows) < 2:
        return None
    line = fit_step_time([row["batch"] for row in rows], [row["step_s"] for row in rows])
    off = [row["step_s"] / line.step_time(row["batch"]) - 1 for row in rows]
    rms = statistics.fmean(error**2 for error in off) ** 0.5
    return {"o_s": line.o, "t_s": line.t, "relative_residuals": off, "relative_residual_rms": rms}


def load_average() -> float | None:
    """Processes that wanted a core over the last minute, where the system tells."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def print_head(result: dict[str, Any]) -> None:
    here, most = result["machine"], result["ceilings"]
    print(
        f"{result['model']}: {result['parameters'] / 1e6:,.1f}M parameters, {result['weight_bytes'] / 1e6:,.0f} MB of "
        f"{result['dtype']}; {result['context']} tokens of context, {result['kv_bytes_per_token'] / 1e3:.1f} kB of KV "
        "a token"
    )
    where = most["device"] if most["device"] == here["cpu"] else f"{most['device']} beside {here['cpu']}"
    print(f"on {where}: {here['cores']} cores, {most['threads']} threads, torch {here['torch']}, {here['system']}")
    load = result["load_before"]
    if load is not None:
        busy = " (others were at work: expect noise)" if load > 0.5 * (here["cores"] or 1) else ""
        print(f"load average before: {load:.2f}{busy}")
    reads, computes = most["read_bandwidth"] / 1e9, most["flops"] / 1e9
    print(f"ceilings, measured now: reads {reads:,.1f} GB/s, computes {computes:,.0f} GFLOP/s in {most['dtype']}\n")
    print(
        f"{'path':<7}{'batch':>6}{'ms/step':>10}{'min–max':>16}{'tok/s':>9}{'GB/s':>8}{'of read':>9}{'of FLOP/s':>11}"
    )


def print_row(path: str, row: dict[str, Any]) -> None:
    spread = f"{row['step_s_min'] * 1e3:.2f}–{row['step_s_max'] * 1e3:.2f}"
    print(
        f"{path:<7}{row['batch']:>6}{row['step_s'] * 1e3:>10.2f}{spread:>16}{row['tokens_per_s']:>9,.0f}"
        f"{row['bytes_per_s'] / 1e9:>8.1f}{row['bandwidth_fraction']:>9.0%}{row['flops_fraction']:>11.1%}",
        flush=True,
    )


def print_line(run: dict[str, Any]) -> None:
    line, rows = run["line"], run["rows"]
    if line is None:
        print()
        return
    worst = max(range(len(rows)), key=lambda i: abs(line["relative_residuals"][i]))
    o, t = line["o_s"], line["t_s"]
    print(f"{run['path']}: T(B) = o + Bt with o = {seconds_text(o)}, t = {seconds_text(t)} a sequence")
    if len(rows) == 2:
        print("  two points always lie on a line: measure more batch sizes to see whether it holds")
    else:
        print(
            f"  the steps are {line['relative_residual_rms']:.1%} (rms) off the line, at most "
            f"{change_text(line['relative_residuals'][worst])}, at B = {rows[worst]['batch']}"
        )
    if o > 0 and t > 0:
        knee = StepLine(o, t).knee
        print(f"  on it, tokens/s tend to 1/t = {1 / t:,.0f}, and reach half of that at B = o/t = {knee:.1f}")
    print(flush=True)
