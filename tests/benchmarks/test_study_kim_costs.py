"""Hardware cost per token: the paper's table to the last digit, and the corrected account by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.study import kim_costs
from benchmarks.study.kim_costs import PAPER_DECODINGS, Decoding, ModelShape, hardware_cost
from latticebpd.drafters.heads.blockwise import BlockwiseLM, new_heads
from tests.helpers.blockwise_models import tiny_model
from tests.helpers.markdown_tables import markdown_tables
from tests.helpers.tiny_families import tiny

TABLE_11 = """
3.000 1.823 1.811 1.811 1.747 1.669
0.113 0.074 0.073 0.076 0.140 0.134
0.453 0.280 0.278 0.290 0.338 0.323
0.906 0.555 0.552 0.574 0.602 0.575
1.812 1.106 1.098 1.144 1.129 1.079
0.931 0.570 0.567 0.635 0.621 0.593
"""
"""Kim 2024: GB of parameters, GB of keys and values at 128, 512, 1024 and 2048 tokens, TFLOPs."""


def test_paper_mode_reproduces_all_36_cells() -> None:
    printed = [[float(cell) for cell in line.split()] for line in TABLE_11.split("\n") if line]
    cost = hardware_cost(mode="paper")
    computed = np.vstack([cost.parameter_bytes / 1e9, cost.cache_bytes.T / 1e9, cost.flops / 1e12])
    assert computed.shape == (6, 6)
    assert computed.round(3).tolist() == printed


def test_mean_block_efficiencies_are_those_of_tables_4_and_9() -> None:
    bpd = [3.12, 2.08, 1.74, 1.27, 1.10, 1.13, 1.08]
    best = [3.29, 2.22, 1.83, 1.45, 1.22, 1.26, 1.31]
    assert round(sum(bpd) / 7, 3) == PAPER_DECODINGS[1].block_efficiency
    assert round(sum(best) / 7, 3) == PAPER_DECODINGS[-1].block_efficiency


def test_corrected_mode_by_hand() -> None:
    shape = ModelShape(
        parameters=1000,
        layers=2,
        hidden=8,
        feed_forward=32,
        key_value=4,
        heads=3,
        head_parameters=100,
        vocabulary=50,
        bytes_per_number=4,
    )
    small = ModelShape(parameters=10, layers=1, hidden=2, feed_forward=8, key_value=2)
    cost = hardware_cost(
        shape, [Decoding("greedy", 1, 0), Decoding("tree", 2, 5), Decoding("neural", 2, 5, small, steps=3)], [7, 20]
    )
    assert cost.names == ("greedy", "tree", "neural")
    assert cost.parameter_bytes.tolist() == [4000, 4 * 1100 / 2, (4 * 1100 + 3 * 2 * 10) / 2]
    cache = [
        2 * 2 * 4 * 4 * (20 + 1),
        2 * 2 * 4 * 4 * (20 + 6) / 2,
        (2 * 2 * 4 * 4 * (20 + 6) + 3 * 2 * 1 * 2 * 2 * (20 + 3)) / 2,
    ]
    assert cost.cache_bytes[:, 1].tolist() == cache
    tree = 6 * (2 * 1000 + 4 * 2 * 8 * (20 + 6)) + 2 * 100 + 2 * 2 * 8 * 50
    neural = tree + 3 * (2 * 10 + 4 * 1 * 2 * (20 + 3))
    assert cost.flops.tolist() == [2 * 1000 + 4 * 2 * 8 * 21, tree / 2, neural / 2]
    beams = hardware_cost(shape, [Decoding("neural", 2, 5, small, steps=3, rows=4)], [20])
    assert beams.cache_bytes[0, 0] == (2 * 2 * 4 * 4 * (20 + 6) + 3 * 4 * 2 * 1 * 2 * 2 * (20 + 3)) / 2
    assert beams.flops[0] == (tree + 3 * 4 * (2 * 10 + 4 * 1 * 2 * (20 + 3))) / 2
    read = hardware_cost(
        replace(shape, source=30), [Decoding("greedy", 1, 0)], [20]
    )  # every call attends to 30 tokens more
    assert read.cache_bytes[0, 0] == 2 * 2 * 4 * 4 * (20 + 1 + 30)
    assert read.flops[0] == 2 * 1000 + 4 * 2 * 8 * (20 + 1 + 30)


def test_shape_of_a_model_is_read_from_its_configuration() -> None:
    model = (
        tiny_model()
    )  # 2 layers of width 16 and 32, two attention heads, one of keys and values; 5 predictions, 23 tokens
    shape = ModelShape.of(model, source=7)
    assert (shape.layers, shape.hidden, shape.feed_forward, shape.key_value) == (2, 16, 32, 8)
    assert (shape.heads, shape.vocabulary, shape.bytes_per_number) == (5, 23, 4)
    assert shape.source == 0  # it reads none
    assert shape.parameters == sum(parameter.numel() for parameter in model.base.parameters())
    assert shape.head_parameters == sum(parameter.numel() for parameter in model.heads.parameters())


def test_numbers_are_as_wide_as_the_models_type() -> None:
    base = tiny("gpt2")
    assert ModelShape.of(base).bytes_per_number == 4
    assert ModelShape.of(base.to(torch.bfloat16)).bytes_per_number == 2
    assert ModelShape.of(base).heads == 1


@pytest.mark.parametrize("family", ["marian", "bart", "t5"])
def test_the_shape_of_an_encoder_decoder_is_its_decoders(family: str) -> None:
    base = tiny(family)
    shape = ModelShape.of(BlockwiseLM(base, new_heads(base, "feed-forward", 5)), source=12.5)
    assert shape.source == 12.5
    assert (shape.layers, shape.hidden, shape.feed_forward, shape.key_value, shape.vocabulary) == (2, 16, 16, 16, 23)
    encoder = {name for name, _ in base.named_parameters() if ".encoder." in f".{name}"}
    assert len(encoder) > 10
    assert shape.parameters == sum(
        parameter.numel() for name, parameter in base.named_parameters() if name not in encoder
    )


def test_bad_requests_are_named() -> None:
    with pytest.raises(ValueError, match="mode among paper, corrected, got 'other'"):
        hardware_cost(mode="other")
    with pytest.raises(ValueError, match="at least one system"):
        hardware_cost(decodings=[])
    with pytest.raises(ValueError, match="slow: expected block efficiency"):
        hardware_cost(decodings=[Decoding("slow", 0.5, 0)])
    with pytest.raises(ValueError, match="expected layers > 0, got 0"):
        ModelShape(1, 0, 1, 1, 1)


def tables_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> list[list[list[str]]]:
    monkeypatch.setattr("sys.argv", ["kim_costs", *map(str, arguments)])
    kim_costs.main()
    return list(markdown_tables(capsys.readouterr().out))


def test_the_program_prints_the_papers_table_by_both_accounts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paper, corrected = tables_of(monkeypatch, capsys)
    assert [row[1:] for row in paper[1:]] == [line.split() for line in TABLE_11.split("\n") if line]
    assert [row[0] for row in corrected] == [row[0] for row in paper]
    assert corrected[-1] != paper[-1]


def test_the_program_prints_the_costs_of_systems_that_were_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_model()
    model.save_pretrained(tmp_path / "model")
    system = {"system": "16-best", "block_efficiency": 2.5, "verified_tokens": 40}
    (tmp_path / "compared.json").write_text(json.dumps({"systems": [system]}))
    arguments = ("--model", tmp_path / "model", "--compared", tmp_path / "compared.json")
    ((head, read, *_),) = tables_of(monkeypatch, capsys, *arguments)
    assert head == ["per decoded token", "autoregressive", "16-best"]
    numbers = [sum(parameter.numel() for parameter in part.parameters()) for part in (model.base, model.heads)]
    assert read == ["parameters read (MB)", f"{4 * numbers[0] / 1e6:.3f}", f"{4 * sum(numbers) / 2.5 / 1e6:.3f}"]
