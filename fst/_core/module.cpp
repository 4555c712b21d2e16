// fst._core: the n-gram model's lookups, and what the other files bind. Arrays come in checked for shape here and for
// content where they are read; the searches run without the GIL.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <fst/gil_release.hpp>

#include "arpa_writer.hpp"
#include "arrays.hpp"
#include "bindings.hpp"
#include "hash_table.hpp"
#include "ngram_walk.hpp"

namespace py = pybind11;

namespace fst_core {
namespace {

std::span<const std::byte> bytes(const py::buffer_info& info, const char* name) {
    if (!PyBuffer_IsContiguous(info.view(), 'C')) refuse("expected ", name, " as a contiguous buffer");
    return {static_cast<const std::byte*>(info.ptr), static_cast<std::size_t>(info.size * info.itemsize)};
}

// A Model, and the Python buffers that it reads for as long as it lives.
std::shared_ptr<Model> borrowing_model(const py::buffer& states, const py::buffer& arcs, std::int64_t start,
                                       std::int64_t unigram_state, std::int64_t unk_label) {
    const auto held = std::make_shared<std::pair<py::buffer_info, py::buffer_info>>(states.request(), arcs.request());
    return {new Model(bytes(held->first, "states"), bytes(held->second, "arcs"), start, unigram_state, unk_label),
            [held](const Model* model) { delete model; }};
}

// For each order: rows of tokens [n, order], costs [n], costs of the backoff weights [n].
py::list list_ngrams(const Model& model) {
    const std::vector<std::uint64_t> counts = count_ngrams(model, true);
    py::list orders;
    std::vector<py::array_t<std::int32_t>> tokens;
    std::vector<py::array_t<double>> costs, backoffs;
    for (std::size_t order = 1; order <= counts.size(); ++order) {
        const auto count = static_cast<py::ssize_t>(counts[order - 1]);
        tokens.emplace_back(std::vector<py::ssize_t>{count, static_cast<py::ssize_t>(order)});
        costs.emplace_back(count);
        backoffs.emplace_back(count);
        orders.append(py::make_tuple(tokens.back(), costs.back(), backoffs.back()));
    }
    std::size_t lower = 0;
    py::ssize_t row = 0;
    walk_ngrams<true>(
        model, true,
        [&](const VisitedNgram& ngram) {
            *std::copy(ngram.context.begin(), ngram.context.end(), tokens[lower].mutable_data(row, 0)) = ngram.token;
            costs[lower].mutable_data()[row] = ngram.cost;
            backoffs[lower].mutable_data()[row] = backoff_cost(model, ngram);
            ++row;
        },
        [&] {
            ++lower;
            row = 0;
        });
    return orders;
}

py::tuple resolve(const Model& model, const Array<std::int64_t>& tokens, std::uint32_t state) {
    HashTable<std::uint32_t> index_of;
    index_of.clear(1024);
    std::vector<std::uint32_t> states{model.checked_state(static_cast<std::int32_t>(state))};
    index_of.insert(states.front(), 0);
    std::vector<double> costs, finals;
    std::vector<std::int32_t> targets;
    for (std::size_t i = 0; i < states.size(); ++i) {
        for (const std::int64_t token : tokens_of(tokens, "tokens")) {
            const Model::Step step = model.advance(states[i], model.label_of(token));
            const auto [target, added] = index_of.insert(step.next_state, static_cast<std::int32_t>(states.size()));
            if (added) states.push_back(step.next_state);
            costs.push_back(step.cost);
            targets.push_back(target);
        }
        finals.push_back(model.has_end() ? model.final_cost(states[i]) : 0.0);
        if (costs.size() > (1u << 26)) refuse("expected fewer than 2^26 arcs to resolve; pass fewer tokens");
    }
    return py::make_tuple(array_of(costs), array_of(targets), array_of(finals));
}

}  // namespace
}  // namespace fst_core

PYBIND11_MODULE(_core, module) {
    using namespace fst_core;
    using namespace py::literals;
    using Ids = Array<std::int64_t>;
    py::class_<Model, std::shared_ptr<Model>>(module, "Model")
        .def(py::init(&borrowing_model), "states"_a, "arcs"_a, "start"_a, "unigram_state"_a, "unk_label"_a = 0)
        .def(
            "log_prob",
            [](const Model& model, std::int64_t token, const Ids& context) {
                return model.log_prob(token, tokens_of(context, "context"));
            },
            "token"_a, "context"_a)
        .def(
            "score",
            [](const Model& model, const Ids& tokens, bool bos, bool eos) {
                return model.score(tokens_of(tokens, "tokens"), bos, eos);
            },
            "tokens"_a, "bos"_a = false, "eos"_a = false)
        .def(
            "state_of",
            [](const Model& model, const Ids& context) { return model.state_of(tokens_of(context, "context")); },
            "context"_a)
        .def(
            "num_ngrams", [](const Model& model) { return count_ngrams(model, true); },
            py::call_guard<fst::GilRelease>())
        .def("ngrams", &list_ngrams)
        .def_property_readonly("has_end", &Model::has_end)
        .def("resolve", &resolve, "tokens"_a, "state"_a)
        .def(
            "write_arpa",
            [](const Model& model, const std::vector<std::string>& words, bool markers, const py::function& sink) {
                write_arpa(model, words, markers,
                           [&](std::string_view text) { sink(py::bytes(text.data(), text.size())); });
            },
            "words"_a, "markers"_a, "sink"_a);
    bind_formats(module);
    bind_sausages(module);
    bind_word_lattices(module);
    bind_token_acceptors(module);
}
