// The sausages of one call, as arrays, checked for shape; and results of each as one array.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "arrays.hpp"
#include "lattice.hpp"

namespace fst_core {

namespace py = pybind11;

inline void check_alpha(double alpha) {
    if (!(alpha >= 0 && alpha <= kLargestWeight))
        refuse("expected an alpha from 0 to 1e30, got ", std::string(py::str(py::float_(alpha))));
}

// Sausages as the searches take them: tokens and log_probs [n, slots, k], transitions [n, slots - 1, k, k] or none; or
// a single lattice, all without the n.
using Sausages = std::tuple<Array<std::int32_t>, Array<double>, std::optional<Array<float>>>;
using Contexts = Array<std::int64_t>;  // [n, c] with -1 as padding on the left; or [c]

struct SausageBatch {
    SausageBatch(const Sausages& sausages, const Model* model_in, double alpha_in, const Contexts& contexts_in,
                 std::int64_t least_slots = 1)
        : tokens(std::get<0>(sausages)), log_probs(std::get<1>(sausages)), transitions(std::get<2>(sausages)),
          contexts(contexts_in), model(model_in), alpha(alpha_in) {
        single = tokens.ndim() == 2;
        if (!(single || tokens.ndim() == 3) || log_probs.ndim() != tokens.ndim() ||
            !std::equal(tokens.shape(), tokens.shape() + tokens.ndim(), log_probs.shape()))
            refuse("expected tokens and log_probs of one shape, [slots, k] or [n, slots, k], got ", shape(tokens),
                   " and ", shape(log_probs));
        size = single ? 1 : tokens.shape(0);
        slots = tokens.shape(tokens.ndim() - 2);
        k = tokens.shape(tokens.ndim() - 1);
        if (transitions) {
            std::vector<py::ssize_t> wanted(tokens.shape(), tokens.shape() + tokens.ndim());
            wanted[wanted.size() - 2] = std::max<py::ssize_t>(slots - 1, 0);
            wanted.push_back(k);
            if (transitions->ndim() != tokens.ndim() + 1 ||
                !std::equal(wanted.begin(), wanted.end(), transitions->shape()))
                refuse("expected transitions [slots - 1, k, k] or [n, slots - 1, k, k], got ", shape(*transitions),
                       " for lattices ", shape(tokens));
        }
        if (contexts.ndim() != tokens.ndim() - 1 || (!single && contexts.shape(0) != size))
            refuse("expected one context of token ids for each lattice, got ", shape(contexts), " for lattices ",
                   shape(tokens));
        context_length = contexts.shape(contexts.ndim() - 1);
        if (slots < least_slots || k < 1)
            refuse("expected lattices of at least one slot and one token, got ", shape(tokens));
        check_alpha(alpha);
        if (alpha == 0) model = nullptr;
    }
    static std::string shape(const py::array& array) { return py::str(array.attr("shape")); }
    void require_single() const {
        if (!single) refuse("expected one lattice [slots, k], got ", shape(tokens));
    }

    LatticeView lattice(std::int64_t i) const {
        const float* const gains = transitions ? transitions->data() + i * (slots - 1) * k * k : nullptr;
        return {tokens.data() + i * slots * k, log_probs.data() + i * slots * k, gains, slots, k};
    }
    std::uint32_t start_state(std::int64_t i) const {
        if (model == nullptr) return 0;
        std::span<const std::int64_t> context{contexts.data() + i * context_length,
                                              static_cast<std::size_t>(context_length)};
        while (!context.empty() && context.front() == -1) context = context.subspan(1);
        return model->state_of(context);
    }
    // What errors about lattice i begin with.
    std::string name(std::int64_t i) const { return single ? "" : "lattice " + std::to_string(i) + ", "; }

    Array<std::int32_t> tokens;
    Array<double> log_probs;
    std::optional<Array<float>> transitions;
    Array<std::int64_t> contexts;
    const Model* model;
    double alpha;
    bool single;
    std::int64_t size, slots, k, context_length;
};

// Rows of unequal length, a member of each result, as one array [n, longest] or [n, longest / width, width], padded; of
// a single lattice, without the n.
template <typename T, typename Result>
Array<T> stacked(const SausageBatch& batch, const std::vector<Result>& results, const std::vector<T> Result::*rows,
                 T pad, std::optional<std::int64_t> width = std::nullopt) {
    std::size_t longest = 0;
    for (const Result& result : results) longest = std::max(longest, (result.*rows).size());
    std::vector<py::ssize_t> shape;
    if (!batch.single) shape.push_back(batch.size);
    shape.push_back(static_cast<py::ssize_t>(longest) / width.value_or(1));
    if (width) shape.push_back(*width);
    Array<T> out(shape);
    T* at = out.mutable_data();
    for (const Result& result : results) {
        const std::vector<T>& row = result.*rows;
        at = std::fill_n(std::copy(row.begin(), row.end(), at), longest - row.size(), pad);
    }
    return out;
}

// The lengths of such rows, [n].
template <typename Result>
Array<std::int32_t> counts(const std::vector<Result>& results, const std::vector<double> Result::*rows) {
    Array<std::int32_t> out(static_cast<py::ssize_t>(results.size()));
    std::transform(results.begin(), results.end(), out.mutable_data(),
                   [&](const Result& result) { return static_cast<std::int32_t>((result.*rows).size()); });
    return out;
}

}  // namespace fst_core
