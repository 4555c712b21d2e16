"""Reports: numbers that come from the analyses, the same bytes every time, a page that needs nothing and fits any
window."""

from __future__ import annotations

import csv
import errno
import re
import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import fst
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.drafters.heads.head_family import HeadLattices
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.texts import Texts
from latticebpd.measuring import blocks, compare, tally
from latticebpd.measuring.calibrate import calibrate
from latticebpd.measuring.collect import CollectOptions, collect_shards
from latticebpd.measuring.examples import exclude_examples, lattices_fingerprint
from latticebpd.report import DataSet, Measurements, Options, make_report, measure
from latticebpd.report.content import Column, Table, decimals
from latticebpd.report.measurements import NODES, PATHS
from latticebpd.report.page import environment
from latticebpd.report.theme import COLOURS, css_colours
from latticebpd.scoring.calibration import calibration_path
from latticebpd.scoring.rescoring import Tuned, as_scorer
from latticebpd.scoring.weights import Tuning, store_tunings
from tests.helpers.commands import Run
from tests.helpers.pages import check_page
from tests.helpers.trigrams import trigram

MODELS = {"3-gram": as_scorer(trigram()), "other": as_scorer(trigram())}
OPTIONS = Options(tuning_examples=2)


@pytest.fixture(scope="module")
def lattices(model: BlockwiseLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    prompts = np.random.default_rng(0).integers(0, 23, (8, 4)).tolist()
    directory = tmp_path_factory.mktemp("report") / "d"
    data, options = Texts.of_rows(prompts, [4] * 8), CollectOptions(k=4, max_new_tokens=16)
    collect_shards(HeadLattices(model), data, directory, options, shard_texts=3)
    return directory


@pytest.fixture(scope="module")
def measurements(lattices: Path) -> Measurements:
    return measure([DataSet("tiny", (lattices,))], MODELS, OPTIONS)


@pytest.fixture(scope="module")
def written(measurements: Measurements, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("written")
    make_report(measurements, title="<b>not bold</b> & so on", word=lambda token: f"w{token} <i>").write(directory)
    return directory


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_numbers_are_those_of_the_analyses_less_the_examples(
    measurements: Measurements, lattices: Path, written: Path
) -> None:
    measured = measurements.sets[0]
    tunings = {tuning.system: tuning for tuning in measured.tunings["3-gram"]}
    assert set(tunings) == {*(f"{p}-best" for p in PATHS), *(f"{n}-tree" for n in NODES)}  # each at a weight of its own
    assert {tuning.system for tuning in measured.tunings["other"]} == {"1-best", "16-best", "64-tree"}
    tuning = tunings["16-best"]
    assert len(tuning.examples) == 2
    assert measured.num_excluded == 2
    assert measured.texts == 6
    assert as_scorer(measured.models["3-gram"], system="64-tree").alpha == tunings["64-tree"].alpha
    kept = list(exclude_examples(blocks([lattices]), [tuning]))
    oracle, comparison = (
        tally(kept, [1, 2, 4], [3, 5]),
        compare(kept, ["16-best", "64-tree:0-gram"], trigram(), tuning.alpha),
    )
    assert {int(row["k"]) for row in rows_of(written / "oracle.csv")} == {1, 2, 4}
    for row in rows_of(written / "oracle.csv"):
        i, j = oracle.ks.index(int(row["k"])), oracle.heads.index(int(row["heads"]))
        assert float(row["tokens/call"]) == oracle.block_efficiency[i, j]
        assert float(row["at best"]) == oracle.best_block_efficiency[i, j]
    systems = {row["system"]: row for row in rows_of(written / "systems-tiny.csv")}
    for name, label in (
        ("vanilla", "vanilla"),
        ("16-best", "16-best, 3-gram"),
        ("64-tree:0-gram", "64-node tree, no LM"),
        ("oracle", "oracle"),
    ):
        i = comparison.systems.index(name)
        assert float(systems[label]["tokens/call"]) == comparison.block_efficiency[i]
        wins, ties, losses = comparison.outcome_share[i]
        assert [float(systems[label][word]) for word in ("win", "tie", "loss")] == [wins, ties, losses]
        assert float(systems[label]["verified"]) == comparison.verified_tokens[i]
    (summary,) = rows_of(written / "summary.csv")
    assert float(summary["vanilla"]) == comparison.block_efficiency[0]
    assert float(summary["oracle"]) == comparison.block_efficiency[-1]
    weights = {(row["language model"], row["system"]): row for row in rows_of(written / "alpha.csv")}
    own = weights["3-gram", "16-best"]
    assert float(own["best α"].split()[0]) == tuning.alpha == float(own["α of this report"])
    assert weights["other", "64-tree"]["by"] == "decode"


def test_the_drawn_lattice_has_its_weights_before_and_after_rescoring(
    measurements: Measurements, written: Path
) -> None:
    step, alpha = measurements.example, as_scorer(measurements.sets[0].models["3-gram"], system="16-best").alpha
    assert step.after is not None
    expected = fst.arc_posteriors(step.lattice.tokens, step.lattice.log_probs, trigram(), alpha, step.context)
    assert np.array_equal(step.after, expected)
    drawn = (written / "lattice.svg").read_text(encoding="utf-8")
    slot, arc = 0, int(step.after[0].argmax())
    assert f"{step.lattice.log_probs[slot, arc]:.2f} → {step.after[slot, arc]:.2f}</tspan>" in drawn


def test_best_system_keeps_to_the_budget(measurements: Measurements) -> None:
    measured = measurements.sets[0]
    for budget in (1, 8, 32, 1000):
        best = measured.best_system(budget)
        allowed = {name for name, tokens in measured.verified.items() if tokens <= max(budget, 4) and name != "oracle"}
        assert best in allowed
        assert measured.efficiency[best] == max(measured.efficiency[name] for name in allowed)


def test_every_table_and_plot_of_the_page_stands_beside_it(written: Path) -> None:
    page = (written / "report.html").read_text(encoding="utf-8")
    names = set(re.findall(r'<figure(?: class="table")? id="([^"]+)"', page))
    assert names == {path.stem for path in written.iterdir()} - {"report"}
    assert {path.suffix for path in written.iterdir()} == {".html", ".csv", ".png", ".svg"}
    expected = {
        "oracle-tiny",
        "paths-tiny",
        "trade-off-tiny",
        "accepted-tiny",
        "losses-tiny",
        "entropy-tiny",
        "alpha-tiny",
        "lattice",
    }
    assert expected <= names
    for path in written.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    for path in written.glob("*.svg"):
        ElementTree.parse(path)


def test_page_is_well_formed_and_loads_nothing(written: Path) -> None:
    text = (written / "report.html").read_text(encoding="utf-8")
    assert not {"script", "form"} & check_page(text)
    assert "<b>not bold" not in text  # titles and words are escaped
    assert "<i>" not in re.sub(r'<i class="[obv]"', "", text)
    assert "&lt;b&gt;not bold&lt;/b&gt; &amp; so on" in text


def test_plots_have_axes_legends_and_follow_the_readers_colours(written: Path) -> None:
    text = (written / "report.html").read_text(encoding="utf-8")
    plots = re.findall(r'<svg class="plot".*?</svg>', text, re.DOTALL)
    assert len(plots) >= 7
    for plot in plots:
        words = re.findall(r"<text[^>]*>([^<]+)</text>", plot)
        assert any("tokens per call" in word or "(%)" in word or "nats" in word or "vanilla" in word for word in words)
        assert "var(--ink)" in plot
        assert not [
            colour.name for colour in COLOURS if colour.light in plot.lower()
        ]  # none is left that dark ground would swallow
    styles = css_colours()
    assert styles.count("--c1:") == 2
    assert "prefers-color-scheme: dark" in styles


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_stand_out_from_their_ground() -> None:
    """WCAG: text at least 4.5 to 1, lines and areas at least 3 to 1, on both grounds."""
    for ground, which in (("#ffffff", "light"), ("#1b1f23", "dark")):
        for colour in COLOURS:
            pair = sorted((luminance(ground), luminance(getattr(colour, which))))
            ratio = (pair[1] + 0.05) / (pair[0] + 0.05)
            least = {"ink": 7, "faint": 4.5, "rule": 1.2}.get(colour.name, 4.5 if colour.name.startswith("c") else 3)
            assert ratio >= least, (colour.name, which, ratio)


def test_the_same_input_gives_the_same_bytes(
    measurements: Measurements, lattices: Path, written: Path, tmp_path: Path
) -> None:
    again = measure([DataSet("tiny", (lattices,))], MODELS, OPTIONS)
    make_report(again, title="<b>not bold</b> & so on", word=lambda token: f"w{token} <i>").write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in written.iterdir())
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (written / path.name).read_bytes(), path.name


def test_stored_weights_are_used_and_their_examples_left_out(measurements: Measurements, lattices: Path) -> None:
    tuning = replace(measurements.sets[0].tunings["3-gram"][0], alpha=0.5, examples=(0, 1, 2))
    elsewhere = replace(tuning, lattices="sha256:other")
    for stored, left in ((tuning, (5, 3)), (elsewhere, (8, 0))):
        measured = measure(
            [DataSet("tiny", (lattices,))], {"3-gram": Tuned(MODELS["3-gram"], (stored,))}, OPTIONS
        ).sets[0]
        assert (measured.comparison.signature.alpha, measured.texts, measured.num_excluded) == ("0.5", *left)
    measured = measure(
        [DataSet("tiny", (lattices,))], {"3-gram": MODELS["3-gram"]}, replace(OPTIONS, alpha=2.0, tuning_examples=0)
    ).sets[0]
    assert (measured.comparison.signature.alpha, measured.texts, measured.num_excluded, measured.tunings) == (
        "2",
        8,
        0,
        {},
    )


def test_calibrated_trees_have_rows_and_their_texts_are_left_out(
    run: Run, lattices: Path, model: BlockwiseLM, tmp_path: Path
) -> None:
    lm = tmp_path / "lm.fst"
    trigram().save(lm)
    calibration, _ = calibrate([lattices], trigram(), examples=3)
    calibration.save(calibration_path(lm))
    measured = measure([DataSet("tiny", (lattices,))], {"3-gram": lm, "other": MODELS["other"]}, OPTIONS).sets[0]
    assert set(calibration.examples) <= {number for record in measured.fitted for number in record.examples}
    assert measured.texts == 8 - measured.num_excluded
    assert not [
        tuning for tuning in measured.tunings["3-gram"] if "calibrated" in tuning.system
    ]  # they have no weight to tune
    kept = list(exclude_examples(blocks([lattices]), measured.fitted))
    expected = compare(kept, [f"{n}-calibrated" for n in NODES], lm)
    for name, value in zip(expected.systems, expected.block_efficiency.tolist(), strict=True):
        assert measured.efficiency[name] == value
    model.save_pretrained(tmp_path / "model")
    arguments = (
        "report",
        f"tiny={lattices}",
        "--lm",
        f"3-gram={lm}",
        "--model",
        tmp_path / "model",
        "--decode-texts",
        1,
    )
    assert run(*arguments, "-o", tmp_path / "out")[0] == 0
    label = "64-node calibrated tree, 3-gram"
    assert label in {row["system"] for row in rows_of(tmp_path / "out" / "systems-tiny.csv")}
    assert {row["system"]: row["other texts"] for row in rows_of(tmp_path / "out" / "decoded.csv")}[label] == "0"
    assert label in next(iter(rows_of(tmp_path / "out" / "block-efficiency.csv")))
    assert "calibrated trees" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_lattices_without_texts_entropies_or_a_model_make_a_report_too(lattices: Path, tmp_path: Path) -> None:
    plain = replace(LatticeSet.joined(list(blocks([lattices]))), sequence=None, entropy=None, origin=None)
    plain.save(tmp_path / "plain.npz")
    measurements = measure([DataSet("a b", (tmp_path / "plain.npz",))], {}, OPTIONS)
    files = make_report(measurements).write(tmp_path / "out")
    page = files[0].read_text(encoding="utf-8")
    assert "section-entropy" not in page
    assert measurements.sets[0].counted == "by position"
    (summary,) = rows_of(tmp_path / "out" / "summary.csv")
    assert (summary["counted"], summary["texts"]) == ("by position", "")
    assert (tmp_path / "out" / "oracle-a-b.png").exists()
    twice = measure([DataSet("a b", (tmp_path / "plain.npz",)), DataSet("a/b", (tmp_path / "plain.npz",))], {}, OPTIONS)
    with pytest.raises(ValueError, match="name them apart"):
        make_report(twice).write(tmp_path / "out")


def test_bad_requests_are_named(lattices: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one data set"):
        measure([], {})
    LatticeSet.joined(list(blocks([lattices]))).take(np.zeros(0, int)).save(tmp_path / "empty.npz")
    with pytest.raises(ValueError, match=r"empty\.npz: expected at least one lattice, got none"):
        measure([DataSet("nothing", (tmp_path / "empty.npz",))], {})
    with pytest.raises(ValueError, match="expected a step from 0 to"):
        measure([DataSet("tiny", (lattices,))], {}, replace(OPTIONS, step=100_000))


def test_tables_show_dashes_for_what_is_not_known() -> None:
    table = Table("t", "caption", (Column("a"), Column("b", form=decimals(2))), ((None, float("nan")), ("x", 1234.5)))
    assert [[cell.value for cell in row] for row in table.shown()] == [["–", "–"], ["x", "1,234.50"]]
    assert table.csv() == "a,b\n,\nx,1234.5\n"


@pytest.mark.long
def test_command_writes_a_report_with_decodes_of_the_model(
    run: Run, lattices: Path, model: BlockwiseLM, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path / "model")
    trigram().save(tmp_path / "lm.fst")
    arguments = ("report", f"tiny={lattices}", "--lm", f"3-gram={tmp_path / 'lm.fst'}", "--model", tmp_path / "model")
    status, _, err = run(*arguments, "-o", tmp_path / "out", "--decode-texts", 1)
    assert status == 0, err
    assert "report.html:written" in "".join(err.split())  # the console may break the line anywhere in a long path
    decodes = {row["system"]: row for row in rows_of(tmp_path / "out" / "decoded.csv")}
    assert set(decodes) == {
        "vanilla",
        "16-best, no LM",
        "64-node tree, no LM",
        "16-best, 3-gram",
        "64-node tree, 3-gram",
        "oracle",
    }
    assert {row["other texts"] for row in decodes.values()} == {"0"}
    examples = (0, 1, 2, 3, 4, 6, 7)
    store_tunings(
        tmp_path / "lm.fst",
        [Tuning(0.5, "16-best", (0.5,), (1.0,), "text", examples, 0, lattices_fingerprint([lattices]))],
    )
    assert run(*arguments, "-o", tmp_path / "one", "--decode-texts", 8)[0] == 0
    (summary,) = rows_of(tmp_path / "one" / "summary.csv")
    for row in rows_of(tmp_path / "one" / "decoded.csv"):  # of the one text that no weight was tuned on
        assert (row["tokens"], row["other texts"], summary["texts"]) == ("15", "0", "1")
    assert float(summary["vanilla"]) == float(rows_of(tmp_path / "one" / "decoded.csv")[0]["tokens/call"])
    assert run("report", lattices, lattices, "-o", tmp_path / "out")[0] == 2


@pytest.mark.long
@pytest.mark.parametrize("before", [0, 1, 5])
def test_a_full_disk_leaves_the_report_that_was_there(
    measurements: Measurements, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """The disk is full after some of the files: a page of now and tables of before would not be of one report."""
    shutil.copytree(written, tmp_path / "old")
    report = make_report(measurements, title="another")
    writes = count()

    def full(path: Path, data: bytes) -> int:
        with open(path, "wb") as file:
            if next(writes) >= before:
                file.write(data[: len(data) // 2])
                raise OSError(errno.ENOSPC, "No space left on device")
            return file.write(data)

    monkeypatch.setattr(Path, "write_bytes", full)
    for name in ("old", "new"):
        with pytest.raises(OSError, match="No space left on device") as caught:
            report.write(tmp_path / name)
        assert caught.value.filename == str(tmp_path / name)
    old, first = (
        {path.name: path.read_bytes() for path in directory.iterdir()} for directory in (tmp_path / "old", written)
    )
    assert old == first
    assert list((tmp_path / "new").iterdir()) == []


def test_words_with_hyphens_stay_whole() -> None:
    shown = environment().from_string("{{ text|whole }}").render(text="16-best, <b> 4-gram")
    assert shown == '<span class="whole">16-best,</span> &lt;b&gt; <span class="whole">4-gram</span>'
