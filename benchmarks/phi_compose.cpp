// Rescoring as usual, in C++: OpenFst composition with failure arcs (phi matcher) and its p shortest paths.
//
//     g++ -O3 -std=c++17 phi_compose.cpp -lfst -ldl -o phi_compose && ./phi_compose lm.fst p repetitions < lattices
//
// Input: for every lattice "slots c", then c context tokens, then per slot "k" and k pairs of token and
// log-probability. Output: for every lattice one line of microseconds, the least of all repetitions, and the scores.

#include <fst/fstlib.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <vector>

namespace {

using fst::StdArc;
using Lm = fst::ConstFst<StdArc>;
using Clock = std::chrono::steady_clock;
using Microseconds = std::chrono::duration<double, std::micro>;

constexpr int kPhi = 0x7FFFFFFE;  // OpenFst's matchers keep label 0 to themselves

double microseconds(Clock::time_point begin) { return Microseconds(Clock::now() - begin).count(); }

struct Column {
    int label;
    double log_prob;
};
struct Lattice {
    std::vector<int> context;  // labels
    std::vector<std::vector<Column>> slots;
};

std::unique_ptr<Lm> failure_model(const std::string& path) {
    const std::unique_ptr<fst::StdFst> raw(fst::StdFst::Read(path));
    if (raw == nullptr) std::exit(1);
    fst::StdVectorFst model(*raw);
    for (fst::StateIterator<fst::StdVectorFst> states(model); !states.Done(); states.Next()) {
        for (fst::MutableArcIterator<fst::StdVectorFst> arcs(&model, states.Value()); !arcs.Done(); arcs.Next()) {
            StdArc arc = arcs.Value();
            if (arc.ilabel == 0) arc.ilabel = arc.olabel = kPhi;
            arcs.SetValue(arc);
        }
        model.SetFinal(states.Value(), StdArc::Weight::One());  // a draft ends anywhere
    }
    // The lattices start without history: where following failures from the start ends.
    auto start = model.Start();
    for (bool moved = true; moved;) {
        moved = false;
        for (fst::ArcIterator<fst::StdVectorFst> arcs(model, start); !arcs.Done(); arcs.Next())
            if (arcs.Value().ilabel == kPhi) {
                start = arcs.Value().nextstate;
                moved = true;
                break;
            }
    }
    model.SetStart(start);
    fst::ArcSort(&model, fst::ILabelCompare<StdArc>());
    return std::make_unique<Lm>(model);
}

fst::StdVectorFst acceptor(const Lattice& lattice) {
    fst::StdVectorFst out;
    int state = out.AddState();
    out.SetStart(state);
    const auto chain = [&](const std::vector<Column>& columns) {
        const int next = out.AddState();
        for (const Column& column : columns)
            out.AddArc(state, StdArc(column.label, column.label, static_cast<float>(-column.log_prob), next));
        state = next;
    };
    for (const int label : lattice.context) chain({{label, 0.0}});
    for (const auto& slot : lattice.slots) chain(slot);
    out.SetFinal(state, StdArc::Weight::One());
    fst::ArcSort(&out, fst::OLabelCompare<StdArc>());
    return out;
}

// The matchers know the concrete types, which spares OpenFst virtual calls.
fst::StdVectorFst compose(const fst::StdVectorFst& lattice, const Lm& lm) {
    using LatticeMatcher = fst::SortedMatcher<fst::StdVectorFst>;
    using LmMatcher = fst::PhiMatcher<fst::SortedMatcher<Lm>>;
    using Filter = fst::AltSequenceComposeFilter<LatticeMatcher, LmMatcher>;
    fst::ComposeFstImplOptions<LatticeMatcher, LmMatcher, Filter> options;
    options.gc_limit = 0;
    options.matcher1 = new LatticeMatcher(lattice, fst::MATCH_NONE);
    options.matcher2 = new LmMatcher(lm, fst::MATCH_INPUT, kPhi, false);
    fst::StdVectorFst out(fst::StdComposeFst(lattice, lm, options));
    fst::Connect(&out);
    return out;
}

std::vector<double> path_scores(const fst::StdVectorFst& paths) {
    std::vector<double> scores;
    std::vector<std::pair<int, double>> stack;
    if (paths.Start() != fst::kNoStateId) stack.push_back({paths.Start(), 0.0});
    while (!stack.empty()) {
        const auto [state, cost] = stack.back();
        stack.pop_back();
        if (paths.Final(state) != StdArc::Weight::Zero()) scores.push_back(-cost - paths.Final(state).Value());
        for (fst::ArcIterator<fst::StdVectorFst> arcs(paths, state); !arcs.Done(); arcs.Next())
            stack.push_back({arcs.Value().nextstate, cost + arcs.Value().weight.Value()});
    }
    std::sort(scores.rbegin(), scores.rend());
    return scores;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) {
        std::cerr << "usage: phi_compose lm.fst p repetitions < lattices\n";
        return 2;
    }
    const auto lm = failure_model(argv[1]);
    const int p = std::atoi(argv[2]), repetitions = std::atoi(argv[3]);
    std::vector<Lattice> lattices;
    for (std::size_t slots, context; std::cin >> slots >> context;) {
        Lattice lattice;
        lattice.context.resize(context);
        for (int& label : lattice.context) std::cin >> label, ++label;
        for (std::size_t t = 0, k; t < slots && std::cin >> k; ++t) {
            lattice.slots.emplace_back(k);
            for (Column& column : lattice.slots.back()) std::cin >> column.label >> column.log_prob, ++column.label;
        }
        lattices.push_back(lattice);
    }
    std::vector<double> times(lattices.size(), HUGE_VAL);
    std::vector<std::vector<double>> scores(lattices.size());
    for (int repetition = 0; repetition < repetitions; ++repetition)
        for (std::size_t i = 0; i < lattices.size(); ++i) {
            const fst::StdVectorFst lattice = acceptor(lattices[i]);
            const auto begin = Clock::now();
            fst::StdVectorFst paths;
            fst::ShortestPath(compose(lattice, *lm), &paths, p);
            times[i] = std::min(times[i], microseconds(begin));
            scores[i] = path_scores(paths);
        }
    std::cout.precision(10);
    for (std::size_t i = 0; i < lattices.size(); ++i) {
        std::cout << times[i];
        for (const double score : scores[i]) std::cout << ' ' << score;
        std::cout << '\n';
    }
}
