"""batch_invariant=True on the Triton kernels: bitwise the same alone, among neighbours, in chunks, in other blocks."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="triton is not installed (it exists for Linux only)")

from test_decoder_parts import TINY

from underload.decoder import Batch, Model, Weights, attention_triton, invariant, kernels
from underload.decoder.attention_triton import AttentionPlan, attend
from underload.decoder.plain import PlainPath, rms_norm
from underload.request import BlockTable, Sequence, UnderloadError

DEVICE = torch.device("cpu" if kernels.INTERPRETED else "cuda")


def normal(*size, seed=0, dtype=torch.float32):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@pytest.mark.parametrize("inputs, outputs, biased", [(32, 48, False), (70, 33, True), (130, 5, False)])
def test_a_product_has_the_same_rows_in_every_batch(inputs, outputs, biased):
    x, weight = normal(70, inputs), normal(outputs, inputs, seed=1)
    bias = normal(outputs, seed=2) if biased else None
    whole = invariant.linear(x, weight, bias)
    torch.testing.assert_close(whole, F.linear(x, weight, bias), rtol=1e-5, atol=1e-5)
    for rows in (slice(0, 1), slice(5, 6), slice(63, 66), slice(40, 70)):
        assert torch.equal(invariant.linear(x[rows], weight, bias), whole[rows])
    assert invariant.linear(x[:0], weight, bias).shape == (0, outputs)


@pytest.mark.parametrize("size", [8, 48, 576])
def test_a_norm_is_the_plain_one_row_by_row(size):
    x, weight = normal(3, 2, size), normal(size, seed=1)
    got = invariant.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(got, rms_norm(x, weight, 1e-5), rtol=1e-6, atol=1e-6)
    assert torch.equal(invariant.rms_norm(x[1:2, :1], weight, 1e-5), got[1:2, :1])
    assert invariant.rms_norm(x[:0], weight, 1e-5).shape == (0, 2, size)


def test_attention_is_the_same_alone_among_longer_ones_in_chunks_and_in_other_blocks():
    k, v, q = normal(24, 1, 8), normal(24, 1, 8, seed=1), normal(24, 2, 8, seed=2)

    def run(block_size, pieces, neighbour=0):
        """The 24 queries, fed in pieces that end at these tokens; behind a neighbour with this many tokens."""
        per_row = -(-max(24, neighbour) // block_size)
        keys, values = (torch.full((2 * per_row, block_size, 1, 8), torch.nan, device=DEVICE) for _ in range(2))
        tables = torch.arange(2 * per_row, dtype=torch.int32, device=DEVICE).reshape(per_row, 2).T
        for pool, new, seed in ((keys, k, 3), (values, v, 4)):
            for row, dense in enumerate((normal(neighbour, 1, 8, seed=seed), new)):
                at = torch.arange(len(dense), device=DEVICE)
                pool[tables[row, at // block_size].long(), at % block_size] = dense
        out, start = [], 0
        for stop in pieces:
            new, context = [stop - start], [stop]
            queries, table = q[start:stop], tables[1:]
            if neighbour:
                new, context, table = [1, *new], [neighbour, *context], tables
                queries = torch.cat((normal(1, 2, 8, seed=5), queries))
            plan = AttentionPlan.of(new, context, table, heads=2, kv_heads=1, invariant=True, split_tokens=8)
            out.append(attend(queries, keys, values, plan)[-(stop - start) :])
            start = stop
        return torch.cat(out)

    alone = run(64, [24])
    assert torch.equal(run(4, [7, 8, 9, 24]), alone)
    assert torch.equal(run(1, [24], neighbour=3), alone)
    assert torch.equal(run(16, [11, 23, 24], neighbour=70), alone)


def logits(model, prompts, block_size, chunk):
    """Every token's logits of each prompt, all in one batch, `chunk` tokens of each at a time."""
    per_row = -(-max(map(len, prompts)) // block_size)
    kv = model.new_kv(per_row * len(prompts), block_size)
    sequences = [
        Sequence(
            len(ids), list(ids), table=BlockTable(block_size, list(range(row, per_row * len(prompts), len(prompts))))
        )
        for row, ids in enumerate(prompts)
    ]
    found = [[] for _ in prompts]
    while left := [s for s in sequences if s.num_computed < len(s.tokens)]:
        work = [(s, min(chunk, len(s.tokens) - s.num_computed)) for s in left]
        got = iter(model.forward(Batch.of(work, all_logits=True), kv))
        for sequence, new in work:
            found[sequences.index(sequence)] += [next(got) for _ in range(new)]
            sequence.num_computed += new
    return [torch.stack(rows) for rows in found]


def test_a_models_logits_are_bitwise_those_of_a_run_alone(monkeypatch):
    monkeypatch.setattr(attention_triton, "INVARIANT_SPLIT", 4)  # so that a short context has several
    weights = Weights.random(TINY, seed=3, device=DEVICE)
    model = Model(TINY, weights, attention="triton", batch_invariant=True)
    products: list[int] = []
    kernel = invariant.linear
    monkeypatch.setattr(invariant, "linear", lambda x, *rest: products.append(len(x)) or kernel(x, *rest))
    one, others = [5, 9, 2, 44, 17, 8, 31, 3, 12], [[7] * 11, [1]]
    alone = logits(model, [one], 16, 100)[0]
    assert products == [len(one)] * (7 * TINY.num_layers + 1)
    assert torch.equal(logits(model, [others[0], one, others[1]], 4, 100)[1], alone)
    assert torch.equal(logits(model, [one, others[1]], 1, 3)[0], alone)
    plain = logits(Model(TINY, weights, path="plain", attention="torch"), [one], 16, 100)[0]
    torch.testing.assert_close(alone, plain, rtol=0, atol=1e-5)


def test_a_model_in_bfloat16_says_the_same_within_its_rounding():
    weights = Weights.random(TINY, seed=3, dtype=torch.bfloat16, device=DEVICE)
    model = Model(TINY, weights, attention="triton", batch_invariant=True)
    plain = Model(TINY, weights, path="plain", attention="torch")
    got, wanted = (logits(one, [[5, 9, 2]], 4, 2)[0] for one in (model, plain))
    torch.testing.assert_close(got, wanted, rtol=0, atol=3e-2)


def test_without_batch_invariance_the_path_says_the_same_within_rounding():
    weights = Weights.random(TINY, seed=3, device=DEVICE)
    prompts = [[5, 9, 2, 44, 17], [7] * 12]
    wanted = logits(Model(TINY, weights, path="plain", attention="torch"), prompts, 4, 6)
    for got, rows in zip(logits(Model(TINY, weights, attention="triton"), prompts, 4, 6), wanted, strict=True):
        torch.testing.assert_close(got, rows, rtol=0, atol=1e-5)


def test_the_small_steps_can_be_fused_or_not():
    weights = Weights.random(TINY, seed=3, device=DEVICE)
    fused, apart = (PlainPath(TINY, weights, attention="triton", fused=choice) for choice in (None, False))
    assert fused.fused and not apart.fused
    torch.testing.assert_close(
        logits(fused, [[1, 2, 3]], 4, 2)[0], logits(apart, [[1, 2, 3]], 4, 2)[0], rtol=0, atol=1e-6
    )


def test_a_choice_that_cannot_be_had_is_refused_with_the_reason(monkeypatch):
    weights = Weights.random(TINY, seed=3)
    with pytest.raises(UnderloadError, match="attention must be 'auto', 'torch', 'cpu', 'triton', got 'fast'"):
        Model(TINY, weights, path="plain", attention="fast")
    with pytest.raises(UnderloadError, match="the fast path has one attention, its own"):
        Model(TINY, weights, path="fast", attention="torch")
    with pytest.raises(UnderloadError, match="batch_invariant=True on cpu cannot go with attention='cpu'"):
        Model(TINY, weights, attention="cpu", batch_invariant=True)
    with pytest.raises(UnderloadError, match="batch_invariant=True with attention='triton' cannot go with fused=False"):
        PlainPath(TINY, weights, attention="triton", batch_invariant=True, fused=False)
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    with pytest.raises(UnderloadError, match="attention='triton' cannot run here: on a CPU, .*TRITON_INTERPRET=1"):
        Model(TINY, weights, attention="triton")
    with pytest.raises(UnderloadError, match="fused=True cannot run here"):
        PlainPath(TINY, weights, fused=True)
    assert Model(TINY, weights, path="plain")._path.attention == "torch"
