"""Publish the progress of DistributedDataParallel to the host's scheduler (flow-scheduling paper, V).

A communication hook sees each bucket of gradients when it is ready and when it is reduced. Its allreduce is
bit-identical to that of DDP without a hook. The connections' bytes are the kernel's counters, so the hook
need not know how Gloo sends. The expected bytes per iteration of a flow are those of the previous iteration.

    entrain train -- python train.py              # the script as it is: torch_hook/sitecustomize.py
    workloads.torch_monitor.watch(ddp_model)     # or one line in it
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch.distributed as dist
from torch._compile import _disable_dynamo
from torch.nn.parallel.distributed import DistributedDataParallel

from schedulers.cassini.pace import Start
from schedulers.slots.roles import Role
from wire.progress import JOB_VARIABLE, Direction, Entry, Phase, Publisher
from workloads.pacing import Pacing
from workloads.tcp_counters import (
    CONTROL_VARIABLE,
    MARK_VARIABLE,
    Connection,
    Counters,
    count,
    own_connections,
    set_congestion_control,
    set_mark,
)

SAMPLE_S = 0.01
"""How often the kernel's counters are published during communication: several times per slot."""
SHARE = 0.01
"""A connection with less than this fraction of the busiest one's bytes carries no gradients."""
ALIKE = 0.1
"""Bytes sent and received by a process in a ring differ by at most this fraction."""

P = ParamSpec("P")
S = TypeVar("S", bound="_Process")


@dataclass
class _Gradients:
    """One DDP model's iteration: bytes of its buckets. `bytes` is their sum, once it is known."""

    ranks: int
    begun: int = 0
    reduced: int = 0
    last_begun: bool = False
    bytes: int = 0

    def ready(self) -> float:
        """Return the fraction of the iteration's bytes that may be sent by now."""
        if self.last_begun or not self.bytes:
            return 1.0
        return min(1.0, self.begun / self.bytes)


@dataclass
class _Watched:
    """A connection, with its counts when the iteration began, and its entries if it carries gradients."""

    connection: Connection
    start: Counters
    now: Counters
    sent: Entry | None = None
    received: Entry | None = None
    totals: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Bytes sent and received in an iteration, by model."""

    def since(self) -> tuple[int, int, int]:
        """Bytes that left, were handed to the kernel, and came in this iteration."""
        return (
            max(0, self.now.left - self.start.handed),  # what the iteration before left unsent counts there
            self.now.handed - self.start.handed,
            self.now.received - self.start.received,
        )

    def refresh(self) -> bool:
        """Read the kernel's counters. Return False if the connection is closed."""
        try:
            now = count(self.connection)
            self.now = now if now.handed >= self.now.handed else self.now
        except OSError:
            for entry in (self.sent, self.received):
                if entry:
                    entry.forget()
            return False
        return True


def _harmless(method: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """Catch all errors of a method: the monitor then stops with a warning, and training continues."""

    def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
        with self.lock:
            if self.ended:
                return
            try:
                method(self, *args, **kwargs)
            except Exception as error:
                self.end()
                warnings.warn(f"entrain: progress is no longer published: {error}", stacklevel=2)

    return guarded


class _Process:
    """The connections and the publisher of this process. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.ended = False
        self._publisher: Publisher | None = None
        self._watched: list[_Watched] = []
        self._iteration = 0
        self._present: int | None = None  # the model that communicates
        self._models: dict[int, _Gradients] = {}
        self._communicating = threading.Event()
        self._sampler: threading.Thread | None = None
        self._pacing: Pacing | None = None
        self._reduced = False  # whether the model has communicated since its last forward pass began
        self.begun: Start | None = None  # how the present iteration started

    @property
    def models(self) -> int:
        """How many have been added."""
        return len(self._models)

    def add(self, ranks: int) -> int:
        """Add a model, and return its number."""
        with self.lock:
            self._models[len(self._models)] = _Gradients(ranks)
            return len(self._models) - 1

    def forward(self) -> None:
        """Note that a forward pass begins. If an iteration begins with it, wait until that is to start."""
        self._start()
        if self.begun and not self.ended:
            time.sleep(max(0.0, (self.begun.at_ns - time.monotonic_ns()) / 1e9))

    @_harmless
    def _start(self) -> None:
        self.begun = self._pacing.begin() if self._pacing and self._reduced else None
        self._reduced = False

    @_harmless
    def begin(self, number: int, size: int, last: bool) -> None:
        """Note that a bucket of `size` bytes is ready."""
        model = self._models[number]
        if not model.begun:
            self._look()
            self._present = number
        model.begun += size
        model.last_begun = last
        self._publish(Phase.COMMUNICATING)
        self._communicating.set()

    @_harmless
    def reduced(self, number: int, size: int) -> None:
        """Note that a bucket is reduced. After the last one, the iteration is over."""
        model = self._models[number]
        model.reduced += size
        if not model.last_begun or model.reduced < model.begun:
            return
        self._communicating.clear()
        self._reduced = True
        self._publish(Phase.COMMUNICATING, over=True)
        for each in self._watched:
            _, sent, received = each.since()
            each.totals[number] = sent, received
            each.start = each.now
        model.bytes = model.begun
        if self._publisher is None:
            self._choose(number, model)
        elif max((sum(each.totals[number]) for each in self._watched), default=0) < SHARE * model.bytes:
            self._forget()  # another process group has taken their place
        self._iteration += 1
        model.begun = model.reduced = 0
        model.last_begun = False
        self._publish(Phase.COMPUTING)

    @_harmless
    def sample(self) -> None:
        """Publish the kernel's counters during communication."""
        if self._communicating.is_set():
            self._publish(Phase.COMMUNICATING)

    @_harmless
    def give_way(self, number: int) -> None:
        """Forget a model that has its own hook from now on."""
        if self._present == number:
            self._communicating.clear()
            self._present = None
            self._forget()

    def _look(self) -> None:
        """Find new connections, until those that carry gradients are known."""
        if self._publisher is None:
            known = {each.connection for each in self._watched}
            new = [(each, count(each)) for each in own_connections() if each not in known]
            self._watched += [_Watched(each, now, now) for each, now in new]

    def _choose(self, number: int, model: _Gradients) -> None:
        """Publish the connections that carried gradients."""
        totals = [each.totals[number] for each in self._watched]
        threshold = SHARE * max((size for pair in totals for size in pair), default=0)
        senders = [each for each in self._watched if each.totals[number][0] > threshold]
        receivers = [each for each in self._watched if each.totals[number][1] > threshold]
        if not senders or threshold * model.ranks < SHARE * model.bytes:
            return  # another transport, or connections that have opened only now
        ring = len(senders) == len(receivers) == 1 and _alike(
            senders[0].totals[number][0], receivers[0].totals[number][1]
        )
        role, chunk = (Role.RING, model.bytes // model.ranks) if ring else (Role.FREE, 0)
        name = os.environ.get(JOB_VARIABLE) or Path(sys.argv[0]).stem or "python"
        publisher = Publisher(name, capacity=len(senders) + len(receivers))
        self._publisher = publisher
        self._pacing = Pacing(publisher)
        atexit.register(self.end)
        for each in senders:
            flow = (*each.connection.local, *each.connection.remote, 6)
            each.sent = publisher.flow(flow, Direction.SENT, role, chunk=chunk)
            if control := os.environ.get(CONTROL_VARIABLE):
                set_congestion_control(each.connection, control)
            if mark := os.environ.get(MARK_VARIABLE):
                set_mark(each.connection, int(mark))
        for each in receivers:
            flow = (*each.connection.remote, *each.connection.local, 6)
            each.received = publisher.flow(flow, Direction.RECEIVED, role, chunk=chunk)
        self._watched = [each for each in self._watched if each.sent or each.received]
        if self._sampler is None:
            self._sampler = threading.Thread(target=self._sample, name="entrain-progress", daemon=True)
            self._sampler.start()

    def _publish(self, phase: Phase, *, over: bool = False) -> None:
        """Update all entries. `over`: the iteration has ended, so all its bytes are with the kernel."""
        self._watched = [each for each in self._watched if each.refresh()]
        if self._publisher is None or self._present is None:
            return
        if not self._watched:  # the process group was destroyed; there may be another
            self._forget()
            return
        ready = self._models[self._present].ready() if phase is Phase.COMMUNICATING else 0.0
        for each in self._watched:
            sent_total, received_total = each.totals.get(self._present, (0, 0))
            left, handed, received = each.since()
            if each.sent:
                done = handed if over else left
                may = max(handed, round(ready * sent_total))
                each.sent.update(self._iteration, phase, max(sent_total, may), max(may, done), done)
            if each.received:
                total = max(received_total, received)
                each.received.update(self._iteration, phase, total, total, received)

    def _forget(self) -> None:
        if self._publisher:
            self._publisher.close()
            self._publisher = self._pacing = None
        self._watched = []

    def end(self) -> None:
        """Stop publishing."""
        with self.lock:
            self.ended = True
            self._forget()

    def _sample(self) -> None:
        while not self.ended:
            self._communicating.wait()
            self.sample()
            time.sleep(SAMPLE_S)


def begun() -> Start | None:
    """Return how the present iteration started, or None if nothing is published yet."""
    return _process.begun


def _alike(a: int, b: int) -> bool:
    return abs(a - b) <= ALIKE * max(a, b)


_process = _Process()


@dataclass(eq=False)
class _State:
    """The hook's state: the model's number and its process group. `own` is the hook to which ours gives way,
    and that one's state.
    """

    number: int
    group: Any
    own: tuple[Any, Any] | None = None


def _allreduce(state: _State, bucket: Any) -> Any:
    """Average the bucket over the ranks, as DDP does without a hook, and report its progress."""
    if state.own is not None:
        hook, own = state.own
        return hook(own, bucket)
    gradients = bucket.buffer()
    ranks = state.group.size()
    if gradients.is_sparse:
        gradients.div_(ranks)
        size = gradients._values().nbytes
    else:
        gradients.mul_(1.0 / ranks)  # DDP multiplies: a division would round otherwise
        size = gradients.nbytes
    _process.begin(state.number, size, bucket.is_last())
    work = dist.all_reduce(gradients, group=state.group, async_op=True)
    number = state.number

    def reduced(
        future: Any,
    ) -> Any:  # has no group, whose own thread could not end it
        _process.reduced(number, size)
        return future.value()[0]

    return work.get_future().then(reduced)


_allreduce.__annotations__ = {}  # DDP would compare them with its own types

# Models themselves hold nothing of ours, so that they can be pickled and copied.
_states: weakref.WeakKeyDictionary[Any, _State] = weakref.WeakKeyDictionary()  # by the models' reducers
_seen: weakref.WeakSet[Any] = weakref.WeakSet()  # models that `watch` has decided on
_said: set[str] = set()
_OWN_HOOK = "it has a communication hook of its own"


def watch(ddp: Any) -> bool:
    """Publish the progress of a DistributedDataParallel model from its next backward pass on, and start its
    iterations when the host's agent says.

    Return whether it will be published. A model with its own communication hook keeps that hook, and with
    gradients that are views of the buckets our hook may round differently (see docs/monitor.md). Both cause a
    warning. A model that is already watched stays watched, until it gets its own hook.
    """
    if ddp.reducer in _states:
        return _states[ddp.reducer].own is None
    _seen.add(ddp)
    _follow(DistributedDataParallel)
    ranks = ddp.process_group.size()
    reason = None
    if ddp._comm_hooks:
        reason = _OWN_HOOK
    elif ddp.gradient_as_bucket_view and ranks & (ranks - 1):
        reason = f"gradient_as_bucket_view with {ranks} ranks (not a power of two) may round differently"
    else:
        state = _State(_process.add(ranks), ddp.process_group)
        try:
            dist._register_comm_hook(ddp.reducer, state, _allreduce)
        except RuntimeError:  # a built-in hook
            reason = _OWN_HOOK
        else:
            _states[ddp.reducer] = state
    if reason:
        warnings.warn(_not_published(reason), stacklevel=2)
    return reason is None


def watch_all(models: Any) -> None:
    """Watch every model of the class `models` from its first forward pass on, if that is DDP's.

    Otherwise, say once that the progress of such models is not published.
    """
    if models.__name__ == "DistributedDataParallel":
        _follow(models)
        _automatic.set()
        atexit.register(_say_if_unpublished)
        dist.destroy_process_group = _before(dist.destroy_process_group, lambda *_: _say_if_unpublished())
        return
    kind = "fully_shard" if models.__name__ == "FSDPState" else models.__name__
    models.__init__ = _before(models.__init__, lambda *_: _say(kind))


def _watch(ddp: Any) -> None:
    try:
        watch(ddp)
    except Exception as error:  # training goes on
        warnings.warn(f"entrain: progress will not be published: {error}", stacklevel=2)


_automatic = threading.Event()
"""Set: each model is watched from its first forward pass on."""


@functools.cache
def _follow(models: Any) -> None:
    """Wait for their pace before forward passes of models of this class, and give way to hooks that the
    script registers.
    """

    def begin(ddp: Any, *_: Any) -> None:
        if _automatic.is_set() and ddp not in _seen:
            _watch(ddp)
        state = _states.get(ddp.reducer)
        if state is not None and state.own is None:
            _process.forward()

    models.forward = _before(models.forward, _disable_dynamo(begin))
    register, register_builtin = dist._register_comm_hook, dist._register_builtin_comm_hook

    def registered(reducer: Any, state: Any, hook: Any) -> None:
        if not _gives_way(reducer, hook, state):
            register(reducer, state, hook)

    def registered_builtin(reducer: Any, kind: Any) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        builtin = {"ALLREDUCE": default_hooks.allreduce_hook}
        hook = builtin.get(kind.name, default_hooks.fp16_compress_hook)
        if not _gives_way(reducer, hook, None):
            register_builtin(reducer, kind)

    dist._register_comm_hook, dist._register_builtin_comm_hook = registered, registered_builtin


def _gives_way(reducer: Any, hook: Any, own: Any) -> bool:
    """Let our hook, which cannot be taken back, call the script's `hook`. Return False if there is no hook of
    ours. Raises what PyTorch raises for a second hook.
    """
    state = _states.get(reducer)
    if state is None:
        return False
    if state.own is not None:
        raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
    state.own = hook, own
    _process.give_way(state.number)
    warnings.warn(_not_published(_OWN_HOOK), stacklevel=4)
    return True


def _before(function: Callable[..., Any], first: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(function)
    def both(*args: Any, **kwargs: Any) -> Any:
        first(*args)
        return function(*args, **kwargs)

    return both


def _not_published(reason: str) -> str:
    _said.add(reason)
    return f"entrain: the progress of this model is not published: {reason}"


def _say(kind: str) -> None:
    """Say once, and on one rank, that the progress of this kind of model is not published."""
    if kind not in _said:
        _said.add(kind)
        if not dist.is_initialized() or dist.get_rank() == 0:
            text = f"entrain: the progress of {kind} is not published, only that of DistributedDataParallel"
            print(text, file=sys.stderr, flush=True)


def _say_if_unpublished() -> None:
    if not _said and not _process.models and dist.is_initialized() and dist.get_world_size() > 1:
        _say("what these ranks have trained")
