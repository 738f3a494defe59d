"""`python -m tests [PYTEST OPTIONS]`: all tests, in two processes.

Tests that are marked `root` change the machine for all, so one process runs them one after the other. They
wait for most of their time. The other process runs the rest meanwhile, and its output follows at the end. It
gives way to the first, which takes longer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

NO_TESTS = 5
"""pytest's exit status if options select no test."""


def main(options: list[str]) -> int:
    """Run both, and return the worse exit status: 0 if all tests passed."""
    pytest = [sys.executable, "-m", "pytest", *options]
    # tests start a thousand processes, which would all compile our modules anew
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryFile() as output:
        beside = subprocess.Popen(
            ["nice", *pytest, "-m", "not root"], stdout=output, stderr=subprocess.STDOUT
        )
        try:
            statuses = {subprocess.run([*pytest, "-m", "root"], check=False).returncode, beside.wait()}
        finally:
            if beside.poll() is None:
                beside.terminate()
                beside.wait()
            output.seek(0)
            sys.stdout.flush()
            sys.stdout.buffer.write(b"\nThe other tests:\n" + output.read())
    return max(statuses - {NO_TESTS}, default=NO_TESTS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
