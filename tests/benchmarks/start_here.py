"""pocket for 1 to 64 users: the recorded run that the notebook *Start here* sets beside the reader's own.

    python tests/benchmarks/start_here.py --out lib/underload/labs/start_here.json     a minute, on a quiet machine
    python tests/benchmarks/start_here.py --quick                                      seconds; prints, stores nothing

Each round goes over all numbers of users in turn; the median over rounds is stored.
"""

from __future__ import annotations

import argparse
import json
import statistics
from datetime import date
from pathlib import Path
from typing import Any

from load import other_load

from underload.decoder import generate, load_model, machine
from underload.labs import start_here as lab
from underload.request import SamplingParams

USERS = (1, 2, 4, 8, 16, 32, 64)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="store the measurement as JSON here")
    parser.add_argument("--quick", action="store_true", help="a small run that shows that everything works")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    rounds, tokens = (1, 8) if options.quick else (options.rounds, 96)
    model = load_model("pocket")
    prompt = "Mira goes to the bakery"

    def serve(users: int) -> float:
        wishes = [SamplingParams(max_tokens=tokens, temperature=0.5, seed=i, ignore_eos=True) for i in range(users)]
        return lab.rate(generate(model, [prompt] * users, wishes))

    serve(1)  # warms up
    load: dict[str, Any] = {}
    with other_load(load):
        runs = [{users: serve(users) for users in USERS} for _ in range(rounds)]
    each = {users: statistics.median(run[users] for run in runs) for users in USERS}
    record = {
        "command": "python tests/benchmarks/start_here.py --out lib/underload/labs/start_here.json",
        "date": date.today().isoformat(),
        "machine": machine(),
        "path": model.path,
        "rounds": rounds,
        "other_load": load["other_load"],
        "rates": {str(users): [round(each[users], 1), round(users * each[users], 1)] for users in USERS},
    }
    text = json.dumps(record, indent=2) + "\n"
    if options.out and not options.quick:
        options.out.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
