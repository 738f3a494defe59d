"""`entrain ocs`: what a switch answers, as a table and as JSON."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from entrain.commands.ocs import command
from machine.errors import BadInput
from tests.ocs.server import ScpiServer

TOPOLOGY = """
[topology]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts_per_leaf = 1
"""


def asked(path: Path, *options: str) -> Result:
    async def main() -> Result:
        async with ScpiServer(there={(1, 5), (5, 1), (2, 7), (7, 2)}, failed={8}).serving() as server:
            path.write_text(f'{TOPOLOGY}\n[ocs]\ndriver = "scpi"\naddress = "{server.address}"\n')
            arguments = [str(path), *options]
            return await asyncio.to_thread(CliRunner().invoke, command, arguments, catch_exceptions=False)

    return asyncio.run(main())


def test_circuits_are_shown_with_what_is_plugged_in(tmp_path: Path) -> None:
    shown = json.loads(asked(tmp_path / "net.toml", "--json").output)
    assert shown["circuits"] == [
        {"ports": [1, 5], "ends": ["leaf1-eth2", "spine1-eth1"], "loss_db": 2.0},
        {"ports": [2, 7], "ends": ["leaf1-eth3", "spine2-eth1"], "loss_db": 2.0},
    ]
    assert shown["failed"] == [{"port": 8, "end": "spine2-eth2"}]
    text = asked(tmp_path / "net.toml").output
    assert "2 circuits, 1 failed ports" in text
    assert "failed: port 8 (spine2-eth2)" in text


@pytest.mark.parametrize(
    ("ocs", "message"), [("", r"has no \[ocs\]"), ("[ocs]", "exists in an emulated network only")]
)
def test_a_file_without_a_switch_to_ask_is_bad_input(tmp_path: Path, ocs: str, message: str) -> None:
    (tmp_path / "net.toml").write_text(f"{TOPOLOGY}\n{ocs}\n")
    with pytest.raises(BadInput, match=message):
        CliRunner().invoke(command, [str(tmp_path / "net.toml")], catch_exceptions=False)
