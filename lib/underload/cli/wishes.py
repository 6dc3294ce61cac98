"""A drawn load with the priorities and the deadlines that options name, for any process."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from underload.cli.serve_options import wished
from underload.workload import Load, Planned, Streams


@dataclass(frozen=True)
class Wishing(Load):
    """`load`, and what `args` wish for each request of it."""

    load: Load
    args: argparse.Namespace

    def _plan(self, streams: Streams, horizon: float | None, requests: int | None) -> list[Planned]:
        return wished(self.args, self.load._plan(streams, horizon, requests))
