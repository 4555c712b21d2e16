// The kernels that drafters and caches of PyTorch use, under pybind11. Tensors come and go by address; the Python package
// has checked all shapes.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache_moves.hpp"
#include "head_lattices.hpp"
#include "latticebpd/gil_release.hpp"

namespace engine {

inline void bind_kernels(pybind11::module_& module) {
    namespace py = pybind11;
    using namespace py::literals;
    using Address = std::uintptr_t;
    using Size = std::size_t;
    using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
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
    py::class_<Int8Heads, std::shared_ptr<Int8Heads>>(module, "Int8Heads")
        .def(py::init([](Address up, Address down, Size heads, Size inner, Size size, Size inputs) {
            const latticebpd::GilRelease unlocked;
            return std::make_shared<Int8Heads>(at(up), at(down), heads, inner, size, inputs);
        }))
        .def("states", [](const Int8Heads& self, Address x, Size rows, Size heads, Address to, Size threads) {
                 self.states(at(x), rows, heads, at(to), workers(threads));
             }, released);
    py::class_<HeadLattices>(module, "HeadLattices")
        .def(py::init([](const std::shared_ptr<Int8Heads>& heads, const std::shared_ptr<Int8Weights>& projection,
                         const std::vector<std::int32_t>& ids, const Floats& up, const Floats& down) {
            const auto width = static_cast<Size>(down.shape(0));
            auto transitions = width > 0 ? std::make_unique<Int8Transitions>(up.data(), down.data(), width, projection) : nullptr;
            return std::make_unique<HeadLattices>(heads, projection, ids, std::move(transitions));
        }))
        .def("lattices", [](HeadLattices& self, const Floats& inputs, Size slots, Size k, bool tied, Size threads) {
            if (inputs.ndim() != 2 || static_cast<Size>(inputs.shape(1)) != self.inputs())
                throw py::value_error("expected states [rows, " + std::to_string(self.inputs()) + "], which heads read");
            const auto rows = static_cast<Size>(inputs.shape(0));
            py::array_t<std::int32_t> tokens({rows, slots, k});
            py::array_t<float> log_probs({rows, slots, k}), pairs({rows, tied ? slots - 1 : 0, k, k});
            const float* from = inputs.data();
            float *to = log_probs.mutable_data(), *pairs_to = tied ? pairs.mutable_data() : nullptr;
            std::int32_t* tokens_to = tokens.mutable_data();
            {
                const latticebpd::GilRelease unlocked;
                self.lattices(from, rows, slots, k, tokens_to, to, pairs_to, workers(threads));
            }
            return tied ? py::tuple(py::make_tuple(tokens, log_probs, pairs)) : py::make_tuple(tokens, log_probs);
        });
    module.def("chain_weights", [](const Floats& log_probs, const Floats& start, const Floats& pairs) {
        if (log_probs.ndim() != 3 || log_probs.shape(1) == 0) throw py::value_error("expected log_probs [rows, slots, k]");
        const auto rows = static_cast<Size>(log_probs.shape(0)), slots = static_cast<Size>(log_probs.shape(1));
        const auto k = static_cast<Size>(log_probs.shape(2));
        if (static_cast<Size>(start.size()) != rows * k || static_cast<Size>(pairs.size()) != rows * (slots - 1) * k * k)
            throw py::value_error("expected start [rows, k] and pairs [rows, slots - 1, k, k]");
        py::array_t<float> arcs({rows, slots, k}), transitions({rows, slots - 1, k, k});
        float *to = arcs.mutable_data(), *gains = transitions.mutable_data();
        std::copy_n(pairs.data(), pairs.size(), gains);
        for (Size row = 0; row < rows; ++row)
            chain_weights(log_probs.data() + row * slots * k, start.data() + row * k, slots, k,
                          gains + row * (slots - 1) * k * k, to + row * slots * k, *operations().front());
        return py::make_tuple(arcs, transitions);
    });
    module.attr("EPSILON") = kEpsilon;
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
