"""A sequence's tokens cut into blocks, each full block named by a digest of itself and of all before it.

    tokens   [ block 0 | block 1 | block 2 | open ]
    digest     d0 = H(root, block 0)     d1 = H(d0, block 1)     d2 = H(d1, block 2)     none: it still grows

Two sequences with equal d2 hold the same tokens in all three blocks, at the same places, so they can share them. What
else decides on keys and values (salt, adapter, block size) goes into the root.

Hash chains over blocks: Zheng et al., "SGLang" (2024) shares prefixes by a tree; vLLM's automatic prefix caching by
digests as here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256

from underload.request import UnderloadError

#: What a digest is made by: the parent's digest and the block's content, to the digest of the block.
Digest = Callable[[bytes, bytes], bytes]

_TAG = b"underload.cache.BlockChain.1"


@lru_cache(64)
def _packer(block_size: int) -> Callable[..., bytes]:
    return struct.Struct(f"<{block_size}q").pack


def block_digest(parent: bytes, content: bytes) -> bytes:
    """SHA-256 of the parent's digest and the block's tokens: 32 bytes, the same in every process."""
    # Parents have one length, and so have the contents under one root: there is one way to read what is joined.
    return sha256(parent + content).digest()


class BlockChain:
    """The names of a growing list of tokens, a block at a time.

    Args:
        tokens: token ids, kept by reference: it may grow; what a full block holds must not change.
        block_size: tokens in a block.
        salt: requests of different salts share nothing (tenants that must not see each other's timings).
        adapter: the weights that made the keys and values, where there is more than one set.
        digest: how blocks are named; a name is only where to look, and is never trusted (see `BlockPool`).

    Digests are computed when they are asked for, once. Before that nothing is computed.

    Raises:
        UnderloadError: a block size below 1.
    """

    def __init__(
        self, tokens: list[int], block_size: int, *, salt: str = "", adapter: str = "", digest: Digest = block_digest
    ) -> None:
        if block_size < 1:
            raise UnderloadError(f"block_size must be at least 1 token, got {block_size}")
        self.block_size = block_size
        self.root = (salt, adapter)  # the parent of the first block, to be compared as it is
        self._tokens = tokens
        self._digest = digest
        self._pack = _packer(block_size)
        self._named: list[tuple[bytes, bytes]] = []  # digest and content of each full block asked for so far

    def __len__(self) -> int:
        """Full blocks so far."""
        return len(self._tokens) // self.block_size

    def digest(self, index: int) -> bytes:
        """The name of full block `index`.

        Raises:
            UnderloadError: there is no such full block yet.
        """
        return self.names(index, index + 1)[0][0]

    def content(self, index: int) -> bytes:
        """The tokens of full block `index`, 8 bytes each, little end first: equal exactly where all ids are.

        Raises:
            UnderloadError: there is no such full block yet.
        """
        return self.names(index, index + 1)[0][1]

    def names(self, start: int, stop: int) -> list[tuple[bytes, bytes]]:
        """Digest and content of the full blocks from `start` up to, not including, `stop`.

        Raises:
            UnderloadError: there are not that many full blocks yet, or a token id is no whole number of 64 bits.
        """
        if stop > len(self._named):
            self._extend(stop)
        if start < 0:
            raise UnderloadError(f"blocks are counted from 0, got {start}")
        return self._named[start:stop]

    def _extend(self, stop: int) -> None:
        size, first = self.block_size, len(self._named)
        if stop > len(self):
            raise UnderloadError(
                f"{len(self._tokens)} tokens fill {len(self)} blocks of {size}, got a request for {stop}; "
                "ask for full blocks only"
            )
        tokens, named, pack, digest = self._tokens, self._named, self._pack, self._digest
        before = named[-1][0] if named else self._root_digest()
        try:
            for at in range(first * size, stop * size, size):
                content = pack(*tokens[at : at + size])
                before = digest(before, content)
                named.append((before, content))
        except struct.error as error:
            raise UnderloadError(f"token ids must be whole numbers of at most 64 bits: {error}") from error

    def _root_digest(self) -> bytes:
        # Each part with its length before it: ("ab", "c") and ("a", "bc") must not read the same.
        parts = [part.encode("utf-8", "surrogatepass") for part in self.root]
        sizes = [struct.pack("<q", number) for number in (self.block_size, *map(len, parts))]
        return self._digest(b"", b"".join([_TAG, *sizes, *parts]))
