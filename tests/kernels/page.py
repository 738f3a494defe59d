"""`python -m tests.kernels.page`: write the table of docs/kernels.md from build/kernels.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from entrain.features import FEATURES
from tests.kernels.__main__ import LIVE, RESULTS
from tests.kernels.guest import ROOT

PAGE = ROOT / "docs" / "kernels.md"
WORDS = {"passed": "works", "skipped": "–", "missing": "–", "failed": "**fails**"}

MARK = "<!-- made by `python -m tests.kernels.page` from here on -->\n\n"


def table(found: Sequence[dict[str, Any]]) -> str:
    """Return the table of features by kernel."""
    rows = [["", *(f"{each['version']}" for each in found)], ["---"] * (len(found) + 1)]
    rows.append(["programs loaded", *(f"{each['loaded']} of {each['programs']}" for each in found)])
    features = [feature.name for feature in FEATURES]
    rows += [[name, *(_how(each["features"][name]) for each in found)] for name in features]
    if any("live" in each for each in found):
        rows += [[f"test: {check}", *(_outcome(each, check) for each in found)] for check in LIVE]
    for stage, name in (("live", "these tests"), ("full", "all kernel tests")):
        if any(f"{stage}_passed" in each for each in found):
            rows.append([name, *(_counts(each, stage) for each in found)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _outcome(found: dict[str, Any], check: str) -> str:
    return WORDS[found["live"][check]] if "live" in found else "not run"


def _how(feature: str) -> str:
    state, detail = feature.split("; ", 1)
    return f"{state} {detail.partition(';')[0]}" if detail.startswith("by ") else state


def _counts(found: dict[str, Any], stage: str) -> str:
    if f"{stage}_passed" not in found:
        return "not run"
    counts = {"passed": found[f"{stage}_passed"], "failed": len(found[f"{stage}_failed"])}
    counts["skipped"] = len(found[f"{stage}_skipped"])
    return ", ".join(f"{number} {what}" for what, number in counts.items() if number)


def main() -> None:
    """Write the table anew."""
    kept = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    PAGE.write_text(kept + MARK + table(json.loads(RESULTS.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
