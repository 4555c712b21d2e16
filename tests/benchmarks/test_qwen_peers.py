"""Other libraries on Qwen2.5-Coder's questions: what each is asked, what is counted, and a GGUF file in float32."""

from __future__ import annotations

import json
import sys
from functools import partial
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


LLAMA_SERVER = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if flags["--model"] == "bad":
    sys.exit(3)
loading = [503]

class Answers(BaseHTTPRequestHandler):
    def reply(self, status, record):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(record).encode())

    def do_GET(self):
        self.reply(loading.pop() if loading else 200, {{}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = json.dumps([sorted(flags.items()), body], sort_keys=True)
        self.reply(200, {{"content": text, "tokens_predicted": len(body["prompt"])}})

    def log_message(self, *_):
        pass

HTTPServer(("127.0.0.1", int(flags["--port"])), Answers).serve_forever()
"""
"""Writes how it was started and what it was asked."""


def test_llama_server_is_asked_as_the_binding_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = tmp_path / "llama-server"
    server.write_text(LLAMA_SERVER.format(python=sys.executable))
    server.chmod(0o755)
    monkeypatch.setattr(peers, "text_hash", lambda text: text)
    answers, prompts, stops = partial(peers.server_answers, str(server)), [[5, 6], [7]], [[], ["end"]]
    rows = peers.llama_rows("llama-server", answers, Path("file"), Path("small"), prompts, stops, 4, 2)
    flags = [
        {}, {"--spec-type": "ngram-simple", "--spec-ngram-simple-size-n": "12", "--spec-ngram-simple-size-m": "48"},
        {"--spec-type": "ngram-simple", "--spec-ngram-simple-size-n": "3", "--spec-ngram-simple-size-m": "3"},
        {"--spec-type": "draft-simple", "--spec-draft-model": "small", "--spec-draft-threads": "2",
         "--spec-draft-threads-batch": "2"},
    ]  # fmt: skip
    assert [*rows] == [f"llama-server{each}" for each in ("", *(f", {name}" for name in (
        "lookup 12 and 48", "lookup 3 and 3", "smaller model")))]  # fmt: skip
    common = {"--threads": "2", "--threads-batch": "2", "--ctx-size": "4096", "--parallel": "1", "--model": "file"}
    for own, expected in zip(rows.values(), flags, strict=True):
        assert [(row["number"], row["tokens"], row["processor"]) for row in own] == [(0, 2, ""), (1, 1, "")]
        for row, prompt, stop in zip(own, prompts, stops, strict=True):
            started, body = json.loads(row["text"])
            assert {name: value for name, value in started if name != "--port"} == common | expected
            asked = {"prompt": prompt, "n_predict": 4, "stop": stop, "temperature": 0, "cache_prompt": False}
            assert body == asked
    with pytest.raises(ValueError, match="expected a llama-server that runs, got exit status 3"):
        peers.llama_rows("llama-server", answers, Path("bad"), None, prompts, stops, 4, 1)


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
