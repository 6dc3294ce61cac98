"""The forward pass on a CPU, compiled: one step of the model in a few hundred lines, readable beside `plain.py`.

A step takes rows. A row is one token of one sequence at one position; a decoding sequence brings one, a prompt many,
and nothing below knows the difference. For each layer there are five phases, and each needs all of the one before:

    QKV         RMSNorm, product, bias, head norm, rotation; keys and values go to their place in the cache
    ATTENTION   every (rows of one sequence, KV heads, chunks of its text): scores, softmax, mix, read in place by block
    OUTPUT      product, added to the residual stream
    GATE_UP     RMSNorm, both products, SiLU(gate) x up
    DOWN        product, added to the residual stream

and at the end HEAD: norm and product of the rows that want logits, written out or reduced to the best id at once.

Reading order:

    tile.py     the register tile, in LLVM IR: R rows x Q panels of 16 outputs; attention's two products
    pack.py     weights as panels [out / 16, in, 16], matrices in the order in which a step reads them
    attend.py   attention: what a piece of it computes, and how a batch is cut into pieces
    ticket.py   the word by which threads take pieces, and hand them in
    step.py     the phases, the pieces of each, and the loop in which threads take them
    paged.py    attention alone, for `paged_attention(..., implementation="cpu")`
    sync.py     atomic words
    team.py     helper threads that come and go; a step never depends on one
    kv.py       the cache [layers, blocks, block_size, kv_heads, head_dim], float32 or 16 bits
    path.py     FastPath: buffers, steps of at most 128 rows, errors
    support.py  where it can run
    ceiling.py  the fastest reading and multiplying that this tile does here

Work is handed out by one atomic word, the ticket, which holds phase, number of pieces and next piece: adding 1 to it
takes a piece, and the last piece done opens the next phase. There is no barrier that counts threads. A helper that
sleeps, is slow, died in a fork or was never there takes no piece, so it cannot be waited for.

Every output is one chain of fused multiply-adds in the order of its inputs, whatever the tile. Attention goes by chunks
of 256 tokens at fixed positions, folded in order whoever computed them. So a row's logits are bitwise the same in every
batch, chunk of a prompt, block size and number of threads, and `batch_invariant=True` costs nothing.

What paid, on two Zen 4 cores (AVX-512; streaming read 57-68 GB/s, 226 GFLOP/s), M with 100M parameters in float32:

    the tile on panels             215 GFLOP/s at 16 rows, where torch's product does 190; 64-68 GB/s at one row, where
                                   a sum in torch reads 44
    reading ahead where this       step of M at 8 sequences 15.8 -> 11.5 ms. A fixed stretch ahead, as on one thread,
    thread's next piece lies       fills the other core's cache: pieces go to threads in turn
    asking for keys and values     attention of M at 16 sequences 3.2 -> 1.9 ms a step: a head's share of a token, 256
    16 tokens ahead                bytes, is too short for the hardware to see a pattern
    all KV heads in one piece      a token's keys lie side by side; one head after the other reads them in short
                                   stretches. Long texts are divided by chunks first, and by heads where that is too
                                   little
    loops without Python's         RMSNorm 0.62 -> 0.15 ms a step: an index that may count from the end is a branch an
    negative indices               element, and no vectors
    several panels at few rows     one accumulator a panel waits for itself; four panels keep four products in flight

and on two Zen 5 cores, S with 15M parameters in float32:

    tiles of 8 rows x 3 panels     273 GFLOP/s a thread, 249 with 16 x 1, which loads 17 vectors for 16 products
    SiLU and argmax in vectors     with these tiles a step of 16 sequences takes 0.83 to 0.88 of the time it did, a
                                   prompt of 128 tokens 0.83

What did not: splitting the inner dimension for few rows (several panels do the same and keep the order of summation);
a first request for the next piece's panels at one and two rows (no difference); keys in panels like the weights (the
house layout read in place costs two shuffles and an addition for eight lanes, and nothing is copied or re-laid).
Between chunks of 128, 256 and 512 tokens no difference was seen. Where two cores share no cache (a word takes 0.2 us
from one to the other) two threads are 1.4 to 1.5 times as fast as one, as each needs what the other has just written;
asking for lines before they are written, and buffers that begin on a line, changed nothing there. Keys and values in 8
bits are left out: their scales would have to go along with every block that is copied, swapped or shared.
"""

from typing import TYPE_CHECKING, Any

from underload.decoder.fast.support import unsupported

if TYPE_CHECKING:
    from underload.decoder.fast.path import FastPath

__all__ = ["FastPath", "unsupported"]


def __getattr__(name: str) -> Any:
    """FastPath on first use: it needs numba, and asking whether it is supported must not."""
    if name != "FastPath":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from underload.decoder.fast.path import FastPath

    return FastPath
