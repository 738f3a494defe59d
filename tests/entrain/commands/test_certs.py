"""`entrain certs`: what it makes, and what it leaves alone."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509

from controlplane.topology import leaf_spine, parse_topology
from entrain.certificates import AUTHORITY_KEY, issue, revoke
from entrain.commands.certs import command
from machine.errors import BadInput
from machine.revocation import serials
from machine.tls import AUTHORITY, READER, SUBMITTER

SMALL = leaf_spine(leaves=1, spines=1, hosts_per_leaf=1)
LARGE = leaf_spine(leaves=2, spines=1, hosts_per_leaf=1)


def test_a_network_can_grow_and_keeps_its_certificates(tmp_path: Path) -> None:
    assert set(issue(SMALL, tmp_path, 1)) == {"leaf1", "spine1", "h1", "controller", "operator"}
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(issue(LARGE, tmp_path, 1)) == {"leaf2", "h2"}
    assert issue(LARGE, tmp_path, 1) == []
    assert all((tmp_path / name).read_bytes() == content for name, content in before.items())


def test_keys_are_their_owners_alone(tmp_path: Path) -> None:
    issue(SMALL, tmp_path, 1)
    keys = list(tmp_path.glob("*.key"))
    assert len(keys) == 6
    assert all(stat.S_IMODE(key.stat().st_mode) == 0o600 for key in keys)


def test_an_authority_without_its_own_key_is_not_replaced(tmp_path: Path) -> None:
    issue(SMALL, tmp_path, 1)
    (tmp_path / AUTHORITY_KEY).unlink()
    authority = (tmp_path / AUTHORITY).read_bytes()
    for key in (None, (tmp_path / "h1.key").read_bytes(), b"rubbish"):
        if key is not None:
            (tmp_path / AUTHORITY_KEY).write_bytes(key)
        with pytest.raises(BadInput, match=r"ca\.key: is not the key of .*ca\.crt"):
            issue(LARGE, tmp_path, 1)
        assert (tmp_path / AUTHORITY).read_bytes() == authority


def test_a_node_cannot_take_the_operators_name(tmp_path: Path) -> None:
    topology = parse_topology(
        {"switch": [{"name": "s1"}, {"name": "operator"}], "link": [{"a": "s1", "b": "operator"}]}, "test"
    )
    with pytest.raises(BadInput, match="node operator has the name of a certificate"):
        issue(topology, tmp_path, 1)


def test_users_get_roles_and_no_file_of_another(tmp_path: Path) -> None:
    issue(SMALL, tmp_path, 1, ["ann"], ["eve"])
    uses = {}
    for name in ("ann", "eve"):
        found = x509.load_pem_x509_certificate((tmp_path / f"{name}.crt").read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uses[name] = names.get_values_for_type(x509.UniformResourceIdentifier)
    assert uses == {"ann": [SUBMITTER + "ann"], "eve": [READER]}
    for name in ("h1", "operator", "controller", "ca"):
        with pytest.raises(BadInput, match=f"{name}: another certificate"):
            issue(SMALL, tmp_path, 1, [name])


def test_the_command_takes_a_topology_and_names_the_key_to_set(tmp_path: Path) -> None:
    file = tmp_path / "net.toml"
    file.write_text('[topology]\nkind = "leaf-spine"\nleaves = 1\nspines = 1\nhosts_per_leaf = 2\n')
    done = CliRunner().invoke(command, [str(file), str(tmp_path / "certs")], catch_exceptions=False)
    assert done.exit_code == 0
    assert f'certificates = "{tmp_path}/certs"' in done.output


def test_a_revoked_certificate_is_on_the_list_and_another_takes_its_place(tmp_path: Path) -> None:
    issue(LARGE, tmp_path, 1, ["ann"])
    numbers = {
        name: x509.load_pem_x509_certificate((tmp_path / f"{name}.crt").read_bytes()).serial_number
        for name in ("h1", "ann")
    }
    path = revoke(tmp_path, ["h1"])
    assert path == tmp_path / "ca.crl"
    assert issue(LARGE, tmp_path, 1) == ["h1"]
    revoke(tmp_path, ["ann"])
    assert serials(path, tmp_path / AUTHORITY) == set(numbers.values())


def test_what_cannot_be_revoked_is_named_and_nothing_changes(tmp_path: Path) -> None:
    issue(SMALL, tmp_path, 1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for names, problem in (
        (["h1", "h9"], r"--revoke h9: .*h9\.crt: No such file or directory; there are controller, h1, leaf1"),
        (["h1", "leaf1"], "is a server's, and clients do not read the list"),
        (["ca"], r"is no certificate of .*ca\.crt"),
    ):
        with pytest.raises(BadInput, match=problem):
            revoke(tmp_path, names)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(BadInput, match="has no authority"):
        revoke(tmp_path / "elsewhere", ["h1"])


def test_certs_revoke_says_where_the_list_goes(tmp_path: Path) -> None:
    file = tmp_path / "network.toml"
    file.write_text('[topology]\nkind = "leaf-spine"\nleaves = 1\nspines = 1\nhosts_per_leaf = 1\n')
    arguments = [str(file), str(tmp_path / "certs")]
    assert CliRunner().invoke(command, arguments).exit_code == 0
    revoked = CliRunner().invoke(command, [*arguments, "--revoke", "h1"])
    assert revoked.exit_code == 0
    assert "ca.crl: revokes h1; copy it beside ca.crt on every machine" in revoked.output
    assert "1 certificates made" in CliRunner().invoke(command, arguments).output
