"""A controller by itself: the switches were started by something else, and other controllers may stand by."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path

from controlplane.client import NETWORKS, SOCKET
from controlplane.cluster import ClusterSetup
from controlplane.controller import OWNERS, Controller, serving
from controlplane.ledger import LEDGER, Entry, InUse, Ledger
from controlplane.pipeline import Pipeline
from controlplane.roles import Access
from controlplane.store import Store
from controlplane.topology import Topology
from entrain.live_cluster import CIRCUITS, circuits_of
from machine.errors import EntrainError
from machine.record import Record, Resource, clean_stale
from machine.signals import ending_once
from machine.state import own_directory
from machine.supervisor import notify, supervised

LOOK_S = 0.2
"""Seconds between looks whether the primary controller is still there."""


def control(
    topology: Topology,
    setup: ClusterSetup,
    state: Path,
    tell: Callable[[str], None],
    on_step: Callable[[Entry, str], None] = lambda *_: None,
    pipeline: Pipeline | None = None,
    access: Access = OWNERS,
    may_reload: Callable[[], bool] = lambda: False,
) -> bool:
    """Stand by until no other controller has `state`, then control the switches until a signal.

    `tell` gets a line for each event, `on_step` each step of a job. `pipeline` is the switches' program, by
    default the fabric's for softswitch and BMv2. `access` says who may use its API. A SIGHUP under a
    supervisor ends it only if `may_reload` says so; returns whether that is what ended it. Raises
    EntrainError.
    """
    own_directory(state, 0o700)
    with ending_once() as ignore_signals:
        notify("READY=1")
        ledger = _stand_by(state / LEDGER, setup, tell)
        clean_stale()  # such as the directory of a controller that was killed
        with Record(f"controller-{topology.name}") as record:
            directory = NETWORKS / topology.name
            make_directory(directory, record)
            reload = asyncio.run(
                _control(
                    topology, setup, state, directory, ledger, tell, on_step, pipeline, access, may_reload
                )
            )
            ignore_signals()
        ledger.close()
    return reload


def _stand_by(path: Path, setup: ClusterSetup, tell: Callable[[str], None]) -> Ledger:
    told = 0
    while True:
        try:
            return Ledger(path, setup.cluster)
        except InUse as error:
            if error.process_id != told:
                tell(f"standing by: process {error.process_id} is the primary controller, it has {path}")
                told = error.process_id
            time.sleep(LOOK_S)


async def _control(
    topology: Topology,
    setup: ClusterSetup,
    state: Path,
    directory: Path,
    ledger: Ledger,
    tell: Callable[[str], None],
    on_step: Callable[[Entry, str], None],
    pipeline: Pipeline | None,
    access: Access,
    may_reload: Callable[[], bool],
) -> bool:
    loop = asyncio.get_running_loop()
    reload = False
    async with Controller(
        topology,
        setup.strategy.routing,  # type: ignore[arg-type]
        store=Store(state / "state.sqlite"),
        cluster=setup,
        ledger=ledger,
        circuits=circuits_of(topology, setup, None, state / CIRCUITS),
        on_event=tell,
        on_step=on_step,
        strict=False,
        pipeline=pipeline,
        access=access,
    ) as controller:

        def hang_up() -> None:
            nonlocal reload
            reload = supervised() and may_reload()
            if reload or not supervised():
                controller.stopped.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, controller.stopped.set)
        loop.add_signal_handler(signal.SIGHUP, hang_up)
        async with serving(controller, directory / SOCKET, controller.access):
            tell(f"primary: controls {len(topology.switches)} switches of {topology.name}")
            await controller.stopped.wait()
    return reload


def make_directory(directory: Path, record: Record) -> None:
    """Make the directory of a network, which is up while it exists. Raises EntrainError if it is."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir()
    except FileExistsError:
        raise EntrainError(
            f"a network {directory.name} is already up; take it down with `entrain down`"
        ) from None
    record.own(Resource("path", str(directory)))
