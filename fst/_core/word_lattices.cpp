// The Python side of word lattices, which may be of any shape: n-best paths, posteriors, determinization.

#include "bindings.hpp"
#include "determinize.hpp"
#include "workspaces.hpp"

namespace fst_core {
namespace {

// Any lattice as the searches take it: offsets [states + 1], tokens, log_probs and targets [arcs] as in ArcsView.
using ArcArrays = std::tuple<Array<std::int64_t>, Array<std::int32_t>, Array<double>, Array<std::int32_t>>;

ArcsView view_of(const ArcArrays& arcs) {
    const auto span = [](const auto& array) { return std::span(array.data(), static_cast<std::size_t>(array.size())); };
    return {span(std::get<0>(arcs)), span(std::get<1>(arcs)), span(std::get<2>(arcs)), span(std::get<3>(arcs))};
}

// search(workspace, start state) of any lattice, which the workspace then holds. Without weight there is no model.
template <typename Search>
auto result_of(const ArcArrays& arcs, const Model* model, double alpha, const Array<std::int64_t>& context,
               const Search& search) {
    check_alpha(alpha);
    if (alpha == 0) model = nullptr;
    const std::uint32_t start = model == nullptr ? 0 : model->state_of(tokens_of(context, "context"));
    BorrowedWorkspace workspace;
    const fst::GilRelease gil_release;
    workspace->lattice.assign(view_of(arcs), model);
    return search(*workspace, start);
}

py::tuple lattice_nbest(const ArcArrays& arcs, const Model* model, std::int64_t p, double alpha,
                        const Array<std::int64_t>& context) {
    const auto search = [&](Workspace& workspace, std::uint32_t start) {
        return std::pair(workspace.nbest.run(workspace.lattice, start, p, alpha), workspace.lattice.longest());
    };
    const auto [paths, longest] = result_of(arcs, model, alpha, context, search);
    return py::make_tuple(Array<std::int32_t>({paths.scores.size(), longest}, paths.tokens.data()),
                          array_of(paths.scores));
}

Array<double> lattice_posteriors(const ArcArrays& arcs, const Model* model, double alpha,
                                 const Array<std::int64_t>& context) {
    return array_of(result_of(arcs, model, alpha, context, [&](Workspace& workspace, std::uint32_t start) {
        const std::vector<double>& of_columns = workspace.posteriors.run(workspace.lattice, start, alpha);
        std::vector<double> of_arcs(of_columns.size());
        for (std::size_t c = 0; c < of_columns.size(); ++c)
            of_arcs[workspace.lattice.input_column(static_cast<std::int32_t>(c))] = of_columns[c];
        return of_arcs;
    }));
}

py::tuple determinized(const ArcArrays& arcs) {
    Arcs result;
    {
        const fst::GilRelease gil_release;
        result = determinize(view_of(arcs));
    }
    return py::make_tuple(array_of(result.offsets), array_of(result.tokens), array_of(result.log_probs),
                          array_of(result.targets));
}

}  // namespace

void bind_word_lattices(pybind11::module_& module) {
    module.def("lattice_nbest", &lattice_nbest);
    module.def("lattice_posteriors", &lattice_posteriors);
    module.def("determinize", &determinized);
}

}  // namespace fst_core
