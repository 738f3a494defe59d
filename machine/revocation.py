"""Which certificates no longer hold: the authority's list of them (a CRL, RFC 5280), beside its certificate.

`entrain certs FILE.toml DIR --revoke NAME` writes the list. Servers read it again when it has changed.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

from machine.errors import BadInput

SUFFIX = ".crl"
"""The list of an authority `ca.crt` is the file `ca.crl`."""

log = logging.getLogger(__name__)

_Stamp = tuple[int, int, int]


class Revocations:
    """The list of one authority. Until there is a file, nothing is revoked."""

    def __init__(self, authority: Path) -> None:
        """Read the list beside `authority`, a PEM file. Raises BadInput if that authority has not made it."""
        self._authority = authority
        self._path = authority.with_suffix(SUFFIX)
        self._stamp = self._look()
        self._serials = serials(self._path, authority) if self._stamp else frozenset[int]()

    def refusal(self, context: Any) -> str:
        """Return why a call with a revoked certificate is refused; empty for others."""
        self._read_again()
        if not self._serials:
            return ""
        for pem in context.auth_context().get("x509_pem_cert", ()):
            if _serial(pem) in self._serials:
                return (
                    f"the certificate with serial number {_serial(pem):x} has been revoked; use another one"
                )
        return ""

    def _read_again(self) -> None:
        """Take in a list that has changed. One that cannot be read leaves that before it in force."""
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._serials = serials(self._path, self._authority)
        except BadInput as error:
            log.error("%s; the list before it stays in force", error)
        else:
            log.warning("%s: %d certificates are revoked", self._path, len(self._serials))

    def _look(self) -> _Stamp | None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        except OSError:  # reading it will say why
            return 0, 0, 0
        return status.st_ino, status.st_mtime_ns, status.st_size


def serials(path: Path, authority: Path) -> frozenset[int]:
    """Return the serial numbers in a list. Raises BadInput if `authority`, a PEM file, has not signed it."""
    from cryptography import x509

    try:
        revoked = x509.load_pem_x509_crl(path.read_bytes())
        signers = x509.load_pem_x509_certificates(authority.read_bytes())
        keys: list[Any] = [signer.public_key() for signer in signers]
        signed = any(map(revoked.is_signature_valid, keys))
    except OSError as error:
        raise BadInput(
            f"{error.filename}: {error.strerror}; copy it from where `entrain certs` ran"
        ) from error
    except (ValueError, TypeError) as error:
        raise BadInput(f"{path}: is no list of revoked certificates ({error}); copy it again") from error
    if not signed:
        raise BadInput(f"{path}: {authority} has not signed it; copy the list of that authority")
    return frozenset(certificate.serial_number for certificate in revoked)


@functools.lru_cache(1024)
def _serial(pem: bytes) -> int:
    from cryptography import x509

    return x509.load_pem_x509_certificate(pem).serial_number
