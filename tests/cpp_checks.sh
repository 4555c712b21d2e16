#!/usr/bin/env bash
# The compiled parts by other compilers' eyes: clang builds them without a warning and its modules pass the tests with the same bits;
# clang-tidy finds none of its bugprone patterns, and clang-format nothing to move. (g++, without warnings: LATTICEBPD_WERROR=1 of setup.py.)
#
#   bash tests/cpp_checks.sh    a quarter of an hour; needs clang, clang-tidy and clang-format 14 (Debian's)
set -euo pipefail
cd "$(dirname "$0")/.."

clang-format --dry-run -Werror fst/_core/*.?pp fst/include/fst/*.hpp latticebpd/cpu/_engine/*.?pp tests/latticebpd/cpu/*.cpp tests/helpers/*.cpp
for file in latticebpd/cpu/_engine/operations/*.inc; do clang-format --assume-filename=loops.cpp "$file" | diff "$file" -; done

includes=$(python -c 'import pybind11, sysconfig; print("-isystem", pybind11.get_include(), "-isystem", sysconfig.get_path("include"))')
instructions() { # of a file, as setup.py compiles it
  python -c 'import sys, tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["tool"]["latticebpd"]["instructions"].get(sys.argv[1], []))' "$1"
}
for file in fst/_core/*.cpp latticebpd/cpu/_engine/*.cpp; do
  # shellcheck disable=SC2046,SC2086  # several flags
  clang-tidy --quiet "$file" -- -std=c++20 -Ifst/include $includes $(instructions "$(basename "$file")")
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp -r LICENSE README.md fst latticebpd lm_training pyproject.toml setup.cfg setup.py tests "$scratch"
cd "$scratch"
rm -f fst/*.so latticebpd/cpu/*.so
CC=clang CXX=clang++ LATTICEBPD_WERROR=1 python setup.py -q build_ext --inplace
python -m pytest -q --noconftest -p no:cacheprovider -m "not slow" tests/fst/test_search.py tests/fst/test_calibrated.py tests/fst/test_arpa.py \
  tests/latticebpd/cpu/test_kernels.py tests/latticebpd/cpu/test_engine_formats.py
