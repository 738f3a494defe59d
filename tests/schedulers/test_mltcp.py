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


def _burst(job: Progress | KernelProgress, begin_ms: int, size: int = 100_000, acks: int = 10) -> int:
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
    assert (job.learned_total, job.learned_gap_ns) == (100_000, 75 * MS)
    assert job.factor == 2
    assert job.iteration == LEARN_ITERATIONS + 1


def test_pauses_within_an_iteration_are_not_learned() -> None:
    """An iteration of two bursts, 10 ms apart, with 100 ms of computing: its total is that of both."""
    job = Progress()
    begin = 1
    for _ in range(LEARN_ITERATIONS + 2):
        begin = _burst(job, _burst(job, begin) + 10) + 100
    assert job.learned_total == 200_000


def test_a_job_that_changes_is_learned_anew() -> None:
    job = Progress()
    begin = 1
    for _ in range(6):
        begin = _burst(job, begin) + 100
    for _ in range(2 * LEARN_ITERATIONS + 2):
        begin = _burst(job, begin, size=500_000) + 100
    assert (job.learned_total, job.relearned) == (500_000, 1)


_GAIN = struct.Struct("=IIQQQII")
_PARAMS = struct.Struct("=IIQQII")
_JOB = struct.Struct("=8Q4I4Q")


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
@settings(max_examples=100)
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


class KernelProgress:
    """Progress as mltcp.h keeps it."""

    def __init__(self, learning: Object, total_bytes: int | None = None, gap_ns: int | None = None) -> None:
        self._acknowledge = learning.programs["acknowledge"]
        self._question = learning.maps["question"]
        self._params = _PARAMS.pack(1792, 256, total_bytes or 0, gap_ns or 0, 0, 0)
        self._state = bytes(_JOB.size)

    def acked(self, now_ns: int, size: int) -> None:
        self._question[bytes(4)] = self._params + self._state + struct.pack("=QQ", now_ns, size)
        assert self._acknowledge.test_run(ctx_in=bytes(8)).retval == 0
        self._state = self._question[bytes(4)][_PARAMS.size : _PARAMS.size + _JOB.size]
        _, _, self.bytes, self.last_bytes, self.learned_total, self.learned_gap_ns, *rest = _JOB.unpack(
            self._state
        )
        _, _, self.iteration, _, _, self.relearned, *_ = rest


@pytest.fixture(params=["twin", pytest.param("kernel", marks=pytest.mark.root)])
def learner(request: pytest.FixtureRequest) -> Progress | KernelProgress:
    """A job that is told nothing, in either half."""
    return (
        Progress() if request.param == "twin" else KernelProgress(request.getfixturevalue("kernel_learning"))
    )


def _iterate(
    job: Progress | KernelProgress,
    begin_ms: int,
    count: int,
    pause_ms: int,
    size: int = 100_000,
    acks: int = 10,
) -> int:
    for _ in range(count):
        begin_ms = _burst(job, begin_ms, size, acks) + pause_ms
    return begin_ms


def test_making_connections_is_no_iteration(learner: Progress | KernelProgress) -> None:
    """A few bytes on each connection, whatever the pauses between and after them, and training begins: its
    first iterations are learned from."""
    for now_ms in (1, 20, 400):
        learner.acked(now_ms * MS, 100)
    _iterate(learner, 5_000, count=LEARN_ITERATIONS + 2, pause_ms=200)
    assert (learner.learned_total, learner.learned_gap_ns, learner.relearned) == (100_000, 150 * MS, 0)


def test_a_pause_before_training_is_forgotten(learner: Progress | KernelProgress) -> None:
    """The model is sent out, 30 s of set-up, then iterations with pauses of 200 ms: they are learned once the
    set-up lies eight times its length back."""
    learner.acked(1 * MS, 100_000)
    begin = _iterate(learner, 30_001, count=8 * 30_000 // 249 + 1, pause_ms=200, acks=50)
    assert learner.learned_total == 0
    _iterate(learner, begin, count=LEARN_ITERATIONS + 2, pause_ms=200, acks=50)
    assert (learner.learned_total, learner.learned_gap_ns, learner.relearned) == (100_000, 150 * MS, 0)


def test_long_iterations_keep_the_gap_that_they_learn_from(learner: Progress | KernelProgress) -> None:
    """Communication 20 times as long as computing, without stalls, is no reason to doubt the gap."""
    _iterate(learner, 1, count=LEARN_ITERATIONS + 2, pause_ms=50, size=100_000, acks=1000)
    assert (learner.learned_total, learner.relearned) == (100_000, 0)


def test_stalls_while_learning_are_no_boundaries(
    learner: Progress | KernelProgress,
) -> None:
    """A retransmission stall of 40 ms in every iteration of 400 ms; the computing phase is 100 ms."""
    begin = 1
    for _ in range(LEARN_ITERATIONS + 2):
        begin = _burst(learner, _burst(learner, begin, acks=200) + 40, acks=200) + 100
    assert (learner.learned_total, learner.learned_gap_ns) == (200_000, 75 * MS)


def test_pauses_shorter_than_the_threshold_are_learned(learner: Progress | KernelProgress) -> None:
    """The pause falls from 200 ms to 100 ms: within the bytes of four iterations F is 1 again, not at its
    maximum, and five iterations later the new pause is known."""
    begin = _iterate(learner, 1, count=LEARN_ITERATIONS + 2, pause_ms=200)
    assert learner.learned_gap_ns == 150 * MS
    begin = _iterate(learner, begin, count=LEARN_ITERATIONS + 1, pause_ms=100)
    assert (learner.learned_total, learner.relearned) == (0, 1)
    _iterate(learner, begin, count=LEARN_ITERATIONS + 2, pause_ms=100)
    assert (learner.learned_total, learner.learned_gap_ns, learner.relearned) == (100_000, 75 * MS, 1)


def test_a_job_that_varies_is_learned_once(learner: Progress | KernelProgress) -> None:
    """Every fourth iteration has more than three times the bytes, and pauses differ by a quarter."""
    begin = 1
    for i in range(40):
        begin = _burst(learner, begin, size=350_000 if i % 4 == 3 else 100_000) + (100, 125, 110)[i % 3]
    assert (learner.learned_total, learner.relearned, learner.iteration) == (100_000, 0, 39)


@pytest.mark.root
@settings(max_examples=60)
@given(
    params=st.sampled_from([(None, None), (90_000, None), (None, 20 * MS), (90_000, 20 * MS)]),
    stretches=st.lists(
        st.tuples(
            st.integers(1, 7),  # iterations alike
            st.integers(1, 3),  # acknowledgements in each
            st.sampled_from([0, 1, 9_000, 30_000, 33_600, 33_900, 120_000]),  # bytes each
            st.sampled_from([1, 3 * MS, 6 * MS, 20 * MS + 1, 90 * MS, 100 * MS, 250 * MS, 900 * MS]),  # then
        ),
        min_size=1,
        max_size=12,
    ),
)
# Learns; begins anew on finding a pause of over twice the length; learns again when the bytes change.
@example(
    params=(None, None),
    stretches=[(2, 1, 20_000, 6 * MS), (6, 2, 100_000, 90 * MS), (7, 3, 100_000, 100 * MS)],
)
@example(
    params=(None, None),
    stretches=[(3, 1, 20_000, 90 * MS), (6, 2, 100_000, 200 * MS), (6, 2, 100_000, 250 * MS)],
)
@example(params=(None, None), stretches=[(6, 1, 100_000, 100 * MS), (12, 1, 113_000, 90 * MS)])
@example(
    params=(None, None),
    stretches=[(6, 1, 100_000, 900 * MS), (12, 1, 200_000, 800 * MS), (9, 1, 200_000, 100 * MS)],
)
# A gap that is doubted while learning; pauses that fall below the threshold learned.
@example(params=(None, None), stretches=[(2, 1, 100_000, 900 * MS), (40, 1, 100_000, 250 * MS)])
@example(params=(100_000, None), stretches=[(2, 1, 100_000, 900 * MS), (90, 1, 100_000, 90 * MS)])
@example(params=(None, None), stretches=[(6, 1, 100_000, 250 * MS), (12, 1, 100_000, 90 * MS)])
@example(params=(None, 20 * MS), stretches=[(6, 1, 100_000, 250 * MS), (12, 1, 100_000, 3 * MS)])
def test_iterations_are_the_kernels(
    kernel_learning: Object,
    params: tuple[int | None, int | None],
    stretches: list[tuple[int, int, int, int]],
) -> None:
    """After every acknowledgement both halves agree on the iteration, its bytes and all that was learned."""
    total, gap = params
    kernel = KernelProgress(kernel_learning, total, gap)
    job = Progress(total_bytes=total, gap_ns=gap)
    now = 1
    for alike, acks, size, pause in stretches:
        for i in range(alike * acks):
            now += MS + (pause if i and i % acks == 0 else 0)
            job.acked(now, size)
            kernel.acked(now, size)
            assert (kernel.bytes, kernel.last_bytes) == (job.bytes, job.last_bytes)
            assert (kernel.iteration, kernel.relearned) == (job.iteration, job.relearned)
            assert (kernel.learned_total, kernel.learned_gap_ns) == (job.learned_total, job.learned_gap_ns)
        now += pause
