"""The fast path."""

from underload.decoder.fast.path import FastPath, unsupported

__all__ = ["FastPath", "unsupported"]
