"""Jobs that `entrain jobs run` runs on a network that is up: each in a directory of the network's own.

The network's controller reads there what it tells those who watch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from controlplane import api_pb2 as api
from controlplane.topology import Topology
from entrain.bound import bound_ms
from entrain.run.live import Training
from machine.errors import BadInput
from machine.record import AlreadyRuns, Record, Resource
from workloads.jobs import JobSpec, load_job

DIRECTORY = "training"
"""Name of the directory of jobs, in the network's."""
DESCRIPTION = "job.json"


@contextlib.contextmanager
def described(spec: JobSpec, network: str, where: str) -> Iterator[Path]:
    """Write down a job in its directory (`rendezvous`) and yield the file; remove the directory at the end.

    `where` is the file and the table of the job. Raises BadInput if a job of the same name runs on `network`,
    or one that has the same port on a common host.
    """
    directory = spec.rendezvous
    with contextlib.ExitStack() as stack:
        try:
            record = stack.enter_context(Record(f"job-{network}-{spec.name}", exclusive=True))
        except AlreadyRuns as error:
            raise BadInput(
                f"{where}, name: job {spec.name} already runs on network {network} (process "
                f"{error.process_id}); wait until it has ended, or give this one another name"
            ) from None
        _check_ports(spec, directory.parent, where)
        record.own(Resource("path", str(directory)))
        directory.mkdir(parents=True)
        description = directory / DESCRIPTION
        draft = description.with_suffix(".new")
        draft.write_text(spec.model_dump_json(), encoding="utf-8")
        draft.rename(description)
        yield description


def _check_ports(spec: JobSpec, root: Path, where: str) -> None:
    for path in root.glob(f"*/{DESCRIPTION}"):
        other = load_job(path)
        if other.port_base == spec.port_base and not {*other.hosts}.isdisjoint(spec.hosts):
            raise BadInput(
                f"{where}, name: job {other.name}, which runs on some of these hosts, has the same port "
                f"as {spec.name}, which follows from the names; give this one another name"
            )


class Trainings:
    """Reads what the jobs in `directory` (the network's) have recorded."""

    def __init__(self, topology: Topology, directory: Path) -> None:
        self._topology = topology
        self._root = directory / DIRECTORY
        self._seen: dict[tuple[Path, int], Training] = {}

    def __call__(self) -> Sequence[api.TrainingJob]:
        """Return the jobs that run now."""
        present: dict[tuple[Path, int], Training] = {}
        messages = []
        for path in sorted(self._root.glob(f"*/{DESCRIPTION}")):
            with contextlib.suppress(OSError, BadInput):  # it has just ended
                key = path, path.stat().st_ino
                present[key] = self._seen.get(key) or self._training(load_job(path))
                messages.append(present[key].message())
        self._seen = present
        return messages

    def _training(self, spec: JobSpec) -> Training:
        names = {host.ip: host.name for host in self._topology.hosts}
        hosts = tuple(names[str(address)] for address in spec.hosts)
        rates = [self._topology.host_rates_mbps[host] for host in hosts]
        return Training(spec, hosts, bound_ms(spec, rates, mtu=self._topology.mtu), "bound")
