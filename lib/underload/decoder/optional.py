"""Packages that are needed only once in a while, so that the decoder itself runs from a bare checkout."""

from __future__ import annotations

import importlib
from types import ModuleType

from underload.request import UnderloadError


class MissingPackage(UnderloadError, ImportError):
    """A package that this step needs is not installed; the message says which, and how to get it."""


def require(module: str, purpose: str) -> ModuleType:
    """Imports a module, on its first use.

    Args:
        module: its name, such as "gguf" or "jinja2.sandbox".
        purpose: what needs it, for the message: "reading a tokenizer".

    Raises:
        MissingPackage: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0].replace("_", "-")
        raise MissingPackage(
            f"{purpose} needs the package {package}, which is not installed: pip install {package}"
        ) from error
