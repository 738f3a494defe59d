"""`python -m robustness NAME [--json] ...` runs `robustness/NAME.py`, whose `main` gets the arguments."""

from __future__ import annotations

import sys

from machine.choice import run_chosen

sys.exit(
    run_chosen(
        "robustness", sys.argv[1:], besides=["attackers", "found", "fuzz_servers", "mutations", "servers"]
    )
)
