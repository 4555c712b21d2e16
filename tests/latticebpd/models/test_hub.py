"""Models by a Hub id: a right one is fetched and kept, a wrong one is refused at the first answer."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from latticebpd.models.catalogue import resolved
from lm_training.data.corpus import train_tokenizer
from tests.helpers.blockwise_models import tiny_model


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as a download needs: the files of one folder under the name ``some/model``."""

    folder: Path
    asked: list[str]

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.wfile.write(self.answer())

    def answer(self) -> bytes:
        self.asked.append(self.path)
        file = self.folder / Path(self.path).name
        there, listing = "/some/model/" in self.path, self.path.startswith("/api/models/some/model/tree/")
        exists = listing or (there and file.is_file())
        body = b"[]" if listing else file.read_bytes() if exists else b""
        self.send_response(200 if exists else 404)
        if not exists:
            self.send_header("X-Error-Code", "EntryNotFound" if there else "RepoNotFound")
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return body

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    folder = tmp_path / "there"
    tokenizer = train_tokenizer(["the history of the city and of the river"] * 20, vocab_size=300)
    tiny_model(vocab_size=tokenizer.get_vocab_size(), eos_token_id=0).base.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)
    Hub.folder, Hub.asked = folder, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def generate(tmp_path: Path, hub: ThreadingHTTPServer, model: str) -> tuple[int, str, list[str]]:
    environment = os.environ | {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HOME": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-m", "latticebpd", "generate", "the city", "--model", model, "--max-new-tokens", "4"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout, re.sub(r"[\d.]+ tokens/s, ", "", done.stderr).splitlines()


@pytest.mark.long
def test_right_names_are_fetched_and_kept(tmp_path: Path, hub: ThreadingHTTPServer) -> None:
    status, text, errors = generate(tmp_path, hub, "some/model")
    assert status == 0, errors
    assert len(errors) == 1  # how many calls it took
    assert any(path.endswith("model.safetensors") for path in Hub.asked)
    hub.shutdown()
    hub.server_close()
    assert generate(tmp_path, hub, "some/model") == (0, text, errors)


def test_a_name_that_the_hub_does_not_have_is_refused_at_its_first_answer(
    tmp_path: Path, hub: ThreadingHTTPServer
) -> None:
    status, text, errors = generate(tmp_path, hub, "some/other")
    assert (status, text) == (2, "")
    assert len(errors) == 1
    assert (
        "some/other: expected the directory of a model (config.json, model.safetensors) or a Hub id; there is no"
        " such" in errors[0]
    )
    assert [path for path in Hub.asked if "some/other" in path] == ["/some/other/resolve/main/config.json"]


def test_a_hub_that_cannot_be_asked_is_asked_once(tmp_path: Path, hub: ThreadingHTTPServer) -> None:
    hub.shutdown()
    hub.server_close()
    status, _, errors = generate(tmp_path, hub, "some/model")
    assert status == 2
    assert len(errors) == 1  # transformers says five times that it tries again
    assert "there is no such directory, and the hub cannot be asked: " in errors[0]


@pytest.mark.parametrize("name", ["/some/folder", "./folder", "some/model/folder", "a--b", "a b", ".hidden", "é" * 100])
def test_what_cannot_be_a_hubs_name_is_not_asked_for(name: str) -> None:
    with pytest.raises(ValueError, match=r"expected the directory of a model .* or a Hub id, found neither") as refused:
        resolved(name)
    assert str(refused.value).startswith(f"{name}: ")
