// The Python side of sausages: n-best paths, trees, posteriors, and the text index that calibrated trees read.

#include <shared_mutex>

#include "bindings.hpp"
#include "python_automaton.hpp"
#include "text_index.hpp"
#include "workspaces.hpp"

namespace fst_core {
namespace {

constexpr std::int64_t kMostForced = 64;  // tokens after a lattice's last slot

// A TextIndex that may grow in one thread while others search with it: they wait for each other.
struct SharedIndex {
    TextIndex index;
    mutable std::shared_mutex mutex;
};

py::tuple nbest(const Sausages& sausages, const Model* model, std::int64_t p, double alpha, const Contexts& contexts,
                std::int64_t threads, const Automata& automata) {
    using Result = NbestSearch::Result;
    const SausageBatch batch(sausages, model, alpha, contexts);
    if (p < 1) refuse("expected p of at least 1, got ", p);
    const Constraints constraints(automata, batch.size);
    const auto results = results_of(batch, constraints.threads(threads), [&](std::int64_t i, Workspace& workspace) {
        return workspace.nbest.run(workspace.lattice, batch.start_state(i), p, batch.alpha, constraints.of(i));
    });
    return py::make_tuple(stacked(batch, results, &Result::tokens, -1, batch.slots),
                          stacked(batch, results, &Result::scores, kMinusInfinity), counts(results, &Result::scores));
}

// Runs search(i, workspace) -> tree of every lattice; the trees as arrays.
template <typename Search>
py::tuple trees(const SausageBatch& batch, std::int64_t num_nodes, std::int64_t threads, const Search& search) {
    if (num_nodes < 1) refuse("expected num_nodes of at least 1, got ", num_nodes);
    const auto results = results_of(batch, threads, search);
    return py::make_tuple(stacked(batch, results, &Tree::tokens, -1), stacked(batch, results, &Tree::parents, -1),
                          stacked(batch, results, &Tree::log_probs, kMinusInfinity), counts(results, &Tree::log_probs));
}

py::tuple tree(const Sausages& sausages, const Model* model, std::int64_t num_nodes, double alpha,
               const Contexts& contexts, std::int64_t threads, const Automata& automata) {
    const SausageBatch batch(sausages, model, alpha, contexts);
    const Constraints constraints(automata, batch.size);
    return trees(batch, num_nodes, constraints.threads(threads), [&](std::int64_t i, Workspace& workspace) {
        Constraint* const constraint = constraints.of(i);
        if (constraint != nullptr) workspace.lattice.extend(std::min(num_nodes, kMostForced));
        return workspace.tree.run(workspace.lattice, batch.start_state(i), num_nodes, batch.alpha, constraint);
    });
}

void check_further(std::int64_t further) {
    constexpr std::int64_t kMost = 4096;
    if (further < 0 || further > kMost) refuse("expected 0 to 4096 further slots, got ", further);
}

py::tuple calibrated_tree(const Sausages& sausages, const Model* model, const std::vector<const SharedIndex*>& texts,
                          const Array<double>& weights, std::int64_t num_nodes, std::int64_t further,
                          std::int64_t proposals, const Contexts& contexts, std::int64_t threads,
                          const Automata& automata) {
    check_further(further);
    const SausageBatch batch(sausages, model, 1, contexts, 0);
    if (static_cast<std::int64_t>(texts.size()) != batch.size)
        refuse("expected one text for each of ", batch.size, " lattices, got ", texts.size());
    const Constraints constraints(automata, batch.size);
    const std::span<const double> all{weights.data(), static_cast<std::size_t>(weights.size())};
    return trees(batch, num_nodes, constraints.threads(threads), [&](std::int64_t i, Workspace& workspace) {
        const SharedIndex& text = *texts[i];
        const std::shared_lock lock(text.mutex);
        workspace.lattice.extend(further);
        return workspace.calibrated.run(workspace.lattice, batch.start_state(i), text.index, all, num_nodes, proposals,
                                        constraints.of(i));
    });
}

py::tuple describe(const Sausages& sausages, const Model* model, const SharedIndex& text,
                   const Array<std::int64_t>& path, std::int64_t further, std::int64_t proposals,
                   const Contexts& context) {
    check_further(further);
    const SausageBatch batch(sausages, model, 1, context, 0);
    batch.require_single();
    const auto tokens = tokens_of(path, "path");
    const auto results = results_of(batch, 1, [&](std::int64_t i, Workspace& workspace) {
        const std::shared_lock lock(text.mutex);
        workspace.lattice.extend(further);
        return workspace.calibrated.describe(workspace.lattice, batch.start_state(i), text.index, tokens, proposals);
    });
    const CalibratedSearch::Description& description = results.front();
    Array<float> features({description.tokens.size(), std::size_t{CalibratedSearch::kFeatures}});
    std::copy(description.features.begin(), description.features.end(), features.mutable_data());
    return py::make_tuple(features, array_of(description.tokens), array_of(description.sizes));
}

Array<double> posteriors(const Sausages& sausages, const Model* model, double alpha, const Contexts& context) {
    const SausageBatch batch(sausages, model, alpha, context);
    batch.require_single();
    const auto results = results_of(batch, 1, [&](std::int64_t i, Workspace& workspace) {
        const Lattice& lattice = workspace.lattice;
        const auto& of_columns = workspace.posteriors.run(lattice, batch.start_state(i), batch.alpha);
        std::vector<double> out(batch.slots * batch.k, kMinusInfinity);
        for (std::int32_t slot = 0; slot < lattice.slots(); ++slot)
            for (std::int32_t c = lattice.slot(slot).first; c < lattice.slot(slot).first + lattice.slot(slot).size; ++c)
                out[slot * batch.k + lattice.input_column(c)] = of_columns[c];
        return out;
    });
    return Array<double>({batch.slots, batch.k}, results.front().data());
}

}  // namespace

void bind_sausages(py::module_& module) {
    using namespace py::literals;
    module.attr("LARGEST_WEIGHT") = kLargestWeight;
    module.attr("NUM_FEATURES") = static_cast<int>(CalibratedSearch::kFeatures);

    py::class_<SharedIndex>(module, "TextIndex")
        .def(py::init<>())
        .def(
            "extend",
            [](SharedIndex& text, const Array<std::int64_t>& tokens) {
                const std::span<const std::int64_t> added = tokens_of(tokens, "tokens");
                const fst::GilRelease gil_release;  // first: a search that holds the text may call Python
                const std::unique_lock lock(text.mutex);
                text.index.extend(added);
            },
            "tokens"_a)
        .def("__len__", [](const SharedIndex& text) { return text.index.size(); });

    module.def("nbest", &nbest);
    module.def("posteriors", &posteriors);
    module.def("tree", &tree);
    module.def("calibrated_tree", &calibrated_tree);
    module.def("describe", &describe);
}

}  // namespace fst_core
