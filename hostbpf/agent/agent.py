"""The agent of one host: owns the carriers on its interface and the schedules and MLTCP jobs of its flows.

With `Options.scheduling` it decides the schedules itself (`hostbpf.scheduling.thread`). It keeps no state of
its own that matters: a flow is limited for as long as its schedule says and no longer, so an agent that dies
leaves nothing behind, and one that starts again needs nothing of the one before.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from ebpf import in_netns
from ebpf.namespaces import netns_path
from hostbpf.agent.paces import Paces
from hostbpf.agent.transfers import Transfers
from hostbpf.carriers import carriers
from hostbpf.carriers.carriers import Carriers, Feedback, version_problem
from hostbpf.carriers.skew import Offset
from hostbpf.clock import SlotClock
from hostbpf.controls import DIRECTORY, Controls, controls
from hostbpf.counting import FlowCounter, counting
from hostbpf.emulated.client import Emulated, load_paths
from hostbpf.flow import netns_cookie
from hostbpf.mltcp import JobKey, JobState, Params
from hostbpf.rates.enforcers import Enforcers, Name, choose, enforcing
from hostbpf.rates.schedules import HORIZON_MAX, Schedules
from hostbpf.scheduling.loads import RATE_UNIT, HostOnly, InBand, LoadSource, Wait
from hostbpf.scheduling.monitor import Monitor
from hostbpf.scheduling.thread import HostScheduler, slot_scheduler
from hostbpf.urgent import urgent
from machine.errors import BadInput, EntrainError, MissingTool
from machine.record import AlreadyRuns, Record, clean_stale, records
from machine.text import escaped
from schedulers.slots.host import BEGIN, SMALLEST_FIRST
from wire.flow import Flow
from wire.slot_header import LANES

POLL_S = 0.1
CLOCK_TOLERANCE_NS = 1_000_000
"""Clock drift tolerated before slots are realigned."""
RATE_GRAIN = 1000
"""A scheduler's rates are rounded down to whole multiples of so many bytes/s."""
SLOTS_AHEAD = 1 << 16
"""How far ahead of the present slot a schedule may begin."""
HOUSEKEEPING_S = 5.0
"""How often schedules that have ended are forgotten."""


Loads = Literal["inband", "emulated", "host-only"]


@dataclass(frozen=True)
class Scheduling:
    """How the agent schedules its host's flows by itself."""

    loads: Loads = "inband"
    """Where it learns what others plan: switches by carriers, emulated switches, or nowhere."""
    paths: Path | None = None
    """The paths file of emulated switches (`hostbpf.emulated.client`)."""
    scheduler: str = SMALLEST_FIRST
    """The slot scheduler (`hostbpf.scheduling.thread.slot_schedulers`)."""
    turns_from: float = BEGIN
    """Part of a slot that is over when the first job's turn comes (`schedulers.slots.host.Parameters`)."""


@dataclass(frozen=True)
class Options:
    """What an agent serves: an interface, in a network namespace (None: the present one)."""

    interface: str
    netns: str | None = None
    slot_ms: float = 60.0
    link_mbps: float | None = None
    """Rates above it are refused."""
    directory: Path = DIRECTORY
    """Where the machine's controls are pinned."""
    scheduling: Scheduling | None = None
    """None: schedules come from the API alone."""
    progress: Path | None = None
    """Where training processes publish; None: what the environment says."""
    enforcer: Name | None = None
    """What makes flows keep to schedules; None: chosen by what the kernel has and what the flow is."""


class _Listener(NamedTuple):
    callback: Callable[[Feedback], None]
    wanted: Callable[[Flow], bool]


class Agent:
    """One host's datapath. Use `running`; its methods may be called from any thread."""

    def __init__(
        self,
        options: Options,
        shared: Controls,
        own: Carriers,
        clock: SlotClock,
        cookie: int,
        enforcers: Enforcers,
        record: Record,
    ) -> None:
        self.options = options
        self.record = record
        self.clock = clock
        self.scheduler: HostScheduler | None = None
        self._shared = shared
        self._carriers = own
        self._cookie = cookie
        self.enforcers = enforcers
        self.paces = Paces(options.progress, options.netns)
        self.transfers = Transfers(options.progress, options.netns)
        self._schedules = Schedules(
            shared.schedules, clock, netns=cookie, link_mbps=options.link_mbps, enforcement=enforcers
        )
        self._numbers: dict[Flow, int] = {}  # of the flows that announce
        self._planned: set[Flow] = set()  # those of them with a schedule that is announced
        self._listeners: list[_Listener] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def set_schedule(self, flow: Flow, slot: int | None, rates_mbps: Sequence[float]) -> tuple[int, int]:
        """Limit and announce `flow` from `slot` (None: the present one) on; its number and first slot.

        Raises BadInput as `Schedules.set` does, and for a slot that is too far ahead.
        """
        present = self.clock.slot()
        first = present if slot is None else slot
        if first > present + SLOTS_AHEAD:
            raise BadInput(
                f"slot {first}: must be at most {SLOTS_AHEAD} slots after the present one, {present}"
            )
        with self._lock:
            self._schedules.set(flow, first, rates_mbps)
            if flow not in self._numbers:
                self._numbers[flow] = self._carriers.announce(flow)
            return self._numbers[flow], first

    def clear_schedule(self, flow: Flow) -> None:
        """Limit and announce `flow` no more. Raises BadInput for a flow that has no schedule here."""
        with self._lock:
            if self._numbers.pop(flow, None) is None:
                raise BadInput(f"flow {flow}: has no schedule on this host")
            self._schedules.clear(flow)
            self._carriers.withdraw(flow)

    def set_rates(self, lease_ms: float, rates_mbps: Mapping[Flow, float]) -> dict[Flow, str]:
        """Limit flows to `rates_mbps` of payload from now on, for at most `lease_ms`, and announce nothing.

        A lease ends with a slot: up to one slot early, and never late. Returns why flows were refused, whose
        schedules are as before. Raises BadInput for a lease below one slot or beyond a schedule's length.
        """
        wanted = lease_ms * 1e6 / self.clock.slot_ns
        if not 1 <= wanted < HORIZON_MAX + 1:
            slot_ms = self.clock.slot_ns / 1e6
            raise BadInput(
                f"lease_ms {lease_ms:g}: must be from one slot ({slot_ms:g} ms) to {HORIZON_MAX} slots; set "
                f"the agent's --slot-ms to a part of it"
            )
        slots = int(wanted)
        refused = {}
        with self._lock:
            for flow, rate in rates_mbps.items():
                try:
                    self._schedules.set(flow, self.clock.slot(), [rate] * slots, silence=True, quiet=True)
                except EntrainError as error:
                    refused[flow] = str(error)
        return refused

    # -- what its scheduler does: `hostbpf.scheduling.thread.Host`

    def begin(self, flow: Flow) -> None:
        """Let `flow` announce what it plans, to switches that read it and to its receiver."""
        with self._lock:
            if flow not in self._numbers:
                self._numbers[flow] = self._carriers.announce(flow)

    def limit(self, flow: Flow, slot: int, rates: Sequence[float]) -> None:
        """Let `flow` send at `rates` bytes/s from `slot` on, and announce them at once."""
        with self._lock:
            self._schedules.limit(flow, slot, rates, grain=RATE_GRAIN)
            self._planned.add(flow)
            self._announce_change(flow)

    def pause(self, flow: Flow, slot: int, rate: float) -> None:
        """Let `flow` send at `rate` bytes/s in the K slots from `slot` on, and announce nothing.

        What it has announced is taken back at once. Its first packet in a slot still leads a carrier, so that
        feedback tells that it sends.
        """
        with self._lock:
            self._schedules.limit(flow, slot, [rate] * LANES, quiet=True)
            self._take_back(flow)

    def wake(self, flow: Flow) -> None:
        """Have `flow` send what it may."""
        self.enforcers.wake(flow)

    def release(self, flow: Flow) -> None:
        """Limit `flow` no more, and take back what it has announced; it stays ready to announce."""
        with self._lock:
            self._schedules.clear(flow)
            self._take_back(flow)

    def end(self, flow: Flow) -> None:
        """Limit `flow` no more, take back what it has announced, and let it announce no more."""
        with self._lock:
            self._schedules.clear(flow)
            self._planned.discard(flow)
            if self._numbers.pop(flow, None) is not None:
                self._carriers.withdraw(flow)

    def _take_back(self, flow: Flow) -> None:
        if flow in self._planned:
            self._planned.discard(flow)
            self._announce_change(flow)

    def _announce_change(self, flow: Flow) -> None:
        """Send a carrier now. Where that fails the flow's next packet announces instead."""
        with contextlib.suppress(EntrainError):
            self._carriers.probe(flow)

    def set_onward(self, received: Flow, carried: int) -> None:
        """Let the sender of `received` know how much of its data has been passed on."""
        self._carriers.set_onward(received, carried)

    def arriving(self, received: Flow, slot: int) -> float | None:
        """The rate (bytes/s) that the sender of `received` has announced for `slot`; None: unknown."""
        try:
            rate = self._carriers.arriving(received, slot)
        except KeyError:
            return None
        return None if rate is None else float(rate * RATE_UNIT)

    def now(self) -> SlotClock:
        """The clock of slots, after a look at the system's, which may have been set meanwhile."""
        clock = SlotClock.shared(self.options.slot_ms)
        if abs(clock.epoch_ns - self.clock.epoch_ns) > CLOCK_TOLERANCE_NS:
            with self._lock:
                self.clock = self._schedules.clock = clock
                self._carriers.set_clock(clock)
        return self.clock

    def counting(self, bin_ms: float) -> contextlib.AbstractContextManager[FlowCounter]:
        """Within, what the host's flows send is counted (`hostbpf.counting.counting`)."""
        options = self.options
        return counting(_ifindex(options), bin_ms, netns=options.netns, progress=options.progress)

    # -- MLTCP

    def set_job(self, job: int, params: Params) -> None:
        """Let flows with socket mark `job` be MLTCP's as `params` say (on this machine, all hosts')."""
        self._shared.jobs.set_params(job, params)

    def remove_job(self, job: int) -> None:
        """Let them grow as without MLTCP. Raises BadInput for an unknown job."""
        if job not in self._shared.jobs.params():
            raise BadInput(f"job {job}: unknown; there are {sorted(self._shared.jobs.params()) or 'none'}")
        self._shared.jobs.remove(job)

    def jobs(self) -> dict[int, tuple[Params, dict[JobKey, JobState]]]:
        """Parameters of each job, and its states on the hosts of this machine."""
        states = dict(self._shared.jobs.states)
        return {
            job: (params, {key: state for key, state in states.items() if key.job == job})
            for job, params in self._shared.jobs.params().items()
        }

    def skews(self) -> dict[str, Offset]:
        """By how much the slots of other hosts begin before this one's, by their addresses."""
        return self._carriers.skews()

    def counts(self) -> dict[str, int]:
        """Carriers by what became of them, and `flows` with a schedule."""
        return {**self._carriers.counts(), "flows": len(self._schedules)}

    def carrier_bytes(self) -> int:
        """Bytes of carriers and feedback that left the interface, Ethernet headers included."""
        return self._carriers.sent_bytes()

    @contextlib.contextmanager
    def listening(
        self, callback: Callable[[Feedback], None], wanted: Callable[[Flow], bool] = lambda _: True
    ) -> Iterator[None]:
        """Within, `callback` gets each feedback about a flow that is `wanted`, in the agent's thread."""
        listener = _Listener(callback, wanted)
        with self._lock:
            self._listeners = [*self._listeners, listener]
        try:
            yield
        finally:
            with self._lock:
                self._listeners = [each for each in self._listeners if each is not listener]

    def _is_wanted(self, flow: Flow) -> bool:
        return any(each.wanted(flow) for each in self._listeners)

    def _deliver(self, feedback: Feedback) -> None:
        for each in self._listeners:
            if each.wanted(feedback.flow):
                each.callback(feedback)

    @contextlib.contextmanager
    def _scheduling(self, wanted: Scheduling) -> Iterator[None]:
        """Within, a thread schedules the host's flows, and reads feedback.

        It reads feedback itself while it waits, because handing an answer to another thread takes longer
        than a decision. So calls go around in a circle, all in the scheduler's thread:

            HostScheduler.run ── round: decide, Agent.limit ──> kernel: schedule, carrier
              │          │
              │ waits    │ asks
              │          v
              │    LoadSource.ask, answers ── probe ──────────> kernel: carrier
              │          │
              │          │ waits (InBand)
              v          v
             wait: polls the ring buffer <──── feedback ─────── kernel: its answer
                         │
                         v
             Agent._deliver: to each listener that wants the flow
              │          │
              │          └──> LoadSource.deliver   an answer that is awaited (`awaits`)
              └─────────────> HostScheduler.begins  a flow that rested sends (`rests`)
        """
        assert self.options.link_mbps is not None, "as `check` demands"
        capacity = self.options.link_mbps * 125_000
        with self._reading() as wait, contextlib.ExitStack() as stack:
            loads: LoadSource
            match wanted.loads:
                case "inband":
                    loads = InBand(self._carriers, capacity, wait)
                case "emulated":
                    assert wanted.paths is not None, "as `check` demands"
                    loads = stack.enter_context(Emulated(load_paths(wanted.paths), capacity))
                case _:
                    loads = HostOnly(capacity)
            stack.enter_context(self.listening(loads.deliver, loads.awaits))
            progress = stack.enter_context(Monitor(self.options.progress, self.options.netns))
            name = f"{self.options.interface} {self._cookie}"
            scheduler = HostScheduler(
                progress,
                loads,
                self,
                self.now,
                capacity,
                wait=wait,
                name=name,
                scheduler=wanted.scheduler,
                turns_from=wanted.turns_from,
            )
            stack.enter_context(self.listening(scheduler.begins, scheduler.rests))
            self.scheduler = scheduler
            stop = threading.Event()
            thread = threading.Thread(target=scheduler.run, args=(stop,), name="scheduler")
            thread.start()
            stack.callback(thread.join)
            stack.callback(stop.set)
            yield

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Wait]:
        """Within, the function yielded delivers feedback; for one thread only.

        It waits by `select`, because libbpf's `poll` counts whole ms: jobs' turns may be less apart.
        """
        ring = self._carriers.feedback(self._deliver, self._is_wanted)

        def wait(timeout_s: float) -> None:
            if timeout_s > 0.0:
                select.select((ring.fd,), (), (), timeout_s)
            ring.consume()

        with contextlib.closing(ring):
            yield wait

    def _read(self) -> None:
        urgent()
        with self._reading() as wait:
            while not self._stop.is_set():
                wait(POLL_S)

    def _keep_house(self) -> None:
        warned: set[str] = set()
        problem = ""
        while not self._stop.wait(HOUSEKEEPING_S):
            self._schedules.clear_passed()
            self._carriers.clear_idle()
            warned = self._warn_of_skew(warned)
            problem = self._warn_of_versions(problem)

    def _warn_of_skew(self, warned: set[str]) -> set[str]:
        """Say which hosts' slots, but those `warned` of, are off by more than one; returns all of them."""
        off = {
            peer: offset
            for peer, offset in self.skews().items()
            if offset.low > self.clock.slot_ns or offset.high < -self.clock.slot_ns
        }
        for peer in off.keys() - warned:
            where = "before" if off[peer].low > 0 else "after"
            late_s = max(abs(off[peer].low), abs(off[peer].high)) / 1e9
            self._say(f"the slots of {peer} begin {late_s:.3g} s {where} this host's: set the clocks")
        return set(off)

    def _warn_of_versions(self, said: str) -> str:
        """Say that others have another version of the slot header, unless that was `said` last."""
        asks = self.options.scheduling is not None and self.options.scheduling.loads == "inband"
        problem = version_problem(self._carriers.counts(), asks_switches=asks)
        if problem and problem != said:
            self._say(problem)
        return problem

    def _say(self, text: str) -> None:
        if self.scheduler is not None:
            self.scheduler.say(text)
        else:
            print(f"entrain-agent: {escaped(text)}", file=sys.stderr, flush=True)

    def _clear(self) -> None:
        for flow in list(self._numbers):
            self.clear_schedule(flow)

    @classmethod
    @contextlib.contextmanager
    def running(cls, options: Options) -> Iterator[Agent]:
        """An agent at work; at the end nothing of it remains, and no flow is limited.

        First removes what dead processes left on this machine, another agent of the interface among them.
        Raises what `check` raises, EntrainError when another agent serves the interface, and MissingTool for
        a user other than root.
        """
        if os.geteuid() != 0:
            raise MissingTool(
                "the agent loads eBPF programs and sets up tc, which needs root: start it with sudo, or as a "
                "system service"
            )
        check(options)
        clean_stale()  # what an agent before it left: later, it would be taken for this one's
        ifindex = _ifindex(options)
        with (
            _exclusive(options) as record,
            controls(record, options.directory) as shared,
        ):
            cookie = netns_cookie(options.netns)
            clock = SlotClock.shared(options.slot_ms)
            attached = carriers.attached(
                ifindex, clock, netns=options.netns, schedules=shared.schedules, cookie=cookie
            )
            with (
                attached as own,
                enforcing(
                    options.interface,
                    ifindex,
                    clock,
                    shared.schedules,
                    record,
                    netns=options.netns,
                    cookie=cookie,
                    forced=options.enforcer,
                ) as enforcers,
            ):
                agent = cls(options, shared, own, clock, cookie, enforcers, record)
                if _alone(options, record):
                    agent._schedules.clear_all()  # what one before it has left in the machine's map
                threads = [threading.Thread(target=agent._keep_house, name="housekeeping")]
                if options.scheduling is None:
                    threads.append(threading.Thread(target=agent._read, name="feedback"))
                for thread in threads:
                    thread.start()
                try:
                    with (
                        agent._scheduling(options.scheduling)
                        if options.scheduling
                        else contextlib.nullcontext()
                    ):
                        yield agent
                finally:
                    agent.paces.close()
                    agent.transfers.close()
                    agent._stop.set()
                    for thread in threads:
                        thread.join()
                    agent._clear()


def check(options: Options) -> None:
    """Raise BadInput, naming the option, for what no agent can serve, MissingTool for what the kernel lacks.

    Changes nothing on the machine, where another agent may serve the interface.
    """
    _ifindex(options)
    SlotClock.shared(options.slot_ms)
    if os.geteuid() == 0:  # who may ask the kernel
        choose(options.enforcer)
    if options.link_mbps is not None and not 0 < options.link_mbps < math.inf:
        raise BadInput(f"--link-mbps {options.link_mbps:g}: must be positive and finite")
    if options.scheduling is None:
        return
    if options.link_mbps is None:
        raise BadInput("--link-mbps: missing; a scheduler has to know the rate of its host's link")
    slot_scheduler(options.scheduling.scheduler)
    if options.scheduling.loads == "emulated":
        if options.scheduling.paths is None:
            raise BadInput("--paths: missing; emulated switches are found by a paths file")
        load_paths(options.scheduling.paths)


def _ifindex(options: Options) -> int:
    try:
        return in_netns(options.netns, lambda: socket.if_nametoindex(options.interface))
    except OSError:
        names = [name for _, name in in_netns(options.netns, socket.if_nameindex)]
        raise BadInput(
            f"interface {options.interface}: there is none; there are {', '.join(names)}"
        ) from None


def _record_name(options: Options, interface: str) -> str:
    inode = netns_path(options.netns or "/proc/self/ns/net").stat().st_ino
    return f"agent-{inode}-{interface}"


def _exclusive(options: Options) -> Record:
    """The agent's record, which only one agent of an interface can have."""
    try:
        return Record(_record_name(options, options.interface), exclusive=True)
    except AlreadyRuns as error:
        raise EntrainError(
            f"interface {options.interface}: an agent serves it already (process {error.process_id})"
        ) from None


def _alone(options: Options, own: Record) -> bool:
    """Whether no other interface of the network namespace has an agent."""
    prefix = _record_name(options, "")
    return not any(
        alive and path != own.path and path.name.startswith(prefix) for path, _, _, alive in records()
    )
