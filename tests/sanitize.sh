#!/usr/bin/env bash
# The compiled core, the kernels and the CPU engine under AddressSanitizer and UndefinedBehaviorSanitizer: their tests, and the fuzzers of
# the core's readers; the thread pool under ThreadSanitizer.
#
#   bash tests/sanitize.sh            everything, and 100,000 mutated files
#   bash tests/sanitize.sh --quick    searches, calibrated trees, kernels, the engine and a short fuzz run, a few minutes
#   ROUNDS=1000 bash tests/sanitize.sh    so many mutated files
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=${ROUNDS:-100000}
engine=(tests/test_scarce_memory.py tests/latticebpd/cpu/test_kernels.py tests/latticebpd/cpu/test_chains.py tests/latticebpd/cpu/test_engine_formats.py tests/latticebpd/cpu/test_engine.py)
selection=(tests/fst/test_search.py tests/fst/test_constraints.py tests/fst/test_calibrated.py tests/fst/test_arpa.py tests/fst/test_const_file.py
  tests/fst/test_ngram_model.py tests/fst/test_openfst.py tests/fst/test_word_lattices.py
  tests/latticebpd/constraints/test_automata.py "${engine[@]}")
if [[ "${1:-}" == "--quick" ]]; then
  rounds=${ROUNDS:-3000}
  selection=(tests/fst/test_search.py tests/fst/test_constraints.py tests/fst/test_calibrated.py "${engine[@]}")
elif [[ $# -gt 0 ]]; then
  echo "expected --quick or nothing, got $*" >&2
  exit 2
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp -r LICENSE README.md fst latticebpd lm_training pyproject.toml setup.cfg setup.py tests "$scratch"
cd "$scratch"
rm -f fst/*.so latticebpd/cpu/*.so
g++ -std=c++20 -O1 -g -fsanitize=thread -pthread tests/latticebpd/cpu/pool.cpp -o pool
TSAN_OPTIONS=die_after_fork=0 ./pool
LATTICEBPD_SANITIZE=1 python setup.py -q build_ext --inplace

# Both runtimes go first, so that exceptions thrown by one library and caught in another are seen by the sanitizer.
export LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libstdc++.so.6)"
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
export HYPOTHESIS_STORAGE_DIRECTORY="$scratch/hypothesis"
python -m pytest -q --noconftest -n 0 -p no:cacheprovider -m "not slow" "${selection[@]}"
python -m tests.fuzz --rounds "$rounds"
