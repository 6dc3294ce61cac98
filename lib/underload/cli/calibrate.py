"""`underload calibrate`: what a step takes on this machine, as a model that a simulation can ask."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import sys
from typing import TYPE_CHECKING, Any

from underload.cli import print_json
from underload.cli.bench import load_average
from underload.cli.generate import add_model_options, change_text, seconds_text
from underload.request import UnderloadError

if TYPE_CHECKING:
    from underload.simulation import FittedStepTime
    from underload.simulation.calibrate import StepErrors

EPILOG = """\
examples:
  underload calibrate pocket
  underload calibrate shape:smollm2-135m --out steps.json
  underload calibrate pocket --seqs 32 --tokens 512 --longest 512 --json

Loads of many batch sizes, contexts and chunks run on the real engine, --rounds of them to fit a model of a step's time
to, and one more to test it on; the rounds take turns. The time of a step is that from its start to the next one's, so
that the scheduler's work is in it, and tokens are drawn at temperature 1, as a planned load asks. A simulation that
asks for more than --seqs, --tokens or --longest is warned.
Other programs disturb the figures: look at the errors and at the load.
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `underload calibrate`."""
    parser = commands.add_parser(
        "calibrate",
        help="fit a model of step times to this machine, for simulations",
        description="Measure steps of a model on the real engine, and fit a model of their time.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_options(parser, default="pocket", positional=True)
    parser.add_argument("--seqs", type=int, default=16, metavar="N", help="sequences at once, at most (default: 16)")
    parser.add_argument("--tokens", type=int, default=256, metavar="N", help="tokens a step, at most (default: 256)")
    parser.add_argument("--longest", type=int, default=256, metavar="N", help="tokens a sequence (default: 256)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds of loads to fit to (default: 3)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the loads (default: 0)")
    parser.add_argument("--out", metavar="FILE", help="save the model as JSON")
    parser.add_argument("--json", action="store_true", help="print the model and its errors as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    if args.rounds < 1 or args.seed < 0:
        raise UnderloadError(f"--rounds must be at least 1 and --seed at least 0, got {args.rounds} and {args.seed}")
    from tqdm import tqdm

    from underload.decoder import DecoderExecutor, load_model, machine
    from underload.simulation.calibrate import BLOCK_SIZE, StepErrors, design, fit, measure_rounds

    model = load_model(args.model, device=args.device, dtype=args.dtype, path=args.path)
    longest = args.longest
    if (limit := model.shape.max_positions) is not None and longest > limit:
        raise UnderloadError(f"--longest {longest} is beyond the {limit} positions of {args.model}; lower it")
    rounds = [
        design(max_num_seqs=args.seqs, max_num_batched_tokens=args.tokens, longest=longest, seed=args.seed + number)
        for number in range(args.rounds + 1)
    ]
    num_blocks = max(load.num_blocks for loads in rounds for load in loads)
    executor = DecoderExecutor(model, num_blocks, BLOCK_SIZE)
    load_before = load_average()
    total = sum(map(len, rounds))
    with tqdm(total=total, desc="loads", file=sys.stderr, disable=args.json, leave=False) as bar:
        *fitted, held_out = measure_rounds(
            executor, rounds, vocabulary=model.shape.vocab_size, num_blocks=num_blocks, done=bar.update
        )
    records = [record for found in fitted for record in found]
    about: dict[str, Any] = {
        "model": args.model,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "path": model.path,
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
        "load_before": load_before,
        "design": {
            "max_num_seqs": args.seqs,
            "max_num_batched_tokens": args.tokens,
            "longest": longest,
            "rounds": args.rounds,
            "seed": args.seed,
        },
    }
    step_time = fit(records)
    errors = {"fitted": StepErrors.of(step_time, records), "held_out": StepErrors.of(step_time, held_out)}
    about["errors"] = {name: dataclasses.asdict(off) for name, off in errors.items()}
    step_time = dataclasses.replace(step_time, about=about)
    if args.out:
        step_time.save(args.out)
    if args.json:
        print_json(step_time.as_dict())
    else:
        show(step_time, errors)
        if args.out:
            print(f"saved to {args.out}")


def show(step_time: FittedStepTime, errors: dict[str, StepErrors]) -> None:
    """The coefficients with their meaning, and how good they are."""
    about = step_time.about
    here = about["machine"]
    print(
        f"{about['model']}, {about['dtype']} on {about['device']} ({about['path']} path): {here['cpu']}, "
        f"{here['cores']} cores, {here['threads']} threads, {about['date']}"
    )
    if about["load_before"] is not None:
        print(f"load average before: {about['load_before']:.2f}")
    print("\na step takes, for the tokens it computes")
    for knot, seconds in zip(step_time.knots, step_time.at_knots):
        print(f"  {knot:>8,.0f} {'token' if knot == 1 else 'tokens':<8}{seconds_text(seconds):>10}")
    print("and in addition, for each")
    for name, seconds in (
        ("sequence in the batch", step_time.per_sequence),
        ("key and value read", step_time.per_context),
        ("pair of query and key", step_time.per_pair),
        ("row of logits", step_time.per_logit_row),
    ):
        print(f"  {name:<24}{seconds * 1e9:>12,.3g} ns")
    print("fitted on steps with")
    for name, (low, high) in step_time.ranges.items():
        print(f"  {name:<24}{low:>8,.0f} to {high:,.0f}")
    print("\nerrors: of single steps, median and mean; of all time together")
    for name, label in (("fitted", "loads it was fitted on"), ("held_out", "loads it was not")):
        off = errors[name]
        print(f"  {label:<24}{off.median:>7.1%} {off.mean:>7.1%} {change_text(off.total):>7}  ({off.steps:,} steps)")
