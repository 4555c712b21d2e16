// The kernels that drafters and caches of PyTorch use, under pybind11: on NumPy arrays.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <fst/gil_release.hpp>
#include <fst/refuse.hpp>

#include "cache_moves.hpp"
#include "head_lattices.hpp"

namespace engine {

// Of states [rows, width].
inline std::size_t rows_of(const pybind11::array& states, std::size_t width) {
    if (states.ndim() != 2 || static_cast<std::size_t>(states.shape(1)) != width)
        fst::refuse("expected states [rows, ", width, "], got others");
    return static_cast<std::size_t>(states.shape(0));
}

inline void bind_kernels(pybind11::module_& module) {
    namespace py = pybind11;
    using namespace py::literals;
    using fst::refuse;
    using Size = std::size_t;
    using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
    static constexpr auto workers = [](Size threads, Size isa = 0) { return Workers{operations(isa), threads}; };
    py::class_<Int8Weights, std::shared_ptr<Int8Weights>>(module, "Int8Weights")
        .def(py::init([](const Floats& weights) {
            if (weights.ndim() != 2) refuse("expected weights [outputs, inputs], got ", weights.ndim(), " axes");
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
            if (up.ndim() != 3 || down.ndim() != 3 || up.shape(0) != down.shape(0) || up.shape(1) != down.shape(2) ||
                up.shape(2) < down.shape(1))
                refuse("expected up [heads, inner, inputs] and down [heads, size, inner], got others");
            const auto heads = static_cast<Size>(up.shape(0)), inner = static_cast<Size>(up.shape(1));
            const auto inputs = static_cast<Size>(up.shape(2)), size = static_cast<Size>(down.shape(1));
            const fst::GilRelease unlocked;
            return std::make_shared<Int8Heads>(up.data(), down.data(), heads, inner, size, inputs);
        }))
        .def("states", [](const Int8Heads& self, const Floats& x, Size heads, Size threads) {
            const Size rows = rows_of(x, self.inputs());
            if (heads > self.heads()) refuse("expected at most ", self.heads(), " heads, got ", heads);
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
            if (ids.size() != projection->outputs())
                refuse("expected an id of each of the projection's tokens, ", projection->outputs(), ", got ",
                       ids.size());
            if (heads->size() != projection->inputs() || heads->inputs() % heads->size() != 0)
                refuse("expected heads of the projection's size, ", projection->inputs(), ", got ", heads->size(),
                       " numbers, which read ", heads->inputs());
            if (static_cast<Size>(up.size()) != 2 * size || static_cast<Size>(down.size()) != size)
                refuse("expected transitions up [2, width, size] and down [width, size], got others");
            std::unique_ptr<Int8Transitions> transitions;
            if (width > 0) transitions = std::make_unique<Int8Transitions>(up.data(), down.data(), width, projection);
            return std::make_unique<HeadLattices>(heads, projection, ids, std::move(transitions));
        }))
        .def("lattices", [](HeadLattices& self, const Floats& inputs, Size slots, Size k, bool tied, Size threads) {
            const Size rows = rows_of(inputs, self.inputs());
            if (slots == 0 || slots > self.heads() || k == 0 || k > self.tokens())
                refuse("expected 1 to ", self.heads(), " slots and 1 to ", self.tokens(), " arcs, got ", slots, " and ",
                       k);
            if (tied && !self.has_transitions()) refuse("expected heads with transitions, got heads without");
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
        if (log_probs.ndim() != 3 || log_probs.shape(1) == 0) refuse("expected log_probs [rows, slots, k], got others");
        const auto rows = static_cast<Size>(log_probs.shape(0)), slots = static_cast<Size>(log_probs.shape(1));
        const auto k = static_cast<Size>(log_probs.shape(2));
        const auto starts = static_cast<Size>(start.size()), pairings = static_cast<Size>(pairs.size());
        if (starts != rows * k || pairings != rows * (slots - 1) * k * k)
            refuse("expected start [rows, k] and pairs [rows, slots - 1, k, k], got others");
        py::array_t<float> arcs({rows, slots, k}), transitions({rows, slots - 1, k, k});
        float *to = arcs.mutable_data(), *gains = transitions.mutable_data();
        std::copy_n(pairs.data(), pairs.size(), gains);
        for (Size row = 0; row < rows; ++row)
            chain_weights(log_probs.data() + row * slots * k, start.data() + row * k, slots, k,
                          gains + row * (slots - 1) * k * k, to + row * slots * k, operations(0));
        return py::make_tuple(arcs, transitions);
    });
    module.attr("EPSILON") = kEpsilon;
    module.def(
        "top_k",
        [](const Floats& x, Size k, Size threads, Size isa) {
            if (x.ndim() != 2 || k == 0 || k > static_cast<Size>(x.shape(1)))
                refuse("expected k > 0 and rows of at least k numbers, got k = ", k);
            const auto rows = static_cast<Size>(x.shape(0)), count = static_cast<Size>(x.shape(1));
            py::array_t<float> values({rows, k}), log_sums(static_cast<py::ssize_t>(rows));
            py::array_t<std::int32_t> indices({rows, k});
            const TopK top{x.data(), count, k, values.mutable_data(), indices.mutable_data(), log_sums.mutable_data()};
            {
                const fst::GilRelease unlocked;
                top.rows(rows, workers(threads, isa));
            }
            return py::make_tuple(values, indices, log_sums);
        },
        "x"_a, "k"_a, "threads"_a, "isa"_a = 0);
    module.def(
        "move",
        [](py::array_t<std::uint8_t, py::array::c_style>& buffer, const std::vector<Move>& moves) {
            if (buffer.ndim() != 4)
                refuse("expected bytes [rows, heads, positions, size], got ", buffer.ndim(), " axes");
            const auto rows = static_cast<Size>(buffer.shape(0)), heads = static_cast<Size>(buffer.shape(1));
            const auto positions = static_cast<Size>(buffer.shape(2)), bytes = static_cast<Size>(buffer.shape(3));
            for (const auto& [row, source, destination] : moves)
                if (row >= rows || source >= positions || destination >= positions)
                    refuse("expected moves within ", rows, " rows and ", positions, " positions, got one in row ", row,
                           " from ", source, " to ", destination);
            move_vectors(buffer.mutable_data(), heads, positions, bytes, moves);
        },
        py::arg().noconvert(), py::arg());
}

}  // namespace engine
