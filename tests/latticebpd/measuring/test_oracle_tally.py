"""Oracle tallies against a slow reference, by hand, and in parts."""

from __future__ import annotations

import functools
import json
import operator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import PADDING, SausageLattice, oracle_path
from latticebpd.measuring import (
    Comparison,
    OracleTally,
    Shard,
    blocks,
    compare,
    comparison,
    lattice_files,
    lengths_of,
    ranks,
    tally,
)
from latticebpd.measuring.oracle_tally import ABSENT
from tests.helpers.lattice_sets import by_hand, calls, decode, lattice_sets
from tests.helpers.lattices import top_arcs


def accepted(lattice: SausageLattice, continuation: list[int]) -> int:
    path = oracle_path(lattice, continuation).tolist()
    length = 0
    while length < len(path) and length < len(continuation) and path[length] == continuation[length] != PADDING:
        length += 1
    return length


@given(lattices=lattice_sets(), k=st.integers(1, 5), heads=st.integers(2, 6))
def test_lengths_equal_those_of_the_oracle_path(lattices: LatticeSet, k: int, heads: int) -> None:
    lengths = lengths_of(ranks(lattices), k, heads)
    for i in range(len(lattices)):
        cut = top_arcs(lattices[i], k)
        part = SausageLattice(cut.tokens[: heads - 1], cut.log_probs[: heads - 1])
        assert lengths[i] == accepted(part, lattices.continuation[i].tolist())


def test_ties_are_ranked_by_token_id_and_arcs_of_no_probability_are_absent() -> None:
    """By hand: in the first lattice no arc is padding and none falls, so only the ids order them."""
    level = np.log(0.5)
    tokens = np.array([[[5, 3]], [[5, 3]], [[1, 2]], [[1, 2]]], np.int32)
    log_probs = np.array([[[level, level]]] * 2 + [[[0.0, -np.inf]]] * 2, np.float32)
    lattices = LatticeSet(tokens, log_probs, np.array([[5], [3], [1], [2]], np.int32), np.zeros((4, 1), np.int32))
    assert ranks(lattices)[:, 0].tolist() == [1, 0, 0, ABSENT]


def fewest(lengths: list[int]) -> int:
    calls = [0] * (len(lengths) + 1)
    for i in range(len(lengths) - 1, -1, -1):
        calls[i] = 1 + min(calls[min(i + 1 + a, len(lengths))] for a in range(lengths[i] + 1))
    return calls[0]


@given(
    lattices=lattice_sets(),
    ks=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    heads=st.lists(st.integers(2, 6), max_size=2),
)
def test_tally_equals_counting_one_by_one(lattices: LatticeSet, ks: list[int], heads: list[int]) -> None:
    by_decode, by_position = tally([lattices], ks, heads), tally([lattices], ks, heads, by="position")
    slots = lattices.tokens.shape[1]
    assert lattices.sequence is not None
    for i, k in enumerate(ks):
        for j, h in enumerate(heads or [slots + 1]):
            lengths = lengths_of(ranks(lattices), k, h)
            assert by_position.counts[i, j].tolist() == np.bincount(lengths, minlength=slots + 1).tolist()
            texts = [lengths[lattices.sequence == text].tolist() for text in np.unique(lattices.sequence)]
            called = [length for text in texts for length in calls(text)]
            assert by_decode.counts[i, j].tolist() == np.bincount(called, minlength=slots + 1).tolist()
            walked = [len(lattices), sum(map(decode, texts)), sum(map(fewest, texts))]
            assert by_decode.decode_totals[i, j].tolist() == by_position.decode_totals[i, j].tolist() == walked
            assert by_decode.block_efficiency[i, j] == walked[0] / walked[1]
            assert by_position.block_efficiency[i, j] == lengths.mean() + 1
    vanilla = lengths_of(ranks(lattices), 1)
    texts = [vanilla[lattices.sequence == text].tolist() for text in np.unique(lattices.sequence)]
    assert by_decode.num_lattices == by_position.num_lattices == len(lattices)
    assert by_position.lost.sum() == (vanilla < slots).sum()
    assert by_decode.lost.sum() == sum(length < slots for text in texts for length in calls(text))
    assert by_decode.vanilla.tolist() == [len(lattices), sum(map(decode, texts))]


@given(lattices=lattice_sets(min_size=2), block=st.integers(1, 5), count=st.integers(1, 4), split=st.integers(1, 11))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_parts_add_up_to_the_whole(
    lattices: LatticeSet, block: int, count: int, split: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lattice_files, "BLOCK", block)
    monkeypatch.setattr(comparison, "RESAMPLES", 20)
    lattices.take(np.arange(len(lattices)) < split).save(tmp_path / "a.npz")
    lattices.take(np.arange(len(lattices)) >= split).save(tmp_path / "b.npz")
    files = [tmp_path / name for name in ("a.npz", "b.npz") if len(LatticeSet.load(tmp_path / name))]
    full, compared = tally(blocks(files), [1, 3]), compare(blocks(files), ["3-best", "2-tree"])
    parts, compared_parts, own_shards = [], [], []
    for index in range(count):
        own = [block for block, _ in Shard(index, count).units(blocks(files))]
        if own:
            parts.append(OracleTally.from_json(json.loads(json.dumps(tally(own, [1, 3]).to_json()))))
            part = compare(blocks(files), ["3-best", "2-tree"], shard=Shard(index, count))
            own_shards.append(Shard(index, count))
            compared_parts.append(Comparison.from_json(json.loads(json.dumps(part.to_json()))))
    assert functools.reduce(operator.add, parts).to_json() == full.to_json()
    added = functools.reduce(operator.add, compared_parts).to_json()
    assert added.pop("parts") == (["0/1"] if len(parts) == count else [str(each) for each in own_shards])
    assert added.items() <= compared.to_json().items()


@given(
    lattices=lattice_sets(min_size=2),
    count=st.integers(2, 4),
    unit=st.integers(1, 3),
    by=st.sampled_from(["position", None]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_parts_of_lattices_without_texts_add_up_too(
    lattices: LatticeSet, count: int, unit: int, by: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lattice_files, "UNIT", unit)
    monkeypatch.setattr(comparison, "RESAMPLES", 20)
    pieces = [lattices.take(np.arange(len(lattices)) < 1), lattices.take(np.arange(len(lattices)) >= 1)]
    unnumbered = pieces if by else [replace(piece, sequence=None) for piece in pieces]
    units = {number for _, numbers in Shard().units(unnumbered) for number in numbers.tolist()}
    shards = [
        shard
        for shard in (Shard(index, count) for index in range(count))
        if any(unit % count == shard.index for unit in units)
    ]
    tallies = [tally((block for block, _ in shard.units(unnumbered)), [1, 3], by=by) for shard in shards]
    assert functools.reduce(operator.add, tallies).to_json() == tally(unnumbered, [1, 3], by=by).to_json()
    comparisons = [compare(unnumbered, ["3-best"], by=by, shard=shard) for shard in shards]
    added = replace(functools.reduce(operator.add, comparisons), parts=frozenset())
    assert added.to_json() == compare(unnumbered, ["3-best"], by=by).to_json()


def test_hand_computed_tally() -> None:
    got = tally([by_hand()], [1, 2], by="position")
    assert got.counts[:, 0].tolist() == [[2, 1, 1], [1, 1, 2]]  # k = 1: 1, 0, 2, 0; k = 2: 2, 0, 2, 1
    assert got.block_efficiency[:, 0].tolist() == [1.75, 2.25]
    # k = 1 calls at 0 (1 accepted), 2 (2 accepted); k = 2 at 0 (2 accepted), 3 (1 accepted).
    assert got.decode_totals[:, 0].tolist() == [[4, 2, 2], [4, 2, 2]]
    # vanilla ends at: slot 1 (token there, behind another), slot 0 (token lacking), never, slot 0 (behind another)
    assert got.lost.tolist() == [[1, 1, 0], [1, 0, 0]]
    got = tally([by_hand()], [1, 2])
    assert got.signature.by == "decode"
    assert got.counts[:, 0].tolist() == [[0, 1, 1], [0, 1, 1]]
    assert got.accepted_share[0, 0].tolist() == [0, 50, 50]
    assert got.block_efficiency[:, 0].tolist() == [2.0, 2.0]
    assert got.lost.tolist() == [[0, 0, 0], [1, 0, 0]]
    assert got.lost_share[1].tolist() == [50, 0, 0]


def test_longest_prefix_at_every_call_need_not_make_the_fewest_calls() -> None:
    # Accepted at each position: 1, 3, 0, 0, 0. Two tokens first lead to a call for each of the rest; one leads to three
    # more at once.
    lengths = [1, 3, 0, 0, 0]
    tokens = np.array([[[1 if slot < length else 2] for slot in range(3)] for length in lengths], np.int32)
    numbers = {"log_probs": np.zeros((5, 3, 1), np.float32), "continuation": np.ones((5, 3), np.int32)}
    lattices = LatticeSet(tokens, **numbers, context=np.zeros((5, 1), np.int32), sequence=np.zeros(5, np.int64))
    assert tally([lattices], [1]).decode_totals[0, 0].tolist() == [5, decode(lengths), fewest(lengths)] == [5, 4, 2]


def test_unnumbered_lattices_have_no_decode() -> None:
    lattices = by_hand()
    unnumbered = LatticeSet(lattices.tokens, lattices.log_probs, lattices.continuation, lattices.context)
    got = tally([unnumbered], [1])
    assert got.signature.by == "position"
    assert np.isnan(got.best_block_efficiency).all()
    assert got.block_efficiency[0, 0] == 1.75
    for blocks_ in ([unnumbered], [lattices, unnumbered]):
        with pytest.raises(ValueError, match="expected files that number their texts, to count by decode"):
            tally(blocks_, [1], by="decode")
    with pytest.raises(ValueError, match="expected statistics by decode or by position, got 'text'"):
        tally([lattices], [1], by="text")


def test_bad_requests_are_named() -> None:
    for ks, heads, message in ([[0], [], "k >= 1"], [[], [], "k >= 1"], [[1], [1], "at least 2 heads"]):
        with pytest.raises(ValueError, match=message):
            tally([by_hand()], ks, heads)
    with pytest.raises(ValueError, match="at least one lattice"):
        tally([], [1])
    for other in (tally([by_hand()], [2]), tally([by_hand()], [1], by="position")):
        with pytest.raises(ValueError, match="of one kind"):
            tally([by_hand()], [1]) + other
    for text in ("1", "2/2", "a/b", "-1/2", "0/0"):
        with pytest.raises(ValueError, match="shard"):
            Shard.parse(text)
    for record in ({}, {"kind": "oracle tally"}, [], {**tally([by_hand()], [1]).to_json(), "walked": [[1]]}):
        with pytest.raises(ValueError, match="expected"):
            OracleTally.from_json(record)


def test_every_part_counts_once_and_those_that_are_missing_have_to_be_named() -> None:
    def of(*parts: int) -> OracleTally:
        return replace(tally([by_hand()], [1]), parts=frozenset(Shard(index, 3) for index in parts))

    of(0, 1, 2).check_parts([])
    of(0, 2).check_parts([1])
    with pytest.raises(ValueError, match="expected all parts, but 1/3 is missing; count it with --shard 1/3"):
        of(0, 2).check_parts([])
    for part in (1, 3):
        with pytest.raises(ValueError, match=f"expected --partial to name the missing parts, got {part}"):
            of(0, 1, 2).check_parts([part])
    with pytest.raises(ValueError, match="expected every part once, got 1/3 twice"):
        of(0, 1) + of(1, 2)
    with pytest.raises(ValueError, match="expected parts of one number, got 0/3, 1/2"):
        replace(of(0), parts=frozenset([Shard(0, 3), Shard(1, 2)]))
    assert [of(*parts).to_json()["parts"] for parts in ((0, 1, 2), (0, 2))] == [["0/1"], ["0/3", "2/3"]]


def test_records_of_numbers_below_zero_are_refused() -> None:
    record = tally([by_hand()], [1]).to_json()
    assert OracleTally.from_json(record).to_json() == record
    record["walked"][0][0][1] = -1
    with pytest.raises(ValueError, match="expected decode_totals as numbers of at least 0"):
        OracleTally.from_json(record)


def test_damaged_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "lattices.npz"
    by_hand().save(path)
    good = path.read_bytes()
    assert sum(map(len, blocks([path]))) == 4
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(good)
        if rng.random() < 0.3:
            del damaged[int(rng.integers(1, len(damaged))) :]
        for position in rng.integers(len(damaged), size=rng.integers(1, 5)):
            damaged[position] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            assert sum(map(len, blocks([path]))) <= 4
        except ValueError as error:
            refused += str(path) in str(error)
    assert refused > 100  # bytes of the archive's own bookkeeping may change without harm
    np.savez(path, tokens=np.zeros(3))
    with pytest.raises(ValueError, match="missing: log_probs"):
        list(blocks([path]))
