"""Blocks of KV cache as numbers: who holds which, what can be shared, what to do when they run out. No tensors.

BlockChain      names a sequence's blocks by their content
BlockPool       gives blocks as a sequence grows, shares equal ones, keeps them after use
ReservingPool   the baseline: one contiguous run for each sequence, as long as it may become
Pool            what the two have in common
HostPool        blocks on the host, for sequences that were put aside
waste           what a pool's memory is used for
"""

from underload.cache.chain import BlockChain, block_digest
from underload.cache.counters import PoolCounters
from underload.cache.host import HostPool
from underload.cache.pool import BlockPool, BlockState
from underload.cache.protocol import Pool
from underload.cache.reserving import ReservingPool
from underload.cache.waste import Waste, waste

__all__ = [
    "BlockChain",
    "BlockPool",
    "BlockState",
    "HostPool",
    "Pool",
    "PoolCounters",
    "ReservingPool",
    "Waste",
    "block_digest",
    "waste",
]
