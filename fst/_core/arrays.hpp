// NumPy arrays as the Python side takes and returns them.
#pragma once

#include <pybind11/numpy.h>

#include <span>
#include <vector>

#include <fst/refuse.hpp>

namespace fst_core {

using fst::refuse;

template <typename T>
using Array = pybind11::array_t<T, pybind11::array::c_style | pybind11::array::forcecast>;

template <typename T>
Array<T> array_of(const std::vector<T>& values) {
    return Array<T>(static_cast<pybind11::ssize_t>(values.size()), values.data());
}

inline std::span<const std::int64_t> tokens_of(const Array<std::int64_t>& array, const char* name) {
    if (array.ndim() != 1) refuse("expected ", name, " as one sequence of token ids, got ", array.ndim(), " axes");
    return {array.data(), static_cast<std::size_t>(array.size())};
}

}  // namespace fst_core
