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
        if not isinstance(name, str) or name not in self._kept:
            self._kept[name] = self.fresh(name)
        return self._kept[name]

    def fresh(self, name: str) -> np.random.Generator:
        """The generator of that name from its beginning; the kept one does not move.

        Raises:
            UnderloadError: a name that is no text.
        """
        if not isinstance(name, str):
            raise UnderloadError(f"a stream has a name, got {name!r:.60}; numbers go with under: streams.under(3)")
        words = [_number(part) for part in (*self.path, name)]
        return np.random.default_rng(np.random.SeedSequence([self.seed, *words]))

    def under(self, name: str | int) -> Streams:
        """Streams of a part, such as one tenant or one replication: independent of these and of other parts.

        Raises:
            UnderloadError: a name that is neither a text nor a whole number.
        """
        if not isinstance(name, str):
            try:
                name = operator.index(name)  # 3 is 3, also where NumPy counted it
            except TypeError:
                raise UnderloadError(f"a part is named by a text or a whole number, got {name!r:.60}") from None
        return Streams(self.seed, path=(*self.path, f"{type(name).__name__}:{name}"))

    def __repr__(self) -> str:
        return f"Streams({self.seed}" + (f", path={self.path!r})" if self.path else ")")


def _number(name: str) -> int:
    # Not hash(): Python salts it, and the same seed would give another load in every process.
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
