"""Trace readers: what is read, and errors that name file, line, column and remedy."""

from __future__ import annotations

from collections.abc import Callable, Sized
from pathlib import Path

import pytest

from machine.errors import BadInput
from simulation import traces
from simulation.jobs import Coflow
from simulation.tenants import read_requests
from simulation.traces import MB, read_coflow_benchmark

HERE = Path(__file__).parent / "data"


def test_a_reducers_bytes_come_in_equal_parts_from_its_mappers() -> None:
    trace = read_coflow_benchmark(HERE / "coflows.txt")
    assert trace.ports == 4
    assert [job.arrival for job in trace.jobs] == [0.0, 0.1, 0.25]
    work = trace.jobs[0].tasks[0].work
    assert isinstance(work, Coflow)
    assert (work.src.tolist(), work.dst.tolist()) == ([0, 1], [2, 2])
    assert work.size.tolist() == [2.0 * MB, 2.0 * MB]
    assert trace.flows == 5
    assert len(read_coflow_benchmark(HERE / "coflows.txt", limit=2).jobs) == 2


def test_fb2010_has_the_published_size(public_trace: Callable[[str], Path]) -> None:
    trace = read_coflow_benchmark(public_trace("FB2010-1Hr-150-0.txt"))
    assert (trace.ports, len(trace.jobs), trace.flows) == (150, 526, 706397)


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("1 0 1 0 1", 6),
        ("1 0 2 0", 5),
        ("1 -5 1 0 1 1:2", 2),
        ("1 0 1 9 1 1:2", 4),
        ("1 0 1 0 1 9:2", 6),
        ("1 0 1 0 1 1:-2", 6),
        ("1 0 1 0 1 1:0", 6),
        ("1 0 1 0 1 1:nan", 6),
        ("1 0 1 0 1 1", 6),
        ("1 0 0 1 1:2", 3),
        ("1 0 1 0 0", 5),
        ("1 0 1 0 1 1:2 7", 7),
        ("1 zero 1 0 1 1:2", 2),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, line: str, column: int) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(f"4 1\n{line}\n")
    with pytest.raises(BadInput, match=rf"bad\.txt, line 2, column {column}: .*; .+"):
        read_coflow_benchmark(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the header is missing"),
        ("1000000000 1\n1 0 1 0 1 1:2\n", "line 1, column 1: 1000000000 is out of range"),
        ("4 2\n1 0 1 0 1 1:2\n", "2 coflows are declared, 1 follow"),
        ("4 2\n1 5 1 0 1 1:2\n2 4 1 0 1 1:2\n", "line 3, column 2: .*before"),
        ("4 2\n1 5 1 0 1 1:2\n1 6 1 0 1 1:2\n", "line 3, column 1: .*twice"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(text)
    with pytest.raises(BadInput, match=message):
        read_coflow_benchmark(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere"):
        read_coflow_benchmark(tmp_path / "nowhere")


HEADER = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["job_id,num_gpu", "0,1"], "line 1: column 'submit_time' is missing"),
        ([HEADER], "holds no jobs"),
        ([HEADER, "0,1,0,606,vgg19,164,30", "0,1,5,606,vgg19,164,30"], "line 3, column id: .*twice"),
        ([HEADER, "0,1,9,606,vgg19,164,30", "1,1,5,606,vgg19,164,30"], "line 3, column time: .*sort"),
        ([HEADER, "0,0,9,606,vgg19,164,30"], "line 2, column num_gpu"),
        ([HEADER, "0,1,9,606,vgg19,-4,30"], "line 2, column duration"),
        ([HEADER, "0,1,9,606,vgg19"], "line 2, column duration: the value is missing"),
        ([HEADER, "0,1,9,606,vgg19,164,30,7"], "line 2, column 8: .*more values than columns"),
        ([HEADER, "0,1,9,606,vgg19,164,often"], "line 2, column interval"),
        ([HEADER, f"0,1,9,{10**20},vgg19,164,30"], "line 2, column iterations: .*out of range"),
        ([HEADER, "0,1,inf,606,vgg19,164,30"], "line 2, column submit_time: .*not finite"),
    ],
)
def test_wrong_job_traces_are_named(tmp_path: Path, rows: list[str], message: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("\n".join(rows) + "\n")
    with pytest.raises(BadInput, match=message):
        traces.read_tiresias(path)


@pytest.mark.parametrize(
    ("reader", "name", "count"),
    [
        (traces.read_pollux_workload, "pollux/workload-1.csv", 160),
        (traces.read_pollux_placements, "pollux/bert_placements.csv", 540),
        (lambda path: read_requests(path).gpus, "vclos-elastic-trace.txt", 43395),
        (lambda path: read_requests(path).gpus, "vclos-request-sequence.txt", 1574),
    ],
)
def test_public_traces_are_read_whole(
    public_trace: Callable[[str], Path], reader: Callable[[Path], Sized], name: str, count: int
) -> None:
    rows = reader(public_trace(name))
    assert len(rows) == count


def test_the_included_trace_is_read_whole() -> None:
    assert len(traces.read_tiresias(traces.INCLUDED / "tiresias-60-jobs.csv")) == 60


def test_the_notice_names_every_included_file() -> None:
    notice = (traces.INCLUDED / "NOTICE").read_text()
    for path in traces.INCLUDED.iterdir():
        if path.name not in ("NOTICE", "results"):  # results are entrain's
            entry = notice.partition(f"\n{path.name}\n")[2].partition("\n\n\n")[0]
            assert all(word in entry for word in ("Origin:", "Licence:", "Changes:")), path.name
            files = path.rglob("*") if path.is_dir() else [path]
            assert sum(file.stat().st_size for file in files) < 2**20
