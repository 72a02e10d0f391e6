"""The connection to a scheduler: TLS, and which of this machine's addresses it goes through.

Whoever reaches a member of a cluster has it execute code. So a worker listens at the one address
that the scheduler is reached from, and where strangers can reach that, TLS tells members by their
certificates.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cpembed.errors import BackendUnavailable, CpembedError
from cpembed.files import read_regular

CONNECT_SECONDS = 3.0
"""To reach the scheduler."""

_LARGEST_PEM = 2**20
_SECURE = ("tls://", "wss://")

Role = Literal["client", "worker"]


@dataclass(frozen=True)
class Tls:
    """Files in PEM form: the authority that signs the certificates of all members, this process's
    own certificate and its private key (None where the certificate's file has it too). What is None
    is taken from Dask's configuration."""

    ca_file: str | None = None
    cert: str | None = None
    key: str | None = None

    @property
    def is_given(self) -> bool:
        return (self.ca_file, self.cert, self.key) != (None, None, None)


CONFIGURED = Tls()
"""What Dask's configuration says."""


def security(address: str, tls: Tls, role: Role) -> Any:
    """A ``distributed.Security`` for the connection to a scheduler.

    Raises :class:`CpembedError` where certificates are missing, cannot be read, or are given for a
    connection without TLS.
    """
    from distributed.security import Security

    configured: Any = Security()
    if not address.startswith(_SECURE):
        if tls.is_given:
            raise CpembedError(
                f"{address} is reached without TLS, so that no certificate is of use: write tls://"
            )
        return configured
    files = configured.get_tls_config_for_role(role)
    authority, cert = tls.ca_file or files["ca_file"], tls.cert or files["cert"]
    key = tls.key or (None if tls.cert else files["key"])
    if not authority or not cert:
        raise CpembedError(
            f"{address}: TLS needs certificates: give --tls-ca-file, --tls-cert and --tls-key, or "
            "set distributed.comm.tls.ca-file, distributed.comm.tls."
            f"{role}.cert and .key in Dask's configuration"
        )
    _check(authority, cert, key)
    # A worker first asks as a client does whether the scheduler is there.
    return Security(
        require_encryption=True,
        tls_ca_file=authority,
        **{f"tls_{name}_cert": cert for name in ("client", "worker")},
        **{f"tls_{name}_key": key for name in ("client", "worker")},
    )


def _check(authority: str, cert: str, key: str | None) -> None:
    """Raise :class:`CpembedError` for files that TLS cannot use. Dask's configuration may have the
    contents in their place, of several lines."""
    for name in filter(None, (authority, cert, key)):
        if "\n" in name:
            continue
        try:
            read_regular(Path(name), _LARGEST_PEM)
        except OSError as error:
            raise CpembedError(f"{name}: cannot be read: {error.strerror}") from None
    if any("\n" in name for name in filter(None, (authority, cert, key))):
        return
    what = authority
    try:
        ssl.create_default_context(cafile=authority)
        what = f"{cert}" if key is None else f"{cert} with {key}"
        # Without a password: nobody is asked for one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise CpembedError(
            f"{what}: no certificate in PEM form, or not of this key, or the key has a password "
            f"({reason})"
        ) from None


def exposed(address: str) -> str | None:
    """Why strangers may reach a connection to a scheduler, in a line; None where TLS protects it,
    or it does not leave this machine."""
    if address.startswith(_SECURE) or _is_local(address):
        return None
    return (
        f"{address}: neither encrypted nor authenticated: whoever reaches this network has members "
        "of the cluster execute code; use TLS (tls://, --tls-ca-file, --tls-cert, --tls-key)"
    )


def local_address(address: str) -> str:
    """The address of this machine from which a scheduler is reached.

    Raises :class:`BackendUnavailable` where it is not.
    """
    try:
        with socket.create_connection(_host_and_port(address), CONNECT_SECONDS) as connection:
            return connection.getsockname()[0]
    except (OSError, UnicodeError) as error:
        raise unanswered(address, error) from None


def unanswered(address: str, error: BaseException) -> BackendUnavailable:
    """The error of a scheduler that does not answer."""
    reason = str(error).partition("\n")[0][:120] or type(error).__name__
    return BackendUnavailable(
        f"no Dask scheduler answers at {address} ({reason}): start one by `dask scheduler`"
    )


def _is_local(address: str) -> bool:
    """Whether all addresses of a scheduler's host are of this machine's loopback interface; so is
    one that has none, to which there is no connection."""
    try:
        found = socket.getaddrinfo(*_host_and_port(address), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return True
    hosts = [str(place[0]).partition("%")[0] for *_, place in found]
    return all(ipaddress.ip_address(host).is_loopback for host in hosts)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.partition("://")[2].rpartition(":")
    return host.strip("[]"), int(port)
