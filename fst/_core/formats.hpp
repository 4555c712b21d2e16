// The Python side of the file formats, as far as others need it.
#pragma once

#include <pybind11/pybind11.h>

#include "model.hpp"

namespace fst_core {

// For each order: rows of tokens [n, order], costs [n], costs of the backoff weights [n].
pybind11::list list_ngrams(const Model& model);

// AutomatonBuilder, ArpaParser and read_symbols.
void bind_formats(pybind11::module_& module);

}  // namespace fst_core
