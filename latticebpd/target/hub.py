"""Models of the hub by name, with one request: ``transformers`` makes six, with pauses and messages, then fails."""

from __future__ import annotations

import functools
from pathlib import Path

from huggingface_hub import get_hf_file_metadata, hf_hub_url, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, HFValidationError, RepositoryNotFoundError

SECONDS = 10
"""Time limit of the request."""


@functools.cache
def at_hub(name: str) -> Path | str:
    """The name, if the hub has the model; if the hub cannot be reached, the folder of an earlier download.

    Raises:
        ValueError: the hub has no such model, or cannot be reached and there was no earlier download.
    """
    wanted = f"{name}: expected the directory of a model (config.json, model.safetensors) or a hub's name"
    missing = f"{wanted}; there is no such directory, and the hub"
    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=SECONDS)
    except HFValidationError:
        raise ValueError(f"{wanted}, found neither") from None
    except RepositoryNotFoundError:
        raise ValueError(f"{missing} has no such model, or not for you (hf auth login)") from None
    except EntryNotFoundError:  # a tokenizer alone
        return name
    except Exception as error:  # of any of the HTTP libraries below
        try:
            return Path(snapshot_download(name, local_files_only=True))
        except Exception:
            raise ValueError(f"{missing} cannot be asked: {' '.join(str(error).split())}") from None
    return name
