// The Python side of acceptors over tokens: arrays in and out.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "acceptor_over_tokens.hpp"
#include "arrays.hpp"
#include "bindings.hpp"

namespace py = pybind11;

namespace fst_core {
namespace {

std::unique_ptr<AcceptorOverTokens> acceptor(const Array<std::int64_t>& offsets, const Array<std::int32_t>& labels,
                                             const Array<std::int32_t>& targets, const Array<double>& costs,
                                             const Array<double>& finals, std::int32_t start,
                                             std::shared_ptr<TokenTrie> trie, std::int32_t vocab_size,
                                             std::vector<std::int32_t> end_tokens) {
    if (labels.size() != targets.size() || labels.size() != costs.size())
        refuse("expected labels, targets and costs [arcs], got ", labels.size(), ", ", targets.size(), " and ",
               costs.size());
    std::vector<Acceptor::Arc> arcs;
    for (py::ssize_t i = 0; i < labels.size(); ++i)
        arcs.push_back({labels.data()[i], targets.data()[i], costs.data()[i]});
    const auto span = [](const auto& array) { return std::span(array.data(), static_cast<std::size_t>(array.size())); };
    return std::make_unique<AcceptorOverTokens>(Acceptor(span(offsets), arcs, span(finals), start), std::move(trie),
                                                vocab_size, std::move(end_tokens));
}

template <typename T, typename Of>
Array<T> of_steps(AcceptorOverTokens& acceptor, std::int32_t state, const Array<std::int64_t>& tokens, const Of& of) {
    Array<T> out(tokens.size());
    for (py::ssize_t i = 0; i < tokens.size(); ++i)
        out.mutable_data()[i] = static_cast<T>(of(acceptor.step(state, tokens.data()[i])));
    return out;
}

}  // namespace

void bind_token_acceptors(py::module_& module) {
    py::class_<TokenTrie, std::shared_ptr<TokenTrie>>(module, "TokenTrie")
        .def(py::init<const std::vector<std::optional<std::string>>&>());
    py::class_<AcceptorOverTokens>(module, "AcceptorOverTokens")
        .def(py::init(&acceptor))
        .def_property_readonly("start", &AcceptorOverTokens::start)
        .def_property_readonly("vocab_size", &AcceptorOverTokens::vocab_size)
        .def_property_readonly("weighted", &AcceptorOverTokens::weighted)
        .def_property_readonly("num_states", &AcceptorOverTokens::num_states)
        .def("legal",
             [](AcceptorOverTokens& acceptor, std::int32_t state) {
                 py::array_t<bool> mask(acceptor.vocab_size());
                 const std::span out(reinterpret_cast<std::uint8_t*>(mask.mutable_data()),
                                     static_cast<std::size_t>(mask.size()));
                 std::ranges::fill(out, 0);
                 acceptor.legal(state, out);
                 return mask;
             })
        .def("successors",
             [](AcceptorOverTokens& acceptor, std::int32_t state, const Array<std::int64_t>& tokens) {
                 return of_steps<std::int64_t>(acceptor, state, tokens, [](const auto& step) { return step.next; });
             })
        .def("costs",
             [](AcceptorOverTokens& acceptor, std::int32_t state, const Array<std::int64_t>& tokens) {
                 return of_steps<float>(acceptor, state, tokens, [](const auto& step) { return step.cost; });
             })
        .def("forced_labels",
             [](AcceptorOverTokens& acceptor, std::int32_t state) { return array_of(acceptor.forced_labels(state)); })
        .def("has_longer", [](AcceptorOverTokens& acceptor, std::int32_t state, const std::string& bytes) {
            return acceptor.has_longer(state, {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
        });
}

}  // namespace fst_core
