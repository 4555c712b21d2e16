// fst._core: the searches and the model's lookups under pybind11. Arrays come in checked for shape here and for
// content where they are read; the searches run without the GIL.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <latticebpd/gil_release.hpp>

#include "arpa_writer.hpp"
#include "calibrated.hpp"
#include "determinize.hpp"
#include "formats.hpp"
#include "lattice.hpp"
#include "model.hpp"
#include "nbest.hpp"
#include "ngram_walk.hpp"
#include "posteriors.hpp"
#include "text_index.hpp"
#include "tree.hpp"

namespace py = pybind11;

namespace fst_core {
namespace {

// A Model and the Python buffers that it borrows.
class BorrowingModel : public Model {
  public:
    BorrowingModel(const py::buffer& states, const py::buffer& arcs, std::int64_t start, std::int64_t unigram_state,
                   std::int64_t unk_label)
        : BorrowingModel(states.request(), arcs.request(), start, unigram_state, unk_label) {}

  private:
    BorrowingModel(py::buffer_info states, py::buffer_info arcs, std::int64_t start, std::int64_t unigram_state,
                   std::int64_t unk_label)
        : Model(bytes(states, "states"), bytes(arcs, "arcs"), start, unigram_state, unk_label),
          states_(std::move(states)), arcs_(std::move(arcs)) {}

    static std::span<const std::byte> bytes(const py::buffer_info& info, const char* name) {
        if (!PyBuffer_IsContiguous(info.view(), 'C'))
            throw std::invalid_argument(std::string("expected ") + name + " as a contiguous buffer");
        return {static_cast<const std::byte*>(info.ptr), static_cast<std::size_t>(info.size * info.itemsize)};
    }

    py::buffer_info states_, arcs_;
};

// A TextIndex that may grow in one thread while others search with it: they wait for each other.
struct SharedIndex {
    TextIndex index;
    mutable std::shared_mutex mutex;
};

std::span<const std::int64_t> tokens_of(const Array<std::int64_t>& array, const char* name) {
    if (array.ndim() != 1)
        throw std::invalid_argument(std::string("expected ") + name + " as one sequence of token ids, got " +
                                    std::to_string(array.ndim()) + " axes");
    return {array.data(), static_cast<std::size_t>(array.size())};
}

void check_alpha(double alpha) {
    if (!(alpha >= 0 && alpha <= kLargestWeight))
        throw std::invalid_argument("expected an alpha from 0 to 1e30, got " + std::string(py::str(py::float_(alpha))));
}

// Sausages as the searches take them: tokens and log_probs [n, slots, k], transitions [n, slots - 1, k, k] or none; or
// a single lattice, all without the n.
using Sausages = std::tuple<Array<std::int32_t>, Array<double>, std::optional<Array<float>>>;
using Contexts = Array<std::int64_t>;  // [n, c] with -1 as padding on the left; or [c]

struct Batch {
    Batch(const Sausages& sausages, const BorrowingModel* model_in, double alpha_in, const Contexts& contexts_in)
        : tokens(std::get<0>(sausages)), log_probs(std::get<1>(sausages)), transitions(std::get<2>(sausages)),
          contexts(contexts_in), model(model_in), alpha(alpha_in) {
        single = tokens.ndim() == 2;
        if (!(single || tokens.ndim() == 3) || log_probs.ndim() != tokens.ndim() ||
            !std::equal(tokens.shape(), tokens.shape() + tokens.ndim(), log_probs.shape()))
            throw std::invalid_argument(
                "expected tokens and log_probs of one shape, [slots, k] or [n, slots, k], got " + shape(tokens) +
                " and " + shape(log_probs));
        size = single ? 1 : tokens.shape(0);
        slots = tokens.shape(tokens.ndim() - 2);
        k = tokens.shape(tokens.ndim() - 1);
        if (transitions) {
            std::vector<py::ssize_t> wanted(tokens.shape(), tokens.shape() + tokens.ndim());
            wanted[wanted.size() - 2] = std::max<py::ssize_t>(slots - 1, 0);
            wanted.push_back(k);
            if (transitions->ndim() != tokens.ndim() + 1 ||
                !std::equal(wanted.begin(), wanted.end(), transitions->shape()))
                throw std::invalid_argument("expected transitions [slots - 1, k, k] or [n, slots - 1, k, k], got " +
                                            shape(*transitions) + " for lattices " + shape(tokens));
        }
        if (contexts.ndim() != tokens.ndim() - 1 || (!single && contexts.shape(0) != size))
            throw std::invalid_argument("expected one context of token ids for each lattice, got " + shape(contexts) +
                                        " for lattices " + shape(tokens));
        context_length = contexts.shape(contexts.ndim() - 1);
        if (slots < 1 || k < 1)
            throw std::invalid_argument("expected lattices of at least one slot and one token, got " + shape(tokens));
        check_alpha(alpha);
        if (alpha == 0) model = nullptr;
    }
    static std::string shape(const py::array& array) { return py::str(array.attr("shape")); }
    void require_single() const {
        if (!single) throw std::invalid_argument("expected one lattice [slots, k], got " + shape(tokens));
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
    const BorrowingModel* model;
    double alpha;
    bool single;
    std::int64_t size, slots, k, context_length;
};

// What one thread works with. Workspaces are kept between calls: a search allocates nothing once
// warm, although the threads of a batch end with it.
struct Workspace {
    Lattice lattice;
    NbestSearch nbest;
    PosteriorSearch posteriors;
    TreeSearch tree;
    CalibratedSearch calibrated;
};

class Borrowed {
  public:
    Borrowed() {
        const std::lock_guard lock(mutex_);
        if (spare_.empty()) {
            workspace_ = std::make_unique<Workspace>();
        } else {
            workspace_ = std::move(spare_.back());
            spare_.pop_back();
        }
    }
    ~Borrowed() {
        const std::lock_guard lock(mutex_);
        spare_.push_back(std::move(workspace_));
    }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    Workspace& operator*() { return *workspace_; }
    Workspace* operator->() { return workspace_.get(); }

  private:
    static inline std::mutex mutex_;
    static inline std::vector<std::unique_ptr<Workspace>> spare_;
    std::unique_ptr<Workspace> workspace_;
};

// Calls work(i, workspace) for every i below `size` on up to `threads` threads. The lattices are independent, so the
// outcome does not depend on the number of threads; of several failures the first lattice's is reported.
template <typename Work>
void for_each(std::int64_t size, std::int64_t threads, const Work& work) {
    if (threads <= 1 || size <= 1) {
        Borrowed workspace;
        for (std::int64_t i = 0; i < size; ++i) work(i, *workspace);
        return;
    }
    std::atomic<std::int64_t> next{0};
    std::vector<std::exception_ptr> failures(size);
    const auto drain = [&] {
        Borrowed workspace;
        for (std::int64_t i; (i = next.fetch_add(1)) < size;) {
            try {
                work(i, *workspace);
            } catch (...) {
                failures[i] = std::current_exception();
            }
        }
    };
    {
        std::vector<std::jthread> helpers;
        for (std::int64_t i = 1; i < std::min(threads, size); ++i) helpers.emplace_back(drain);
        drain();
    }
    for (const auto& failure : failures)
        if (failure != nullptr) std::rethrow_exception(failure);
}

// search(i, workspace) of every lattice of a batch, which the workspace then holds.
template <typename Search>
auto results_of(const Batch& batch, std::int64_t threads, const Search& search) {
    std::vector<std::decay_t<std::invoke_result_t<Search, std::int64_t, Workspace&>>> results(batch.size);
    const latticebpd::GilRelease gil_release;
    for_each(batch.size, threads, [&](std::int64_t i, Workspace& workspace) {
        workspace.lattice.assign(batch.lattice(i), batch.model, batch.name(i).c_str());
        results[i] = search(i, workspace);
    });
    return results;
}

// Rows of unequal length, a member of each result, as one array [n, longest] or [n, longest / width, width], padded; of
// a single lattice, without the n.
template <typename T, typename Result>
Array<T> stacked(const Batch& batch, const std::vector<Result>& results, const std::vector<T> Result::*rows, T pad,
                 std::optional<std::int64_t> width = std::nullopt) {
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

py::tuple nbest(const Sausages& sausages, const BorrowingModel* model, std::int64_t p, double alpha,
                const Contexts& contexts, std::int64_t threads) {
    using Result = NbestSearch::Result;
    const Batch batch(sausages, model, alpha, contexts);
    if (p < 1) throw std::invalid_argument("expected p of at least 1, got " + std::to_string(p));
    const auto results = results_of(batch, threads, [&](std::int64_t i, Workspace& workspace) {
        return workspace.nbest.run(workspace.lattice, batch.start_state(i), p, batch.alpha);
    });
    return py::make_tuple(stacked(batch, results, &Result::tokens, -1, batch.slots),
                          stacked(batch, results, &Result::scores, kMinusInfinity), counts(results, &Result::scores));
}

// Runs search(i, workspace) -> tree of every lattice; the trees as arrays.
template <typename Search>
py::tuple trees(const Batch& batch, std::int64_t num_nodes, std::int64_t threads, const Search& search) {
    if (num_nodes < 1)
        throw std::invalid_argument("expected num_nodes of at least 1, got " + std::to_string(num_nodes));
    const auto results = results_of(batch, threads, search);
    return py::make_tuple(stacked(batch, results, &Tree::tokens, -1), stacked(batch, results, &Tree::parents, -1),
                          stacked(batch, results, &Tree::log_probs, kMinusInfinity), counts(results, &Tree::log_probs));
}

py::tuple tree(const Sausages& sausages, const BorrowingModel* model, std::int64_t num_nodes, double alpha,
               const Contexts& contexts, std::int64_t threads) {
    const Batch batch(sausages, model, alpha, contexts);
    return trees(batch, num_nodes, threads, [&](std::int64_t i, Workspace& workspace) {
        return workspace.tree.run(workspace.lattice, batch.start_state(i), num_nodes, batch.alpha);
    });
}

void check_further(std::int64_t further) {
    constexpr std::int64_t kMost = 4096;
    if (further < 0 || further > kMost)
        throw std::invalid_argument("expected 0 to 4096 further slots, got " + std::to_string(further));
}

py::tuple calibrated_tree(const Sausages& sausages, const BorrowingModel* model,
                          const std::vector<const SharedIndex*>& texts, const Array<double>& weights,
                          std::int64_t num_nodes, std::int64_t further, const Contexts& contexts,
                          std::int64_t threads) {
    check_further(further);
    const Batch batch(sausages, model, 1, contexts);
    if (static_cast<std::int64_t>(texts.size()) != batch.size)
        throw std::invalid_argument("expected one text for each of " + std::to_string(batch.size) + " lattices, got " +
                                    std::to_string(texts.size()));
    const std::span<const double> all{weights.data(), static_cast<std::size_t>(weights.size())};
    return trees(batch, num_nodes, threads, [&](std::int64_t i, Workspace& workspace) {
        const SharedIndex& text = *texts[i];
        const std::shared_lock lock(text.mutex);
        workspace.lattice.extend(further);
        return workspace.calibrated.run(workspace.lattice, batch.start_state(i), text.index, all, num_nodes);
    });
}

py::tuple describe(const Sausages& sausages, const BorrowingModel* model, const SharedIndex& text,
                   const Array<std::int64_t>& path, std::int64_t further, const Contexts& context) {
    check_further(further);
    const Batch batch(sausages, model, 1, context);
    batch.require_single();
    const auto tokens = tokens_of(path, "path");
    const auto results = results_of(batch, 1, [&](std::int64_t i, Workspace& workspace) {
        const std::shared_lock lock(text.mutex);
        workspace.lattice.extend(further);
        return workspace.calibrated.describe(workspace.lattice, batch.start_state(i), text.index, tokens);
    });
    const CalibratedSearch::Description& description = results.front();
    Array<float> features({description.tokens.size(), std::size_t{CalibratedSearch::kFeatures}});
    std::copy(description.features.begin(), description.features.end(), features.mutable_data());
    return py::make_tuple(features, array_of(description.tokens), array_of(description.sizes));
}

Array<double> posteriors(const Sausages& sausages, const BorrowingModel* model, double alpha, const Contexts& context) {
    const Batch batch(sausages, model, alpha, context);
    batch.require_single();
    Borrowed workspace;
    Lattice& lattice = workspace->lattice;
    lattice.assign(batch.lattice(0), batch.model, "");
    const std::vector<double>& of_columns = workspace->posteriors.run(lattice, batch.start_state(0), batch.alpha);
    Array<double> out({batch.slots, batch.k});
    std::fill_n(out.mutable_data(), out.size(), kMinusInfinity);
    for (std::int32_t slot = 0; slot < lattice.slots(); ++slot)
        for (std::int32_t c = lattice.slot(slot).first; c < lattice.slot(slot).first + lattice.slot(slot).size; ++c)
            out.mutable_data()[slot * batch.k + lattice.given_column(c)] = of_columns[c];
    return out;
}

// Any lattice as the searches take it: offsets [states + 1], tokens, log_probs and targets [arcs] as in ArcsView.
using ArcArrays = std::tuple<Array<std::int64_t>, Array<std::int32_t>, Array<double>, Array<std::int32_t>>;

ArcsView view_of(const ArcArrays& arcs) {
    const auto span = [](const auto& array) { return std::span(array.data(), static_cast<std::size_t>(array.size())); };
    return {span(std::get<0>(arcs)), span(std::get<1>(arcs)), span(std::get<2>(arcs)), span(std::get<3>(arcs))};
}

py::tuple resolve(const BorrowingModel& model, const Array<std::int64_t>& tokens, std::uint32_t state) {
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
        if (costs.size() > (1u << 26))
            throw std::invalid_argument("expected fewer than 2^26 arcs to resolve; pass fewer tokens");
    }
    return py::make_tuple(array_of(costs), array_of(targets), array_of(finals));
}

// The state that a search of any lattice starts in. Without weight there is no model.
std::uint32_t start_state(const BorrowingModel*& model, double alpha, const Array<std::int64_t>& context) {
    check_alpha(alpha);
    if (alpha == 0) model = nullptr;
    return model == nullptr ? 0 : model->state_of(tokens_of(context, "context"));
}

py::tuple lattice_nbest(const ArcArrays& arcs, const BorrowingModel* model, std::int64_t p, double alpha,
                        const Array<std::int64_t>& context) {
    const std::uint32_t start = start_state(model, alpha, context);
    Borrowed workspace;
    Lattice& lattice = workspace->lattice;
    const NbestSearch::Result* result;
    {
        const latticebpd::GilRelease gil_release;
        lattice.assign(view_of(arcs), model);
        result = &workspace->nbest.run(lattice, start, p, alpha);
    }
    Array<std::int32_t> tokens({result->scores.size(), lattice.longest()});
    std::copy(result->tokens.begin(), result->tokens.end(), tokens.mutable_data());
    return py::make_tuple(tokens, array_of(result->scores));
}

Array<double> lattice_posteriors(const ArcArrays& arcs, const BorrowingModel* model, double alpha,
                                 const Array<std::int64_t>& context) {
    const std::uint32_t start = start_state(model, alpha, context);
    Borrowed workspace;
    Lattice& lattice = workspace->lattice;
    Array<double> out(std::get<1>(arcs).size());
    double* const to = out.mutable_data();
    const latticebpd::GilRelease gil_release;
    lattice.assign(view_of(arcs), model);
    const std::vector<double>& of_columns = workspace->posteriors.run(lattice, start, alpha);
    for (std::size_t c = 0; c < of_columns.size(); ++c)
        to[lattice.given_column(static_cast<std::int32_t>(c))] = of_columns[c];
    return out;
}

py::tuple determinized(const ArcArrays& arcs) {
    Arcs result;
    {
        const latticebpd::GilRelease gil_release;
        result = determinize(view_of(arcs));
    }
    return py::make_tuple(array_of(result.offsets), array_of(result.tokens), array_of(result.log_probs),
                          array_of(result.targets));
}

}  // namespace
}  // namespace fst_core

PYBIND11_MODULE(_core, module) {
    using namespace fst_core;
    using namespace py::literals;
    using Ids = Array<std::int64_t>;
    py::class_<BorrowingModel>(module, "Model")
        .def(py::init<const py::buffer&, const py::buffer&, std::int64_t, std::int64_t, std::int64_t>(), "states"_a,
             "arcs"_a, "start"_a, "unigram_state"_a, "unk_label"_a = 0)
        .def("log_prob", [](const BorrowingModel& model, std::int64_t token, const Ids& context) {
                 return model.log_prob(token, tokens_of(context, "context"));
             }, "token"_a, "context"_a)
        .def("score", [](const BorrowingModel& model, const Ids& tokens, bool bos, bool eos) {
                 return model.score(tokens_of(tokens, "tokens"), bos, eos);
             }, "tokens"_a, "bos"_a = false, "eos"_a = false)
        .def("state_of", [](const BorrowingModel& model, const Ids& context) {
                 return model.state_of(tokens_of(context, "context"));
             }, "context"_a)
        .def("num_ngrams", [](const BorrowingModel& model) { return count_ngrams(model, true); },
             py::call_guard<latticebpd::GilRelease>())
        .def("ngrams", [](const BorrowingModel& model) { return list_ngrams(model); })
        .def_property_readonly("has_end", [](const BorrowingModel& model) { return model.has_end(); })
        .def("resolve", &resolve, "tokens"_a, "state"_a)
        .def("write_arpa", [](const BorrowingModel& model, const std::vector<std::string>& words, bool markers,
                              const py::function& sink) {
                 write_arpa(model, words, markers,
                            [&](std::string_view text) { sink(py::bytes(text.data(), text.size())); });
             }, "words"_a, "markers"_a, "sink"_a);
    module.attr("LARGEST_WEIGHT") = kLargestWeight;
    module.attr("NUM_FEATURES") = static_cast<int>(CalibratedSearch::kFeatures);

    py::class_<SharedIndex>(module, "TextIndex")
        .def(py::init<>())
        .def("extend", [](SharedIndex& text, const Ids& tokens) {
                 const std::unique_lock lock(text.mutex);
                 text.index.extend(tokens_of(tokens, "tokens"));
             }, "tokens"_a)
        .def("__len__", [](const SharedIndex& text) { return text.index.size(); });

    module.def("nbest", &nbest);
    module.def("posteriors", &posteriors);
    module.def("tree", &tree);
    module.def("calibrated_tree", &calibrated_tree);
    module.def("describe", &describe);
    module.def("lattice_nbest", &lattice_nbest);
    module.def("lattice_posteriors", &lattice_posteriors);
    module.def("determinize", &determinized);
    bind_formats(module);
}
