"""A BMv2 with Thrift serves a second port, and every switch of a network needs one of its own."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.topology import leaf_spine
from entrain.doctor import examine
from machine.record import Record
from mininet_topos import switches
from mininet_topos.switches import Bmv2Node, thrift_ports

WITH_THRIFT = "  --thrift-port arg   TCP port on which to run the Thrift runtime"
WITHOUT_THRIFT = "  --device-id arg     Device ID"


def installed(directory: Path, options: str) -> Path:
    """A `simple_switch_grpc` that writes its help as BMv2 does, with these options."""
    program = directory / Bmv2Node.program
    program.write_text(f"#!/bin/sh\ncat <<'END'\nUsage: SWITCH_NAME [options]\n{options}\nEND\n")
    program.chmod(0o755)
    return program


def test_each_switch_gets_a_free_port_that_serves_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = leaf_spine(leaves=2, spines=2, hosts_per_leaf=1)
    with socket.create_server(("127.0.0.1", 0)) as other:
        first = other.getsockname()[1]
        monkeypatch.setattr(switches, "FIRST_THRIFT_PORT", first)
        among_them = [
            replace(each, grpc_port=first + number) for number, each in enumerate(topology.switches, start=1)
        ]
        ports = thrift_ports(among_them)
        assert ports.keys() == {each.name for each in topology.switches}
        assert len(set(ports.values())) == len(ports)
        assert not set(ports.values()) & {first, *(each.grpc_port for each in among_them)}
        for port in ports.values():
            with socket.socket() as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(("", port))


@pytest.mark.parametrize(("options", "given"), [(WITH_THRIFT, True), (WITHOUT_THRIFT, False)])
def test_the_port_is_given_where_bmv2_takes_it(
    options: str, given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = installed(tmp_path, options)
    monkeypatch.setattr(Bmv2Node, "program", str(program))
    switch = leaf_spine(leaves=1, spines=1, hosts_per_leaf=1).switches[0]
    with Record("test", records=tmp_path / "records") as record:
        node = Bmv2Node(
            "leaf1",
            switch=switch,
            record=record,
            directory=tmp_path,
            log_level="info",
            thrift_port=9123,
        )
        command = " ".join(node.command())
    assert ("--thrift-port 9123" in command) is given
    assert ("--thrift-port" in command) is given


@pytest.mark.parametrize(
    ("options", "told"),
    [(WITH_THRIFT, "with Thrift: each switch gets its own Thrift port"), (WITHOUT_THRIFT, "without Thrift")],
)
def test_doctor_says_whether_bmv2_has_thrift(
    options: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = installed(tmp_path, options)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (found,) = (finding for finding in examine() if finding.name == "simple_switch_grpc")
    assert (found.state, found.detail) == ("found", f"{program}, {told}")
