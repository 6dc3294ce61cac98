"""Batch, cache and rotary positions, each against an independent reference."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from underload.decoder import Batch, Model, Weights
from underload.decoder.rope import cos_sin, inverse_frequencies, rotate
from underload.request import BlockTable, Sequence, UnderloadError
from underload.shapes import ModelShape, RopeScaling

TINY = ModelShape("tiny", 61, 32, 2, 4, 2, 8, 48, 64, tied=True)


def sequence(tokens, computed, table):
    return Sequence(prompt_len=len(tokens), tokens=list(tokens), num_computed=computed, table=table)


def test_a_batch_lays_prefill_and_decode_end_to_end():
    a = sequence([5, 6, 7], 0, BlockTable(4, [2]))
    b = sequence(range(8), 7, BlockTable(4, [0, 3]))
    c = sequence(range(10, 20), 4, BlockTable(4, [1, 5, 4]))
    batch = Batch.of([(a, 3), (b, 1), (c, 2)])
    assert batch.token_ids.tolist() == [5, 6, 7, 7, 14, 15]
    assert batch.positions.tolist() == [0, 1, 2, 7, 4, 5]
    assert batch.query_lens.tolist() == [3, 1, 2]
    assert batch.context_lens.tolist() == [3, 8, 6]
    assert batch.block_tables.tolist() == [[2, -1, -1], [0, 3, -1], [1, 5, 4]]
    assert batch.logit_rows.tolist() == [2, 3]  # c's prompt is not complete: it yields no token
    assert batch.slots(4).tolist() == [8, 9, 10, 15, 20, 21]


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_slots_follow_the_block_tables(data):
    block_size = data.draw(st.integers(1, 9))
    work, expected = [], []
    for _ in range(data.draw(st.integers(1, 5))):
        length = data.draw(st.integers(1, 30))
        computed = data.draw(st.integers(0, length - 1))
        blocks = data.draw(st.permutations(range(100, 100 + math.ceil(length / block_size))))
        table = BlockTable(block_size, list(blocks))
        new = data.draw(st.integers(1, length - computed))
        work.append((sequence(range(length), computed, table), new))
        expected += [table.slot(position) for position in range(computed, computed + new)]
    assert Batch.of(work).slots(block_size).tolist() == expected


@pytest.mark.parametrize(
    "new, table", [(0, BlockTable(4, [0])), (4, BlockTable(4, [0])), (3, None), (3, BlockTable(2, [0]))]
)
def test_a_batch_refuses_what_it_cannot_place(new, table):
    with pytest.raises(UnderloadError):
        Batch.of([(sequence([1, 2, 3], 0, table), new)])


def test_rotation_depends_on_the_distance_of_two_positions_only():
    q, k = torch.randn(2, 1, 1, 8, dtype=torch.float64).float()
    inverse = inverse_frequencies(TINY)

    def score(at_q, at_k):
        turned = [rotate(x, *cos_sin(inverse, torch.tensor([p]))) for x, p in ((q, at_q), (k, at_k))]
        return (turned[0] * turned[1]).sum().item()

    assert score(7, 3) == pytest.approx(score(47, 43), abs=1e-4)
    assert score(0, 0) == pytest.approx((q * k).sum().item(), abs=1e-5)


def test_rotation_is_a_complex_multiplication():
    x = torch.randn(3, 2, 8)
    cos, sin = cos_sin(inverse_frequencies(TINY), torch.tensor([0, 5, 63]))
    numbers = torch.complex(*x.chunk(2, dim=-1)) * torch.complex(cos, sin)[:, None]
    torch.testing.assert_close(rotate(x, cos, sin), torch.cat((numbers.real, numbers.imag), dim=-1))


def test_llama_3_scaling_keeps_fast_pairs_and_slows_slow_ones():
    scaled = ModelShape(
        "s", 8, 64, 1, 1, 1, 64, 8, 4096, rope_theta=500_000.0, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 512)
    )
    plain = inverse_frequencies(ModelShape("p", 8, 64, 1, 1, 1, 64, 8, 4096, rope_theta=500_000.0))
    ratio = (inverse_frequencies(scaled) / plain).numpy()
    wavelength = 2 * np.pi / plain.numpy()
    assert np.allclose(ratio[wavelength < 512 / 4], 1.0) and (wavelength < 512 / 4).any()
    assert np.allclose(ratio[wavelength > 512 / 1], 1 / 8) and (wavelength > 512).any()
    between = ratio[(wavelength > 512 / 4) & (wavelength < 512)]
    assert len(between) and np.all(np.diff(between) <= 0) and np.all((between >= 1 / 8) & (between <= 1))


@pytest.mark.parametrize("inner", [48, 40, 49])  # none is whole vectors
def test_batch_invariant_logits_are_bitwise_those_of_a_run_alone(inner):
    shape = replace(TINY, intermediate_size=inner)
    weights = Weights.random(shape, seed=3)
    for tensor in weights.tensors():
        if tensor.dim() == 2:
            tensor.mul_(12.0)  # as drawn, they are so small that the last bits of a layer never reach the logits
    model = Model(shape, weights, path="plain", batch_invariant=True)
    prompt = [int(i) for i in np.random.default_rng(0).integers(0, 61, 21)]

    def last_logits(chunks, neighbours, block_size):
        kv = model.new_kv(64, block_size)
        free = list(range(64))
        np.random.default_rng(block_size).shuffle(free)
        blocks = [free.pop() for _ in range(math.ceil(len(prompt) / block_size))]
        mine = sequence(prompt, 0, BlockTable(block_size, blocks))
        others = [
            sequence(
                prompt[: 3 + i], 0, BlockTable(block_size, [free.pop() for _ in range(math.ceil((3 + i) / block_size))])
            )
            for i in range(neighbours)
        ]
        for new in chunks:
            logits = model.forward(Batch.of([(other, len(other.tokens)) for other in others] + [(mine, new)]), kv)
            mine.num_computed += new
        return logits[-1]

    alone = last_logits([21], 0, 32)
    for chunks, neighbours, block_size in (([10, 11], 0, 32), ([1] * 21, 2, 16), ([20, 1], 3, 4), ([7, 7, 7], 1, 32)):
        assert torch.equal(last_logits(chunks, neighbours, block_size), alone)
