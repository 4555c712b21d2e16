"""The libraries that the CPU engine is compared with: they are installed, and run in processes of their own.

    python -m benchmarks.engine.peers     # half an hour: llama.cpp is compiled for this processor, on one core

Environments and models are below ``$LATTICEBPD_CACHE/peers``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import IO, Any

from benchmarks.common import run, stage
from benchmarks.engine.files import smollm2
from latticebpd.models.catalogue import cache_folder, resolved

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "llama.cpp": ["llama-cpp-python"],
    "openvino": ["openvino", "openvino-genai", "optimum-intel", "nncf", "torch==2.13.0", "torchvision==0.28.0"],
}
BUILD = {"CMAKE_BUILD_PARALLEL_LEVEL": "1", "CMAKE_ARGS": "-DLLAVA_BUILD=OFF"}
EXPORT = "-m optimum.commands.optimum_cli export openvino --task text-generation-with-past --weight-format int8"
System = tuple[str, Path | str]
"""A library and its model."""


def interpreter(library: str) -> str:
    return str(cache_folder() / "peers" / library / "bin/python") if library in PACKAGES else sys.executable


def python(library: str, *arguments: str) -> str:
    """Call a library's interpreter; what it prints."""
    command = ["nice", "-n", "19", interpreter(library), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **BUILD}).stdout


def install(library: str) -> None:
    venv.create(cache_folder() / "peers" / library, with_pip=True)
    python(library, "-m", "pip", "install", *PACKAGES[library])
    if library == "openvino":  # the registry's torchvision needs CUDA, and breaks imports next to another PyTorch
        python(library, "-m", "pip", "uninstall", "-y", "torchvision")


def installed() -> list[str]:
    return [library for library in PACKAGES if Path(interpreter(library)).exists()]


def versions() -> dict[str, str]:
    listed = [json.loads(python(library, "-m", "pip", "list", "--format=json")) for library in installed()]
    names = ("llama_cpp_python", "openvino", "openvino-genai", "optimum-intel")
    return {each["name"]: each["version"] for packages in listed for each in packages if each["name"] in names}


def systems() -> dict[str, System]:
    """Libraries that are installed, with SmolLM2-135M; models that are missing are made."""
    folder, weights = cache_folder() / "peers/models", resolved("smollm2-135m")
    int8, known = folder / "openvino-int8", dict[str, System]()
    if "llama.cpp" in installed():
        known |= {f"llama.cpp {n}": ("llama.cpp", smollm2(folder, n)) for n in ("Q8_0", "Q4_0", "Q4_1")}
        known |= {f"latticebpd {n}": ("latticebpd", known[f"llama.cpp {n}"][1]) for n in ("Q8_0", "Q4_0")}
    if "openvino" in installed():
        model = int8 / "openvino_model.xml"
        stage(model, lambda: python("openvino", *EXPORT.split(), "--model", str(weights), str(int8)))
        known["OpenVINO int8"] = ("openvino", int8)
    known |= {f"latticebpd {kind}": (f"latticebpd {kind}", weights) for kind in ("int8", "float32")}
    return known | {"PyTorch float32": ("transformers", weights), "latticebpd Q4_1": ("latticebpd", weights)}


class Peer:
    """A system in a process of its own, which answers the requests of `serve`.

    python: the interpreter, by default that of the library's own environment.
    """

    def __init__(
        self, system: System, threads: int, size: int = 512, drafts: str = "", python: str | None = None
    ) -> None:
        library, self.model = system
        settings = {"library": library, "model": str(self.model), "threads": threads, "size": size, "drafts": drafts}
        command = [python or interpreter(library), "-m", "benchmarks.engine.serve", json.dumps(settings)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.started = time.perf_counter()
        streams: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors}
        self.process = subprocess.Popen(command, text=True, cwd=ROOT, env=environment, **streams)

    def ask(self, **request: Any) -> dict[str, Any]:
        print(json.dumps(request), file=self.process.stdin, flush=True)
        if line := self.process.stdout and self.process.stdout.readline():
            return dict(json.loads(line))
        self.errors.seek(0)
        raise ValueError(f"{self.model}: the process ended: {(self.errors.read().splitlines() or ['no message'])[-1]}")

    def close(self) -> None:
        self.process.communicate()  # closes its input, which ends it
        self.errors.close()


if __name__ == "__main__":
    run(lambda: [*map(install, PACKAGES), systems()])
