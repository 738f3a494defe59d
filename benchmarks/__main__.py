"""`python -m benchmarks NAME [--json] ...` runs `benchmarks/NAME.py`, whose `main` gets the arguments."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from machine.errors import EntrainError
from machine.processors import awake

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else gRPC logs every switch that ends

_NOT_BENCHMARKS = {"__init__", "__main__", "blast"}


def run(argv: list[str]) -> int:
    """Run the benchmark that `argv` names; return the exit status."""
    found = {path.stem for path in Path(__file__).parent.glob("*.py")}
    names = sorted(found - _NOT_BENCHMARKS)
    if not argv or argv[0] not in names:
        print(f"usage: python -m benchmarks {{{','.join(names)}}} [--json] ...", file=sys.stderr)
        return 2
    try:
        with awake():
            importlib.import_module(f"benchmarks.{argv[0]}").main(argv[1:])
    except EntrainError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    return 0


sys.exit(run(sys.argv[1:]))
