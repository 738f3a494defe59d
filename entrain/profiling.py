"""Profiles of jobs as the host agents measure them: what their flows send, and when their iterations begin.

with Counting(addresses) as counting:
    ...  # the jobs run
    profiles = measured(topology, routing, counting.counts(), {mark: name})
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import numpy as np

from controlplane.topology import Topology
from entrain.shared_links import crossed, shared_links
from hostbpf.counting import BIN_MS, Counts, FlowCount
from hostbpf.rpc import agent_pb2 as pb
from hostbpf.rpc.agent_pb2_grpc import HostStub
from hostbpf.rpc.counts import counts_of
from machine.errors import EntrainError
from machine.tls import open_channel
from schedulers.cassini.affinity import Link
from schedulers.cassini.estimate import Estimate, estimate
from schedulers.cassini.profile import Profile
from schedulers.compiled import Floats, Ints
from wire.flow import Flow

if TYPE_CHECKING:  # policies import this module
    from entrain.policies.policy import FileRouting


@dataclass(frozen=True)
class Measured:
    """What was measured of a job: an estimate for each direction of a link that its flows cross.

    `begins` holds when its iterations began, in s after the epoch of slots.
    """

    name: str
    flows: tuple[Flow, ...]
    links: Mapping[str, Estimate]
    busiest: str
    """The link that carries most of it, relative to the link's capacity."""
    begins: Floats

    @property
    def estimate(self) -> Estimate:
        """What its traffic on the busiest link says."""
        return self.links[self.busiest]

    @property
    def profile(self) -> Profile | None:
        """Its profile on the busiest link; None unless it is periodic."""
        return self.estimate.profile


class Counting:
    """Has the agents at `addresses`, by host, count what flows send, within the context."""

    def __init__(self, addresses: Mapping[str, str], *, bin_ms: float = BIN_MS) -> None:
        self._addresses, self._bin_ms = addresses, bin_ms
        self._lock = threading.Lock()
        self._found: dict[str, Counts] = {}
        self._failures: dict[str, str] = {}

    def __enter__(self) -> Counting:
        with contextlib.ExitStack() as stack:
            calls = {}
            for host, address in self._addresses.items():
                channel = stack.enter_context(open_channel(grpc, address))
                calls[host] = HostStub(channel).WatchFlows(pb.WatchFlowsRequest(bin_ms=self._bin_ms))
                stack.callback(calls[host].cancel)
            for host, call in calls.items():
                with contextlib.suppress(grpc.RpcError):  # the thread meets it, too
                    call.initial_metadata()
                thread = threading.Thread(target=self._follow, args=(host, call), name=f"flows of {host}")
                thread.start()
                stack.callback(thread.join)
                stack.callback(call.cancel)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _follow(self, host: str, call: Iterable[object]) -> None:
        try:
            for message in call:
                new = counts_of(message)
                with self._lock:
                    _extend(self._found.setdefault(host, new), new)
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call) and error.code() is not grpc.StatusCode.CANCELLED:
                with self._lock:
                    self._failures[host] = error.details() or str(error.code())

    @property
    def failures(self) -> dict[str, str]:
        """The hosts whose agents count no longer, and why."""
        with self._lock:
            return dict(self._failures)

    def counts(self) -> Counts:
        """Return what was counted so far, in bins that all hosts have counted.

        Raises EntrainError for an agent that does not count.
        """
        if failures := self.failures:
            host, why = next(iter(failures.items()))
            raise EntrainError(f"the agent of host {host} counts no flows: {why}")
        with self._lock:
            found = list(self._found.values())
            if len(found) < len(self._addresses) or not found:
                return Counts(round(self._bin_ms * 1e6), 0, 0, {})
            first, end = max(each.first for each in found), min(each.end for each in found)
            flows = {
                flow: FlowCount(count.mark, count.job, dict(count.sent), dict(count.begins))
                for each in found
                for flow, count in each.flows.items()
            }
        return Counts(found[0].bin_ns, first, max(first, end), flows)


def _extend(counts: Counts, new: Counts) -> None:
    counts.end = new.end
    for flow, count in new.flows.items():
        known = counts.flows.setdefault(flow, count)
        known.mark, known.job = count.mark or known.mark, count.job or known.job
        known.sent.update(count.sent)
        known.begins.update(count.begins)


def measured(
    topology: Topology, routing: FileRouting, counts: Counts, names: Mapping[int, str]
) -> dict[str, Measured]:
    """Return what `counts` say of each job, by name. A flow belongs to the job that `names` has for its mark,
    or else to the job that its process names; flows of neither are left out.

    Iterations begin when the first of a job's processes says so; where none does, the job's traffic tells.
    A link is taken to pass on what flows send as soon as it can, so no rate is above its own. Raises BadInput
    as `shared_links`.
    """
    jobs: dict[str, dict[Flow, FlowCount]] = {}
    for flow, count in counts.flows.items():
        if name := names.get(count.mark) or count.job:
            jobs.setdefault(name, {})[flow] = count
    times: Floats = np.arange(counts.first, counts.end + 1, dtype=float) * (counts.bin_ns / 1e9)
    found = {}
    for name, flows in sorted(jobs.items()):
        series = {flow: _series(counts, count) for flow, count in flows.items()}
        total = _sum(series.values(), times)
        if not total[-1] > 0.0:
            continue
        begins = _begins(flows.values(), times)
        if not len(begins):
            begins = estimate(times, total).begins
        number: Ints | None = np.searchsorted(begins, times, side="right") if len(begins) else None
        paths = {flow: crossed(topology, routing, flow) for flow in flows}
        links, carried = {}, {}
        for link in shared_links(topology, routing, {name: flows}):
            own = (series[flow] for flow in flows if link.name in paths[flow])
            passed = _passed(times, _sum(own, times), link.capacity)
            carried[link.name] = float(passed[-1]) / link.capacity
            links[link.name] = estimate(times, passed, number)
        found[name] = Measured(name, tuple(flows), links, max(carried, key=carried.__getitem__), begins)
    return found


def links_of(topology: Topology, routing: FileRouting, jobs: Iterable[Measured]) -> tuple[Link, ...]:
    """Return the links that the jobs' flows cross (`shared_links`)."""
    return shared_links(topology, routing, {job.name: job.flows for job in jobs})


def _series(counts: Counts, count: FlowCount) -> Floats:
    """Return the bytes that a flow has sent until each edge of the bins (bins + 1,)."""
    sent = np.zeros(counts.end - counts.first + 1)
    for number, size in count.sent.items():
        if counts.first <= number < counts.end:
            sent[number - counts.first + 1] = size
    result: Floats = np.cumsum(sent)
    return result


def _sum(series: Iterable[Floats], times: Floats) -> Floats:
    total: Floats = np.zeros(len(times))
    for each in series:
        total += each
    return total


def _begins(flows: Iterable[FlowCount], times: Floats) -> Floats:
    """Return when iterations began within `times`, as the first process says, s."""
    first: dict[int, int] = {}
    for flow in flows:
        for number, time_ns in flow.begins.items():
            first[number] = min(time_ns, first.get(number, time_ns))
    begins: Floats = np.array(sorted(time_ns / 1e9 for time_ns in first.values()))
    within: Floats = begins[(begins >= times[0]) & (begins < times[-1])]
    return within


def _passed(times: Floats, sent: Floats, capacity: float) -> Floats:
    """Return the bytes that a link of `capacity` (bytes/s) has passed on at `times`, if what was `sent` waits
    in its queue meanwhile."""
    could = capacity * (times - times[0])
    passed = could + np.minimum.accumulate(sent - could)
    result: Floats = np.maximum.accumulate(passed)  # rounding lets it fall
    return result
