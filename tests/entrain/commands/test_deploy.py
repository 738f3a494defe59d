"""`entrain deploy` on switches that something else started, named by address; no root needed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from controlplane.network import TOFINOS
from controlplane.topology import load_topology
from entrain.commands.deploy import given_pipeline
from machine.errors import BadInput
from tests.controlplane.fake_switch import FakeSwitch
from tests.controlplane.stratum_switch import StratumSwitch, compiled
from tests.controlplane.test_fabric import until

ROOT = Path(__file__).resolve().parents[3]


async def deploy(topology: Path, *arguments: str) -> tuple[int, str, str]:
    command = ["-m", "entrain.cli", "deploy", "--topology", str(topology), *arguments, "--json"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=pipe, stderr=pipe, cwd=ROOT
    )
    stdout, stderr = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, stdout.decode(), stderr.decode()


def topology_file(directory: Path, fakes: list[FakeSwitch], target: str) -> Path:
    tables = [f'[topology]\ntarget = "{target}"']
    for number, fake in enumerate(fakes, 1):
        tables += [
            f'[[switch]]\nname = "s{number}"\ngrpc_port = {fake.port}',
            f'[[host]]\nname = "h{number}"',
            f'[[link]]\na = "s{number}"\nb = "h{number}"',
        ]
    tables.append('[[link]]\na = "s1"\nb = "s2"')
    path = directory / "two.toml"
    path.write_text("\n".join(tables))
    return path


@pytest.mark.parametrize("target", ["softswitch", "bmv2", "tofino", "tofino2"])
def test_switches_by_address_are_set_once(target: str, tmp_path: Path) -> None:
    async def test() -> list[dict[str, Any]]:
        fakes = [(StratumSwitch if target in TOFINOS else FakeSwitch)(number) for number in (1, 2)]
        for fake in fakes:
            await fake.start()
        try:
            path = topology_file(tmp_path, fakes, target)
            results = []
            for _ in range(2):
                status, stdout, stderr = await deploy(path, "--target", target)
                assert status == 0, stderr
                results.append(json.loads(stdout))
            return results
        finally:
            for fake in fakes:
                await fake.stop()

    first, second = asyncio.run(test())
    assert [switch["name"] for switch in first["switches"]] == ["s1", "s2"]
    assert all(switch["pipeline_set"] and switch["inserted"] == 11 for switch in first["switches"])
    assert not any(s["pipeline_set"] or s["inserted"] or s["deleted"] for s in second["switches"])


def test_another_program_is_set_by_address_and_then_entrains_again(tmp_path: Path) -> None:
    made = ROOT / "tests/p4/programs/build/state"
    files = ("--program", f"{made}.json", "--p4info", f"{made}.p4info.txtpb")

    async def test() -> list[tuple[int, str, str]]:
        fakes = [FakeSwitch(number) for number in (1, 2)]
        for fake in fakes:
            await fake.start()
        try:
            command = (topology_file(tmp_path, fakes, "bmv2"), "--target", "bmv2")
            return [
                await deploy(*command, *files),
                await deploy(*command, *files, "--routing", "ecmp"),
                await deploy(*command, "--program", "other.json"),
                await deploy(*command, "--program", "fabric"),
            ]
        finally:
            for fake in fakes:
                await fake.stop()

    (set_, other, _), (refused, _, why), (alone, _, which), (again, own, _) = asyncio.run(test())
    assert (set_, refused, alone, again) == (0, 2, 2, 0)
    assert json.loads(other)["program"] == "state" and json.loads(other)["fabric"] is False
    assert not any(switch["inserted"] for switch in json.loads(other)["switches"])
    assert "--routing ecmp: state is not the fabric's program" in why
    assert "program and p4info: give both or neither" in which
    assert json.loads(own)["fabric"] and all(switch["inserted"] for switch in json.loads(own)["switches"])


def test_a_wrong_device_id_is_told_in_the_switchs_words(tmp_path: Path) -> None:
    async def test() -> tuple[int, str, str]:
        fakes = [FakeSwitch(7), FakeSwitch(2)]
        for fake in fakes:
            await fake.start()
        try:
            return await deploy(topology_file(tmp_path, fakes, "bmv2"), "--target", "bmv2")
        finally:
            for fake in fakes:
                await fake.stop()

    status, _, stderr = asyncio.run(test())
    assert status == 1
    assert "s1 (bmv2 at 127.0.0.1:" in stderr
    assert "this is device 7, not 1" in stderr


CLUSTER = """
[topology]
target = "tofino"

[cluster]
strategy = "vclos"
gpus_per_server = 1

[[switch]]
name = "leaf1"
role = "leaf"
grpc_port = {}

[[switch]]
name = "spine1"
role = "spine"
grpc_port = {}

[[host]]
name = "h1"

[[link]]
a = "leaf1"
a_port = 132
b = "h1"

[[link]]
a = "leaf1"
a_port = 140
b = "spine1"
b_port = 300
"""


@pytest.mark.root
def test_a_controller_keeps_real_switches(tmp_path: Path) -> None:
    """`entrain controller` sets what its two options name, as `entrain deploy` does."""
    name = f"rack{os.getpid() % 10000}"
    file, conf = tmp_path / f"{name}.toml", compiled(tmp_path / "out")
    p4info = ROOT / "p4src/build/fabric.p4info.txtpb"
    command = [
        sys.executable,
        "-m",
        "entrain.cli",
        "controller",
        str(file),
        "--state",
        str(tmp_path / "state"),
    ]

    async def controller(*arguments: str) -> Any:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*command, *arguments, stdout=pipe, stderr=pipe, cwd=ROOT)

    async def test() -> None:
        fakes = [StratumSwitch(1), StratumSwitch(2)]
        for fake in fakes:
            await fake.start()
        file.write_text(CLUSTER.format(*(fake.port for fake in fakes)))
        try:
            given = ("--program", str(conf), "--p4info", str(p4info))
            for number, arguments in enumerate(((), given), 1):  # first, the program that is committed
                process = await controller(*arguments)
                try:
                    while b"primary: controls 2 switches" not in (line := await process.stdout.readline()):
                        assert line, (await process.stderr.read()).decode()
                    await asyncio.wait_for(until(lambda: all(fake.entities for fake in fakes)), 60)
                    assert {fake.pipelines_set for fake in fakes} == {number}
                finally:
                    process.terminate()
                    await process.wait()
        finally:
            for fake in fakes:
                await fake.stop()

    asyncio.run(test())


def test_one_deployment_has_one_kind_of_chip(tmp_path: Path) -> None:
    """The files of two chips differ, and a controller sets the same on all its switches."""
    file = tmp_path / "mixed.toml"
    text = '[[switch]]\nname = "s1"\ntarget = "tofino"\n[[switch]]\nname = "s2"\ntarget = "{}"\n'
    text += '[[host]]\nname = "h1"\n[[link]]\na = "s1"\nb = "h1"\n[[link]]\na = "s1"\nb = "s2"\n'
    file.write_text(text.format("tofino2"))
    with pytest.raises(BadInput, match="targets tofino, tofino2, whose configurations differ"):
        given_pipeline(load_topology(file), None, None)
    file.write_text(text.format("tofino"))
    assert given_pipeline(load_topology(file), None, None).is_fabric
