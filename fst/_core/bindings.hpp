// What each file adds to the Python module.
#pragma once

#include <pybind11/pybind11.h>

namespace fst_core {

void bind_formats(pybind11::module_& module);          // AutomatonBuilder, ArpaParser, read_symbols, errors
void bind_sausages(pybind11::module_& module);         // their searches and TextIndex
void bind_word_lattices(pybind11::module_& module);    // searches of any lattice
void bind_token_acceptors(pybind11::module_& module);  // acceptors over a model's tokens

}  // namespace fst_core
