"""Reading records and what is summed up from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from machine.errors import BadInput
from workloads.records import read_records, summarize


def write(path: Path, *lines: dict[str, Any], tail: str = "") -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)


def clock(rank: int, **changes: Any) -> dict[str, Any]:
    base = {"kind": "clock", "job": "a", "rank": rank, "ranks": 2, "collective": "ring", "iterations": 2}
    return base | {"monotonic_ns": 0, "realtime_offset_ns": 5} | changes


def iteration(rank: int, number: int, start: float, compute_end: float, end: float) -> dict[str, Any]:
    times = {"start_ns": start * 1e6, "compute_end_ns": compute_end * 1e6, "end_ns": end * 1e6}
    return {"kind": "iteration", "job": "a", "rank": rank, "iteration": number, "bytes": 100} | {
        key: int(value) for key, value in times.items()
    }


def test_marks_count_in_iterations_that_all_ranks_completed(tmp_path: Path) -> None:
    signals = {"marks": 6, "retransmitted": 2, "timeouts": 1}
    marked = [{**iteration(0, n, 10 * n, 10 * n + 4, 10 * n + 9), **signals} for n in (0, 1)]
    write(tmp_path / "a-rank0.jsonl", clock(0), *marked)
    write(tmp_path / "a-rank1.jsonl", clock(1), {**iteration(1, 0, 0, 4, 9), "marks": 1, "timeouts": 2})
    (summary,) = summarize(read_records(tmp_path))
    assert summary.marks_per_iteration == 7 and summary.retransmitted == 2 and summary.timeouts == 3
    write(tmp_path / "a-rank1.jsonl", clock(1), {**iteration(1, 0, 0, 4, 9), "marks": 1, "timeouts": None})
    (summary,) = summarize(read_records(tmp_path))
    assert summary.timeouts is None  # one rank's kernel did not count them
    two_ranks(tmp_path)
    (summary,) = summarize(read_records(tmp_path))
    assert summary.marks_per_iteration == 0  # records of before have no marks


def end(rank: int, error: str | None = None) -> dict[str, Any]:
    return {"kind": "end", "job": "a", "rank": rank, "error": error, "cpu_s": 0.25}


def two_ranks(directory: Path) -> None:
    write(
        directory / "a-rank0.jsonl", clock(0), iteration(0, 0, 0, 4, 10), iteration(0, 1, 10, 14, 22), end(0)
    )
    write(
        directory / "a-rank1.jsonl", clock(1), iteration(1, 0, 1, 5, 12), iteration(1, 1, 12, 16, 21), end(1)
    )


def test_an_iteration_lasts_from_the_earliest_start_to_the_latest_end(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    (summary,) = summarize(read_records(tmp_path))
    assert summary.iteration_ms == (12, 12)
    assert summary.communication_ms == (8, 8)
    assert summary.iteration_ms_mean == 12
    assert summary.jct_s == pytest.approx(0.022)
    assert summary.bytes == 400
    assert summary.cpu_s == 0.5
    assert summary.error is None
    assert summary.as_dict()["name"] == "a"


def test_the_p99_is_interpolated(tmp_path: Path) -> None:
    lines = [iteration(0, n, n * 1000, n * 1000, n * 1000 + n) for n in range(101)]
    write(tmp_path / "a-rank0.jsonl", clock(0, ranks=1, iterations=101), *lines, end(0))
    (summary,) = summarize(read_records(tmp_path))
    assert summary.iteration_ms_p99 == pytest.approx(99)
    assert summary.iteration_ms_mean == pytest.approx(50)


def test_an_iteration_that_a_rank_did_not_end_does_not_count(tmp_path: Path) -> None:
    write(
        tmp_path / "a-rank0.jsonl", clock(0), iteration(0, 0, 0, 4, 10), iteration(0, 1, 10, 14, 22), end(0)
    )
    write(tmp_path / "a-rank1.jsonl", clock(1), iteration(1, 0, 1, 5, 12), tail='{"kind": "iterat')
    (summary,) = summarize(read_records(tmp_path))
    assert summary.iteration_ms == (12,)
    assert summary.jct_s is None
    assert summary.error == "1 of 2 ranks have no end record: they were killed, or still run"


def test_the_reason_of_a_failure_is_told(tmp_path: Path) -> None:
    write(tmp_path / "a-rank0.jsonl", clock(0), end(0, "rank 1 ended unexpectedly"))
    (summary,) = summarize(read_records(tmp_path))
    assert summary.error == "rank 1 ended unexpectedly"
    assert summary.iteration_ms_mean is summary.iteration_ms_p99 is summary.jct_s is None


def test_jobs_are_kept_apart(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    write(tmp_path / "b-rank0.jsonl", clock(0, job="b"))
    assert [summary.job for summary in summarize(read_records(tmp_path))] == ["a", "b"]


@pytest.mark.parametrize("line", ["[]", '{"kind": "flaw"}', '{"kind": "end", "job": "a"}', "x\n{}"])
def test_what_is_no_record_is_refused_with_file_and_line(tmp_path: Path, line: str) -> None:
    write(tmp_path / "a.jsonl", clock(0), tail=line + "\n" + json.dumps(end(0)) + "\n")
    with pytest.raises(BadInput, match=r"a\.jsonl, line 2"):
        read_records(tmp_path)


def test_a_directory_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no records"):
        read_records(tmp_path)
    with pytest.raises(BadInput, match="No such file"):
        read_records(tmp_path / "nowhere.jsonl")
