"""Flows at one time on a link, from measured intervals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from entrain.run.contention import Use, attribute, contention, most_at_once, per_job
from mininet_topos.linkmonitor import Burst
from wire.flow import Flow


def flow(number: int) -> Flow:
    return Flow("10.1.1.2", 20000 + number, "10.2.1.2", 7000)


def use(number: int, first: int, last: int, *, job: str = "a", step: int = 0, link: str = "l") -> Use:
    return Use(link, job, step, flow(number), first, last, 100)


def test_flows_that_follow_each_other_are_not_there_at_one_time() -> None:
    assert most_at_once([use(1, 0, 9), use(2, 10, 19), use(3, 20, 29)]) == 1


def test_ends_are_part_of_an_interval() -> None:
    assert most_at_once([use(1, 0, 10), use(2, 10, 20)]) == 2
    assert most_at_once([use(1, 5, 5), use(2, 5, 5)]) == 2


def test_two_bursts_of_one_flow_are_one_flow() -> None:
    assert most_at_once([use(1, 0, 10), use(1, 10, 20), use(1, 5, 15)]) == 1


uses = st.lists(
    st.builds(
        lambda number, first, length, job, step: use(number, first, first + length, job=job, step=step),
        st.integers(0, 5),
        st.integers(0, 30),
        st.integers(0, 8),
        st.sampled_from("ab"),
        st.integers(0, 2),
    ),
    max_size=25,
)


@given(uses)
def test_the_sweep_equals_looking_at_every_moment(found: list[Use]) -> None:
    at_moments = (
        len({(u.job, u.step, u.flow) for u in found if u.first_ns <= moment <= u.last_ns})
        for moment in range(40)
    )
    assert most_at_once(found) == max(at_moments)


@given(uses)
def test_one_step_is_no_more_than_one_job_is_no_more_than_all(found: list[Use]) -> None:
    (link,) = contention(found, ["l"])
    assert link.one_job_step <= link.one_job <= link.all_jobs
    assert max(per_job(found).values(), default=0) == link.one_job_step
    assert link.bytes == 100 * len(found)


def test_steps_and_jobs_are_told_apart() -> None:
    found = [use(1, 0, 10), use(2, 0, 10, step=1), use(3, 0, 10, job="b"), use(4, 0, 10, link="m")]
    on_l, on_m, idle = contention(found, ["l", "m", "idle"])
    assert (on_l.one_job_step, on_l.one_job, on_l.all_jobs) == (1, 2, 3)
    assert (on_m.one_job_step, on_m.one_job, on_m.all_jobs) == (1, 1, 1)
    assert (idle.one_job_step, idle.one_job, idle.all_jobs, idle.bytes) == (0, 0, 0, 0)


def test_traffic_of_no_job_is_told_and_not_counted() -> None:
    ours, theirs = Burst(3, flow(1), 5, 0, 10, 700, 1), Burst(4, flow(2), 0, 0, 10, 900, 1)
    found, strangers = attribute([ours, theirs], {3: "leaf1->spine1", 4: "spine1->leaf2"}, {flow(1): "a"})
    assert found == [Use("leaf1->spine1", "a", 5, flow(1), 0, 10, 700)]
    assert strangers == [theirs]
