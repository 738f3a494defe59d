"""Flows in messages."""

from __future__ import annotations

import socket

from wire.flow import Flow


def test_a_flow_is_shown_as_networks_write_it() -> None:
    flow = Flow("10.0.0.1", 20000, "10.0.0.2", 7000)
    assert f"flow {flow}" == "flow 10.0.0.1:20000 to 10.0.0.2:7000"
    assert str(flow._replace(protocol=socket.IPPROTO_UDP)).endswith(":7000 (UDP)")
    assert str(flow._replace(protocol=0)).endswith(":7000 (protocol 0)")
