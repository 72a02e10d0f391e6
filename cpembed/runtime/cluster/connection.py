"""Connection to a Dask scheduler: its address, TLS, and the local address that it goes through.

Whoever reaches a member of a cluster can have it execute code. A worker therefore listens only at
the address that the scheduler is reached from, and where strangers can reach that, TLS tells
members by their certificates.
"""

from __future__ import annotations

import gc
import ipaddress
import logging
import re
import socket
import ssl
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import msgspec

from cpembed.errors import BackendUnavailable, CpembedError
from cpembed.files import read_regular

CONNECT_SECONDS = 3.0
"""Maximum number of seconds to reach the scheduler."""

SETTINGS = {
    # Tasks start processes of their own, which daemonic processes may not.
    "distributed.worker.daemon": False,
    # A profile would only show that a worker waits for its child.
    "distributed.worker.profile.enabled": False,
}
"""Dask's settings for everything that this package starts."""

_ADDRESS = re.compile(r"(?:[a-z]+://)?(?:\[[0-9a-fA-F:]+\]|[^\s:/\[\]\0]+):(?P<port>\d{1,5})")
# Certificates and scheduler files have a few thousand bytes; a device would never end.
_LARGEST_FILE = 2**20
_SECURE = ("tls://", "wss://")

Role = Literal["client", "worker"]


def require_distributed() -> None:
    """Raise :class:`BackendUnavailable` if Dask distributed is missing; silence its messages."""
    if find_spec("distributed") is None:
        raise BackendUnavailable(
            "a cluster needs Dask distributed, which is not installed: pip install "
            "'cpembed[cluster]'"
        )
    import distributed  # noqa: F401  # pyright: ignore[reportUnusedImport]
    from dask import config

    # This package reports lost connections and workers in its own lines.
    for name in ("distributed", "distributed.client", "tornado", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    config.set(SETTINGS)


# ------------------------------------------------------------------------------ addresses


def scheduler_address(text: str, scheme: str = "tcp") -> str:
    """Return an address as Dask writes it.

    >>> scheduler_address("node7:8786")
    'tcp://node7:8786'

    Parameters
    ----------
    text
        ``HOST:PORT``, an address, or the path of the file that a scheduler wrote
        (``dask scheduler --scheduler-file``).
    scheme
        The scheme of an address without one.

    Raises
    ------
    CpembedError
        If the text is none of these.
    """
    if _is_file(text):
        return scheduler_address(_address_in(Path(text)), scheme)
    address = _ADDRESS.fullmatch(text)
    if address is None or int(address["port"]) > 65535:
        raise CpembedError(
            f"cluster {text!r} is neither HOST:PORT, an address such as tcp://HOST:PORT, nor a "
            "file that a scheduler has written"
        )
    return text if "://" in text else f"{scheme}://{text}"


class _SchedulerFile(msgspec.Struct):
    """The one field of a scheduler's file that matters."""

    address: str


def _address_in(path: Path) -> str:
    try:
        content = read_regular(path, _LARGEST_FILE)
        address = msgspec.json.decode(content, type=_SchedulerFile).address
    except (OSError, ValueError, RecursionError):
        address = None
    if address is None or _ADDRESS.fullmatch(address) is None or _is_file(address):
        raise CpembedError(f"{path}: not the file of a scheduler, which holds its address")
    return address


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        # Longer than a name can be, or with a null character.
        return False


# ------------------------------------------------------------------------------ TLS


@dataclass(frozen=True)
class Tls:
    """Paths of files in PEM form.

    ``ca_file`` is the authority that signs the certificates of all members, ``cert`` this process's
    certificate and ``key`` its private key, None if it is in the certificate's file. Dask's
    configuration stands in for what is None.
    """

    ca_file: str | None = None
    cert: str | None = None
    key: str | None = None

    @property
    def is_given(self) -> bool:
        """True if any file is named."""
        return (self.ca_file, self.cert, self.key) != (None, None, None)


CONFIGURED = Tls()
"""The files that Dask's configuration names."""


def security(address: str, tls: Tls, role: Role) -> Any:
    """Return the ``distributed.Security`` of a connection to a scheduler.

    Parameters
    ----------
    address
        Address of the scheduler.
    tls
        Certificates.
    role
        Role of this process.

    Raises
    ------
    CpembedError
        If certificates are missing, cannot be read, or are given for a connection without TLS.
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
    # The configured key belongs to the configured certificate, not to one that is given.
    key = tls.key or (None if tls.cert else files["key"])
    if not authority or not cert:
        raise CpembedError(
            f"{address}: TLS needs certificates: give --tls-ca-file, --tls-cert and --tls-key, or "
            "set distributed.comm.tls.ca-file, distributed.comm.tls."
            f"{role}.cert and .key in Dask's configuration"
        )
    _check_certificates(authority, cert, key)
    # Both roles: a worker first connects as a client to see whether the scheduler is there.
    return Security(
        require_encryption=True,
        tls_ca_file=authority,
        **{f"tls_{name}_cert": cert for name in ("client", "worker")},
        **{f"tls_{name}_key": key for name in ("client", "worker")},
    )


def _check_certificates(authority: str, cert: str, key: str | None) -> None:
    names = [name for name in (authority, cert, key) if name]
    # Dask's configuration may hold the contents, of several lines, in place of a path.
    paths = [name for name in names if "\n" not in name]
    for path in paths:
        try:
            read_regular(Path(path), _LARGEST_FILE)
        except OSError as error:
            raise CpembedError(f"{path}: cannot be read: {error.strerror}") from None
    # Contents in place of paths are left to Dask: `ssl` loads certificates from files only.
    if len(paths) < len(names):
        return
    subject = authority
    try:
        ssl.create_default_context(cafile=authority)
        subject = f"{cert}" if key is None else f"{cert} with {key}"
        # An empty password: nobody is prompted for one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise CpembedError(
            f"{subject}: no certificate in PEM form, or not of this key, or the key has a password "
            f"({reason})"
        ) from None


def connected(address: str, protection: Any) -> Any:
    """Return a Dask client, protected as :func:`security` says.

    Raises :class:`BackendUnavailable` if no scheduler answers.
    """
    from distributed import Client

    try:
        with warnings.catch_warnings():
            # `Identity.difference` compares versions, and says so in one line.
            warnings.simplefilter("ignore")
            return Client(
                address, timeout=CONNECT_SECONDS, set_as_default=False, security=protection
            )
    except Exception as error:
        # Anything: Dask takes the first bytes of another server's banner for sizes of memory.
        failure = unanswered(address, error)
    # A client that did not connect stops its event loop when it is collected. The collector may run
    # while the thread of another client starts, which holds the lock that stopping waits for.
    gc.collect()
    raise failure


# ------------------------------------------------------------------------------ reachability


def exposed(address: str) -> str | None:
    """Return why strangers may reach a connection to a scheduler; None if they cannot."""
    # TLS tells strangers apart, and loopback does not leave this machine.
    if address.startswith(_SECURE) or _is_local(address):
        return None
    return (
        f"{address}: neither encrypted nor authenticated: whoever reaches this network has members "
        "of the cluster execute code; use TLS (tls://, --tls-ca-file, --tls-cert, --tls-key)"
    )


def local_address(address: str) -> str:
    """Return the address of this machine from which a scheduler is reached.

    Raises :class:`BackendUnavailable` if the scheduler does not answer.
    """
    try:
        with socket.create_connection(_host_and_port(address), CONNECT_SECONDS) as connection:
            return connection.getsockname()[0]
    except (OSError, UnicodeError) as error:
        raise unanswered(address, error) from None


def unanswered(address: str, error: BaseException) -> BackendUnavailable:
    """Return the error of a scheduler that does not answer."""
    return BackendUnavailable(
        f"no Dask scheduler answers at {address} ({first_line(error)}): start one by "
        "`dask scheduler`"
    )


def first_line(error: BaseException) -> str:
    """Return the beginning of a library's message."""
    # Dask's messages go on with tracebacks and lists of addresses.
    return str(error).partition("\n")[0][:120] or type(error).__name__


def _is_local(address: str) -> bool:
    """True if a scheduler's host has addresses of the loopback interface only, or none."""
    try:
        entries = socket.getaddrinfo(*_host_and_port(address), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return True
    # A link-local address ends in its zone, as in fe80::1%eth0.
    hosts = [str(place[0]).partition("%")[0] for *_, place in entries]
    return all(ipaddress.ip_address(host).is_loopback for host in hosts)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.partition("://")[2].rpartition(":")
    return host.strip("[]"), int(port)
