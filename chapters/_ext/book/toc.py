"""The pages of a table of contents."""

from __future__ import annotations

from typing import Any


def toc_pages(toc: dict[str, Any]) -> list[str]:
    """Every page that a table of contents names, in order."""
    found: list[str] = []

    def walk(node: Any) -> None:
        if isinstance(node, list):
            for child in node:
                walk(child)
        elif isinstance(node, dict):
            for key, value in node.items():
                if key in {"file", "root"}:
                    found.append(str(value))
                else:
                    walk(value)

    walk(toc)
    return found
