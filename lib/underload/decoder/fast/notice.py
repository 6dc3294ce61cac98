"""A word on stderr about what takes long, when it does."""

import sys
import threading
from typing import Any


class notice_if_slow:
    def __init__(self, text: str, after: float = 1.0) -> None:
        self._timer = threading.Timer(after, lambda: print(f"underload: {text}", file=sys.stderr, flush=True))
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: Any) -> None:
        self._timer.cancel()
