// latticebpd.cpu._kernels under pybind11. The Python package checks the arrays whose addresses come in.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cache_moves.hpp"
#include "int8_heads.hpp"
#include "int8_linear.hpp"
#include "latticebpd/gil_release.hpp"
#include "top_k.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace cpu_kernels {

using latticebpd::GilRelease;
using Address = std::uintptr_t;
using Size = std::size_t;

template <typename Number = float>
Number* at(Address address) {
    return reinterpret_cast<Number*>(address);
}

// Without the lock, which the registration of the object needs again.
template <typename Class, typename... Arguments>
std::unique_ptr<Class> built(Arguments&&... arguments) {
    const GilRelease gil_release;
    return std::make_unique<Class>(std::forward<Arguments>(arguments)...);
}

PYBIND11_MODULE(_kernels, module) {
    const py::call_guard<GilRelease> released;
    module.def("isas", [] { return isas().size(); });
    module.def("int8_isas", [] { return int8_isas().size(); });
    py::class_<Int8Weights>(module, "Int8Weights")
        .def(py::init([](Address weight, Size outputs, Size inputs, Size isa) {
                 return built<Int8Weights>(at(weight), outputs, inputs, isa);
             }), "weight"_a, "outputs"_a, "inputs"_a, "isa"_a = 0)
        .def("multiply", [](const Int8Weights& self, Address x, Size rows, Address y, Size threads) {
                 self.multiply(at(x), rows, at(y), threads);
             }, released);
    py::class_<Int8Heads>(module, "Int8Heads")
        .def(py::init([](Address up, Address down, Size heads, Size inner, Size size, Size inputs) {
                 return built<Int8Heads>(at(up), at(down), heads, inner, size, inputs);
             }))
        .def("states", [](const Int8Heads& self, Address x, Size rows, Size heads, Address to, Size threads) {
                 self.states(at(x), rows, heads, at(to), threads);
             }, released)
        .def("top_k", [](const Int8Heads& self, Address x, Size rows, Size heads, const Int8Weights& projection, Size k,
                         Address tokens, Address log_probs, Address to, Size threads) {
                 self.top_k(at(x), rows, heads, projection, k, at<std::int32_t>(tokens), at(log_probs), at(to), threads);
             }, released);
    module.def("top_k", [](Address x, Size rows, Size count, Size k, Address values, Address indices, Address log_sums,
                           Size threads, Size isa) {
                   const TopK op{at(x), count, k, at(values), at<std::int32_t>(indices), at(log_sums)};
                   for_each_row(op, rows, threads, isas().at(isa));
               }, "x"_a, "rows"_a, "count"_a, "k"_a, "values"_a, "indices"_a, "log_sums"_a, "threads"_a, "isa"_a = 0, released);
    module.def("move", [](Address buffer, Size heads, Size positions, Size bytes, const std::vector<Move>& moves) {
        move_vectors(at<char>(buffer), heads, positions, bytes, moves);
    });
}

}  // namespace cpu_kernels
