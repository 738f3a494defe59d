"""`entrain-agent`: the agent of one host."""

from __future__ import annotations

import sys

from machine.errors import BadInput, EntrainError
from machine.limits import check_limits, limits_named

MEMORY_MIB = 1024
"""Of addresses, as `ulimit -v` counts. With half of that gRPC ends the process, and says only where."""


def run() -> None:
    """Run the command. Exit with status 0, 1 (failure) or 2 (bad input)."""
    try:
        with limits_named():
            check_limits(MEMORY_MIB)
            from hostbpf.command import main  # loads libraries, which may be more than memory has room for

            main()
    except EntrainError as error:
        print(f"entrain-agent: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, BadInput) else 1)


if __name__ == "__main__":
    run()
