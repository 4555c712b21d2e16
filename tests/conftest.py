"""Shared fixtures: models small enough for a test, random but always the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

# Two threads of a test may share one processor, so one that waits for the other must sleep; read as PyTorch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# What the program prints into a pipe has lines of any length, unless this says where they end.
os.environ.pop("COLUMNS", None)

import pytest
import torch

from latticebpd.cli import main
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.models.catalogue import cache_folder
from tests.helpers.blockwise_models import tiny_model
from tests.helpers.commands import Run

# Models this small run fastest on one thread, and tests then share a machine well.
torch.set_num_threads(1)

# Programs that are started in the background may ignore interrupts, and so would those that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two processes for all tests or a folder of them; for named files this one, since others take seconds to start."""
    return 0 if any(".py" in argument for argument in config.args) else min(2, os.cpu_count() or 1)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before its fixtures: what a test draws without a seed of its own is the same in every order of tests."""
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The user's downloaded models, but a folder of costs that is gone after the tests."""
    folder, downloaded = tmp_path_factory.mktemp("cache"), cache_folder() / "models"
    (folder / "models").symlink_to(downloaded)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("LATTICEBPD_CACHE", str(folder))
        yield


@pytest.fixture(scope="session")
def model() -> BlockwiseLM:
    return tiny_model()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Call the program in this process; returns exit status, standard output, standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["latticebpd", *map(str, arguments)])
        capfd.readouterr()
        status = 0
        try:
            main()
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return call
