"""`python -m PACKAGE NAME ...`: one of a package's modules, whose `main` gets the arguments."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection

from machine.errors import EntrainError
from machine.packages import ROOT
from machine.processors import awake


def run_chosen(package: str, argv: list[str], besides: Collection[str] = ()) -> int:
    """Run the module of `package` that `argv` names; return the exit status.

    The modules in `besides` cannot be chosen.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else gRPC logs every switch that ends
    found = {path.stem for path in (ROOT / package).glob("*.py")}
    names = sorted(found - {"__init__", "__main__", *besides})
    if not argv or argv[0] not in names:
        print(f"usage: python -m {package} {{{','.join(names)}}} [--json] ...", file=sys.stderr)
        return 2
    try:
        with awake():
            importlib.import_module(f"{package}.{argv[0]}").main(argv[1:])
    except EntrainError as error:
        print(f"{package}: {error}", file=sys.stderr)
        return 1
    return 0
