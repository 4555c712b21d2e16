// The kernels that drafters and caches of PyTorch use, under pybind11. Arrays come and go by address; the Python package
// has checked them.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cache_moves.hpp"
#include "int8_heads.hpp"
#include "latticebpd/gil_release.hpp"
#include "top_k.hpp"
#include "transitions.hpp"

namespace engine {

inline void bind_kernels(pybind11::module_& module) {
    namespace py = pybind11;
    using namespace py::literals;
    using Address = std::uintptr_t;
    using Size = std::size_t;
    const py::call_guard<latticebpd::GilRelease> released;
    static constexpr auto at = [](Address address) { return reinterpret_cast<float*>(address); };
    static constexpr auto workers = [](Size threads, Size isa = 0) { return Workers{*operations().at(isa), threads}; };
    py::class_<Int8Weights, std::shared_ptr<Int8Weights>>(module, "Int8Weights")
        .def(py::init([](Address weights, Size outputs, Size inputs) {
            const latticebpd::GilRelease unlocked;
            return std::make_shared<Int8Weights>(at(weights), outputs, inputs);
        }))
        .def("multiply", [](const Int8Weights& self, Address x, Size rows, Address y, Size threads) {
                 self.multiply(at(x), rows, at(y), workers(threads));
             }, released);
    py::class_<Int8Heads>(module, "Int8Heads")
        .def(py::init([](Address up, Address down, Size heads, Size inner, Size size, Size inputs) {
            const latticebpd::GilRelease unlocked;
            return std::make_unique<Int8Heads>(at(up), at(down), heads, inner, size, inputs);
        }))
        .def("states", [](const Int8Heads& self, Address x, Size rows, Size heads, Address to, Size threads) {
                 self.states(at(x), rows, heads, at(to), workers(threads));
             }, released)
        .def("top_k", [](const Int8Heads& self, Address x, Size rows, Size heads, const Int8Weights& projection, Size k,
                         Address tokens, Address log_probs, Address to, Size threads) {
                 self.top_k(at(x), rows, heads, projection, k, reinterpret_cast<std::int32_t*>(tokens), at(log_probs),
                            at(to), workers(threads));
             }, released);
    // With the GIL, since they compute tokens' products when these are first asked for.
    py::class_<Int8Transitions>(module, "Int8Transitions")
        .def(py::init([](Address up, Address down, Size width, const std::shared_ptr<Int8Weights>& embeddings, float epsilon) {
            return std::make_unique<Int8Transitions>(at(up), at(down), width, embeddings, epsilon);
        }))
        .def("pair_scores", [](Int8Transitions& self, Address states, Address tokens, Address log_probs, Size rows,
                               Size slots, Size k, Address to, Size threads) {
            const auto* ids = reinterpret_cast<const std::int32_t*>(tokens);
            for (Size row = 0; row < rows; ++row)
                self.pair_scores(at(states) + row * slots * self.size(), ids + row * slots * k,
                                 at(log_probs) + row * slots * k, slots, k, at(to) + row * (slots - 1) * k * k,
                                 workers(threads));
        });
    module.def("top_k", [](Address x, Size rows, Size count, Size k, Address values, Address indices, Address log_sums,
                           Size threads, Size isa) {
                   TopK{at(x), count, k, at(values), reinterpret_cast<std::int32_t*>(indices), at(log_sums)}.rows(
                       rows, workers(threads, isa));
               }, "x"_a, "rows"_a, "count"_a, "k"_a, "values"_a, "indices"_a, "log_sums"_a, "threads"_a, "isa"_a = 0, released);
    module.def("move", [](Address buffer, Size heads, Size positions, Size bytes, const std::vector<Move>& moves) {
        move_vectors(reinterpret_cast<char*>(buffer), heads, positions, bytes, moves);
    });
}

}  // namespace engine
