"""Addresses, the lock of a host, and what a scheduler tells of its workers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cpembed.errors import BackendUnavailable, CpembedError
from cpembed.runtime.cluster import connection
from cpembed.runtime.cluster.client import Members
from cpembed.runtime.cluster.connection import require_distributed, scheduler_address
from cpembed.runtime.cluster.executors import HostLock
from cpembed.runtime.cluster.member import Identity, measured_cpu, measuring_tag


@pytest.mark.parametrize(
    "given, address",
    [
        ("head:8786", "tcp://head:8786"),
        ("192.0.2.7:1", "tcp://192.0.2.7:1"),
        ("[2001:db8::1]:8786", "tcp://[2001:db8::1]:8786"),
        ("tls://head.cluster:8786", "tls://head.cluster:8786"),
    ],
)
def test_addresses(given: str, address: str) -> None:
    assert scheduler_address(given) == address


@pytest.mark.parametrize(
    "given", ["head", "", ":8786", "head:", "no file.json", "head:87x", "a b:1"]
)
def test_what_is_no_address_is_wrong_input(given: str) -> None:
    with pytest.raises(CpembedError, match="neither HOST:PORT") as caught:
        scheduler_address(given)
    assert caught.value.exit_code == 2


def test_the_file_of_a_scheduler(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.json"
    path.write_text(json.dumps({"type": "Scheduler", "address": "tcp://192.0.2.7:8786"}))
    assert scheduler_address(str(path)) == "tcp://192.0.2.7:8786"
    for wrong in ("", "{}", "[]", '{"address": 7}', json.dumps({"address": str(path)})):
        path.write_text(wrong)
        with pytest.raises(CpembedError, match="not the file of a scheduler"):
            scheduler_address(str(path))


def test_a_worker_that_measures_is_alone_on_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    first, second = HostLock.acquire(exclusive=False), HostLock.acquire(exclusive=False)
    with pytest.raises(BackendUnavailable, match="other workers are running"):
        HostLock.acquire(exclusive=True)
    first.release()
    second.release()
    measuring = HostLock.acquire(exclusive=True)
    for alone, words in ((True, "other workers are running"), (False, "a worker measures")):
        with pytest.raises(BackendUnavailable, match=words):
            HostLock.acquire(exclusive=alone)
    measuring.release()
    HostLock.acquire(exclusive=False).release()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o500)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(BackendUnavailable, match="XDG_RUNTIME_DIR"):
        HostLock.acquire(exclusive=True)


def told(host: str, slots: int = 1, cpu: str | None = None, status: str = "running") -> Any:
    resources = {} if cpu is None else {measuring_tag(cpu): 1.0}
    return {"host": host, "nthreads": slots, "resources": resources, "status": status}


def test_who_measures_is_told_by_the_exact_model_and_alone_on_its_host() -> None:
    workers = [
        told("a", 4), told("b", cpu="Zen 5"), told("c", cpu="Zen 4"), told("d", cpu="Zen 5"),
        told("d", 2), told("e", cpu="Zen 5", status="closing"),
    ]  # fmt: skip
    members = Members.from_scheduler({str(n): worker for n, worker in enumerate(workers)})
    assert members.slots == 4 + 1 + 1 + 1 + 2
    assert (members.measuring("Zen 5"), members.measuring("Zen 4")) == (1, 1)
    assert members.measuring("Zen") == 0
    assert "Zen 4; Zen 5" in members.cannot_measure("Zen")
    shared = Members.from_scheduler({"1": told("d", cpu="Zen 5"), "2": told("d")})
    assert shared.measuring("Zen 5") == 0
    assert "share their host" in shared.cannot_measure("Zen 5")
    assert "none measures" in Members.from_scheduler({"1": told("a")}).cannot_measure("Zen 5")


def test_tags() -> None:
    assert measured_cpu(measuring_tag("Zen 5, family 26 model 2")) == "Zen 5, family 26 model 2"
    assert measured_cpu("GPU") is None


def test_a_difference_names_what_differs() -> None:
    ours = Identity({"python": "3.11.7", "cpembed": "1"}, "abc")
    assert ours.difference(ours) is None
    assert ours.difference(Identity({"python": "3.12.1", "cpembed": "1"}, "abc")) == (
        "python 3.12.1, not 3.11.7"
    )
    assert "other sources" in str(ours.difference(Identity(ours.versions, "abd")))


def test_without_the_extra_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "find_spec", lambda _: None)
    with pytest.raises(BackendUnavailable, match=r"pip install 'cpembed\[cluster\]'"):
        require_distributed()
