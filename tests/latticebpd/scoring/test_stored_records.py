"""What is stored with a language model: any JSON is read or refused in one line that names the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fst import FEATURES
from latticebpd import SausageLattice, draft_tree, rescore
from latticebpd.drafters import bundled
from latticebpd.scoring.calibration import calibration_path, stored_calibration
from latticebpd.scoring.rescoring import as_tuned, fitted_records
from latticebpd.scoring.weights import (
    RescorerSettings,
    Tuning,
    alpha_path,
    edge,
    settings_path,
    store_tunings,
    weight_for,
)
from tests.helpers.commands import Run
from tests.helpers.drafters import LM, WEIGHTS

TUNING = Tuning(0.5, "16-best", (0.5, 1.0), (2.0, 1.5), "text", (0, 2), 7, "sha256:0", "decode")
CALIBRATION = json.loads(
    json.dumps({"format_version": 2, "features": FEATURES, **asdict(WEIGHTS), "k": 16, "nats": [0.5], "slots": 3})
)
HUGE = int("9" * 400)
ODD: list[Any] = [
    None, True, -1, 1.5, HUGE, -HUGE, 2**63, 1e308, float("nan"), float("inf"), "16", "", [], {},
    [[[]]], [None], [HUGE], ["a"], [True], [-1], [1e308],
]  # fmt: skip


def use_calibration(folder: Path) -> None:
    calibration = stored_calibration(folder / "lm.fst")
    assert calibration is not None
    assert type(calibration.k) is int
    assert calibration.k >= 1
    assert calibration.slots is None or type(calibration.slots) is int
    assert all(type(nats) is float and nats >= 0 for nats in calibration.nats)
    assert all(type(number) is int and 0 <= number < 2**63 for number in (*calibration.examples, calibration.seed))
    assert type(calibration.lattices) is str
    json.dumps(asdict(calibration), allow_nan=False)


def use_tunings(tunings: tuple[Tuning, ...]) -> None:
    assert type(weight_for(tunings, "64-tree")) is type(weight_for(tunings, "4-best")) is float
    for each in tunings:
        assert edge(each.alphas, each.block_efficiency) in (-1, 0, 1)
        assert all(type(number) is int and 0 <= number < 2**63 for number in (*each.examples, each.seed))
        json.dumps(asdict(each), allow_nan=False)


def use_settings(folder: Path) -> None:
    settings = RescorerSettings.stored(folder)
    assert settings is not None
    assert type(settings.alpha) is float
    if settings.tunings:
        use_tunings(settings.tunings)


KINDS: dict[str, tuple[str, Any, Callable[[Path], None]]] = {
    "calibration": (calibration_path("lm.fst").name, CALIBRATION, use_calibration),
    "tunings": (
        alpha_path("lm.fst").name,
        {"format_version": 2, "tunings": [asdict(TUNING)]},
        lambda folder: use_tunings(Tuning.load(alpha_path(folder / "lm.fst"))),
    ),
    "old tuning": (
        alpha_path("lm.fst").name, asdict(TUNING), lambda folder: use_tunings(Tuning.load(folder / "lm.fst.alpha.json"))
    ),
    "rescorer": (
        settings_path(".").name, {"format_version": 2, "alpha": 0.5, "tunings": [asdict(TUNING)]}, use_settings
    ),
}  # fmt: skip


def places(record: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value in a JSON record."""
    items = record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    return [above, *(position for key, value in items for position in places(value, (*above, key)))]


def changed(record: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    copy = record.copy()
    copy[place[0]] = changed(record[place[0]], place[1:], value)
    return copy


def test_drafts_are_scored_by_the_weight_stored_for_their_number(tmp_path: Path) -> None:
    lm, weights = tmp_path / "lm.fst", {"1-best": 0.25, "16-best": 2.0, "64-tree": 0.75}
    LM.save(lm)
    store_tunings(lm, [replace(TUNING, system=system, alpha=alpha) for system, alpha in weights.items()])
    lattice = SausageLattice([[3, 7], [4, 8]], [[-0.1, -0.2], [-0.7, -0.8]])
    for p, system in ((1, "1-best"), (16, "16-best")):
        by_weight = {alpha: rescore(lattice, lm, p, alpha).scores.tolist() for alpha in weights.values()}
        assert len({*map(tuple, by_weight.values())}) == 3
        assert rescore(lattice, lm, p).scores.tolist() == by_weight[weights[system]]
    trees = {alpha: draft_tree(lattice, lm, 64, alpha).log_probs.tolist() for alpha in weights.values()}
    assert len({*map(tuple, trees.values())}) == 3
    assert draft_tree(lattice, lm, 64).log_probs.tolist() == trees[weights["64-tree"]]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=400, deadline=None)
def test_any_value_is_read_as_its_type_or_refused_in_a_line(kind: str, tmp_path: Path, data: st.DataObject) -> None:
    name, record, use = KINDS[kind]
    record = json.loads(json.dumps(record))
    position = data.draw(st.sampled_from(places(record)))
    value = data.draw(st.sampled_from(ODD) | st.integers() | st.floats() | st.text() | st.lists(st.integers()))
    (tmp_path / name).write_text(json.dumps(changed(record, position, value)))
    try:
        use(tmp_path)
    except ValueError as error:
        line = str(error)
        assert line.startswith(f"{tmp_path / name}: ")
        assert len(line.splitlines()) == 1
        assert len(line) < 400
        own = line.replace(repr(value), "…")  # as it is quoted: a drawn text may be one of Python's words
        assert "argument" not in own
        assert "attribute" not in own
        assert "' object" not in own


def test_good_records_are_read(tmp_path: Path) -> None:
    for name, record, use in KINDS.values():
        (tmp_path / name).write_text(json.dumps(record))
        use(tmp_path)


@pytest.mark.parametrize("k", [-1, 0, "16", None, 1.5, [], HUGE])
def test_commands_refuse_an_odd_calibration(run: Run, tmp_path: Path, k: Any) -> None:
    (tmp_path / "lm.fst.calibration.json").write_text(json.dumps({**CALIBRATION, "k": k}))
    shutil.copy(bundled.LM, tmp_path / "lm.fst")
    status, out, err = run("generate", "x", "--lm", tmp_path / "lm.fst")
    assert (status, out, len(err.splitlines())) == (2, "", 1), err
    assert "lm.fst.calibration.json: expected a calibration, got expected k" in err


def test_records_next_to_a_link_belong_to_it(tmp_path: Path) -> None:
    """A hub's cache has a model's files in one folder, as links to files elsewhere that have other names."""
    blob, model = tmp_path / "blobs" / "0", tmp_path / "snapshot" / "lm.fst"
    for each in (blob, model):
        each.parent.mkdir()
    shutil.copyfile(bundled.LM, blob)
    model.symlink_to(blob)
    assert fitted_records(model) == ()
    store_tunings(model, [TUNING])
    calibration_path(model).write_text(json.dumps(CALIBRATION), encoding="utf-8")
    assert fitted_records(model) == (TUNING, stored_calibration(model))
    assert fitted_records(blob) == ()


def test_a_link_without_records_has_those_of_its_model(tmp_path: Path) -> None:
    """Records that a link gets of its own replace them, and leave the model's as they are."""
    model = tmp_path / "lm.fst"
    model.symlink_to(bundled.LM)
    assert fitted_records(model) == fitted_records(bundled.LM) != ()
    store_tunings(model, [TUNING])
    others = [each for each in as_tuned(bundled.LM).tunings if each.system != TUNING.system]
    assert fitted_records(model) == (TUNING, *others, stored_calibration(bundled.LM))
    alpha_path(model).unlink()
    assert fitted_records(model) == fitted_records(bundled.LM)
