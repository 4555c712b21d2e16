"""The compiled core and kernels; everything else about the package stands in setup.cfg.

LATTICEBPD_WERROR=1: warnings are errors. LATTICEBPD_SANITIZE=1: with AddressSanitizer and UndefinedBehaviorSanitizer.
LATTICEBPD_JOBS=n: files compiled at the same time, by default one on each processor, at most eight, for memory.
"""

import os
import tomllib
from glob import glob
from pathlib import Path
from typing import Any

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import setup

SHARED = sorted(glob("fst/include/fst/*.hpp"))
SETTINGS = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"]["latticebpd"]

flags = ["-O3", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread"]
if os.environ.get("LATTICEBPD_SANITIZE"):
    flags = [
        "-O1",
        "-g",
        "-fno-omit-frame-pointer",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
        "-pthread",
    ]
links = [flag for flag in flags if flag.startswith(("-fsanitize", "-pthread"))]
if os.environ.get("LATTICEBPD_WERROR"):
    flags.append("-Werror")

ParallelCompile("LATTICEBPD_JOBS", default=min(8, os.cpu_count() or 1)).install()


class BuildExtensions(build_ext):
    """Compiles each file with its own instructions as well."""

    def build_extensions(self) -> None:
        compile_file = self.compiler._compile

        def compile_with_instructions(obj: str, src: str, ext: str, args: Any, extra: list[str], options: Any) -> None:
            own = SETTINGS["instructions"].get(Path(src).name, []) if self.plat_name.endswith("x86_64") else []
            compile_file(obj, src, ext, args, [*extra, *own], options)

        self.compiler._compile = compile_with_instructions
        super().build_extensions()


setup(
    ext_modules=[
        Pybind11Extension(
            "fst._core",
            sorted(glob("fst/_core/*.cpp")),
            depends=[*sorted(glob("fst/_core/*.hpp")), *SHARED],
            include_dirs=["fst/include"],
            cxx_std=20,
            extra_compile_args=flags,
            extra_link_args=links,
        ),
        Pybind11Extension(
            "latticebpd.cpu._engine",
            sorted(glob("latticebpd/cpu/_engine/*.cpp")),
            depends=[
                *sorted(glob("latticebpd/cpu/_engine/*.hpp")),
                *sorted(glob("latticebpd/cpu/_engine/**/*.inc", recursive=True)),
                *SHARED,
            ],
            include_dirs=["fst/include"],
            cxx_std=20,
            # A product and a sum share one rounding only where the code says so: the same bits on every processor.
            # Vectors are passed to inlined functions only.
            extra_compile_args=[*flags, "-ffp-contract=off", "-Wno-psabi"],
            extra_link_args=links,
        ),
    ],
    cmdclass={"build_ext": BuildExtensions},
)
