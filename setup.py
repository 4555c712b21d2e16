"""The compiled core and kernels; everything else about the package stands in setup.cfg."""

import os
from glob import glob

from pybind11.setup_helpers import Pybind11Extension, build_ext
from setuptools import setup

GIL_RELEASE = "fst/include/latticebpd/gil_release.hpp"
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

setup(
    ext_modules=[
        Pybind11Extension(
            "fst._core",
            sorted(glob("fst/_core/*.cpp")),
            depends=[*sorted(glob("fst/_core/*.hpp")), GIL_RELEASE],
            include_dirs=["fst/include"],
            cxx_std=20,
            extra_compile_args=flags,
            extra_link_args=links,
        ),
        Pybind11Extension(
            "latticebpd.cpu._engine",
            sorted(glob("latticebpd/cpu/_engine/*.cpp")),
            depends=[
                *sorted(glob("latticebpd/cpu/_engine/*.*pp")),
                *sorted(glob("latticebpd/cpu/_engine/**/*.inc", recursive=True)),
                GIL_RELEASE,
            ],
            include_dirs=["fst/include"],
            cxx_std=20,
            # A product and a sum share one rounding only where the code says so: the same bits on every processor.
            # Vectors are passed to inlined functions only.
            extra_compile_args=[*flags, "-ffp-contract=off", "-Wno-psabi"],
            extra_link_args=links,
        ),
    ],
    cmdclass={"build_ext": build_ext},
)
