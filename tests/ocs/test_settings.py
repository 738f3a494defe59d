"""The `[ocs]` table: what is wrong is named with its remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from machine.errors import BadInput
from machine.toml import Strict, check
from ocs.drivers import remote_driver
from ocs.scpi import ScpiDriver
from ocs.settings import OcsTable
from ocs.tl1 import Tl1Driver


class File(Strict):
    ocs: OcsTable


TL1 = {"driver": "tl1", "address": "10.0.0.5:3082"}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"driver": "tl-1"}, r'\[ocs\], driver: must be "emulated", "tl1" or "scpi".*did you mean tl1'),
        ({"driver": "scpi"}, r'ocs: address: driver = "scpi" needs it, as in "10.0.0.5:5025"'),
        ({"address": "10.0.0.5:1"}, r'address: is for driver = "tl1" or "scpi", not "emulated"; remove it'),
        ({**TL1, "address": "10.0.0.5"}, r'\[ocs\], address: must be HOST:PORT, is "10.0.0.5"'),
        ({**TL1, "address": "unix:/run/ocs"}, "must be HOST:PORT"),
        ({**TL1, "user": "admin"}, "user, password_file: give both, or neither"),
        ({**TL1, "port_names": ["1.1.1", "1.1.1"]}, "has 1.1.1 2 times; name each port once"),
        ({**TL1, "port_names": ["1;DLT-CRS"]}, "port_names, item 1: must consist of letters"),
        ({"switching": 50}, "times are in milliseconds: use switching_ms"),
        ({"switching_ms": -1}, "switching_ms: must be at least 0, is -1"),
        ({"loss_db": {"0": 1.0}}, "must be the number of a port, from 1"),
    ],
)
def test_wrong_settings_are_named(table: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check(File, {"ocs": table}, "x.toml")


def test_each_driver_is_made_from_its_settings(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    table = OcsTable(
        driver="tl1", address="10.0.0.5:3082", user="admin", password_file=str(tmp_path / "password")
    )
    assert table.password() == "secret"
    assert isinstance(remote_driver(table, 8), Tl1Driver)
    assert isinstance(remote_driver(OcsTable(driver="scpi", address="10.0.0.5:5025"), 8), ScpiDriver)
    with pytest.raises(BadInput, match="exists in an emulated network only"):
        remote_driver(OcsTable(), 8)
    (tmp_path / "password").unlink()
    with pytest.raises(BadInput, match=r"password_file: .*password cannot be read"):
        remote_driver(table, 8)


def test_the_model_has_the_losses_of_the_settings() -> None:
    crossbar = OcsTable(port_loss_db=0.5, loss_db={"2": 1.5}, budget_db=1.2).crossbar(4)
    assert [crossbar.loss_db.get(port, crossbar.port_loss_db) for port in (1, 2)] == [0.5, 1.5]
    assert crossbar.budget_db == 1.2
    with pytest.raises(ValueError, match="names 1 ports, and 4 are plugged in"):
        OcsTable(driver="tl1", address="10.0.0.5:1", port_names=("1.1.1",)).crossbar(4)
