"""Which block holds which content: the prefix index, and what confirms a hit."""

from __future__ import annotations

from dataclasses import dataclass

from underload.cache.chain import BlockChain

#: What a block's content is known by: (block, generation) of the first block that held it, or, as the parent of a
#: first block, the root of its chain: (salt, adapter). No (block, generation) comes twice.
Identity = tuple[object, ...]


@dataclass(slots=True, eq=False)
class Name:
    """What is in a block. Blocks of the same content share one name."""

    digest: bytes
    content: bytes
    parent: Identity
    identity: Identity


class PrefixIndex:
    """From a digest to the block that holds the content.

    A digest says where to look, and no more. A hit is confirmed by the block's tokens and by its parent's identity; so
    neither two contents of one digest nor a parent that has been given other content since is taken for what it is not.

        names[block]  is None       the content is open, and nobody finds it
        entry(digest) is block      the block that is found; names[block] has that digest
    """

    def __init__(self, num_blocks: int) -> None:
        self.names: list[Name | None] = [None] * num_blocks
        self._entries: dict[bytes, int] = {}
        self._generations = [0] * num_blocks  # contents a block has been named for

    def __len__(self) -> int:
        """Contents that can be found."""
        return len(self._entries)

    def entry(self, digest: bytes | None) -> int | None:
        """The block under a digest, not confirmed."""
        return None if digest is None else self._entries.get(digest)

    def find(self, chain: BlockChain, count: int) -> list[int]:
        """The blocks of the longest known prefix of the chain's first `count` full blocks."""
        entries, names = self._entries, self.names
        found: list[int] = []
        parent: Identity = chain.root
        for digest, content in chain.names(0, count):
            number = entries.get(digest)
            if number is None:
                break
            name = names[number]
            if name is None or name.content != content or name.parent != parent:
                break
            found.append(number)
            parent = name.identity
        return found

    def enter(self, number: int, digest: bytes, content: bytes, parent: Identity) -> Name:
        """Name an open block and let it be found, instead of what was found under that digest."""
        self._generations[number] += 1
        name = Name(digest, content, parent, (number, self._generations[number]))
        self.names[number] = name
        self._entries[digest] = number
        return name

    def point(self, number: int) -> None:
        """From now on it is this block that is found under its digest."""
        name = self.names[number]
        assert name is not None
        self._entries[name.digest] = number

    def forget(self, number: int) -> None:
        """The block's content is open again, and not found in this block any more."""
        name = self.names[number]
        if name is not None and self._entries.get(name.digest) == number:
            del self._entries[name.digest]
        self.names[number] = None

    def keeps(self, number: int) -> bool:
        """Whether the block is the one that is found under its digest. If none is, it becomes that."""
        name = self.names[number]
        return name is not None and self._entries.setdefault(name.digest, number) == number
