// Automata over tokens that Python code implements (`latticebpd.constraints.token_automaton.TokenAutomaton`).
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include <fst/gil_release.hpp>

#include "arrays.hpp"
#include "constraint.hpp"

namespace fst_core {

namespace py = pybind11;

// Made and destroyed with Python's lock held, asked without it.
class PythonAutomaton : public TokenAutomaton {
  public:
    PythonAutomaton(py::object automaton, std::int64_t state)
        : automaton_(std::move(automaton)), start_(state), weighted_(automaton_.attr("weighted").cast<bool>()) {}

    std::int64_t start() const override { return start_; }
    bool weighted() const override { return weighted_; }
    std::span<const std::uint8_t> legal(std::int64_t state) override {
        const fst::GilAcquire gil;
        const py::array_t<bool, py::array::c_style>& mask = masks_.emplace_back(automaton_.attr("legal")(state));
        if (mask.ndim() != 1) refuse("expected legal tokens as one row, got ", mask.ndim(), " axes");
        return {reinterpret_cast<const std::uint8_t*>(mask.data()), static_cast<std::size_t>(mask.size())};
    }
    void successors(std::int64_t state, std::span<const std::int32_t> tokens, std::int64_t* states) override {
        ask("successors", state, tokens, states);
    }
    void costs(std::int64_t state, std::span<const std::int32_t> tokens, double* costs) override {
        ask("costs", state, tokens, costs);
    }
    std::vector<std::int32_t> forced(std::int64_t state) override {
        const fst::GilAcquire gil;
        const Array<std::int64_t> tokens(automaton_.attr("forced")(state));
        return {tokens.data(), tokens.data() + tokens.size()};
    }

  private:
    template <typename T>
    void ask(const char* method, std::int64_t state, std::span<const std::int32_t> tokens, T* out) {
        const fst::GilAcquire gil;
        Array<std::int64_t> asked(static_cast<py::ssize_t>(tokens.size()));
        std::copy(tokens.begin(), tokens.end(), asked.mutable_data());
        const Array<T> answers(automaton_.attr(method)(state, asked));
        if (answers.size() != asked.size())
            refuse("expected ", method, " of ", asked.size(), " tokens, got ", answers.size());
        std::copy_n(answers.data(), answers.size(), out);
    }

    py::object automaton_;
    std::int64_t start_;
    bool weighted_;
    std::deque<py::array_t<bool, py::array::c_style>> masks_;  // of every state that was asked for
};

// For each lattice of a call an automaton and its state, or None; or None for all of them.
using Automata = std::optional<std::vector<std::optional<std::pair<py::object, std::int64_t>>>>;

class Constraints {
  public:
    Constraints(const Automata& automata, std::int64_t size) {
        if (!automata) return;
        if (static_cast<std::int64_t>(automata->size()) != size)
            refuse("expected a constraint, or None, for each of ", size, " lattices, got ", automata->size());
        of_lattices_.resize(size);
        for (std::int64_t i = 0; i < size; ++i) {
            if (!(*automata)[i]) continue;
            const auto& [automaton, state] = *(*automata)[i];
            of_lattices_[i] = &constraints_.emplace_back(automata_.emplace_back(automaton, state));
        }
    }
    // Of lattice i, or null.
    Constraint* of(std::int64_t i) const { return of_lattices_.empty() ? nullptr : of_lattices_[i]; }
    // Searches that ask Python do so one after the other.
    std::int64_t threads(std::int64_t wanted) const { return constraints_.empty() ? wanted : 1; }

  private:
    std::deque<PythonAutomaton> automata_;
    std::deque<Constraint> constraints_;
    std::vector<Constraint*> of_lattices_;
};

}  // namespace fst_core
