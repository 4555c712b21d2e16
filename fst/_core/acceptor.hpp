// A weighted acceptor of a user's own, determinized on demand.
//
// A label sequence costs the least of its paths: the sum of their arcs and of their end (the tropical semiring).
// Deterministic states are sets of the acceptor's states, each with what the best path to it costs beyond the best one
// to any of them; they are made as they are reached, so that an acceptor without a finite deterministic form serves
// too.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace fst_core {

class Acceptor {
  public:
    static constexpr std::int32_t kEpsilon = 0;
    static constexpr std::int32_t kNone = -1;
    static constexpr std::int32_t kEmpty = 0;  // the set of no states: no path goes on

    struct Arc {
        std::int32_t label;
        std::int32_t target;
        double cost;
    };
    struct Member {
        std::int32_t state;
        double residual;
    };
    struct Step {  // by a label from a set
        std::int32_t label;
        std::int32_t next;
        double cost;
    };

    // Of arcs offsets[state] to offsets[state + 1] of each state, finals [states], infinite where no path ends. Arcs of
    // infinite cost are none, and states on no path to an end are left out. ValueError where no path ends, or where
    // epsilons in a cycle cost less than 0.
    Acceptor(std::span<const std::int64_t> offsets, std::span<const Arc> arcs, std::span<const double> finals,
             std::int32_t start);

    std::int32_t start() const { return start_set_; }
    std::int32_t num_sets() const { return static_cast<std::int32_t>(sets_.size()); }
    bool weighted() const { return weighted_; }
    std::int32_t largest_label() const { return largest_label_; }

    // The steps from a set by rising label.
    std::span<const Step> steps(std::int32_t set);
    // The step by a label, or null.
    const Step* step(std::int32_t set, std::int32_t label);
    // What ending there costs; infinite where no path ends.
    double final_cost(std::int32_t set) const;

    // Of the acceptor's states, for callers that restrict sets; and those states of a set that `keeps` holds for, or
    // kNone.
    std::int32_t num_states() const { return static_cast<std::int32_t>(finals_.size()); }
    std::span<const Arc> arcs(std::int32_t state) const {
        return {arcs_.data() + offsets_[state], static_cast<std::size_t>(offsets_[state + 1] - offsets_[state])};
    }
    bool is_final(std::int32_t state) const;
    std::int32_t restricted(std::int32_t set, const std::vector<std::uint8_t>& keeps);

  private:
    struct Set {
        std::vector<Member> members;  // by rising state
        std::vector<Step> steps;      // by rising label
        bool is_expanded = false;
    };
    void trim(std::int32_t& start);
    void check_epsilons() const;
    // Replaces members, of any order, by those that epsilons lead to as well, each state once; returns the least cost,
    // which is subtracted.
    double close(std::vector<Member>& members);
    std::int32_t find(std::vector<Member> members);

    std::vector<std::int64_t> offsets_;
    std::vector<Arc> arcs_;
    std::vector<double> finals_;
    bool weighted_ = false, has_epsilons_ = false;
    std::int32_t largest_label_ = 0, start_set_ = 0;
    std::vector<Set> sets_;
    std::size_t num_members_ = 0;
    std::unordered_map<std::string, std::int32_t> by_members_;
    std::vector<double> best_;  // scratch of close(): [state]
};

}  // namespace fst_core
