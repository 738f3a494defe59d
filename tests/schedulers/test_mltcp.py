"""MLTCP's gain and its learning: exact, and equal to the kernel's half."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ebpf import Object, compile_bpf
from schedulers.mltcp import FAIR, LEARN_ITERATIONS, UNIT, Gain, Progress

ROOT = Path(__file__).parents[2]
MS = 1_000_000


@given(total=st.integers(1, 1 << 50), sent=st.integers(0, 1 << 51))
def test_gain_is_the_papers_in_integers(total: int, sent: int) -> None:
    """F(r) = 1.75 r + 0.25 is (7 sent + total) / (4 total), r at most 1."""
    sent_counted = min(sent, total)
    assert Gain().at(sent, total) == Fraction(7 * sent_counted + total, 4 * total)
    assert FAIR.at(sent, total) == 1


@given(
    slope=st.integers(0, 8 * UNIT),
    intercept=st.integers(1, 8 * UNIT),
    total=st.integers(1, 1 << 40),
    shares=st.lists(st.fractions(0, 1), min_size=2, max_size=2),
)
def test_any_gain_rises_from_intercept_to_their_sum(
    slope: int, intercept: int, total: int, shares: list[Fraction]
) -> None:
    gain = Gain(slope, intercept)
    low, high = sorted(int(share * total) for share in shares)
    assert gain.at(0, total) == Fraction(intercept, UNIT)
    assert gain.at(total, total) == gain.at(2 * total, total) == Fraction(slope + intercept, UNIT)
    assert gain.at(low, total) <= gain.at(high, total)
    assert gain.of(low / total) == pytest.approx(float(gain.at(low, total)))


@pytest.mark.parametrize(("slope", "intercept"), [(-1, 256), (1792, 0), (0, -1)])
def test_a_gain_at_which_nothing_grows_is_refused(slope: int, intercept: int) -> None:
    with pytest.raises(ValueError, match="intercept"):
        Gain(slope, intercept)


def test_an_iteration_without_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="needs more than 0"):
        Gain().at(0, 0)


def _burst(job: Progress, begin_ms: int, size: int = 1000, acks: int = 10) -> int:
    """Acknowledge an iteration of `size` bytes, one acknowledgement a millisecond; return when it ended."""
    for i in range(acks):
        job.acked((begin_ms + i) * MS, size // acks)
    return begin_ms + acks - 1


def test_a_gap_above_the_threshold_opens_an_iteration() -> None:
    """Exactly the threshold does not; a nanosecond more does, and F falls back to its intercept's side."""
    job = Progress(total_bytes=1000, gap_ns=20 * MS)
    job.acked(5 * MS, 600)
    job.acked(25 * MS, 200)
    assert (job.iteration, job.bytes, job.factor) == (0, 800, Gain().at(800, 1000))
    job.acked(45 * MS + 1, 100)
    assert (job.iteration, job.bytes, job.last_bytes, job.factor) == (1, 100, 800, Gain().at(100, 1000))


def test_bytes_beyond_the_total_do_not_raise_the_gain() -> None:
    job = Progress(total_bytes=1000, gap_ns=20 * MS)
    job.acked(0, 5000)
    assert job.factor == 2


def test_total_and_threshold_are_learned() -> None:
    """F is 1 until four whole iterations have been seen; the threshold then lies below the shortest pause."""
    job = Progress()
    begin = 1
    for _ in range(LEARN_ITERATIONS + 1):
        assert job.factor == 1
        begin = _burst(job, begin) + 100
    _burst(job, begin)
    assert (job.learned_total, job.learned_gap_ns) == (1000, 75 * MS)
    assert job.factor == 2
    assert job.iteration == LEARN_ITERATIONS + 1


def test_pauses_within_an_iteration_are_not_learned() -> None:
    """An iteration of two bursts, 10 ms apart, with 100 ms of computing: its total is that of both."""
    job = Progress()
    begin = 1
    for _ in range(LEARN_ITERATIONS + 2):
        begin = _burst(job, _burst(job, begin) + 10) + 100
    assert job.learned_total == 2000


def test_a_job_that_changes_is_learned_anew() -> None:
    job = Progress()
    begin = 1
    for _ in range(6):
        begin = _burst(job, begin) + 100
    for _ in range(2 * LEARN_ITERATIONS + 2):
        begin = _burst(job, begin, size=5000) + 100
    assert (job.learned_total, job.relearned) == (5000, 1)


_GAIN = struct.Struct("=IIQQQII")


@pytest.fixture(scope="module")
def kernel_gain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Object]:
    yield from _load(tmp_path_factory.mktemp("gain"), ROOT / "tests" / "hostbpf" / "bpf" / "gain.bpf.c")


@pytest.fixture(scope="module")
def kernel_learning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Object]:
    yield from _load(tmp_path_factory.mktemp("learn"), Path(__file__).parent / "bpf" / "learn.bpf.c")


def _load(directory: Path, source: Path) -> Iterator[Object]:
    output = directory / "program.o"
    compile_bpf(source, output, includes=[ROOT / "hostbpf" / "bpf"])
    with Object.open(output) as obj:
        obj.load()
        yield obj


@pytest.mark.root
@settings(max_examples=100, deadline=None)
@given(
    slope=st.integers(0, 8 * UNIT),
    intercept=st.integers(1, 8 * UNIT),
    total=st.integers(1, 1 << 40),
    share=st.fractions(0, 2),
    acked=st.integers(1, 256),
)
def test_gain_is_the_kernels(
    kernel_gain: Object, slope: int, intercept: int, total: int, share: Fraction, acked: int
) -> None:
    """The kernel grows by F times the acknowledged segments, rounded down, and keeps what rounding leaves."""
    sent = int(share * total)
    question = _GAIN.pack(slope, intercept, sent, total, 0, acked, 0)
    answer = kernel_gain.programs["scale"].test_run(ctx_in=question).ctx
    *_, credit, _, growth = _GAIN.unpack(answer)
    due = Gain(slope, intercept).at(sent, total) * acked
    assert growth == due.numerator // due.denominator
    assert growth + Fraction(credit, UNIT * total) == due


_PARAMS = struct.Struct("=IIQQII")
_JOB = struct.Struct("=8Q4I4Q")


@pytest.mark.root
@settings(max_examples=60, deadline=None)
@given(
    params=st.sampled_from([(None, None), (30_000, None), (None, 20 * MS), (30_000, 20 * MS)]),
    stretches=st.lists(
        st.tuples(
            st.integers(1, 7),  # iterations alike
            st.integers(1, 3),  # acknowledgements in each
            st.sampled_from([0, 1, 9_000, 10_000, 11_200, 11_300, 40_000]),  # bytes each
            st.sampled_from([1, 3 * MS, 6 * MS, 20 * MS + 1, 90 * MS, 100 * MS, 250 * MS, 900 * MS]),  # then
        ),
        min_size=1,
        max_size=12,
    ),
)
# Learns; begins anew on finding a pause of over twice the length; learns again when the bytes change.
@example(params=(None, None), stretches=[(2, 1, 9, 6 * MS), (6, 2, 100, 90 * MS), (7, 3, 100, 100 * MS)])
@example(params=(None, None), stretches=[(3, 1, 9, 90 * MS), (6, 2, 100, 200 * MS), (6, 2, 100, 250 * MS)])
@example(params=(None, None), stretches=[(6, 1, 100, 100 * MS), (12, 1, 113, 90 * MS)])
@example(
    params=(None, None), stretches=[(6, 1, 100, 900 * MS), (12, 1, 200, 800 * MS), (9, 1, 200, 100 * MS)]
)
def test_iterations_are_the_kernels(
    kernel_learning: Object,
    params: tuple[int | None, int | None],
    stretches: list[tuple[int, int, int, int]],
) -> None:
    """After every acknowledgement both halves agree on the iteration, its bytes and all that was learned."""
    total, gap = params
    kernel = kernel_learning.maps["question"]
    job = Progress(total_bytes=total, gap_ns=gap)
    raw_params = _PARAMS.pack(1792, 256, total or 0, gap or 0, 0, 0)
    state = bytes(_JOB.size)
    now = 1
    for alike, acks, size, pause in stretches:
        for i in range(alike * acks):
            now += MS + (pause if i and i % acks == 0 else 0)
            job.acked(now, size)
            kernel[bytes(4)] = raw_params + state + struct.pack("=QQ", now, size)
            assert kernel_learning.programs["acknowledge"].test_run(ctx_in=bytes(8)).retval == 0
            state = kernel[bytes(4)][_PARAMS.size : _PARAMS.size + _JOB.size]
            _, _, count, last, learned, learned_gap, _, _, iteration, _, _, relearned, *_ = _JOB.unpack(state)
            assert (count, last, iteration) == (job.bytes, job.last_bytes, job.iteration)
            assert (learned, learned_gap, relearned) == (job.learned_total, job.learned_gap_ns, job.relearned)
        now += pause
