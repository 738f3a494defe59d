"""`entrain controller FILE.toml`: the controller of a cluster whose switches something else has started."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from controlplane.cluster import ClusterSetup
    from controlplane.pipeline import Pipeline
    from controlplane.roles import Access
    from controlplane.topology import Topology


@click.command(short_help="Control switches that something else has started.")
@click.argument("file", metavar="FILE.toml", type=click.Path(path_type=Path))
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    required=True,
    help="Directory of the stored state; what several controllers of one network share.",
)
@click.option(
    "--program",
    type=click.Path(path_type=Path),
    help="Another program: p4c's output for the target; for tofino, the .conf that names it all.",
)
@click.option("--p4info", type=click.Path(path_type=Path), help="Its P4Info.")
@click.option("--check", is_flag=True, help="Only check the file, say what is wrong with it, and end.")
def command(file: Path, state: Path, program: Path | None, p4info: Path | None, check: bool) -> None:
    """Control the switches of a topology file with [cluster], and admit its jobs, until a signal.

    The first controller that is started is the primary one. Others with the same --state stand by, say
    who is primary, and take over when it ends, however it ends: reservations, circuits and tables then
    agree again. `entrain up` has a controller already.

    As a system service it reads the file again on SIGHUP. Jobs keep what they have. A file that is not
    valid, or describes another cluster than the one on which jobs run, changes nothing.
    """
    from controlplane.ledger import LEDGER, check_cluster
    from entrain.run.controller import control
    from machine.errors import EntrainError

    def tell(line: str) -> None:
        click.echo(line)

    def checked() -> tuple[Topology, ClusterSetup, Pipeline | None, Access]:
        found = _load(file, program, p4info)
        check_cluster(state / LEDGER, found[1].cluster)
        return found

    def is_valid() -> bool:
        try:
            checked()
        except EntrainError as error:
            click.echo(f"entrain: not reloaded, nothing has changed: {error}", err=True)
            return False
        return True

    if check:
        checked()
        return
    again = True
    while again:
        topology, setup, pipeline, access = checked()
        again = control(topology, setup, state, tell, pipeline=pipeline, access=access, may_reload=is_valid)


def _load(
    file: Path, program: Path | None, p4info: Path | None
) -> tuple[Topology, ClusterSetup, Pipeline | None, Access]:
    from controlplane.roles import load_access
    from controlplane.topology import load_topology
    from entrain.commands.deploy import given_pipeline
    from entrain.live_cluster import load_setup
    from machine.errors import BadInput

    topology = load_topology(file)
    setup = load_setup(file, topology)
    if setup is None:
        raise BadInput(f"{file}: has no [cluster]; add it, or use `entrain deploy --topology`")
    return topology, setup, given_pipeline(topology, program, p4info), load_access(file, topology)
