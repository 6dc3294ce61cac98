"""Load: when requests come, how long they are, what they share, and who sends them.

    streams   Streams: independent random streams by name
"""

from underload.workload.streams import Streams

__all__ = ["Streams"]
