"""Other libraries on Qwen2.5-Coder's questions: what each is asked, what is counted, and a GGUF file in float32."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.qwen import peers
from latticebpd.models.catalogue import GGUF_NAME
from tests.helpers.gguf_files import bundled_with_gguf


def letters(tokens: list[int]) -> str:
    return "".join(map(chr, tokens))


class Scripted:
    """Writes the prompt's tokens again; with prompt lookup beyond the limit, as OpenVINO does."""

    begun: list[Any]

    def __init__(self, system: Any, threads: int, size: int, drafts: str, python: str) -> None:
        self.begun.append((system, threads, size, drafts, python))
        self.more, self.asked = bool(drafts), 0

    def ask(self, prompt: list[int], limit: int, ends: list[int]) -> dict[str, Any]:
        self.asked += 1
        assert (limit, ends) == ((8, []) if self.asked == 1 else (4, [9]))
        return {"tokens": prompt[: limit + self.more], "wall_ms": 500.0, "cpu_ms": 250.0 * (1 + self.more)}

    def close(self) -> None:
        self.begun.append("closed")


def test_a_library_warms_up_and_its_tokens_count_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "begun", [], raising=False)
    monkeypatch.setattr(peers, "Peer", Scripted)
    prompts = [([97, 98], [9]), ([97, 98, 99, 100, 101, 102], [9])]
    rows = peers.peer_rows("OpenVINO", "python-of-it", Path("file"), prompts, letters, 4, 2)
    common = (("openvino", Path("file")), 2, 6 + 4 + 64)
    assert Scripted.begun == [
        (*common, "", "python-of-it"), "closed", (*common, "prompt lookup", "python-of-it"), "closed",
    ]  # fmt: skip
    assert [*rows] == ["OpenVINO", "OpenVINO, prompt lookup"]
    for own in rows.values():
        assert [row["tokens"] for row in own] == [3, 4]  # the first one ended, and its end counts
        assert {row["seconds"] for row in own} == {0.5}
    flat = [
        {"system": name, **{key: str(value) for key, value in row.items()}} for name, own in rows.items() for row in own
    ]
    assert peers.lines_of(flat) == [
        ["OpenVINO", "7.0", "14.0", "2 of 2"],
        ["OpenVINO, prompt lookup", "7.0", "7.0", "2 of 2"],
    ]
    flat[3]["text"] = "other"
    assert peers.lines_of(flat)[1][3] == "1 of 2"


@pytest.mark.long
def test_transformers_reads_the_file_in_float32_and_its_lookup_writes_the_same(tmp_path: Path) -> None:
    folder = bundled_with_gguf(tmp_path / "model")
    prompts = [([*range(100, 130)], [2]), ([7, 8, 9], [2])]
    rows = peers.peer_rows("transformers", sys.executable, folder / GGUF_NAME, prompts, str, 6, 1)
    assert [*rows] == ["transformers", "transformers, prompt lookup 3", "transformers, prompt lookup 10"]
    model: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF_NAME, dtype=torch.float32)
    for number, (ids, _) in enumerate(prompts):
        mask = torch.ones(1, len(ids), dtype=torch.long)
        out = model.generate(
            torch.tensor([ids]), attention_mask=mask, max_new_tokens=6, do_sample=False, eos_token_id=[2]
        )
        tokens = [token for token in out[0, len(ids) :].tolist() if token != 2]
        assert {own[number]["tokens"] for own in rows.values()} == {min(6, len(tokens) + 1)}
        assert len({own[number]["text"] for own in rows.values()}) == 1
        assert rows["transformers"][number]["text"] == peers.text_hash(str(tokens))
