"""Accelerators by their data sheets: what they can read and compute in a second, and hold."""

from dataclasses import dataclass

from underload.request.errors import UnderloadError


@dataclass(frozen=True)
class Device:
    """Peak figures of one accelerator. `flops` is dense 16-bit with 32-bit accumulation: the figure that data sheets
    print large often counts zeros of 2:4 sparsity, which is twice as much."""

    name: str
    bandwidth: float  # bytes/s
    flops: float  # FLOP/s
    memory: float  # bytes; a sheet's GB taken as 1e9, the cautious reading
    source: str


def _datasheet(name: str, gigabytes_per_s: float, teraflops: float, gigabytes: float, source: str) -> Device:
    return Device(name, gigabytes_per_s * 1e9, teraflops * 1e12, gigabytes * 1e9, source)


DEVICES: dict[str, Device] = {
    entry.name: entry
    for entry in (
        _datasheet("a100-80gb", 2039, 312, 80, "NVIDIA A100 data sheet, SXM 80 GB, bf16 without sparsity"),
        _datasheet(
            "h100-sxm", 3350, 989.4, 80, "NVIDIA H100 data sheet, SXM5; half of the 1,979 printed with sparsity"
        ),
        _datasheet("h200", 4800, 989.4, 141, "NVIDIA H200 data sheet, SXM; half of the 1,979 printed with sparsity"),
        _datasheet("l4", 300, 121, 24, "NVIDIA L4 data sheet; half of the 242 printed with sparsity"),
        _datasheet("l40s", 864, 362, 48, "NVIDIA L40S data sheet; the 362 printed without sparsity"),
        _datasheet(
            "rtx-4090", 1008, 165.2, 24, "NVIDIA Ada architecture paper, bf16 with fp32 accumulate, without sparsity"
        ),
        _datasheet("tpu-v4", 1228, 275, 32, "Jouppi et al., TPU v4, ISCA 2023, table 4"),
    )
}


def device(name: str) -> Device:
    """A device by name.

    Raises:
        UnderloadError: no such device; the message lists those there are.
    """
    if name not in DEVICES:
        raise UnderloadError(f"unknown device {name!r}; known: {', '.join(DEVICES)}")
    return DEVICES[name]
