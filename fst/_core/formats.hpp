// The Python side of the file formats, as far as others need it.
#pragma once

#include <pybind11/numpy.h>

#include <vector>

#include "model.hpp"

namespace fst_core {

template <typename T>
using Array = pybind11::array_t<T, pybind11::array::c_style | pybind11::array::forcecast>;

template <typename T>
Array<T> array_of(const std::vector<T>& values) {
    return Array<T>(static_cast<pybind11::ssize_t>(values.size()), values.data());
}

// For each order: rows of tokens [n, order], costs [n], costs of the backoff weights [n].
pybind11::list list_ngrams(const Model& model);

// AutomatonBuilder, ArpaParser and read_symbols.
void bind_formats(pybind11::module_& module);

}  // namespace fst_core
