"""The command-line program `underload`.

A command is a module of this package with a function `register(subparsers)`, which adds its parser and sets
`run=function(args) -> int | None` on it, and a line in COMMANDS. Modules here import torch only inside `run`, so
that `underload --help` answers at once. A command raises UnderloadError for what a user can mend: it is printed on
one line and the exit code is 2.
"""

import argparse
import importlib
import io
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from underload import __version__
from underload.request import UnderloadError

# Modules of this package, in the order `underload --help` lists them.
COMMANDS = (
    "model",
    "generate",
    "bench",
    "calibrate",
    "simulate",
    "capacity",
    "compare",
    "queue",
    "workload",
    "labs",
    "course",
)

DESCRIPTION = """\
Under Load: a real batched decoder, and the measurements around it.

Where to start:
  underload model list              which models there are, and which of them are on this machine
  underload model info shape:llama-3-8b --memory 24GB
                                    what a model weighs, and how many users' contexts fit beside it
  underload generate "Once upon a time"
                                    text, as it is written, and what it cost
  underload bench decode            what a step takes here, alone and in company
  underload simulate --step-time linear:20ms,1ms --rate 5 --requests 2000 --prompt 64 --output geometric:32
                                    the engine on a virtual clock: policies compared in a moment
  underload capacity --step-time linear:20ms,1ms --prompt 64 --output geometric:32 --slo ttft=1s,tpot=100ms
                                    the largest load that keeps an objective, and what binds there
  underload bench serve --rate 20 --requests 200 --prompt 32 --output geometric:24
                                    the same report from the real engine and decoder
  underload queue mmc --arrival-rate 8 --service-rate 1 --servers 10
                                    what a queue must be like: waits and percentiles by formula
  underload workload describe synthetic:azure-conv
                                    what a load is like: rate, bursts, lengths; is it Poisson?
"""

EPILOG = """\
Each command explains itself: underload COMMAND --help. Commands that print figures take --json.
Exit codes: 0 done, 2 something to mend (the message says what), 130 interrupted.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code (argparse itself exits with 2 on a bad command line)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # "µ" where the terminal has none is no reason to fail
            stream.reconfigure(errors="replace")
    args = build_parser().parse_args(argv)
    try:
        code = int(args.run(args) or 0)
        if sys.stdout is not None:  # it is where the shell closed it (>&-)
            sys.stdout.flush()  # here, where a reader that has gone or a full disk is still an error to be told
        return code
    except UnderloadError as error:
        print(f"underload: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("underload: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _drop_output()  # the reader (head, less) has gone
        return 0
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        print(f"underload: {what}{error.strerror or error}; name another place, or mend this one", file=sys.stderr)
        if not error.filename:
            _drop_output()
        return 2


def _drop_output() -> None:
    """Python would complain once more when it flushes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build_parser() -> argparse.ArgumentParser:
    """The parser with every command registered."""
    parser = argparse.ArgumentParser(
        prog="underload", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"underload {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        importlib.import_module(f"{__name__}.{name}").register(commands)
    return parser


def print_json(value: Any) -> None:
    """Writes `value` as JSON for another program; what is not finite becomes null, as JSON has no name for it."""

    def finite(item: Any) -> Any:
        if isinstance(item, float) and (item != item or item in (float("inf"), float("-inf"))):
            return None
        if isinstance(item, dict):
            return {str(key): finite(entry) for key, entry in item.items()}
        if isinstance(item, (list, tuple)):
            return [finite(entry) for entry in item]
        return item

    print(json.dumps(finite(value), indent=2, ensure_ascii=False))
