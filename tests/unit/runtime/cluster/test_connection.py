"""Who reaches the members of a cluster: the addresses that workers listen at, and TLS."""

from __future__ import annotations

import gc
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cpembed.errors import BackendUnavailable, CpembedError
from cpembed.runtime.cluster import open_workers
from cpembed.runtime.cluster.connection import (
    CONFIGURED,
    Tls,
    exposed,
    local_address,
    scheduler_address,
    security,
)
from tests.clusters import Scheduler, scheduling, surroundings
from tests.unit.runtime.cluster import tasks

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="missing: openssl, which makes certificates"
)


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an authority ``ca``, a member ``member`` that it signed, and a ``stranger``."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("ca", "stranger"):
        key, cert = str(folder / f"{name}.key"), str(folder / f"{name}.pem")
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
                f"/CN={name}", "-keyout", key, "-out", cert)  # fmt: skip
    member, request = str(folder / "member.key"), str(folder / "member.csr")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=member", "-keyout", member,
            "-out", request)  # fmt: skip
    openssl("x509", "-req", "-in", request, "-days", "2", "-CAcreateserial",
            "-CA", str(folder / "ca.pem"), "-CAkey", str(folder / "ca.key"),
            "-out", str(folder / "member.pem"))  # fmt: skip
    openssl("rsa", "-aes128", "-passout", "pass:x", "-in", member, "-out",
            str(folder / "locked.key"))  # fmt: skip
    return folder


def tls(folder: Path, name: str = "member", authority: str = "ca", key: str = "") -> Tls:
    return Tls(
        str(folder / f"{authority}.pem"),
        str(folder / f"{name}.pem"),
        str(folder / f"{key or name}.key"),
    )


def options(given: Tls) -> list[str]:
    files = {"--tls-ca-file": given.ca_file, "--tls-cert": given.cert, "--tls-key": given.key}
    return [word for name, file in files.items() if file is not None for word in (name, file)]


def listening(folder: Path) -> set[str]:
    """Addresses at which this test's workers and their nannies listen."""
    found: set[str] = set()
    places: dict[str, str] = {}
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                places[words[9]] = words[1].partition(":")[0]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            if f"XDG_RUNTIME_DIR={folder}".encode() not in environment:
                continue
            for link in (process / "fd").iterdir():
                inode = os.readlink(link).removeprefix("socket:[").removesuffix("]")
                if inode in places:
                    found.add(places[inode])
        except OSError:
            continue
    return found


LOOPBACK = socket.inet_aton("127.0.0.1")[::-1].hex().upper()


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[Scheduler]:
    """A scheduler that takes TLS only."""
    pytest.importorskip("distributed")
    from distributed.security import Security

    given = tls(certificates)
    protection = Security(
        require_encryption=True, tls_ca_file=given.ca_file, tls_scheduler_cert=given.cert,
        tls_scheduler_key=given.key, tls_client_cert=given.cert, tls_client_key=given.key,
    )  # fmt: skip
    made = {"protocol": "tls", "security": protection}
    with scheduling(tmp_path_factory.mktemp("run"), made) as found:
        assert found.address.startswith("tls://")
        yield found


@needs_openssl
@pytest.mark.skipif(sys.platform != "linux", reason="/proc says who listens where")
def test_members_with_certificates_work_and_listen_where_the_scheduler_is(
    secure: Scheduler, certificates: Path
) -> None:
    secure.start("--slots", "1", *options(tls(certificates)))
    secure.wait_for(1)
    assert listening(secure.folder) == {LOOPBACK}
    with open_workers(cluster=secure.address, tls=tls(certificates)) as workers:
        found = [outcome.result[0] for outcome in workers.outcomes(tasks.squares(range(3), 0.0))]
    assert sorted(found) == [0, 1, 4]


@needs_openssl
@pytest.mark.parametrize("scheme", ["tls://", "tcp://"])
def test_a_stranger_is_kept_out(secure: Scheduler, certificates: Path, scheme: str) -> None:
    address = secure.address.replace("tls://", scheme)
    given = tls(certificates, "stranger", "stranger") if scheme == "tls://" else CONFIGURED
    with pytest.raises(BackendUnavailable, match="no Dask scheduler answers at"):
        open_workers(cluster=address, tls=given)
    done = subprocess.run(
        [sys.executable, "-m", "cpembed", "worker", address, *options(given)],
        capture_output=True, text=True, check=False, timeout=60, env=surroundings(secure.folder),
    )  # fmt: skip
    assert done.returncode == 5, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("cpembed: no Dask scheduler answers at")


@needs_openssl
def test_certificates_that_cannot_be_used_are_told_in_a_line(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    address = "tls://127.0.0.1:1"
    for role in ("client", "worker"):
        with pytest.raises(CpembedError, match=f"give --tls-ca-file.*comm.tls.{role}.cert"):
            security(address, CONFIGURED, role)
    given = tls(certificates)
    for wrong, words in (
        (Tls(given.ca_file, given.key, given.key), "no certificate"),
        (tls(certificates, key="stranger"), "not of this key"),
        (tls(certificates, key="locked"), "has a password"),
        (Tls(given.key, given.cert, given.key), "no certificate"),
        (Tls(given.ca_file, given.cert, str(certificates)), "Is a directory"),
        (Tls(given.ca_file, "/nothing\0there", given.key), "null"),
        (Tls(given.ca_file, "/nothing/there", given.key), "No such file"),
        (Tls(given.ca_file), "TLS needs certificates"),
    ):
        with pytest.raises(CpembedError, match=words):
            security(address, wrong, "worker")
    with pytest.raises(CpembedError, match=r"without TLS.*write tls://"):
        security("tcp://127.0.0.1:1", given, "client")
    with pytest.raises(CpembedError, match="name one"):
        open_workers(tls=given)
    # Dask's configuration does as well.
    from dask import config

    configured = {
        "distributed.comm.tls.ca-file": given.ca_file,
        "distributed.comm.tls.worker.cert": given.cert,
        "distributed.comm.tls.worker.key": given.key,
    }
    with config.set(configured):
        assert security(address, CONFIGURED, "worker").tls_client_cert == given.cert


def test_an_address_has_a_scheme_and_a_port() -> None:
    assert scheduler_address("node7:8786") == "tcp://node7:8786"
    assert scheduler_address("node7:8786", "tls") == "tls://node7:8786"
    assert scheduler_address("tcp://[::1]:8786", "tls") == "tcp://[::1]:8786"
    for wrong in ("node7:87860", "a\0b:1", "x" * 5000, "x" * 300 + ":1:2", "/", "."):
        with pytest.raises(CpembedError, match="neither HOST:PORT"):
            scheduler_address(wrong)


@pytest.mark.parametrize(
    "contents",
    [b"[" * 100_000, b'{"address": ' + b"[" * 100_000, b'{"address": 3}', b"\xff", b"{}", b""],
)
def test_a_file_that_no_scheduler_wrote(tmp_path: Path, contents: bytes) -> None:
    path = tmp_path / "scheduler.json"
    path.write_bytes(contents)
    with pytest.raises(CpembedError, match="not the file of a scheduler"):
        scheduler_address(str(path))


@pytest.mark.parametrize(
    "address, is_exposed",
    [
        ("tcp://127.0.0.1:1", False),
        ("tcp://127.8.9.10:1", False),
        ("tcp://[::1]:1", False),
        ("tcp://10.1.2.3:1", True),
        ("tcp://0.0.0.0:1", True),
        ("tcp://[2001:db8::1]:1", True),
        ("tls://10.1.2.3:1", False),
    ],
)
def test_what_strangers_may_reach_is_told(address: str, is_exposed: bool) -> None:
    why = exposed(address)
    assert (why is not None) == is_exposed
    if why is not None:
        assert "--tls-ca-file" in why


def test_a_worker_listens_at_the_address_of_the_route() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert local_address(f"tcp://127.0.0.1:{server.getsockname()[1]}") == "127.0.0.1"
        closed = server.getsockname()[1]
    with pytest.raises(BackendUnavailable, match="no Dask scheduler answers"):
        local_address(f"tcp://127.0.0.1:{closed}")


@pytest.mark.parametrize(
    "banner", [b"SSH-2.0-OpenSSH\r\n" * 9, b"HTTP/1.1 400 Bad Request\r\n" * 9, bytes(4096), b""]
)
def test_what_speaks_and_is_no_scheduler_is_one_line(banner: bytes) -> None:
    """Its first bytes are no size of a message, for which there would be no memory."""
    distributed = pytest.importorskip("distributed")

    def speak() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                connection.sendall(banner)
                connections.append(connection)
                if not banner:
                    connection.close()

    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=speak, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(BackendUnavailable, match="no Dask scheduler answers at") as caught:
            open_workers(cluster=address)
        server.shutdown(socket.SHUT_RDWR)
    assert "\n" not in str(caught.value)
    # Collected later, it may wait for a lock that the start of the next client holds.
    assert not any(isinstance(item, distributed.Client) for item in gc.get_objects())
    for connection in connections:
        connection.close()
