"""Random streams by name, so that changing one policy does not change the load."""

from __future__ import annotations

import hashlib
import operator

import numpy as np

from underload.request.errors import UnderloadError


class Streams:
    """One seed, as many independent generators as there are names: `streams["arrivals"]`, `streams["service"]`, …

    A stream is a function of seed and name alone. It goes on where it stood when asked for again, and how much is drawn
    from it, or in which order streams are first asked for, changes no other. Names in use: arrivals, lengths, prompts,
    tenants, think, service, routing, sampling.

    Args:
        seed: a whole number from 0.

    Raises:
        UnderloadError: a seed that is none.
    """

    def __init__(self, seed: int, *, path: tuple[str, ...] = ()) -> None:
        try:
            self.seed = operator.index(seed)
        except TypeError:
            self.seed = -1
        if self.seed < 0 or isinstance(seed, bool):
            raise UnderloadError(f"a seed is a whole number from 0, got {seed!r}; 0 is as good as any")
        self.path = path
        self._kept: dict[str, np.random.Generator] = {}

    def __getitem__(self, name: str) -> np.random.Generator:
        """The generator of that name, where it stands."""
        if name not in self._kept:
            self._kept[name] = self.fresh(name)
        return self._kept[name]

    def fresh(self, name: str) -> np.random.Generator:
        """The generator of that name from its beginning; the kept one does not move."""
        words = [_number(part) for part in (*self.path, name)]
        return np.random.default_rng(np.random.SeedSequence([self.seed, *words]))

    def under(self, name: str | int) -> Streams:
        """Streams of a part, such as one tenant or one replication: independent of these and of other parts."""
        return Streams(self.seed, path=(*self.path, f"{type(name).__name__}:{name}"))

    def __repr__(self) -> str:
        return f"Streams({self.seed}" + (f", path={self.path!r})" if self.path else ")")


def _number(name: str) -> int:
    # Not hash(): Python salts it, and the same seed would give another load in every process.
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
