"""`underload model`: what can be loaded, what is here, and what it costs before it is loaded."""

import argparse


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("model", help="list, fetch and size up models")
    parser.set_defaults(run=lambda args: parser.print_help())
