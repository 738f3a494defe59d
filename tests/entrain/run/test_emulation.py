"""The `[network]` table of an experiment: `entrain up` applies each key as `entrain run` does, or names
it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from controlplane.client import NETWORKS
from controlplane.topology import dumbbell
from ebpf.struct_ops import available_congestion_controls
from entrain.api import network as api
from entrain.cli import cli
from entrain.experiment import NetworkTable
from entrain.run import emulation
from entrain.run.emulation import check_kept, ecn_threshold, keep, losing, network_of
from entrain.run.starting import prepared
from machine.errors import BadInput, EntrainError
from machine.patience import patience
from machine.record import RECORDS, Record
from mininet_topos.servers import Servers

ROOT = Path(__file__).resolve().parents[3]
READY = {"process_id": 1, "namespace": "none", "seconds": 0.0, "removed": 0}
"""What a network that has come up reports."""
NAME = f"em{os.getpid() % 10000}"
OTHERS: dict[str, Any] = {
    "shaping": "tbf",
    "offloads": False,
    "congestion_control": "reno",
    "rto_min_ms": 20.0,
    "slow_start_after_idle": False,
    "loss": 1.0,
    "receive_buffer_bytes": 131_072,
    "host_queue_packets": 1000,
    "ecn_threshold_packets": 5,
}
"""A value of each key that is not its default."""

EXPERIMENT = """
[experiment]
name = "{name}"
[topology]
kind = "leaf-spine"
leaves = 2
spines = 1
hosts_per_leaf = 2
host_rate_mbps = 100
uplink_rate_mbps = 100
queue_packets = 64
[network]
{network}
[[job]]
name = "one"
collective = "ring"
bytes = 1000
count = 2
"""


def file_with(directory: Path, **network: Any) -> Path:
    """An experiment with these keys in `[network]`."""
    path = directory / f"{NAME}.toml"
    keys = "\n".join(f"{key} = {json.dumps(value)}" for key, value in network.items())
    path.write_text(EXPERIMENT.format(name=NAME, network=keys))
    return path


def seen(options: NetworkTable, directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    """What a network gets of its options."""
    pytest.importorskip("mininet")
    topology = dumbbell(1)
    lost: list[float] = []

    class Lossy:
        def __init__(self, _: object, probability: float) -> None:
            lost.append(probability)

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(emulation, "lossy", Lossy)
    monkeypatch.setattr("socket.if_nametoindex", lambda name: 1)
    with Record("test-emulation", records=directory) as record:
        made = network_of(topology, options, record, directory, namespace="", servers=Servers())
    with losing(topology, options):
        pass
    threshold = ecn_threshold(topology, options)
    return (
        made.shaping,
        made.offloads,
        made.tcp,
        tuple(lost),
        threshold if isinstance(threshold, int) else None,
    )


@pytest.mark.parametrize("key", [key for key in NetworkTable.model_fields if key not in emulation.RUN_ONLY])
def test_a_network_gets_each_key_that_is_not_about_measuring(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = NetworkTable(**{key: OTHERS[key]})
    assert seen(changed, tmp_path, monkeypatch) != seen(NetworkTable(), tmp_path, monkeypatch)


def test_up_names_the_keys_that_it_does_not_apply_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("entrain.doctor.check_network", lambda *_: None)
    monkeypatch.setattr("entrain.run.starting.start", lambda plan: dict(READY))
    path = file_with(tmp_path, gap_ms=3, loss=0.5)
    done = CliRunner().invoke(cli, ["up", str(path)])
    assert done.exit_code == 0
    told = [line for line in done.stderr.splitlines() if line.startswith("warning:")]
    assert told == [f"warning: {path}: [network], gap_ms: only a run uses this; `up` ignores it"]
    assert not prepared(file_with(tmp_path, loss=0.5)).warnings


def test_up_in_python_warns_of_the_same_at_the_callers_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("entrain.api.network.start", lambda plan: None)
    path = file_with(tmp_path, gap_ms=3)
    with (
        pytest.warns(UserWarning, match=r"\[network\], gap_ms") as told,
        pytest.raises(EntrainError, match="already up"),
        api.up(path),
    ):
        pass
    assert [Path(each.filename) for each in told] == [Path(__file__)]


def test_up_tries_first_what_the_network_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[set[str], str]] = []
    monkeypatch.setattr("entrain.doctor.check_network", lambda *needs: asked.append(needs))
    monkeypatch.setattr("entrain.run.starting.start", lambda plan: dict(READY))
    for options in ({}, {"loss": 0.5, "shaping": "tbf"}):
        assert CliRunner().invoke(cli, ["up", str(file_with(tmp_path, **options))]).exit_code == 0
    assert asked == [({"P4 switch"}, "htb"), ({"P4 switch", "loss"}, "tbf")]


def test_a_congestion_control_that_the_kernel_lacks_is_named_before_anything_starts(tmp_path: Path) -> None:
    path = file_with(tmp_path, congestion_control="nope")
    with pytest.raises(BadInput, match=r"\[network\], congestion_control: this kernel has no 'nope'"):
        prepared(path)


@pytest.mark.parametrize("key", OTHERS)
def test_a_network_that_is_up_with_another_value_of_a_key_is_not_taken_for_the_files(
    key: str, tmp_path: Path
) -> None:
    asked = NetworkTable(**{key: OTHERS[key]})
    keep(NetworkTable(), tmp_path)
    with pytest.raises(EntrainError, match=rf"another {key} in \[network\]"):
        check_kept(asked, tmp_path, "net")
    keep(asked.model_copy(update={"gap_ms": 3.0}), tmp_path)
    check_kept(asked, tmp_path, "net")


# -- as root


def entrain(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command line; its exit status must be `status`."""
    command = [sys.executable, "-m", "entrain.cli", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=patience(120), check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def options() -> dict[str, Any]:
    """All keys that a network gets."""
    if "reno" not in available_congestion_controls():
        pytest.skip("this kernel has no reno")
    return OTHERS


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any]) -> Iterator[Path]:
    """The file of a network that is up, with all keys."""
    path = file_with(tmp_path_factory.mktemp("up"), **options)
    entrain("up", str(path))
    try:
        yield path
    finally:
        entrain("down", "--network", NAME)
        assert not (NETWORKS / NAME).exists()
        assert not list(RECORDS.glob(f"up-{NAME}*"))


def on_h1(*command: str, status: int = 0) -> str:
    return entrain("exec", "--network", NAME, "h1", *command, status=status).stdout


@pytest.mark.root
@pytest.mark.usefixtures("up")
def test_up_gives_hosts_the_tcp_the_queue_and_the_offloads_of_the_file() -> None:
    settings = Path("/proc/sys/net/ipv4")
    assert on_h1("cat", str(settings / "tcp_congestion_control")).strip() == "reno"
    assert on_h1("cat", str(settings / "tcp_slow_start_after_idle")).strip() == "0"
    assert on_h1("cat", str(settings / "tcp_rmem")).split()[-1] == "131072"
    assert "rto_min lock 20ms" in on_h1("ip", "route")
    (qdisc,) = json.loads(on_h1("tc", "-json", "-raw", "-details", "qdisc", "show", "dev", "h1-eth0"))
    assert qdisc["kind"] == "tbf" and qdisc["options"]["limit"] == 1000 * 1514
    assert "tcp-segmentation-offload: off" in on_h1("ethtool", "-k", "h1-eth0")


@pytest.mark.root
@pytest.mark.usefixtures("up")
def test_up_loses_packets_between_switches_and_nowhere_else() -> None:
    ping = ("ping", "-c", "3", "-i", "0.2", "-W", "1")
    on_h1(*ping, "10.1.2.2")
    on_h1(*ping, "10.2.1.2", status=1)


@pytest.mark.root
def test_up_again_with_another_key_is_refused_by_name_and_changes_nothing(
    up: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    assert json.loads(entrain("up", str(up), "--json").stdout)["already_up"]
    other = file_with(tmp_path, **{**options, "rto_min_ms": 30.0})
    assert "another rto_min_ms in [network] (20.0" in entrain("up", str(other), status=1).stderr
    assert json.loads(entrain("up", str(up), "--json").stdout)["already_up"]
