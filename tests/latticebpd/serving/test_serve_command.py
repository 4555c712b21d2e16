"""``latticebpd serve`` as a program: its address, an answer, a signal; what it refuses."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import latticebpd
from latticebpd.drafters.cost_curve import CostCurve
from latticebpd.serving.server import is_loopback
from tests.helpers.commands import Run

PROMPT = "The history of the city"


@pytest.fixture
def program() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The server of the bundled model on any free port, with a key, and its URL."""
    call = "import sys; sys.argv[0] = 'latticebpd'; from latticebpd.cli import main; main()"
    environment = {**os.environ, "LATTICEBPD_API_KEY": "secret", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", call, "serve", "--port", "0", "--name", "toy", "--rows", "2"],
        stderr=subprocess.PIPE, text=True, env=environment, cwd=Path(latticebpd.__file__).parents[1],
    ) as process:  # fmt: skip
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "startup complete" in line:
                break
        url = re.search(r"toy at (http://127\.0\.0\.1:\d+/v1), 64-calibrated, weights: float32", "".join(lines))
        assert url, lines
        try:
            yield process, url[1]
        finally:
            process.kill()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_program_serves_until_a_signal(program: tuple[subprocess.Popen[str], str], number: signal.Signals) -> None:
    process, url = program
    headers = {"authorization": "Bearer secret"}
    body = {"model": "toy", "prompt": PROMPT, "max_tokens": 12}
    answer = httpx.post(f"{url}/completions", json=body, headers=headers, timeout=60).json()
    loaded = latticebpd.load()
    expected = loaded.generate(PROMPT, max_new_tokens=12)
    assert answer["choices"][0]["text"] == loaded.decode(expected.sequences[0, expected.prompt_length :])
    assert answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 0
    assert httpx.post(f"{url}/completions", json=body, timeout=60).status_code == 401
    process.send_signal(number)
    _, rest = process.communicate(timeout=60)
    assert "Application shutdown complete" in rest
    assert "Traceback" not in rest
    assert process.returncode == (0 if number == signal.SIGINT else -signal.SIGTERM)


def test_a_port_that_is_taken_is_one_line(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, out, err = run("serve", "--port", taken.getsockname()[1], "--system", "greedy")
    assert (status, out) == (2, "")
    assert "error: expected to listen on 127.0.0.1, port" in err.splitlines()[-1]


def test_a_key_that_no_client_can_send_is_one_line(run: Run) -> None:
    status, out, err = run("serve", "--model", "no such model", "--api-key", "schlüssel")
    assert (status, out) == (2, "")
    assert "a key of visible ASCII characters" in err
    assert "schlüssel" not in err


def test_costs_of_a_file_are_not_measured_again(run: Run, tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    CostCurve((1,), (1, 9), ((1.0, 2.0),)).save(costs)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = ("serve", "--port", taken.getsockname()[1], "--system", "8-tree")
        assert "measuring what passes cost" in run(*command)[2]
        assert "measuring" not in run(*command, "--costs", costs)[2]


def test_a_history_needs_trees_that_tell_probabilities(run: Run) -> None:
    status, out, err = run("serve", "--system", "greedy", "--history", 100)
    assert (status, out) == (2, "")
    wanted = "expected --history with a system whose trees tell probabilities, such as 16-copies or 64-tree, got greedy"
    assert wanted in " ".join(err.split())


def test_a_missing_package_is_named_with_how_to_install_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("latticebpd.serving.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    status, _, err = run("serve")
    assert status == 2
    assert "pip install 'latticebpd[serve]'" in err


def test_addresses_of_this_machine_are_known() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.0.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.4", "example.org")))
