"""Compiles the Triton kernels for an NVIDIA GPU of compute capability 9.0, on a machine without one.

    python tests/triton_compile.py      (PYTHONPATH=lib; TRITON_INTERPRET must not be set)

Prints JSON, one entry a compilation: the shared memory it takes in bytes, and what the machine code makes use of. The
launch options are those that the library itself chooses: a stand-in for the launch records them.
"""

import json
import sys
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from underload.decoder import attention_triton, fused, invariant, kernels

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int32: "i32", torch.int64: "i64"}


class Recorder:
    """Takes a kernel's place, and compiles what would have been launched."""

    def __init__(self, kernel, compiled):
        self.kernel, self.compiled = kernel, compiled

    def __getitem__(self, grid):
        return self.launch

    def launch(self, *positional, num_warps, num_stages=3, **constants):
        signature, attributes, values = {}, {}, dict(constants)
        for index, name in enumerate(self.kernel.arg_names):
            if index >= len(positional):
                signature[name] = "constexpr"
                continue
            value = positional[index]
            free = index in self.kernel.do_not_specialize or name in self.kernel.do_not_specialize
            if isinstance(value, torch.Tensor):
                signature[name] = "*" + TYPES[value.dtype]
                divides = value.data_ptr() % 16 == 0
            elif isinstance(value, float):
                signature[name], divides = "fp32", False
            elif value == 1 and not free:
                signature[name], values[name] = "constexpr", value
                continue
            else:
                signature[name], divides = "i32", value % 16 == 0
            if divides and not free:
                attributes[(index,)] = [["tt.divisibility", 16]]
        made = triton.compile(
            ASTSource(fn=self.kernel, signature=signature, constexprs=values, attrs=attributes),
            target=TARGET,
            options={"num_warps": num_warps, "num_stages": num_stages},
        )
        ptx = made.asm["ptx"]
        self.compiled.append(
            {
                "kernel": self.kernel.__name__,
                "dtype": TYPES[positional[0].dtype],
                "constants": {name: int(value) for name, value in constants.items()},
                "shared_memory": made.metadata.shared,
                "loads_ahead": "cp.async" in ptx,
                "matrix_units": "wgmma" in ptx or "mma.sync" in ptx,
            }
        )


def main() -> None:
    compiled: list[dict] = []
    for name in ("attend", "reduce", "rotate_write", "linear", "rms_norm", "add_rms_norm", "silu_mul"):
        mock.patch.object(kernels, name, Recorder(getattr(kernels, name), compiled)).start()
    tables = torch.zeros(2, 512, dtype=torch.int32)
    for dtype in (torch.bfloat16, torch.float32):
        q, k, v = (torch.zeros(101, heads, 128, dtype=dtype) for heads in (32, 8, 8))
        keys, values = (torch.zeros(4, 16, 8, 128, dtype=dtype) for _ in range(2))
        both = attention_triton.AttentionPlan.of([1, 100], [8000, 100], tables, heads=32, kv_heads=8, split_tokens=512)
        attention_triton.attend(q, keys, values, both)
        if dtype == torch.bfloat16:
            one = attention_triton.AttentionPlan.of([1, 100], [900, 100], tables, heads=32, kv_heads=8, invariant=True)
            attention_triton.attend(q, keys, values, one)
        cos, sin = (torch.zeros(101, 64) for _ in range(2))
        attention_triton.rotate_write(q, k, v, cos, sin, torch.zeros(101, dtype=torch.int64), keys, values)
        invariant.linear(q[:, 0].contiguous(), torch.zeros(256, 128, dtype=dtype), torch.zeros(256, dtype=dtype))
        wide, weight = torch.zeros(2, 4096, dtype=dtype), torch.zeros(4096, dtype=dtype)
        invariant.rms_norm(wide, weight, 1e-5)
        fused.add_rms_norm(wide, wide, weight, 1e-5)
        fused.silu_mul(wide, wide)
    json.dump(compiled, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
