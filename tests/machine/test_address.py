"""Addresses are checked before gRPC gets them, which would serve port 99999 as 34463."""

from __future__ import annotations

import pytest

from machine.address import check_address
from machine.errors import BadInput


@pytest.mark.parametrize("address", [":99999", "127.0.0.1:99999", ":7070", "127.0.0.1:-1", "7070", "unix:"])
def test_an_address_that_cannot_be_is_refused_by_name(address: str) -> None:
    with pytest.raises(BadInput, match=rf"^--listen {address}: must be .* from 0 to 65535$"):
        check_address(address, "--listen")


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:65535", "host:7070", "unix:/run/x.sock"])
def test_other_addresses_are_left_to_the_server(address: str) -> None:
    check_address(address)
