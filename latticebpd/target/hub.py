"""Models of the hub by name, asked for once: ``transformers`` asks six times with pauses, and says so, before it gives
a name up."""

from __future__ import annotations

import functools
from pathlib import Path

from huggingface_hub import get_hf_file_metadata, hf_hub_url, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, HFValidationError, RepositoryNotFoundError

SECONDS = 10
"""How long the hub may take to answer."""


@functools.cache
def at_hub(name: str) -> Path | str:
    """The name, if the hub has something of it; where the hub cannot be asked, the folder of what it gave before.

    Raises:
        ValueError: the hub has no such model, or cannot be asked and gave none before.
    """
    wanted = f"{name}: expected the directory of a model (config.json, model.safetensors) or a hub's name"
    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=SECONDS)
    except HFValidationError:
        raise ValueError(f"{wanted}, found neither") from None
    except RepositoryNotFoundError:
        raise ValueError(
            f"{wanted}; there is no such directory, and the hub has no such model, or not for you (hf auth login)"
        ) from None
    except EntryNotFoundError:  # a tokenizer alone
        return name
    except Exception as error:  # of any of the HTTP libraries below
        try:
            return Path(snapshot_download(name, local_files_only=True))
        except Exception:
            raise ValueError(
                f"{wanted}; there is no such directory, and the hub cannot be asked: {' '.join(str(error).split())}"
            ) from None
    return name
