"""Everything that needs a GPU to be believed, in one script of a few minutes.

    python tests/benchmarks/gpu.py [--out FILE] [--quick]

Runs from a bare checkout (PYTHONPATH=lib) on torch and numpy alone. Each part is a function that takes the device and
returns plain data; a part that raises is recorded with its error, and the others still run. Without a GPU, or with
--quick, the same code runs small on the CPU, so that it cannot rot: those figures say nothing about a GPU, and the
record says which it is.
"""

import argparse
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from underload.decoder import Batch, Model, Weights, ceilings, decode_steps, machine, prefill_steps
from underload.decoder.sampling import SamplingState, probabilities, sample
from underload.request import BlockTable, SamplingParams, Sequence
from underload.shapes import ModelShape, roofline, shape, step_cost


@dataclass(frozen=True)
class Setting:
    """Where the parts run and how large."""

    device: torch.device
    quick: bool

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32


def _logits(model: Model, prompts: list[list[int]], chunk: int | None = None) -> torch.Tensor:
    """Last-row logits of ragged prompts in one batch, on the CPU: [prompts, vocab]; with `chunk`, fed in pieces."""
    longest = max(map(len, prompts))
    kv = model.new_kv(len(prompts), longest)
    sequences = [Sequence(len(ids), list(ids), table=BlockTable(longest, [row])) for row, ids in enumerate(prompts)]
    last = {}
    while unfinished := [s for s in sequences if s.num_computed < len(s.tokens)]:
        work = [(s, min(chunk or len(s.tokens), len(s.tokens) - s.num_computed)) for s in unfinished]
        batch = Batch.of(work)
        logits = iter(model.forward(batch, kv).cpu())
        for sequence, new in work:
            sequence.num_computed += new
            if sequence.num_computed == len(sequence.tokens):
                last[id(sequence)] = next(logits)
    return torch.stack([last[id(sequence)] for sequence in sequences])


def parity(setting: Setting) -> dict:
    """The device's logits beside the CPU's on the same weights: float32 to rounding, 16-bit by how often the best
    token agrees."""
    small = replace(shape("smollm2-135m"), num_layers=4 if setting.quick else 30, name="smollm2-135m")
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(small.vocab_size, (n,), generator=generator).tolist() for n in (3, 1, 17, 64, 40)]
    weights = Weights.random(small, seed=0)
    reference = _logits(Model(small, weights, path="plain"), prompts)
    tensors = dict(_hugging_face_names(small, weights))
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model = Model(small, Weights.from_tensors(small, tensors, dtype=dtype, device=setting.device), path="plain")
        for how, chunk in (("whole", None), ("chunks of 5", 5)):
            got = _logits(model, prompts, chunk)
            rows[f"{str(dtype).removeprefix('torch.')}, {how}"] = {
                "relative_error": ((got - reference).abs().max() / reference.abs().max()).item(),
                "best_token_agrees": (got.argmax(-1) == reference.argmax(-1)).float().mean().item(),
            }
    worst = max(row["relative_error"] for name, row in rows.items() if name.startswith("float32"))
    if worst > 1e-4:
        raise AssertionError(f"float32 logits differ by {worst:.2e} of the largest logit; the bound is 1e-4")
    return {"prompt_lengths": [len(p) for p in prompts], "layers": small.num_layers, "rows": rows}


def _hugging_face_names(small: ModelShape, weights: Weights):
    """The tensors under the names `Weights.from_tensors` takes."""
    yield "model.embed_tokens.weight", weights.embed
    yield "model.norm.weight", weights.norm
    if not small.tied:
        yield "lm_head.weight", weights.head
    for index, layer in enumerate(weights.layers):
        prefix = f"model.layers.{index}."
        yield prefix + "input_layernorm.weight", layer.attention_norm
        yield prefix + "post_attention_layernorm.weight", layer.mlp_norm
        for name in ("q", "k", "v", "o"):
            yield f"{prefix}self_attn.{name}_proj.weight", getattr(layer, name).weight
        for name in ("gate", "up", "down"):
            yield f"{prefix}mlp.{name}_proj.weight", getattr(layer, name).weight


def sampling(setting: Setting) -> dict:
    """The law and the draws from it, on the device and on the CPU, from the same logits and seeds."""
    rows, vocab = (8, 500) if setting.quick else (64, 49_152)
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1)) * 4
    wishes = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.8, seed=7),
        SamplingParams(temperature=1.0, top_k=50, seed=8),
        SamplingParams(temperature=1.2, top_p=0.9, min_p=0.02, repetition_penalty=1.2, seed=9),
    ]
    states = [
        SamplingState(wishes[row % len(wishes)], Sequence(2, [row % vocab, 3, row % 5], index=row))
        for row in range(rows)
    ]
    here, there = probabilities(logits, states), probabilities(logits.to(setting.device), states).cpu()
    error = (here - there).abs().max().item()
    if error > 1e-9:
        raise AssertionError(f"the laws differ by {error:.1e}; the bound is 1e-9")
    drawn = [[draw.token_id for draw in sample(where, states)] for where in (logits, logits.to(setting.device))]
    # A draw may differ where the uniform number lies within rounding of a border between two tokens: rare, counted.
    return {
        "rows": rows,
        "law_difference": error,
        "draws_that_differ": sum(a != b for a, b in zip(*drawn, strict=True)),
    }


def decode(setting: Setting) -> dict:
    """Decode step time against batch and context, beside what the roofline with the measured ceilings allows."""
    top = ceilings(setting.device, setting.dtype)
    names = ("bench-s",) if setting.quick else ("smollm2-135m", "llama-3.2-1b", "llama-3-8b")
    batches = (1, 4) if setting.quick else (1, 2, 4, 8, 16, 32, 64, 128, 256)
    rows = []
    for name in names:
        model = Model(
            shape(name), Weights.random(shape(name), dtype=setting.dtype, device=setting.device), path="plain"
        )
        width = model.weights.embed.element_size()
        for context in (64,) if setting.quick else (128, 2048):
            for batch in batches:
                steps = decode_steps(
                    model, batch, context, steps=3 if setting.quick else 20, warmup=1 if setting.quick else 5
                )
                seconds = statistics.median(step.duration for step in steps)
                cost = step_cost(model.shape, [1] * batch, [context] * batch, weight_bytes=width, kv_bytes=width)
                bound = roofline(cost, bandwidth=top.read_bandwidth, flops=top.flops)
                rows.append(
                    {
                        "model": name,
                        "path": model.path,
                        "batch": batch,
                        "context": context,
                        "seconds": seconds,
                        "fastest": min(step.duration for step in steps),
                        "slowest": max(step.duration for step in steps),
                        "tokens_per_s": batch / seconds,
                        "bytes_per_s": cost.bytes / seconds,
                        "fraction_of_roofline": bound.seconds / seconds,
                        "bound": bound.bound,
                    }
                )
        del model
    return {"dtype": str(setting.dtype).removeprefix("torch."), "ceilings": vars(top), "rows": rows}


def prefill(setting: Setting) -> dict:
    """Prefill time against prompt length, in FLOP/s of the measured matrix-product ceiling."""
    top = ceilings(setting.device, setting.dtype)
    name = "bench-s" if setting.quick else "llama-3-8b"
    model = Model(shape(name), Weights.random(shape(name), dtype=setting.dtype, device=setting.device), path="plain")
    rows = []
    for prompt, batch in ((64, 1), (64, 2)) if setting.quick else ((128, 1), (512, 1), (2048, 1), (512, 4), (512, 8)):
        steps = prefill_steps(model, prompt, batch, repeats=2 if setting.quick else 7)
        seconds = statistics.median(step.duration for step in steps)
        rows.append(
            {
                "model": name,
                "prompt": prompt,
                "batch": batch,
                "seconds": seconds,
                "tokens_per_s": prompt * batch / seconds,
                "flops_per_s": steps[0].flops / seconds,
                "fraction_of_flops": steps[0].flops / seconds / top.flops,
            }
        )
    return {"dtype": str(setting.dtype).removeprefix("torch."), "ceilings": vars(top), "rows": rows}


PARTS: dict[str, Callable[[Setting], dict]] = {
    "parity": parity,
    "sampling": sampling,
    "decode": decode,
    "prefill": prefill,
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the record (JSON) here; default: standard output")
    parser.add_argument("--quick", action="store_true", help="run small, whatever the device")
    parser.add_argument("--part", choices=PARTS, action="append", help="run only this part (may be repeated)")
    args = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    setting = Setting(device, quick=args.quick or device.type == "cpu")
    record: dict = {
        "date": datetime.now(UTC).date().isoformat(),
        "command": "python tests/benchmarks/gpu.py" + (" --quick" if args.quick else ""),
        "on_gpu": device.type == "cuda",
        "quick": setting.quick,
        "machine": machine(),
        "parts": {},
    }
    failed = []
    for name in args.part or PARTS:
        start = time.perf_counter()
        try:
            result = PARTS[name](setting)
        except Exception:
            failed.append(name)
            result = {"error": traceback.format_exc(limit=3)}
        record["parts"][name] = {"wall_seconds": round(time.perf_counter() - start, 2)} | result
        print(
            f"{name}: {'failed' if name in failed else 'done'} in {record['parts'][name]['wall_seconds']} s",
            file=sys.stderr,
        )
        # Written after every part: a run that is cut short keeps what it has measured.
        if args.out:
            args.out.write_text(json.dumps(record, indent=1) + "\n")
    if not args.out:
        print(json.dumps(record, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
