"""Errors that a caller can act on: each names the value, the limit and the remedy."""


class UnderloadError(Exception):
    """Base of every error the library raises on purpose."""


class InvalidRequest(UnderloadError, ValueError):
    """A request that no engine could serve: refused for itself alone, its neighbours go on."""


class OutOfBlocks(UnderloadError):
    """The cache has too few blocks for this now; nothing has changed. Preempt, wait, or make the pool larger."""
