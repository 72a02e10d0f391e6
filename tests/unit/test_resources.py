"""Locating the shipped data files, in a checkout and in an installed package."""

from pathlib import Path

import pytest

from cpembed import resources
from cpembed.errors import InvariantError

CHECKOUT = Path(__file__).resolve().parents[2]

LISTINGS = [
    ("constraints", resources.constraint_files),
    ("hw_specs", resources.hardware_spec_files),
]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An empty package folder that takes the place of the real one."""
    folder = tmp_path / "site" / "cpembed"
    folder.mkdir(parents=True)
    monkeypatch.setattr(resources, "_PACKAGE", folder)
    return folder


@pytest.mark.parametrize("kind,listing", LISTINGS)
def test_a_checkout_is_read_in_place(kind, listing):
    assert resources.data_directory(kind) == CHECKOUT / kind
    expected = {path.stem: path for path in (CHECKOUT / kind).glob("*.toml")}
    assert listing() == expected
    assert expected, f"{kind}/ holds no .toml file"


@pytest.mark.parametrize("kind,listing", LISTINGS)
def test_packaged_data_is_preferred_to_a_neighbour_of_the_package(kind, listing, package):
    packaged, neighbour = package / "_data" / kind, package.parent / kind
    for folder, name in ((packaged, "inside"), (neighbour, "beside")):
        folder.mkdir(parents=True)
        (folder / f"{name}.toml").touch()
    assert listing() == {"inside": packaged / "inside.toml"}


@pytest.mark.parametrize("kind,listing", LISTINGS)
def test_only_toml_files_are_listed_sorted_by_name(kind, listing, package):
    folder = package / "_data" / kind
    folder.mkdir(parents=True)
    for name in ("b.toml", "README.md", "a.toml", "c.toml.orig"):
        (folder / name).touch()
    assert list(listing()) == ["a", "b"]


def test_a_missing_folder_is_named_with_every_place_looked_at(package):
    with pytest.raises(InvariantError) as error:
        resources.data_directory("hw_specs")
    assert str(package / "_data" / "hw_specs") in str(error.value)
    assert str(package.parent / "hw_specs") in str(error.value)


def test_shipped_files_are_read_once_and_others_every_time(package, tmp_path):
    reads = []

    @resources.read_once
    def load(path):
        reads.append(path)
        return path.read_text()

    for kind in ("constraints", "hw_specs"):
        (package / "_data" / kind).mkdir(parents=True)
    shipped = package / "_data" / "constraints" / "a.toml"
    for path in (shipped, tmp_path / "a.toml"):
        path.write_text("old")
        assert load(path) == "old"
        path.write_text("new")
    assert [load(shipped), load(tmp_path / "a.toml")] == ["old", "new"]
    assert reads == [shipped, *[tmp_path / "a.toml"] * 2]
