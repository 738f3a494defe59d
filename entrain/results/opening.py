"""The table that opens docs/results.md: each claim, the paper's figure, ours, and whether it is reproduced.

Figures of live experiments come from the tables of the sections, and `[[verdict]]` in
`experiments/results-page.toml` has the rest; those of simulated ones come from the published rows, by
`claims.toml`. Whether they reproduce the paper's follows from one rule (`verdicts.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from entrain import paper
from entrain.results.claimed import Judged
from entrain.results.pivots import markdown
from entrain.results.verdicts import kind_of, verdict

_ORIGIN = re.compile(r"^(?:Measured|Computed): (.*?)\.(?: |$)", re.MULTILINE)


def opening(sections: Mapping[str, str], simulated: Sequence[Judged] = ()) -> str:
    """Return the table for the sections (by title) of a page and for the claims of simulated experiments.

    Claims that no section has are left out, and so are simulated ones without a reason.
    """
    rows = []
    for each in paper.verdicts():
        text = sections.get(each.section, "")
        found = [row for row in rows_of(text) if row[0] == each.claim]
        if not found:
            continue
        _, theirs, ours = found[-1]
        judged = verdict(theirs, ours, each.kind or kind_of(each.claim, theirs))
        rows.append([each.claim, theirs, ours, judged, each.why, _source(each.section, text)])
    rows += [
        [each.claim.text, each.claim.value, each.here, each.verdict or "", each.claim.why, _page(each)]
        for each in simulated
        if each.claim.why
    ]
    head = ["claim", "paper", "here", "reproduced?", "why", "section: commands and version"]
    return markdown(head, rows) if rows else ""


def _page(judged: Judged) -> str:
    """Return a link to the page of a simulated claim, and the version that computed it."""
    row = judged.rows[0]
    return f"[{judged.claim.experiment}](results/{judged.claim.paper}.md), version {row.version}, {row.date}"


def _source(title: str, text: str) -> str:
    """Return a link to a section, and the version that measured it if the section says so."""
    anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    origin = _ORIGIN.search(text)
    return f"[{title.partition(':')[0].partition(' (')[0]}](#{anchor})" + (
        f", {origin.group(1)}" if origin else ""
    )


def rows_of(text: str) -> list[list[str]]:
    """Return the rows of claim, paper's figure and ours in a section's tables."""
    rows, within = [], False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells[1:] == ["paper", "here"]:
            within = True
        elif not cells:
            within = False
        elif within and len(cells) == 3 and set(cells[0]) != {"-"}:
            rows.append(cells)
    return rows
