"""The database: keys, what survives an interruption, what is taken out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cpembed import stores
from cpembed.driver.named import hardware_spec
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.embedding import Digit
from cpembed.errors import DamagedStore
from cpembed.runtime.tuning import database
from cpembed.runtime.tuning.database import trial_files, trial_store, tuning_folder
from cpembed.runtime.tuning.records import Lookup, TunedChoice
from cpembed.runtime.tuning.records import tuned_choice as kept_choice
from cpembed.runtime.tuning.session import screened
from cpembed.targets.vta import tuning as vta_trials
from cpembed.targets.vta.tail import Exact, Requantized, Tail
from cpembed.targets.vta.target import VtaTuner
from cpembed.targets.vta.tuning import VtaTrial, key_of
from tests.unit.targets.vta.tuning import LAYER, TARGET, designs, layer, machine, measure, target

SPEC = hardware_spec(TARGET)
RELAXED, STRICT = load_constraint_set("relaxed"), load_constraint_set("strict")


def key(words: str = LAYER) -> dict[str, object]:
    return key_of(layer(words), SPEC, Requantized(9), RELAXED)


def trials(count: int = 3) -> list[VtaTrial]:
    return [measure(proposal) for proposal in screened(designs(), count)[:count]]


def tuned(folder: Path, tail: Tail | None = None, **of: Any) -> TunedChoice[VtaTrial] | None:
    asked = Lookup(layer(), tail or machine().tail, directory=folder, **of)
    return kept_choice(VtaTuner(target()), asked)


def keep(folder: Path, kept: list[VtaTrial], constraints: str = "relaxed") -> Path:
    chosen = load_constraint_set(constraints)
    store = trial_store(folder, key_of(layer(), SPEC, machine().tail, chosen), VtaTrial)
    store.open()
    for trial in kept:
        store.append(trial)
    return store.path


def test_what_changes_cycles_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    base = key()
    assert base == key_of(replace(layer(), name="other"), SPEC, Requantized(7), RELAXED)
    moved = replace(SPEC, path="/elsewhere.toml", description="said otherwise")
    assert base == key_of(layer(), moved, Requantized(9), RELAXED)
    assert SPEC.machine is not None
    slower = replace(SPEC, machine=msgspec.structs.replace(SPEC.machine, dram_delay_cycles=40))
    smaller = replace(SPEC, memories={**SPEC.memories, "vta.inp": 16384})
    others = [
        key(LAYER.replace("w=6", "w=7")),
        key(LAYER.replace("pad=1", "pad=0")),
        key_of(layer().with_dtypes({"O": "int8"}), SPEC, Requantized(9), RELAXED),
        key_of(layer(), slower, Requantized(9), RELAXED),
        key_of(layer(), smaller, Requantized(9), RELAXED),
        key_of(layer(), SPEC, Exact(), RELAXED),
        key_of(layer(), SPEC, Requantized(0), RELAXED),
        key_of(layer(), SPEC, Requantized(9, bias=(1,)), RELAXED),
        key_of(layer(), SPEC, Requantized(9), STRICT),
    ]
    monkeypatch.setattr(vta_trials, "versions", lambda: {"cpembed": "99"})
    others.append(key())
    assert not VtaTrial.is_current(base)
    assert all(other != base for other in others)
    assert len({repr(other) for other in others}) == len(others)


def test_trials_survive_and_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    kept = trials()
    path = keep(tmp_path, kept[:2])
    with path.open("ab") as file:
        file.write(b'{"embedding": {"oper')
    keep(tmp_path, kept[2:])
    with pytest.warns(DamagedStore, match=r"1 of 4 rows left out as damaged \(line 4: "):
        (file,) = trial_files(tmp_path, VtaTrial)
    assert file.trials == kept
    assert [trial.key for trial in file.trials] == [trial.key for trial in kept]
    assert file.is_current


def test_files_of_others_are_passed_over(tmp_path: Path) -> None:
    keep(tmp_path, trials(1))
    (tmp_path / "notes.jsonl").write_text("not ours\n")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "list.jsonl").write_text("[1]\n")
    assert len(list(trial_files(tmp_path, VtaTrial))) == 1


def test_the_fastest_is_taken_of_the_set_that_is_asked_for(tmp_path: Path) -> None:
    assert tuned(tmp_path) is None
    kept = sorted(trials(6), key=lambda trial: trial.cycles or 0)
    keep(tmp_path, [kept[-1], kept[0]], "relaxed")
    keep(tmp_path, [kept[-1]], "flattened")
    found = tuned(tmp_path)
    assert found is not None
    assert (found.trial.cycles, found.trial.schedule, found.trials) == (
        kept[0].cycles,
        kept[0].schedule,
        2,
    )
    assert found.candidate.embedding.identifier() == kept[0].identifier
    flat = tuned(tmp_path, constraints=load_constraint_set("flattened"))
    assert flat is not None
    assert (flat.trial.cycles, flat.tuned_under) == (kept[-1].cycles, "flattened")
    assert tuned(tmp_path, constraints=STRICT) is None
    assert tuned(tmp_path, Exact()) is None


def test_schedules_of_one_embedding_can_be_asked_for(tmp_path: Path) -> None:
    kept = trials(2)
    keep(tmp_path, kept)
    embedding = designs()[0].candidate.embedding
    there = [trial.cycles for trial in kept if trial.identifier == embedding.identifier()]
    found = tuned(tmp_path, identifier=embedding.identifier())
    assert (None if found is None else found.trial.cycles) == min(there, default=None)
    other = designs(LAYER, "strict", 1)[0].candidate.embedding
    other = replace(other, digits={**other.digits, "y": ()})
    assert tuned(tmp_path, identifier=other.identifier()) is None


def test_a_changed_embedding_is_left_out_and_the_others_are_used(tmp_path: Path) -> None:
    kept = sorted(trials(6), key=lambda trial: trial.cycles or 0)
    path = keep(tmp_path, [kept[0], kept[-1]])
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"axis":"k"', b'"axis":"nosuch"', 1))
    with pytest.warns(DamagedStore, match=r"1 of 2 rows .*line 2: embedding: its identifier is"):
        found = tuned(tmp_path)
    assert found is not None
    assert found.trial == kept[-1]


@pytest.mark.parametrize(
    "change, reason",
    [
        (
            lambda t: replace_schedule(t, tiles={"no": 1}, order=("no",), thread_loop=None),
            "no such schedule",
        ),
        (lambda t: replace_schedule(t, slots=(99999, 99999)), "no such schedule"),
        (lambda t: msgspec.structs.replace(t, **other_embedding()), "is none of conv2d"),
    ],
)
def test_a_best_trial_that_is_none_of_the_workload_gives_way_to_the_next(
    tmp_path: Path, change: Callable[[VtaTrial], VtaTrial], reason: str
) -> None:
    kept = trials(1)
    better = msgspec.structs.replace(change(kept[0]), cycles=1)
    keep(tmp_path, [better, *kept])
    with pytest.warns(DamagedStore, match=rf"{reason}.*left out, the file was changed"):
        found = tuned(tmp_path)
    assert found is not None
    assert found.trial == kept[0]


def replace_schedule(trial: VtaTrial, **changes: Any) -> VtaTrial:
    return msgspec.structs.replace(trial, schedule=replace(trial.schedule, **changes))


def other_embedding() -> dict[str, Any]:
    """Of no conv2d, under an identifier that is its own."""
    embedding = designs(LAYER, "strict", 1)[0].candidate.embedding
    other = replace(embedding, digits={"y": (Digit("m", 16),), "z": (Digit("q", 16),)})
    return {"embedding": other.to_json(), "identifier": other.identifier()}


def test_a_damaged_key_is_found_by_the_name_and_mended(tmp_path: Path) -> None:
    kept = trials(2)
    path = keep(tmp_path, kept)
    damaged = path.read_bytes().replace(b'"target"', b'"tarset"', 1)
    path.write_bytes(damaged)
    with pytest.warns(DamagedStore, match=r"1 of 3 rows .*line 1"):
        found = tuned(tmp_path, constraints=RELAXED)
    assert found is not None
    with pytest.warns(DamagedStore, match=r"its first line, the key, is damaged"):
        assert not list(trial_files(tmp_path, VtaTrial))
    keep(tmp_path, [])
    with pytest.warns(DamagedStore, match=r"line 1"):
        (file,) = trial_files(tmp_path, VtaTrial)
    assert file.trials == kept
    assert path.read_bytes().startswith(damaged)


def test_a_file_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    path = keep(tmp_path, trials(1))
    path.unlink()
    path.mkdir()
    with pytest.warns(DamagedStore, match=r"cannot be read \(Is a directory\)"):
        assert tuned(tmp_path) is None


def test_the_folder_is_the_variable_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(database.DIRECTORY_VARIABLE, str(tmp_path))
    assert tuning_folder() == tmp_path
    monkeypatch.delenv(database.DIRECTORY_VARIABLE)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert tuning_folder() == tmp_path / "data" / "cpembed" / "tune"
    monkeypatch.setenv(stores.FOLDER_VARIABLE, str(tmp_path / "all"))
    assert tuning_folder() == tmp_path / "all" / "tune"
    monkeypatch.setenv(database.DIRECTORY_VARIABLE, str(tmp_path))
    assert tuning_folder() == tmp_path
