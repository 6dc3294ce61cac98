"""A model that can run: its shape, its weights, its tokenizer, and the path that computes with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from underload.decoder.batch import Batch
from underload.decoder.kv import KVStorage
from underload.decoder.plain import Attention, PlainPath
from underload.decoder.weights import Weights
from underload.request import UnderloadError
from underload.shapes import ModelShape

if TYPE_CHECKING:
    from underload.decoder.tokenizer import Tokenizer


class Path(Protocol):
    """A way to compute the forward pass. There are two: plain torch, and the fast one on the CPU."""

    name: str

    def new_kv(self, num_blocks: int, block_size: int, dtype: torch.dtype | None = None) -> Any:
        """An empty cache in the layout that this path reads (`KVStorage`)."""
        ...

    def forward(self, batch: Batch, kv: Any) -> Tensor:
        """Compute the batch, write its keys and values into `kv`, return float32 logits [logit_rows, vocab].

        The result is the caller's: no later call changes it.
        """
        ...

    def greedy(self, batch: Batch, kv: Any) -> Any:
        """Compute the batch; return the likeliest id of each logit row (an integer array or tensor), -1 for a row
        without a largest logit."""
        ...

    def close(self) -> None:
        """Give back what the path holds besides memory (threads)."""
        ...


class Model:
    """A loaded decoder. `forward` computes one batch; what to put into the batch is the caller's business.

    Args:
        path: "plain" (torch, any device), "fast" (numba, CPU), or "auto": fast where it can, plain elsewhere.
        batch_invariant: a sequence's logits are bitwise the same whoever its neighbours are and however its prompt
            is cut into chunks.
        attention: the plain path's implementation of `paged_attention` ("torch", "cpu", "triton"), or a function in
            its place; one that is given chooses the plain path with it. "auto" is the fastest that the path has.

    Raises:
        UnderloadError: a path that cannot run this model here, with the reason.
    """

    def __init__(
        self,
        shape: ModelShape,
        weights: Weights,
        tokenizer: Tokenizer | None = None,
        *,
        path: str = "auto",
        batch_invariant: bool = False,
        attention: Attention = "auto",
        threads: int | None = None,
    ) -> None:
        self.shape = shape
        self.weights = weights
        self.tokenizer = tokenizer
        self.device = weights.embed.device
        self.dtype = weights.embed.dtype
        self.batch_invariant = batch_invariant
        self._path = _choose(shape, weights, path, batch_invariant, attention, threads)

    @property
    def path(self) -> str:
        """The path in use: "plain" or "fast"."""
        return self._path.name

    @property
    def plain_path(self) -> PlainPath | None:
        """The plain path, if that is the one in use."""
        return self._path if isinstance(self._path, PlainPath) else None

    @property
    def weight_bytes(self) -> int:
        """Bytes that the weights take, a tied head counted once."""
        return self.weights.nbytes

    def new_kv(self, num_blocks: int, block_size: int, dtype: str | torch.dtype | None = None) -> KVStorage:
        """An empty cache of `num_blocks` blocks of `block_size` tokens.

        Args:
            dtype: float32, float16 or bfloat16, by name or torch's. None takes the model's own, and on the fast path
                float32. A narrower one holds more tokens; arithmetic stays as wide as it is.

        Raises:
            UnderloadError: no block, or blocks of no token, or an unsupported dtype.
        """
        return self._path.new_kv(num_blocks, block_size, None if dtype is None else choose_dtype(dtype, self.device))

    def kv_bytes_per_token(self, dtype: str | torch.dtype | None = None) -> int:
        """Memory that one token takes in a cache of `new_kv(..., dtype=dtype)`, in bytes, padding included."""
        return self.new_kv(1, 1, dtype).nbytes

    def forward(self, batch: Batch, kv: Any) -> Tensor:
        """Compute one batch and write its keys and values into `kv`.

        Returns:
            float32 logits [len(batch.logit_rows), vocab] on the model's device; the caller's to keep.
        """
        return self._path.forward(batch, kv)

    def greedy(self, batch: Batch, kv: Any) -> list[int]:
        """Compute one batch and only say which token is the likeliest in each logit row; on the fast path the logits
        are never written out.

        Of equal logits the lowest id wins. A row without a largest logit (a NaN, an infinity, or nothing but -inf)
        gives -1: it is broken, and must not pass for a token.
        """
        return self._path.greedy(batch, kv).tolist()

    def close(self) -> None:
        """Give back the path's threads. A closed model must not be used again."""
        self._path.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        size = f"{self.shape.num_parameters:,} parameters"
        return f"<Model {self.shape.name}: {size}, {kind} on {self.device}, {self.path} path>"


def _choose(
    shape: ModelShape, weights: Weights, path: str, batch_invariant: bool, attention: Attention, threads: int | None
) -> Path:
    if path not in ("auto", "plain", "fast"):
        raise UnderloadError(f"path must be 'auto', 'plain' or 'fast', got {path!r}")
    if path == "fast" and attention != "auto":
        raise UnderloadError(
            f"the fast path has one attention, its own, not {attention!r}; use attention='auto', or path='plain'"
        )
    if path == "plain" or attention != "auto":
        return PlainPath(shape, weights, batch_invariant=batch_invariant, attention=attention)
    from underload.decoder import fast

    reason = fast.unsupported(shape, weights.embed.device, weights.embed.dtype)
    if reason is None:
        return fast.FastPath(shape, weights, threads=threads, batch_invariant=batch_invariant)
    if path == "fast":
        raise UnderloadError(f"the fast path cannot run {shape.name} here: {reason}; use path='plain' or 'auto'")
    return PlainPath(shape, weights, batch_invariant=batch_invariant)


def choose_device(device: str | torch.device = "auto") -> torch.device:
    """The device meant by a name; "auto" is CUDA where there is one, else the CPU.

    Raises:
        UnderloadError: a device that is not there.
    """
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise UnderloadError(f"unknown device {device!r}; use 'auto', 'cpu' or 'cuda'") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UnderloadError("device 'cuda' was asked for, but torch sees no GPU here; use 'auto' or 'cpu'")
    if chosen.type not in ("cpu", "cuda", "meta"):
        raise UnderloadError(f"device {device!r} is not supported; use 'auto', 'cpu' or 'cuda'")
    return chosen


_DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "float16": torch.float16,
    "fp16": torch.float16,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
}


def choose_dtype(dtype: str | torch.dtype, device: torch.device, stored: torch.dtype | None = None) -> torch.dtype:
    """The dtype meant by a name. "auto" is float32 on a CPU, whose 16-bit products are emulated and slow, and
    elsewhere the one the checkpoint is stored in (bfloat16 for a shape, which is stored nowhere).

    Raises:
        UnderloadError: an unknown or unsupported dtype.
    """
    if dtype == "auto":
        if device.type == "cpu":
            return torch.float32
        return stored if stored in (torch.float16, torch.bfloat16, torch.float32) else torch.bfloat16
    chosen = _DTYPES.get(str(dtype).removeprefix("torch."))
    if chosen is None:
        raise UnderloadError(f"dtype {dtype!r} is not supported; use 'auto' or one of {', '.join(_DTYPES)}")
    return chosen
