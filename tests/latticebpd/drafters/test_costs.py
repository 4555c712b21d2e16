"""Costs of passes: read between the sizes measured, stored, measured; trees are cut where that promises the most tokens
a second."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latticebpd import DraftTree, SausageLattice, load
from latticebpd.decoding.pass_costs import DAY, kept_costs, profile, profile_drafts
from latticebpd.drafters.cost_aware import CostAwareDrafter, DraftingBudget, nodes_that_pay
from latticebpd.drafters.cost_curve import REMEMBERED, CostCurve
from latticebpd.drafters.drafter import NoDrafter, State
from latticebpd.drafters.lattice_drafter import LatticeDrafter
from latticebpd.drafters.strategies import BestTree
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.verification.asked_columns import AskedColumns
from latticebpd.verification.verifier_choice import verifier_for
from tests.helpers.commands import Run
from tests.helpers.tiny_families import tiny

CURVE = CostCurve((1, 4), (1, 5, 9), ((1.0, 1.2, 2.0), (2.0, 3.0, 6.0)), {"model": "none"})


def test_costs_between_and_beyond_the_sizes_measured() -> None:
    columns = np.array([1, 3, 5, 7, 9, 18])
    np.testing.assert_allclose(CURVE.of(1, columns), [1, 1.1, 1.2, 1.6, 2, 4])
    np.testing.assert_allclose(CURVE.of(4, columns), [2, 2.5, 3, 4.5, 6, 12])
    np.testing.assert_allclose(CURVE.of(2, np.array([1, 9])), [1 + 1 / 3, 2 + 4 / 3])
    np.testing.assert_allclose(CURVE.of(8, np.array([1])), [4])
    assert CURVE.drafting_of(3) == 0
    packed = replace(CURVE, packed=True)
    for most in (3, 0, REMEMBERED + 1, 80, 70):
        nodes = np.arange(most + 1)
        np.testing.assert_array_equal(CURVE.up_to(4, most), CURVE.of(4, 1 + nodes))
        np.testing.assert_array_equal(packed.up_to(4, most), CURVE.of(1, 4 + nodes))
    drafting = replace(CURVE, drafting=(1.0, 4.0))
    assert [drafting.drafting_of(rows) for rows in (1, 2, 4, 8)] == [1, 2, 4, 8]
    assert replace(drafting, accepted=0.25).of_calls(1, 2, 3.0) == pytest.approx(1.1 + 1 + 2 * 0.25)


def test_the_size_of_padded_rows_is_the_best_of_all() -> None:
    rng = np.random.default_rng(0)
    sizes = set()
    for _ in range(200):
        rows = int(rng.integers(1, 5))
        seconds = tuple(np.sort(rng.uniform(1, 6, 4)).tolist())
        curve = CostCurve((1,), (1, 4, 16, 40), (seconds,), drafting=(float(rng.uniform(0, 1)),))
        trees = [
            np.sort(np.log(rng.uniform(0, rng.choice([0.1, 1.0]), int(rng.integers(0, 40)))))[::-1] for _ in range(rows)
        ]
        promised = [
            (rows + sum(float(np.exp(tree[:size]).sum()) for tree in trees))
            / (float(curve.of(rows, np.array([size + 1]))[0]) + curve.drafting_of(rows))
            for size in range(max(map(len, trees)) + 1)
        ]
        kept, saved = nodes_that_pay(list(trees), curve)
        largest = max(int(keep.sum()) for keep in kept)
        assert all(keep[:largest].all() and not keep[largest:].any() for keep in kept)
        assert promised[largest] == pytest.approx(max(promised))
        took = float(curve.of(rows, np.array([largest + 1]))[0]) + curve.drafting_of(rows)
        single = (
            promised[largest] * took / rows * float(curve.of(rows, np.array([1]))[0])
        )  # seconds of as many tokens without drafts
        assert saved == pytest.approx(single - took)
        sizes.add(largest)
    assert len(sizes) > 10
    assert 0 in sizes  # where drafting does not pay, nothing is drafted
    with pytest.raises(ValueError, match="probabilities"):
        nodes_that_pay([None], CURVE)


def test_in_a_batch_no_choice_of_sizes_row_by_row_is_better() -> None:
    """All choices tried: rows are padded to the widest, so what a pass costs is that of its widest row, times all
    rows."""
    rng = np.random.default_rng(1)
    unequal = 0
    for _ in range(60):
        rows = int(rng.integers(2, 5))
        curve = CostCurve(
            (1, 4),
            (1, 3, 6),
            tuple(tuple(np.sort(rng.uniform(1, 4, 3)).tolist()) for _ in range(2)),
            drafting=(0.1, 0.3),
        )
        trees = [
            np.sort(np.log(rng.uniform(0, rng.choice([0.05, 1.0]), int(rng.integers(0, 6)))))[::-1] for _ in range(rows)
        ]
        best = 0.0
        for sizes in product(*(range(len(tree) + 1) for tree in trees)):
            expected = rows + sum(float(np.exp(tree[:size]).sum()) for tree, size in zip(trees, sizes, strict=True))
            seconds = float(curve.of(rows, np.array([max(sizes) + 1]))[0]) + curve.drafting_of(rows)
            best = max(best, expected / seconds)
        kept = [int(keep.sum()) for keep in nodes_that_pay(list(trees), curve)[0]]
        expected = rows + sum(float(np.exp(tree[:each]).sum()) for tree, each in zip(trees, kept, strict=True))
        seconds = float(curve.of(rows, np.array([max(kept) + 1]))[0]) + curve.drafting_of(rows)
        assert expected / seconds == pytest.approx(best)
        unequal += len({round(float(np.exp(tree).sum()), 1) for tree in trees}) > 1
    assert unequal > 40  # rows were worth different things


def test_a_pass_is_padded_to_its_widest_row() -> None:
    """What the choice of one size for all rows rests on."""
    verifier = verifier_for(tiny("llama", 0))
    verifier.prefill([[1, 2], [3, 4, 5]])
    wide = DraftTree(np.array([4, 5, 6]), np.array([-1, 0, 0]))
    assert verifier.verify([1, 2], [wide, DraftTree.empty()]).hidden.shape[:2] == (2, 4)


@dataclass
class Asked:
    """One lattice for every moment, and how often it was asked for."""

    lattice: SausageLattice
    times: int = 0
    needs_hidden: bool = False
    fingerprint: str | None = None
    vocab_size: int | None = None
    vocabulary_name: str = "nobody"

    def lattices(self, states: Sequence[State]) -> list[SausageLattice | None]:
        self.times += 1
        return [self.lattice] * len(states)


@pytest.mark.parametrize("calls", [63, 2000])
@pytest.mark.parametrize("share", [0.02, 1 / 6, 0.28])
def test_where_drafting_cannot_pay_neither_heads_nor_search_are_asked(share: float, calls: int) -> None:
    """And so it is never slower than greedy decoding by more than a few calls, a draft and 1 %, whatever share of a
    pass a draft costs."""
    state = State(0, [1, 2], 1, None, 9)
    lattice = SausageLattice([list(range(9))], np.log(np.full((1, 9), 1 / 9)))
    costs = CostCurve((1,), (1, 2, 9), ((1.0, 1.6, 2.4),), drafting=(share,))
    source = Asked(lattice)
    trees = BestTree(NgramScorer(None), 9)
    _, saved = nodes_that_pay([trees.draft([lattice], [[1]])[0].log_probs], costs)
    assert saved < 0
    drafter, seconds = CostAwareDrafter(LatticeDrafter(source, trees), costs), 0.0
    for _ in range(calls):
        asked = source.times
        (tree,) = drafter.propose([state])
        assert not len(tree)
        seconds += 1 + (source.times - asked) * share
    assert source.times > 0.009 * calls / share  # it looks now and then
    assert seconds < 1.01 * calls + DraftingBudget.CALLS + share
    source.lattice = SausageLattice([[3], [4], [5], [6]], np.zeros((4, 1)))  # the text repeats itself now
    drafted = [len(drafter.propose([state])[0]) for _ in range(40)]
    first = next(number for number, size in enumerate(drafted) if size)
    assert first <= share / DraftingBudget.SHARE
    assert drafted[first:] == [4] * (40 - first)


def test_what_drafts_promise_to_save_may_be_spent_where_they_do_not() -> None:
    """Of any order of promises: as good as those kept next to a budget that adds up, and no more is lost than it
    allows."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        budget, lost, drafts, losses = DraftingBudget(), 0.0, 0, float(rng.uniform(0.01, 0.3))
        promises = np.where(rng.random(2000) < rng.random(), -losses, rng.uniform(0, 1, 2000))
        for call, promised in enumerate(promises.tolist(), 1):
            if budget.allows():
                budget.left += promised
                lost, drafts = lost - promised, drafts + 1
            assert lost <= (DraftingBudget.CALLS + DraftingBudget.SHARE * call + losses) * 1.0001
        assert drafts > 0.9 * 2000 * min(1, DraftingBudget.SHARE / losses)


def test_savings_of_a_few_calls_are_kept_at_most() -> None:
    """Or a good beginning would pay for many unprofitable drafts later."""
    budget = DraftingBudget()
    for _ in range(50):
        assert budget.allows()
        budget.left += 2.0
    assert budget.allows()
    budget.left -= DraftingBudget.CALLS + 0.5  # half a call more than can be saved up
    assert not any(budget.allows() for _ in range(49))


def test_a_few_unlikely_drafts_do_not_end_drafting_that_pays() -> None:
    """Five drafts in a row that lose what a draft costs, and then one that saves as much."""
    budget = DraftingBudget()
    for call in range(600):
        assert budget.allows()
        budget.left += 1.5 if call % 6 == 5 else -0.25


def test_a_budget_that_is_just_spent_allows_no_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DraftingBudget, "SHARE", 0.25)
    budget = DraftingBudget()
    assert budget.allows()  # a few calls at first, which is the most
    budget.left -= DraftingBudget.CALLS + 0.25
    assert [budget.allows() for _ in range(2)] == [False, True]


def test_costs_are_kept_for_a_day(tmp_path: Path) -> None:
    measured: list[CostCurve] = []

    def measure() -> CostCurve:
        measured.append(replace(CURVE, accepted=float(len(measured))))
        return measured[-1]

    file = tmp_path / "costs.json"
    assert [kept_costs(file, measure) for _ in range(3)] == [measured[0]] * 3
    os.utime(file, (0, time.time() - DAY - 60))
    assert kept_costs(file, measure) == kept_costs(file, measure) == measured[1] != measured[0]
    file.write_text("damaged")
    assert kept_costs(file, measure) == kept_costs(file, measure) == measured[2]
    new = tmp_path / "new folder" / "costs.json"
    assert kept_costs(new, measure) == kept_costs(new, measure) == measured[3]
    assert kept_costs(file / "costs.json", measure) == measured[4]  # below a file nothing can be kept
    os.utime(file, (0, time.time() + DAY + 60))  # the clock was set back since
    assert kept_costs(file, measure) == kept_costs(file, measure) == measured[5]


def test_processes_that_measure_and_read_one_file_have_whole_costs(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    context = multiprocessing.get_context("fork")
    known = {number: replace(CURVE, accepted=float(number), about={"text": "a" * 20_000}) for number in range(4)}

    def one(number: int, pipe: Any) -> None:
        for _ in range(60):
            known[number].save(file)
            read = CostCurve.load(file)
            if read not in known.values() or kept_costs(file, lambda: CURVE) not in known.values():
                return
        pipe.send(number)

    ends = [context.Pipe() for _ in known]
    processes = [context.Process(target=one, args=[number, theirs]) for number, (_, theirs) in enumerate(ends)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        process.kill()
    assert [ours.recv() if ours.poll() else None for ours, _ in ends] == list(known)
    assert [path.name for path in tmp_path.iterdir()] == ["costs.json"]


def test_trees_are_cut_and_texts_stay() -> None:
    lattice = SausageLattice([[3, 7, 9], [4, 8, 2]], np.log([[0.7, 0.2, 0.1], [0.8, 0.1, 0.1]]))
    drafter = LatticeDrafter(Asked(lattice), BestTree(NgramScorer(None), 9))
    (full,) = drafter.propose([State(0, [1], 1, None, 9)])
    (cut,) = CostAwareDrafter(drafter, CURVE).propose([State(0, [1], 1, None, 9)])
    size = int(nodes_that_pay([full.log_probs], CURVE)[0][0].sum())
    assert 0 < size < len(full)
    assert cut == full.first(size)
    assert full.first(99) is full
    assert full.first(0).tokens.tolist() == DraftTree.empty().tokens.tolist() == []


def test_a_decode_with_costs_is_the_same_text(run: Run, tmp_path: Path) -> None:
    CURVE.save(tmp_path / "costs.json")
    arguments = ("generate", "The history of the city", "--max-new-tokens", 24, "--json")
    texts = {}
    for system in ("32-tree", "copies+32-tree"):
        for name, options in (("plain", ()), ("cut", ("--costs", tmp_path / "costs.json"))):
            status, printed, _ = run(*arguments, "--system", system, *options)
            assert status == 0
            texts[name] = json.loads(printed)
        assert texts["plain"]["text"] == texts["cut"]["text"]
        assert texts["cut"]["verified_tokens"] < texts["plain"]["verified_tokens"]
    status, _, err = run(*arguments, "--system", "16-best", "--costs", tmp_path / "costs.json")
    assert (
        status,
        "expected N-tree, N-calibrated, W-beam, N-copies or copies+N-tree with costs" in err,
    ) == (2, True)


def test_costs_come_back_and_damaged_ones_are_named(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    CURVE.save(path)
    assert CostCurve.load(path) == CURVE
    record = {"format_version": 1, **asdict(CURVE)}
    odd = {"seconds": [[1.0, 1.0, float("nan")]] * 2}
    path.write_text(json.dumps({name: value for name, value in record.items() if name != "drafting"}))
    assert CostCurve.load(path) == CURVE  # the first files had none
    for change in (
        {"format_version": 2},
        {"drafting": [1.0]},
        {"drafting": [1.0, -1.0]},
        {"accepted": -1.0},
        {"rows": [4, 1]},
        {"packed": "no"},
        {"columns": [0, 5, 9]},
        odd,
        {"seconds": 3},
        {"x": 1},
    ):
        path.write_text(json.dumps({**record, **change}))
        with pytest.raises(ValueError, match=r"costs\.json: expected costs as `latticebpd profile` writes them"):
            CostCurve.load(path)


def test_further_accepted_nodes_are_measured_where_they_are_computed_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the engine, whose second next token is made to take 20 ms."""
    call = AskedColumns.__call__

    def slow(self: AskedColumns[Any], rows: Sequence[int], columns: Sequence[int]) -> list[Any]:
        if [*columns] == [1] * len(rows):
            time.sleep(0.02)
        return call(self, rows, columns)

    monkeypatch.setattr(AskedColumns, "__call__", slow)
    engine = load().target
    one, two = (profile(engine, (1, 4), (rows,), context=6, rounds=1) for rows in (1, 2))
    assert one.accepted >= 0.02
    assert two.accepted >= 0.01  # both rows' at once
    assert profile(engine, (1,), context=6, rounds=1).accepted == 0
    assert profile(tiny("llama", 0), (1, 4), context=6, rounds=1).accepted == 0


def test_drafting_is_measured_with_the_drafter_that_pays_off() -> None:
    asked, proposed = [], []

    class Slow(NoDrafter):
        def propose(self, states: Sequence[State]) -> list[DraftTree]:
            time.sleep(0.02)
            proposed.append(len(states))
            return super().propose(states)

    def drafter_of(costs: CostCurve) -> CostAwareDrafter:
        asked.append(costs)
        return CostAwareDrafter(Slow(), costs)

    costs = profile_drafts(tiny("llama", 0), (1, 4), drafter_of, context=6, rounds=1)
    assert replace(costs, drafting=()) == asked[0]
    assert costs.drafting[0] >= 0.02
    assert set(proposed) == {1}


def test_passes_are_measured(run: Run, tmp_path: Path) -> None:
    passes = []
    costs = profile(tiny("llama", 0), (1, 4), (1, 2), context=6, rounds=2, on_pass=lambda: passes.append(1))
    assert (costs.rows, costs.columns, len(passes)) == ((1, 2), (1, 4), 12)
    assert costs.about["threads"] == str(torch.get_num_threads())
    assert costs.drafting == ()  # nobody drafts
    status, printed, _ = run(
        "profile", "--columns", "1,3", "--rounds", 1, "--context", 8, "-o", tmp_path / "costs.json", "--json"
    )
    assert (status, json.loads(printed)["columns"]) == (0, [1, 3])
    measured = CostCurve.load(tmp_path / "costs.json")
    assert measured.columns == (1, 3)
    assert len(measured.drafting) == 1
    assert measured.drafting[0] > 0
    status, _, _ = run("profile", "--columns", "1", "--rounds", 1, "--context", 8, "--system", "16-copies+best")
    assert status == 2
    status, _, err = run("profile", "--columns", "0,3")
    assert (status, "expected --columns as numbers from 1" in err) == (2, True)
    with pytest.raises(ValueError, match="decoder-only"):
        profile(tiny("t5", 0))
