"""What the tests of commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.writing_commands import made_inputs


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of what the writing commands read."""
    folder = tmp_path_factory.mktemp("inputs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made_inputs(folder)
    return folder
