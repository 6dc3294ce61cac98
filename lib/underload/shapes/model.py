"""The sizes that fix a Llama-family decoder."""

import math
from dataclasses import dataclass

from underload.request.errors import UnderloadError


@dataclass(frozen=True)
class RopeScaling:
    """Llama-3.1's stretching of the slow rotary frequencies (`rope_scaling` in the configuration of its checkpoints).

    Wavelengths longer than `original_max_positions / low_freq_factor` are slowed by `factor`, those shorter than
    `original_max_positions / high_freq_factor` are kept, and those between are interpolated.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True)
class ModelShape:
    """A decoder of the Llama family: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

    Raises:
        UnderloadError: sizes that cannot be: not positive, or heads that do not divide.
    """

    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_positions: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    tied: bool = False  # the output head is the embedding
    attention_bias: bool = False  # Qwen2: a bias on the q, k and v projections
    qk_norm: bool = False  # Qwen3: an RMSNorm over each query and key head
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for field in (
            "vocab_size",
            "hidden_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "intermediate_size",
            "max_positions",
        ):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UnderloadError(f"{self.name}: {field} must be a positive whole number, got {value!r}")
        if self.num_heads % self.num_kv_heads:
            raise UnderloadError(
                f"{self.name}: num_heads ({self.num_heads}) must be a multiple of num_kv_heads ({self.num_kv_heads})"
            )
        if self.head_dim % 2:
            raise UnderloadError(f"{self.name}: head_dim must be even (rotary pairs), got {self.head_dim}")
        for field in ("rope_theta", "norm_eps"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise UnderloadError(f"{self.name}: {field} must be finite and positive, got {value!r}")

    @property
    def query_size(self) -> int:
        """Width of all query heads together, num_heads x head_dim (not always hidden_size)."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads together, num_kv_heads x head_dim."""
        return self.num_kv_heads * self.head_dim

    @property
    def layer_matrix_parameters(self) -> int:
        """Weights of one layer that meet every token in a matrix product: q, k, v, o, gate, up, down."""
        attention = self.hidden_size * (2 * self.query_size + 2 * self.kv_size)
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def layer_vector_parameters(self) -> int:
        """The rest of one layer: two norms, and the biases and head norms where the family has them."""
        biases = self.query_size + 2 * self.kv_size if self.attention_bias else 0
        return 2 * self.hidden_size + biases + (2 * self.head_dim if self.qk_norm else 0)

    @property
    def embedding_parameters(self) -> int:
        """Weights of the token embedding; a tied output head is the same ones."""
        return self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All weights, a tied head counted once."""
        layers = self.num_layers * (self.layer_matrix_parameters + self.layer_vector_parameters)
        return layers + self.hidden_size + self.embedding_parameters * (1 if self.tied else 2)

    def weight_bytes(self, bytes_per_weight: float) -> float:
        """Memory for all weights, in bytes."""
        return self.num_parameters * bytes_per_weight

    def kv_bytes_per_token(self, bytes_per_value: float) -> float:
        """Cache for one token: 2 (key and value) x layers x KV heads x head_dim x bytes. KV heads, not query heads."""
        return 2 * self.num_layers * self.kv_size * bytes_per_value
