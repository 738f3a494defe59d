"""A certificate authority for one network: certificates of its switches, hosts and users.

Meant for emulation and for trying TLS out. An organisation with an authority of its own can make the same
certificates there: what each needs is said at its function.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controlplane.network import Topology
from machine.errors import BadInput, EntrainError
from machine.revocation import SUFFIX, serials
from machine.tls import AUTHORITY, CONTROLLER, OPERATOR, OPERATORS, READER, SUBMITTER
from machine.whole import whole

Key = ec.EllipticCurvePrivateKey
Naming = tuple[tuple[str, ...], tuple[x509.ObjectIdentifier, ...]]
"""A certificate's subject alternative names, and its uses."""
AUTHORITY_KEY = "ca.key"

_SERVER, _CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


def certificates(
    topology: Topology, submitters: Sequence[str] = (), readers: Sequence[str] = ()
) -> dict[str, Naming]:
    """Return, by file name, the subject alternative names and the uses of each certificate of a network.

    A switch's serves, and has the switch's name, by which our clients know it, and the address of its
    P4Runtime server, for other clients. A host's has its name and address. The controller's serves, and has
    the name `CONTROLLER`. An operator's is for clients, and has the name `OPERATOR`; a submitter's has
    `SUBMITTER` and his name, a reader's `READER`. Raises BadInput if a file would have two owners.
    """
    found: dict[str, Naming] = {
        **{switch.name: ((switch.name, switch.grpc_host), (_SERVER,)) for switch in topology.switches},
        **{host.name: ((host.name, host.ip), (_SERVER, _CLIENT)) for host in topology.hosts},
    }
    for name in (OPERATORS, CONTROLLER, "ca"):
        if name in found:
            raise BadInput(
                f"{topology.name}: node {name} has the name of a certificate that `entrain certs` makes; "
                f"rename the node"
            )
    found |= {CONTROLLER: ((CONTROLLER,), (_SERVER,)), OPERATORS: ((OPERATOR,), (_CLIENT,))}
    users = [(name, SUBMITTER + name) for name in submitters] + [(name, READER) for name in readers]
    for name, role in users:
        if name in found or name == "ca":
            raise BadInput(f"{name}: another certificate of this network has this name; choose another one")
        found[name] = ((role,), (_CLIENT,))
    return found


def issue(
    topology: Topology,
    directory: Path,
    days: int,
    submitters: Sequence[str] = (),
    readers: Sequence[str] = (),
) -> list[str]:
    """Write an authority and the certificates of a network to `directory`; return the new names.

    Existing files stay. Keys are readable by their owner alone. Raises BadInput if the directory has an
    authority without its key, and EntrainError if it cannot be written.
    """
    wanted = certificates(topology, submitters, readers)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority, authority_key = _authority(directory, topology.name, days)
        missing = [name for name in wanted if not (directory / f"{name}.crt").exists()]
        for name in missing:
            names, uses = wanted[name]
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = _certificate(name, names, uses, key, authority, authority_key, days)
            _write(directory, name, certificate, key)
    except OSError as error:
        raise EntrainError(f"{directory}: {error.strerror}; choose another directory") from error
    return missing


def revoke(directory: Path, names: Sequence[str]) -> Path:
    """Add clients' certificates in `directory` to the authority's list of revoked ones; return its file.

    They and their keys are removed, so that `issue` makes others. Raises BadInput, before anything changes,
    if the authority or a certificate is not there, or is a server's, which clients would still accept; and
    EntrainError if the list cannot be written.
    """
    if not (directory / AUTHORITY).exists():
        raise BadInput(f"{directory}: has no authority ({AUTHORITY}); give the directory of `entrain certs`")
    authority, key = _authority(directory, "", 0)
    path = (directory / AUTHORITY).with_suffix(SUFFIX)
    now = datetime.datetime.now(datetime.UTC)
    revoked = {name: _to_revoke(directory, name, authority) for name in names}
    made = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.subject)
        .last_update(now)
        .next_update(max(authority.not_valid_after_utc, now + datetime.timedelta(days=1)))
    )
    known = serials(path, directory / AUTHORITY) if path.exists() else frozenset()
    for before in x509.load_pem_x509_crl(path.read_bytes()) if known else ():
        made = made.add_revoked_certificate(before)
    for serial in sorted(set(revoked.values()) - known):
        one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        made = made.add_revoked_certificate(one)
    try:
        with whole(path) as draft:
            draft.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        for name in names:
            for suffix in ("crt", "key"):
                (directory / f"{name}.{suffix}").unlink(missing_ok=True)
    except OSError as error:
        raise EntrainError(f"{path}: {error.strerror}; let this user write there") from error
    return path


def _to_revoke(directory: Path, name: str, authority: x509.Certificate) -> int:
    """Return the serial number of a client's certificate. Raises BadInput."""
    path = directory / f"{name}.crt"
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        certificate.verify_directly_issued_by(authority)
        uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except OSError as error:
        there = ", ".join(sorted(file.stem for file in directory.glob("*.crt") if file.name != AUTHORITY))
        raise BadInput(f"--revoke {name}: {path}: {error.strerror}; there are {there}") from error
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
        raise BadInput(f"--revoke {name}: {path}: is no certificate of {directory / AUTHORITY}") from error
    if _CLIENT not in uses:
        raise BadInput(
            f"--revoke {name}: {path}: is a server's, and clients do not read the list; remove {directory}, "
            f"and make all certificates anew"
        )
    return certificate.serial_number


def _authority(directory: Path, name: str, days: int) -> tuple[x509.Certificate, Key]:
    path, key_path = directory / AUTHORITY, directory / AUTHORITY_KEY
    if path.exists():
        problem = f"{key_path}: is not the key of {path}; remove all certificates to begin anew"
        try:
            authority = x509.load_pem_x509_certificate(path.read_bytes())
            known = serialization.load_pem_private_key(key_path.read_bytes(), None)
        except (FileNotFoundError, ValueError) as error:
            raise BadInput(problem) from error
        if not isinstance(known, ec.EllipticCurvePrivateKey) or known.public_key() != authority.public_key():
            raise BadInput(problem)
        return authority, known
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(f"entrain {name}")
    signed = (
        _builder(subject, subject, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(directory, "ca", signed, key)
    return signed, key


def _certificate(
    name: str,
    names: Sequence[str],
    uses: Sequence[x509.ObjectIdentifier],
    key: Key,
    authority: x509.Certificate,
    authority_key: Key,
    days: int,
) -> x509.Certificate:
    return (
        _builder(_subject(name), authority.subject, key, days)
        .add_extension(x509.SubjectAlternativeName(list(map(_general_name, names))), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: Key, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # hosts' clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(name: str) -> x509.GeneralName:
    if name.startswith("entrain:"):
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(directory: Path, name: str, certificate: x509.Certificate, key: Key) -> None:
    # The key first: a certificate without a key would never be replaced.
    secret = directory / f"{name}.key"
    secret.unlink(missing_ok=True)
    secret.touch(0o600)
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    (directory / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
