// Implements tune_search.h.
#include "lab/tune_search.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "base/error.h"
#include "kernels/config_rules.h"

namespace rapt::lab {
namespace {

void assign(KernelConfig& config, const ConfigField& field, int value) {
  field.assign(config.data(), field.name, std::to_string(value));
}

// Returns "" if the configuration is legal.
std::string broken_rule(const Problem& planned, const Device& device, const TunePoint& point) {
  if (point.family->check_config == nullptr) return "the family has no rules for changed configurations";
  try {
    point.family->check_config({planned, device, point.family->configure(planned, device), point.config, true});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// The candidate values of a field, without its current value. Those nearest to the current value come first.
std::vector<int> nearest_first(const ConfigField& field, const KernelConfig& config) {
  const auto now = static_cast<int>(field.number(config.data()));
  std::vector<int> values;
  for (const int value : field.candidates)
    if (value != now) values.push_back(value);
  std::stable_sort(values.begin(), values.end(), [&](int a, int b) { return std::abs(a - now) < std::abs(b - now); });
  return values;
}

class Search {
 public:
  explicit Search(const TuneRequest& request) : request_(request) { result_.best = request.own; }

  TuneResult run() {
    visited_.insert(request_.own.words());
    if (!has_usable_choice()) return std::move(result_);
    for (const Family* family : request_.families)
      if (!stopped() && start_in(*family)) descend();
    confirm();
    return std::move(result_);
  }

 private:
  bool stopped() {
    result_.interrupted = result_.interrupted || request_.interrupted();
    result_.out_of_time = result_.out_of_time || request_.out_of_time();
    return result_.interrupted || result_.out_of_time;
  }

  // If the planner's own choice is wrong or cannot run, nothing is searched.
  bool has_usable_choice() {
    const Comparison alone = request_.compare(request_.own, request_.own, false);
    note(alone);
    result_.failure = alone.why;
    return alone.kind == Comparison::timed;
  }

  // Begins the descent at the family's own configuration. Returns false if the family is too slow.
  bool start_in(const Family& family) {
    present_ = {&family, family.configure(request_.planned, request_.device)};
    if (present_.words() == request_.own.words()) return true;
    visited_.insert(present_.words());
    Comparison compared;
    if (!compare(present_, result_.best, present_.words(), compared)) return false;
    ++result_.tried;
    if (is_faster(compared.candidate, compared.best)) result_.best = present_;
    return compared.candidate.median <= hopeless * compared.best.median;
  }

  // Changes one field of the configuration at a time, and keeps the changes that make the kernel faster. Ends when no
  // change makes it faster.
  void descend() {
    for (bool improved = true; improved;) {
      improved = false;
      for (const ConfigField& field : present_.config.type().fields)
        for (const int value : nearest_first(field, present_.config))
          if (!stopped()) improved = step(field, value) || improved;
    }
    if (present_.words() != result_.best.words()) keep_if_faster();
  }

  // Changes one field, and compares the new configuration with the previous one. Returns true if the change was kept.
  bool step(const ConfigField& field, int value) {
    TunePoint changed;
    std::string why;
    if (!change_field(request_.planned, request_.device, present_, field, value, changed, why)) {
      // A refused change is counted once for each configuration in which it was tried.
      if (visited_.insert(concat(present_.words(), " ", field.name, "=", value)).second) ++result_.refused;
      return false;
    }
    if (!visited_.insert(changed.words()).second) return false;
    Comparison compared;
    if (!compare(changed, present_, changed.config.words_unlike(present_.config), compared)) return false;
    ++result_.tried;
    if (!is_faster(compared.candidate, compared.best)) return false;
    present_ = changed;
    return true;
  }

  // After the descent in a family, compares its best configuration with the best configuration of all families so far.
  void keep_if_faster() {
    if (result_.interrupted) return;
    Comparison compared;
    if (!compare(present_, result_.best, "the best of its family", compared)) return;
    if (is_faster(compared.candidate, compared.best)) result_.best = present_;
  }

  // The final comparison with the planner's choice. A configuration that is not faster here is not kept.
  void confirm() {
    const TunePoint found = std::exchange(result_.best, request_.own);
    if (result_.interrupted) return;
    if (found.words() != request_.own.words()) {
      const Comparison compared = request_.compare(found, request_.own, true);
      note(compared);
      result_.faster = compared.kind == Comparison::timed && is_faster(compared.candidate, compared.best);
      if (result_.faster) {
        result_.best = found, result_.time = compared.candidate, result_.own = compared.best;
        return;
      }
    }
    const Comparison alone = request_.compare(request_.own, request_.own, true);
    note(alone);
    result_.time = result_.own = alone.best;
    result_.failure = alone.why;
  }

  // Compares a candidate with the best configuration. Returns false if there are no times.
  bool compare(const TunePoint& candidate, const TunePoint& best, const std::string& change, Comparison& compared) {
    if (request_.progress) request_.progress(candidate, change, result_.tried);
    compared = request_.compare(candidate, best, false);
    note(compared);
    return compared.kind == Comparison::timed;
  }

  void note(const Comparison& compared) {
    result_.dropped += compared.kind == Comparison::dropped;
    if (compared.kind == Comparison::wrong) result_.wrong.push_back(compared.why);
  }

  const TuneRequest& request_;
  TuneResult result_;
  TunePoint present_;              // the configuration that the descent in one family has reached
  std::set<std::string> visited_;  // the words of compared configurations and of refused changes
};

}  // namespace

std::string TunePoint::words() const {
  const std::string fields = config.searched_words();
  return concat("family=", family->name, fields.empty() ? "" : " ", fields);
}

bool is_faster(const Quartiles& candidate, const Quartiles& other) {
  return candidate.q3 < other.q1 && candidate.median <= (1 - least_gain) * other.median;
}

bool change_field(const Problem& planned, const Device& device, const TunePoint& best, const ConfigField& field,
                  int value, TunePoint& changed, std::string& why) {
  changed = best;
  assign(changed.config, field, value);
  why = broken_rule(planned, device, changed);
  if (why.empty()) return true;
  const TunePoint refused = changed;
  for (const ConfigField& other : best.config.type().fields) {
    if (other.name == field.name) continue;
    for (const int repair : nearest_first(other, best.config)) {
      changed = refused;
      assign(changed.config, other, repair);
      if (broken_rule(planned, device, changed).empty()) return true;
    }
  }
  return false;
}

TuneResult tune_search(const TuneRequest& request) { return Search(request).run(); }

}  // namespace rapt::lab
