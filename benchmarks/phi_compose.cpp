// Rescoring as it is usually done, in C++: OpenFst composition with failure arcs (phi matcher) and its p shortest paths;
// and as one would do it without OpenFst: a layered dynamic programme that keeps p paths for each language-model state.
//
//     g++ -O3 -std=c++17 phi_compose.cpp -lfst -ldl -o phi_compose && ./phi_compose lm.fst p repetitions < lattices
//
// Input: for every lattice "slots c", then c context tokens, then per slot "k" and k pairs of token and log-probability.
// Output: for every lattice one line "compose_us shortest_us layered_us | OpenFst's scores | layered scores", times the
// least of all repetitions.

#include <fst/fstlib.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <unordered_map>
#include <vector>

namespace {

using fst::StdArc;
using Lm = fst::ConstFst<StdArc>;
using Clock = std::chrono::steady_clock;

constexpr int kPhi = 0x7FFFFFFE;  // OpenFst's matchers keep label 0 to themselves

double microseconds(Clock::time_point begin) { return std::chrono::duration<double, std::micro>(Clock::now() - begin).count(); }

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
        for (const Column& column : columns) out.AddArc(state, StdArc(column.label, column.label, static_cast<float>(-column.log_prob), next));
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

// One forward pass: for every LM state of a layer the p best ways to it, each (state, column) looked up once.
std::vector<double> layered(const Lattice& lattice, const Lm& lm, int p) {
    const auto step = [&](int state, int label) {
        for (double cost = 0;;) {
            fst::ArcIteratorData<StdArc> data;
            lm.InitArcIterator(state, &data);
            const StdArc* end = data.arcs + data.narcs;
            const StdArc* found = std::lower_bound(data.arcs, end, label, [](const StdArc& arc, int key) { return arc.ilabel < key; });
            if (found != end && found->ilabel == label) return std::pair(found->nextstate, cost + found->weight.Value());
            const StdArc& failure = end[-1];
            if (data.narcs == 0 || failure.ilabel != kPhi) return std::pair(state, cost + 1000.0);
            cost += failure.weight.Value();
            state = failure.nextstate;
        }
    };
    int start = lm.Start();
    for (const int label : lattice.context) start = step(start, label).first;
    std::unordered_map<int, std::vector<double>> layer{{start, {0.0}}};
    std::vector<double> merged;
    for (const auto& slot : lattice.slots) {
        std::unordered_map<int, std::vector<double>> next;
        for (const auto& [state, scores] : layer)
            for (const Column& column : slot) {
                const auto [to, cost] = step(state, column.label);
                auto& best = next[to];
                merged.clear();
                std::size_t i = 0, j = 0;
                while (merged.size() < static_cast<std::size_t>(p) && (i < best.size() || j < scores.size())) {
                    const double extended = j < scores.size() ? scores[j] + column.log_prob - cost : -HUGE_VAL;
                    if (i < best.size() && best[i] >= extended)
                        merged.push_back(best[i++]);
                    else
                        merged.push_back(extended), ++j;
                }
                best = merged;
            }
        layer = std::move(next);
    }
    std::vector<double> all;
    for (const auto& [state, scores] : layer) all.insert(all.end(), scores.begin(), scores.end());
    std::sort(all.rbegin(), all.rend());
    if (all.size() > static_cast<std::size_t>(p)) all.resize(static_cast<std::size_t>(p));
    return all;
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
    struct Times {
        double compose = HUGE_VAL, shortest = HUGE_VAL, layered = HUGE_VAL;
    };
    std::vector<Times> times(lattices.size());
    std::vector<std::vector<double>> openfst(lattices.size()), dynamic(lattices.size());
    for (int repetition = 0; repetition < repetitions; ++repetition)
        for (std::size_t i = 0; i < lattices.size(); ++i) {
            const fst::StdVectorFst lattice = acceptor(lattices[i]);
            auto begin = Clock::now();
            const fst::StdVectorFst product = compose(lattice, *lm);
            times[i].compose = std::min(times[i].compose, microseconds(begin));
            begin = Clock::now();
            fst::StdVectorFst paths;
            fst::ShortestPath(product, &paths, p);
            times[i].shortest = std::min(times[i].shortest, microseconds(begin));
            begin = Clock::now();
            dynamic[i] = layered(lattices[i], *lm, p);
            times[i].layered = std::min(times[i].layered, microseconds(begin));
            openfst[i] = path_scores(paths);
        }
    std::cout.precision(10);
    for (std::size_t i = 0; i < lattices.size(); ++i) {
        std::cout << times[i].compose << ' ' << times[i].shortest << ' ' << times[i].layered << " |";
        for (const double score : openfst[i]) std::cout << ' ' << score;
        std::cout << " |";
        for (const double score : dynamic[i]) std::cout << ' ' << score;
        std::cout << '\n';
    }
}
