"""Rows of measured values: what is written is read back, and bad files are refused by line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machine.errors import BadInput
from machine.rows import HEAD, Row, chosen, joined, parameters, read, write

WORD = st.text(st.characters(whitelist_categories=("Lu", "Ll", "Nd"), whitelist_characters=" -,"), max_size=9)
ROWS = st.builds(
    Row,
    WORD,
    st.sampled_from(["live", "simulated", "paper"]),
    st.dictionaries(st.sampled_from(["gbps", "load"]), WORD.map(str.strip)).map(joined),
    *([WORD] * 4),
    st.sampled_from(["mean_jct_s", "share"]),
    st.none() | st.integers(0, 99),
    st.integers(-(10**6), 10**6).map(lambda number: number / 1000.0).map(lambda v: float(f"{v:.9g}")),
    st.none() | st.just(0.5),
    st.integers(1, 50),
)


@given(rows=st.lists(ROWS, max_size=5))
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, rows: list[Row]) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    write(path, rows)
    assert read(path) == rows


def test_a_row_is_chosen_by_columns_and_parameters() -> None:
    rows = [
        Row("e", "live", joined({"gbps": gbps, "load": 80.0}), policy, "", "", "", "mean_jct_s", None, 1.0)
        for gbps in (10, 24)
        for policy in ("slots", "reno")
    ]
    assert chosen(rows, {"policy": "slots", "gbps": "24", "load": "80"}) == [rows[2]]
    assert chosen(rows, {"policy": ("slots", "reno"), "gbps": "10"}) == rows[:2]
    assert chosen(rows, {"limit": ""}) == rows
    assert parameters(rows[0].parameters) == {"gbps": "10", "load": "80"}
    assert rows[0].unit == "s"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n", "its columns are not"),
        (",".join(HEAD) + "\n" + ",".join(["x"] * len(HEAD)) + "\n", r"rows\.csv, line 2: .*how"),
    ],
)
def test_a_bad_file_is_refused_by_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=said):
        read(path)
    with pytest.raises(BadInput, match="cannot be read"):
        read(tmp_path / "none.csv")
