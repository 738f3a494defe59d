"""`python -m benchmarks NAME [--json] ...` runs `benchmarks/NAME.py`, whose `main` gets the arguments."""

from __future__ import annotations

import sys

from machine.choice import run_chosen

sys.exit(run_chosen("benchmarks", sys.argv[1:], besides=["blast"]))
