"""What one step must read and compute, by the shape of the model alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from underload.request.errors import UnderloadError
from underload.shapes.model import ModelShape


@dataclass(frozen=True)
class StepCost:
    """Bytes moved and floating-point operations of one step.

    `weight_bytes` is what a batch shares: it grows by an embedding row a token only. The rest grows in proportion.
    """

    weight_bytes: float
    kv_bytes: float
    matrix_flops: float  # tokens times weights
    attention_flops: float  # queries times keys, and scores times values

    @property
    def bytes(self) -> float:
        return self.weight_bytes + self.kv_bytes

    @property
    def flops(self) -> float:
        return self.matrix_flops + self.attention_flops

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, FLOP per byte (Williams et al., "Roofline", CACM 2009)."""
        return self.flops / self.bytes


def step_cost(
    shape: ModelShape,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    *,
    logit_rows: int | None = None,
    weight_bytes: float = 4,
    kv_bytes: float = 4,
) -> StepCost:
    """The cost of one step over a ragged batch.

    Counted: every weight of every layer once, embedding rows per token, the output head once if any row wants logits,
    each sequence's keys and values read once and its new ones written, 2 FLOPs per weight and token, 4 x query width
    FLOPs per layer and (query, key) pair that the causal mask lets through. Not counted: activations, norms, softmax.

    Args:
        query_lens: tokens computed in this step, one entry a sequence.
        context_lens: tokens in each sequence's cache after this step (its new ones included).
        logit_rows: rows that need logits; None means one a sequence.
        weight_bytes: bytes a weight is stored in.
        kv_bytes: bytes a cached value is stored in.

    Raises:
        UnderloadError: lengths that disagree, or a context shorter than its query.
    """
    if len(query_lens) != len(context_lens):
        raise UnderloadError(
            f"{len(query_lens)} query lengths but {len(context_lens)} context lengths; give one of each per sequence"
        )
    for new, context in zip(query_lens, context_lens, strict=True):
        if not 0 < new <= context:
            raise UnderloadError(
                f"a step computes between 1 and its context of {context} tokens of a sequence, got {new}"
            )
    rows = len(query_lens) if logit_rows is None else logit_rows
    # Of the `context` keys, the first new query sees context - new + 1, the last one all.
    pairs = sum(
        new * (context - new) + new * (new + 1) // 2 for new, context in zip(query_lens, context_lens, strict=True)
    )
    return sized_cost(
        shape, sum(query_lens), sum(context_lens), pairs, rows, weight_bytes=weight_bytes, kv_bytes=kv_bytes
    )


def sized_cost(
    shape: ModelShape,
    tokens: int,
    context_tokens: int,
    score_pairs: int,
    logit_rows: int,
    *,
    weight_bytes: float = 4,
    kv_bytes: float = 4,
) -> StepCost:
    """`step_cost` of a step whose sums are known (the names of `request.StepSize`), without its single sequences."""
    layers = shape.num_layers * (shape.layer_matrix_parameters + shape.layer_vector_parameters) + shape.hidden_size
    head = shape.embedding_parameters if logit_rows else 0
    # A tied head is read whole once; its rows looked up as embeddings are part of that read only if they stay in cache.
    lookups = min(tokens, shape.vocab_size) * shape.hidden_size
    matrices = shape.num_layers * shape.layer_matrix_parameters
    return StepCost(
        weight_bytes=weight_bytes * (layers + head + lookups),
        kv_bytes=shape.kv_bytes_per_token(kv_bytes) * (context_tokens + tokens),
        matrix_flops=2.0 * (matrices * tokens + shape.embedding_parameters * logit_rows),
        attention_flops=4.0 * shape.num_layers * shape.query_size * score_pairs,
    )


def decode_cost(
    shape: ModelShape, batch_size: int, context: int, *, weight_bytes: float = 4, kv_bytes: float = 4
) -> StepCost:
    """One new token for each of `batch_size` sequences whose caches hold `context` tokens after the step."""
    return step_cost(shape, [1] * batch_size, [context] * batch_size, weight_bytes=weight_bytes, kv_bytes=kv_bytes)


def prefill_cost(
    shape: ModelShape, prompt_len: int, batch_size: int = 1, *, weight_bytes: float = 4, kv_bytes: float = 4
) -> StepCost:
    """`batch_size` whole prompts of `prompt_len` tokens in one step."""
    return step_cost(
        shape, [prompt_len] * batch_size, [prompt_len] * batch_size, weight_bytes=weight_bytes, kv_bytes=kv_bytes
    )
