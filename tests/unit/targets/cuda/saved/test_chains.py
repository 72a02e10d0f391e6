"""Folders of chains of products check themselves as those of single products do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cpembed.cli import main
from cpembed.runtime.worker import IN_PROCESS_VARIABLE
from tests.unit.targets.cuda.emulator.running import needs_compiler, needs_nvcc
from tests.unit.targets.cuda.saved import fake_driver

pytestmark = [
    needs_compiler,
    needs_nvcc,
]

CHAINS = {
    "heads": ("attention b=1 h=2 kv=1 q=32 k=40 d=16 causal lengths", "mma_f16"),
    "layers": ("mlp m=40 k=32 n=64 p=24 act=relu bias", "mma_f16"),
    "bytes": ("mlp m=32 k=64 n=64 p=32", "mma_s8"),
    "split heads": ("attention b=1 h=2 kv=1 q=2 k=2000 d=16 mask=hk mask_type=uint8", "mma_f16"),
    "heads apart": ("attention b=1 h=2 kv=1 q=32 k=40 d=16 causal --apart", "mma_f16"),
    "warp groups": ("attention b=1 h=2 kv=1 q=32 k=40 d=16 causal window=9 lengths", "wgmma_f16"),
    "bytes of warp groups": ("mlp m=32 k=64 n=64 p=32 --fuse", "wgmma_s8"),
    "apart on warp groups": ("mlp m=32 k=64 n=64 p=32 act=gelu --apart", "wgmma_f16"),
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_driver.build(tmp_path_factory.mktemp("driver"))


def checked(folder: Path, driver: Path, target: str) -> tuple[int, str]:
    """Return the exit code of a folder's check in the emulator, and what it prints."""
    library = fake_driver.emulated(folder / "chain.cu")
    hopper = {"FAKE_CUDA_CAPABILITY": 90, "FAKE_CUDA_SHARED": 232448}
    device = hopper if target.startswith("wgmma") else {}
    env = fake_driver.environment(driver, "run", FAKE_CUDA_PROGRAM=library, **device)
    done = fake_driver.check_py(folder, env, "--no-time")
    return done.returncode, done.stdout + done.stderr


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_checks_itself(
    name: str, driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(IN_PROCESS_VARIABLE, "1")
    words, target = CHAINS[name]
    folder = tmp_path / "chain"
    assert main(["run", *words.split(), "--target", target, "--save", str(folder)]) == 0

    status, text = checked(folder, driver, target)
    assert status == 0, text
    assert f"right: numbers ({'exact' if 'bytes' in name else 'tolerance'})" in text
    source = (folder / "chain.cu").read_text()
    spoiled, count = re.subn(r"cpembed_(wgmma_)?mma_\w+\([^;{]*\);", "(void)0;", source, count=1)
    assert count == 1
    (folder / "chain.cu").write_text(spoiled)
    status, text = checked(folder, driver, target)
    assert status == 1
    assert re.match(r"error: wrong result for numbers: element \d+ is ", text)


@pytest.mark.parametrize("target", ["mma_f16", "wgmma_f16"])
def test_sums_that_are_not_scaled_anew_show(
    target: str, driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only scores that differ much make a kernel scale its sums, so a case has such scores."""
    monkeypatch.setenv(IN_PROCESS_VARIABLE, "1")
    words = "attention b=1 h=2 kv=1 q=32 k=40 d=16"
    folder = tmp_path / "chain"
    assert main(["run", *words.split(), "--target", target, "--save", str(folder)]) == 0
    source = (folder / "chain.cu").read_text()
    scaling = r"(sums_ptr\[\d+\]) = \(\1 \* shrink_ptr\[\d+\]\);"
    spoiled, count = re.subn(scaling, "(void)0;", source)
    assert count > 0
    (folder / "chain.cu").write_text(spoiled)
    status, text = checked(folder, driver, target)
    assert status == 1
    assert text.startswith("error: wrong result for large: ")
