"""What compiled code is kept under."""

import hashlib
from pathlib import Path


def digest() -> int:
    """A number for the text of this whole package.

    Numba keys its cache by the text of the file that a compiled function stands in and by what that function closes
    over, not by what else it calls. A function that closes over this cannot meet code compiled from another text.
    """
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return int.from_bytes(hashlib.sha256(b"".join(path.read_bytes() for path in sources)).digest()[:7], "big")
