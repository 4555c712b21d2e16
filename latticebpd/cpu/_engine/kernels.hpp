// The kernels that drafters and caches of PyTorch use, under pybind11: on NumPy arrays, caches' by address.
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
#include "fst/gil_release.hpp"

namespace engine {

// Of states [rows, width].
inline std::size_t rows_of(const pybind11::array& states, std::size_t width) {
    expect(states.ndim() == 2 && static_cast<std::size_t>(states.shape(1)) == width,
           "states [rows, " + std::to_string(width) + "]");
    return static_cast<std::size_t>(states.shape(0));
}

inline void bind_kernels(pybind11::module_& module) {
    namespace py = pybind11;
    using namespace py::literals;
    using Size = std::size_t;
    using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
    static constexpr auto workers = [](Size threads, Size isa = 0) { return Workers{*operations().at(isa), threads}; };
    py::class_<Int8Weights, std::shared_ptr<Int8Weights>>(module, "Int8Weights")
        .def(py::init([](const Floats& weights) {
            expect(weights.ndim() == 2, "weights [outputs, inputs]");
            const auto outputs = static_cast<Size>(weights.shape(0)), inputs = static_cast<Size>(weights.shape(1));
            const fst::GilRelease unlocked;
            return std::make_shared<Int8Weights>(weights.data(), outputs, inputs);
        }))
        .def("multiply", [](const Int8Weights& self, const Floats& x, Size threads) {
            const Size rows = rows_of(x, self.inputs());
            py::array_t<float> y({rows, self.outputs()});
            float* to = y.mutable_data();
            const fst::GilRelease unlocked;
            self.multiply(x.data(), rows, to, workers(threads));
            return y;
        });
    py::class_<Int8Heads, std::shared_ptr<Int8Heads>>(module, "Int8Heads")
        .def(py::init([](const Floats& up, const Floats& down) {
            expect(up.ndim() == 3 && down.ndim() == 3 && up.shape(0) == down.shape(0) && up.shape(1) == down.shape(2) &&
                       up.shape(2) >= down.shape(1), "up [heads, inner, inputs] and down [heads, size, inner]");
            const auto heads = static_cast<Size>(up.shape(0)), inner = static_cast<Size>(up.shape(1));
            const auto inputs = static_cast<Size>(up.shape(2)), size = static_cast<Size>(down.shape(1));
            const fst::GilRelease unlocked;
            return std::make_shared<Int8Heads>(up.data(), down.data(), heads, inner, size, inputs);
        }))
        .def("states", [](const Int8Heads& self, const Floats& x, Size heads, Size threads) {
            const Size rows = rows_of(x, self.inputs());
            py::array_t<float> states({rows, heads, self.size()});
            float* to = states.mutable_data();
            const fst::GilRelease unlocked;
            self.states(x.data(), rows, heads, to, workers(threads));
            return states;
        });
    py::class_<HeadLattices>(module, "HeadLattices")
        .def(py::init([](const std::shared_ptr<Int8Heads>& heads, const std::shared_ptr<Int8Weights>& projection,
                         const std::vector<std::int32_t>& ids, const Floats& up, const Floats& down) {
            const auto width = static_cast<Size>(down.shape(0)), size = width * projection->inputs();
            expect(ids.size() == projection->outputs(), "an id of each of the projection's tokens");
            expect(heads->size() == projection->inputs() && heads->inputs() % heads->size() == 0,
                   "heads of the projection's size");
            expect(static_cast<Size>(up.size()) == 2 * size && static_cast<Size>(down.size()) == size,
                   "transitions up [2, width, size] and down [width, size]");
            std::unique_ptr<Int8Transitions> transitions;
            if (width > 0) transitions = std::make_unique<Int8Transitions>(up.data(), down.data(), width, projection);
            return std::make_unique<HeadLattices>(heads, projection, ids, std::move(transitions));
        }))
        .def("lattices", [](HeadLattices& self, const Floats& inputs, Size slots, Size k, bool tied, Size threads) {
            const Size rows = rows_of(inputs, self.inputs());
            const Size most = self.tokens();
            expect(slots > 0 && k > 0 && k <= most, "slots and at most " + std::to_string(most) + " arcs");
            py::array_t<std::int32_t> tokens({rows, slots, k});
            py::array_t<float> log_probs({rows, slots, k}), pairs({rows, tied ? slots - 1 : 0, k, k});
            float *to = log_probs.mutable_data(), *pairs_to = tied ? pairs.mutable_data() : nullptr;
            std::int32_t* tokens_to = tokens.mutable_data();
            {
                const fst::GilRelease unlocked;
                self.lattices(inputs.data(), rows, slots, k, tokens_to, to, pairs_to, workers(threads));
            }
            return tied ? py::tuple(py::make_tuple(tokens, log_probs, pairs)) : py::make_tuple(tokens, log_probs);
        });
    module.def("chain_weights", [](const Floats& log_probs, const Floats& start, const Floats& pairs) {
        expect(log_probs.ndim() == 3 && log_probs.shape(1) > 0, "log_probs [rows, slots, k]");
        const auto rows = static_cast<Size>(log_probs.shape(0)), slots = static_cast<Size>(log_probs.shape(1));
        const auto k = static_cast<Size>(log_probs.shape(2));
        const auto starts = static_cast<Size>(start.size()), pairings = static_cast<Size>(pairs.size());
        expect(starts == rows * k && pairings == rows * (slots - 1) * k * k,
               "start [rows, k] and pairs [rows, slots - 1, k, k]");
        py::array_t<float> arcs({rows, slots, k}), transitions({rows, slots - 1, k, k});
        float *to = arcs.mutable_data(), *gains = transitions.mutable_data();
        std::copy_n(pairs.data(), pairs.size(), gains);
        for (Size row = 0; row < rows; ++row)
            chain_weights(log_probs.data() + row * slots * k, start.data() + row * k, slots, k,
                          gains + row * (slots - 1) * k * k, to + row * slots * k, *operations().front());
        return py::make_tuple(arcs, transitions);
    });
    module.attr("EPSILON") = kEpsilon;
    module.def("top_k", [](const Floats& x, Size k, Size threads, Size isa) {
        expect(x.ndim() == 2 && k > 0 && k <= static_cast<Size>(x.shape(1)), "k > 0 and rows of at least k numbers");
        const auto rows = static_cast<Size>(x.shape(0)), count = static_cast<Size>(x.shape(1));
        py::array_t<float> values({rows, k}), log_sums(static_cast<py::ssize_t>(rows));
        py::array_t<std::int32_t> indices({rows, k});
        const TopK top{x.data(), count, k, values.mutable_data(), indices.mutable_data(), log_sums.mutable_data()};
        {
            const fst::GilRelease unlocked;
            top.rows(rows, workers(threads, isa));
        }
        return py::make_tuple(values, indices, log_sums);
    }, "x"_a, "k"_a, "threads"_a, "isa"_a = 0);
    module.def("move", [](std::uintptr_t buffer, Size heads, Size length, Size bytes, const std::vector<Move>& moves) {
        move_vectors(reinterpret_cast<char*>(buffer), heads, length, bytes, moves);
    });
}

}  // namespace engine
