"""A switch: its ports, and the program that runs on them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from finsy.proto import p4r
from grpc import StatusCode

from ebpf.errors import CompilerError, EbpfError, refusal
from machine.errors import EntrainError
from softswitch.contract import Datapath, Full
from softswitch.p4runtime.entities.device import Entities
from softswitch.p4runtime.fits import fitted
from softswitch.p4runtime.p4info import P4Info
from softswitch.p4runtime.status import SEE_LOG, Refused, invalid, not_found

log = logging.getLogger(__name__)

Load = Callable[[bytes], Datapath]
"""Loads BMv2 JSON. Raises EntrainError for programs that cannot run."""


class PortSet(Protocol):
    """The interface that a switch needs of its ports."""

    def attach(self, datapath: Datapath) -> None: ...
    def is_up(self, number: int) -> bool: ...


@dataclass
class Pipeline:
    """A program with its P4Info, and the entities that controllers have written."""

    config: Any  # ForwardingPipelineConfig
    info: P4Info
    datapath: Datapath
    entities: Entities

    def watch_digests(self) -> None:
        """Receive the datapath's digests as they arrive."""
        fd = self.datapath.digest_fd()
        if fd is not None:
            asyncio.get_running_loop().add_reader(fd, self._learned)

    def _learned(self) -> None:
        self.datapath.poll_digests(self.entities.digests.learned)

    def close(self) -> None:
        """Remove the program from the kernel."""
        fd = self.datapath.digest_fd()
        if fd is not None:
            asyncio.get_running_loop().remove_reader(fd)
        self.entities.digests.close()
        self.datapath.close()


class Switch:
    """One device. `send` sends stream messages to the primary controllers."""

    def __init__(
        self, ports: PortSet, load: Load, send: Callable[[Any], None] = lambda message: None
    ) -> None:
        self._ports = ports
        self._load = load
        self.send = send
        self.committed: Pipeline | None = None
        self.saved: Pipeline | None = None  # by VERIFY_AND_SAVE, until COMMIT
        self._bare: Datapath | None = None
        self.lock = asyncio.Lock()  # held while writing to or changing the pipeline

    def start(self, program: bytes) -> None:
        """Run a program before any controller connects. Without P4Info it has only its own entries."""
        self._bare = self._load(program)
        self._ports.attach(self._bare)

    @property
    def current(self) -> Pipeline | None:
        """The pipeline that reads and writes apply to: the saved one if any, otherwise the committed one."""
        return self.saved or self.committed

    @property
    def datapath(self) -> Datapath | None:
        """The program that processes packets."""
        return self.committed.datapath if self.committed is not None else self._bare

    async def set_pipeline(self, action: int, config: Any) -> None:
        """Apply SetForwardingPipelineConfig (spec 14). The caller must hold `lock`. Raises Refused."""
        request = p4r.SetForwardingPipelineConfigRequest
        has_config = config is not None and (config.p4_device_config or config.HasField("p4info"))
        if action == request.COMMIT:
            if has_config:
                raise invalid("COMMIT takes no config: it commits the saved one")
            if self.saved is None:
                raise not_found("there is no saved config: VERIFY_AND_SAVE one first")
            self._commit(self.saved)
            return
        if action not in (
            request.VERIFY,
            request.VERIFY_AND_SAVE,
            request.VERIFY_AND_COMMIT,
            request.RECONCILE_AND_COMMIT,
        ):
            raise invalid("the action of SetForwardingPipelineConfig is not set")
        if not has_config:
            raise invalid("the config is missing")
        if action == request.RECONCILE_AND_COMMIT and self._is_committed(config):
            assert self.committed is not None
            self.committed.config.CopyFrom(config)
            return
        pipeline = await self._verify(config)
        match action:
            case request.VERIFY:
                pipeline.close()
            case request.VERIFY_AND_SAVE:
                if self.saved is not None:
                    self.saved.close()
                self.saved = pipeline
            case _:
                if action == request.RECONCILE_AND_COMMIT and self.committed is not None:
                    _carry_over(self.committed, pipeline)
                self._commit(pipeline)

    def _is_committed(self, config: Any) -> bool:
        if self.committed is None:
            return False
        present = self.committed.config
        return bool(present.p4info == config.p4info and present.p4_device_config == config.p4_device_config)

    async def _verify(self, config: Any) -> Pipeline:
        """Load the config without attaching it to the ports."""
        if not config.p4_device_config:
            raise invalid("p4_device_config is missing: set it to the BMv2 JSON that p4c-bm2-ss writes")
        info = fitted(P4Info(config.p4info), config.p4_device_config)
        try:
            datapath = await asyncio.get_running_loop().run_in_executor(
                None, self._load, config.p4_device_config
            )
        except EntrainError as error:
            raise _refused(error) from error
        entities = Entities(info, datapath, self._ports.is_up, self.send)
        kept = p4r.ForwardingPipelineConfig()
        kept.CopyFrom(config)
        return Pipeline(kept, info, datapath, entities)

    def _commit(self, pipeline: Pipeline) -> None:
        before, bare = self.committed, self._bare
        try:
            self._ports.attach(pipeline.datapath)
        except EntrainError as error:
            if pipeline is not self.saved:
                pipeline.close()
            raise Refused(
                StatusCode.INTERNAL, _failed("attaching the program to the ports", error)
            ) from error
        if self.saved is not None and self.saved is not pipeline:
            self.saved.close()
        self.committed, self.saved, self._bare = pipeline, None, None
        pipeline.watch_digests()
        if before is not None:
            before.close()
        if bare is not None:
            bare.close()
        log.info("pipeline committed: %d tables", len(pipeline.info.tables))

    def port_changed(self, port: int) -> None:
        """Update the groups that watch a port after it has gone up or down."""
        for pipeline in (self.committed, self.saved):
            if pipeline is not None:
                try:
                    pipeline.entities.profiles.port_changed(port)
                except EntrainError as error:
                    log.error("port %d: %s", port, error)

    def close(self) -> None:
        """Remove all programs from the kernel."""
        for pipeline in (self.committed, self.saved):
            if pipeline is not None:
                pipeline.close()
        if self._bare is not None:
            self._bare.close()
        self.committed = self.saved = self._bare = None


def _refused(error: EntrainError) -> Refused:
    """Return the error for a client whose program cannot run."""
    match error:
        case Full():
            return Refused(StatusCode.RESOURCE_EXHAUSTED, str(error))
        case CompilerError():
            return invalid(_failed("compiling the program with clang", error))
        case EbpfError():
            return invalid(_failed("loading the program into the kernel", error))
        case _:
            return invalid(str(error))


def _failed(stage: str, error: EntrainError) -> str:
    """Log a failure, and return the message for the client.

    The kernel's words quote only generated C, which has no text from outside. All others stay in the log,
    because they may quote files of this machine.
    """
    log.error("%s failed: %s", stage, error)
    said = refusal(error.errno, error.log) if isinstance(error, EbpfError) else ""
    return f"{stage} failed: {said}" if said else f"{stage} failed; {SEE_LOG}"


def _carry_over(old: Pipeline, new: Pipeline) -> None:
    """Copy the controllers' state from `old` to `new`. Raises Refused if it does not fit."""
    for update in list(old.entities.state()):
        refused = new.entities.write([update])[0]
        if refused is not None and refused.code == StatusCode.ALREADY_EXISTS:  # declared by both
            update.type = p4r.Update.MODIFY
            refused = new.entities.write([update])[0]
        if refused is not None:
            new.close()
            raise invalid(f"the forwarding state does not fit the new config: {refused.message}")
