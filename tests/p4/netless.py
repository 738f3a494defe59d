"""softswitch as a target without any network: packets go through bpf_prog_test_run, one at a time.

The P4Runtime server is the real one, in a thread of this process, on a Unix socket; only its ports are
missing.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Sequence
from typing import Any

from softswitch.compiler.ir import load_program
from softswitch.kernel.datapath import Datapath
from softswitch.p4runtime.server import P4RuntimeService, listen
from softswitch.p4runtime.switch import Switch
from tests.p4.runtime import Runtime
from tests.p4.targets import CPU_PORT, PORTS, Batch, Injected, Program, Target

DEVICE = 1


class _NoPorts:
    """All ports are up and none has an interface."""

    def attach(self, datapath: object) -> None:
        pass

    def is_up(self, number: int) -> bool:
        return True


class Netless(Target):
    """softswitch's data plane and server, in this process."""

    kind = "netless"

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._scratch = tempfile.TemporaryDirectory(prefix="entrain-netless-")
        self._address = f"unix:{self._scratch.name}/control"
        self._loop = asyncio.new_event_loop()
        self._switch = Switch(_NoPorts(), self._load)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _load(self, config: bytes) -> Datapath:
        return Datapath.load(load_program(config), name=self.program.name, netless=True)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        server, _ = listen(P4RuntimeService(DEVICE, self._switch), self._address)
        self._loop.run_until_complete(server.start())
        self._loop.run_forever()
        self._loop.run_until_complete(self._end(server))
        self._loop.close()

    async def _end(self, server: Any) -> None:
        await server.stop(1.0)  # the client has gone: its calls end at once
        self._switch.close()

    def start(self) -> None:
        self._thread.start()
        self.client = Runtime(self._address, self.program.p4info, device_id=DEVICE)
        self.client.connect()
        self.client.set_pipeline(self.program.json.read_bytes())

    def close(self) -> None:
        if hasattr(self, "client"):
            self.client.close()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._scratch.cleanup()

    @property
    def datapath(self) -> Datapath:
        """The data plane itself."""
        datapath = self._switch.datapath
        assert isinstance(datapath, Datapath)
        return datapath

    def send_batch(self, packets: Sequence[Injected]) -> Batch:
        # In the server's thread: the data plane is for one thread at a time.
        return asyncio.run_coroutine_threadsafe(self._run(packets), self._loop).result()

    async def _run(self, packets: Sequence[Injected]) -> Batch:
        pipeline = self._switch.committed
        assert pipeline is not None
        batch, datapath = Batch([]), self.datapath
        for port, packet in packets:
            outputs = datapath.run(packet, port)
            batch.outputs.append(sorted(output for output in outputs if output[0] in PORTS))
            batch.controller += [data for out, data in outputs if out == CPU_PORT]
        pipeline.datapath.poll_digests(pipeline.entities.digests.learned)
        return batch
