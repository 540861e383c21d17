// The search of rapt tune with a function of the test in place of a GPU. The search must find the minimum of the
// function, count the candidates that it refuses or drops, and end if it is interrupted or its time is spent.
#include "lab/tune_search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "kernels/config_rules.h"
#include "problem/problem.h"
#include "runtime/plan.h"

namespace rapt::test {
namespace {

using lab::Comparison;
using lab::TunePoint;
using lab::TuneRequest;
using lab::TuneResult;

// A time with a spread of 0.2 %.
lab::Quartiles steady(double us) { return {us * 0.999, us, us * 1.001}; }

struct Trial {
  explicit Trial(const char* words = "f16 b4 h16 q2048 k2048 d64", const char* preset = "a100",
                 std::vector<const Family*> searched = {&attention_sm80})
      : device(device_preset(preset)), planned(planned_problem(parse_problem(words), device)), families(searched) {
    const Plan chosen = plan(planned, device);
    own = {chosen.steps[0].family, chosen.steps[0].config};
  }

  // us: the time of a configuration; below 0: dropped; NaN: wrong.
  TuneResult search(const std::function<double(const TunePoint&)>& us) {
    TuneRequest request{planned, device, families, own,
                        [&](const TunePoint& candidate, const TunePoint& best, bool thorough) {
                          compared.push_back(candidate.words());
                          (thorough ? thorough_ones : quick)++;
                          if (std::isnan(us(candidate)))
                            return Comparison{Comparison::wrong, candidate.words() + ": out: max_abs = 9"};
                          if (us(candidate) < 0) return Comparison{Comparison::dropped, "spills"};
                          return Comparison{Comparison::timed, "", steady(us(candidate)), steady(us(best))};
                        }};
    request.interrupted = [this] { return quick >= interrupt_after; };
    request.out_of_time = [this] { return quick >= budget; };
    return tune_search(request);
  }
  int times(const std::string& words) const {
    return static_cast<int>(std::count(compared.begin(), compared.end(), words));
  }

  Device device;
  Problem planned;
  std::vector<const Family*> families;
  TunePoint own;
  std::vector<std::string> compared;
  int quick = 0, thorough_ones = 0, interrupt_after = 1 << 30, budget = 1 << 30;
};

int64_t of(const TunePoint& point, const char* field) { return point.config.number(field); }

// 10 plus the distance from a target. A field that is twice its target adds about 1.
double distance(const TunePoint& point, const std::vector<std::pair<const char*, int>>& target) {
  double sum = 0;
  for (const auto& [field, value] : target)
    sum += std::abs(std::log2(static_cast<double>(of(point, field) + 1) / (value + 1)));
  return 10 + sum;
}

}  // namespace

TEST(TuneSearch, FindsTheMinimumOfAKnownFunction) {
  for (const std::vector<std::pair<const char*, int>>& target :
       {std::vector<std::pair<const char*, int>>{{"block_n", 32}, {"stages", 3}, {"min_blocks", 2}},
        {{"block_m", 64}, {"block_n", 96}, {"q_in_registers", 1}},
        {{"block_m", 128}, {"warps_m", 8}, {"block_n", 16}, {"stages", 1}}}) {
    Trial trial;
    const TuneResult result = trial.search([&](const TunePoint& point) { return distance(point, target); });
    for (const auto& [field, value] : target) EXPECT_EQ(of(result.best, field), value) << result.best.words();
    EXPECT_TRUE(result.faster);
    EXPECT_DOUBLE_EQ(result.time.median, 10);
    EXPECT_DOUBLE_EQ(result.own.median, distance(trial.own, target));
    EXPECT_EQ(trial.thorough_ones, 1);
    EXPECT_GT(result.refused, 0) << "programmatic=1 on an A100";
    EXPECT_EQ(result.dropped, 0);
    EXPECT_TRUE(result.wrong.empty());
    EXPECT_EQ(result.tried, trial.quick - 2)
        << "two comparisons do not count: that of the planner's choice, and the second one of the family's best";
    EXPECT_FALSE(result.interrupted || result.out_of_time);
  }
}

// Each configuration is compared once. Only the best one is compared twice more: with the best of all families, and in
// the thorough comparison.
TEST(TuneSearch, ComparesNothingTwice) {
  Trial trial;
  const TuneResult result = trial.search([](const TunePoint& point) {
    return distance(point, {{"block_n", 32}, {"stages", 3}});
  });
  for (const std::string& words : std::set<std::string>(trial.compared.begin(), trial.compared.end()))
    EXPECT_EQ(trial.times(words), words == result.best.words() ? 3 : 1) << words;
}

TEST(TuneSearch, EveryCandidateIsLegalAndOfTheSearchedFields) {
  for (const auto& [words, preset, family] :
       {std::tuple{"f16 b4 h16 q2048 k2048 d128 causal", "h100", &attention_sm90},
        {"f16 b4 h16 q2048 k2048 d128 causal", "l4", &attention_sm80},
        {"q=f16 k=e4m3 v=e4m3 b4 h16 q2048 k2048 d64 k_scales=block64 v_scales=head", "l4", &attention_sm80},
        {"f32 b1 h4 q64 d60", "a100", &attention_scalar}}) {
    Trial trial(words, preset, {family});
    const TuneResult result = trial.search([&](const TunePoint& point) {
      EXPECT_NO_THROW(plan_with(trial.planned, trial.device, point.words())) << point.words();
      const Step step = plan_with(trial.planned, trial.device, point.words()).steps[0];
      EXPECT_TRUE(step.config == point.config) << "the words say everything: " << point.words();
      return 10.0;
    });
    EXPECT_FALSE(result.faster);
    EXPECT_GT(result.tried, 4) << words;
    EXPECT_EQ(result.best.words(), trial.own.words());
  }
}

// block_m = 64 with 8 warps is illegal (a warp has 16 rows), so one step changes both fields.
TEST(TuneSearch, ARefusedValueIsTriedWithOneOtherFieldChanged) {
  Trial trial;
  TunePoint changed;
  std::string why;
  const auto& field = [&](std::string_view name) -> const ConfigField& {
    for (const ConfigField& one : trial.own.config.type().fields)
      if (one.name == name) return one;
    throw Error(ErrorCode::internal, "no such field");
  };
  trial.own.config.apply("block_m=64 warps_m=4");
  ASSERT_TRUE(lab::change_field(trial.planned, trial.device, trial.own, field("warps_m"), 8, changed, why));
  EXPECT_EQ(changed.config.words_unlike(trial.own.config), "block_m=128 warps_m=8");
  EXPECT_NE(why.find("block_m = 64: must be a multiple of 128"), std::string::npos) << why;
  ASSERT_TRUE(lab::change_field(trial.planned, trial.device, trial.own, field("block_m"), 32, changed, why));
  EXPECT_EQ(changed.config.words_unlike(trial.own.config), "block_m=32 warps_m=2");
  ASSERT_TRUE(lab::change_field(trial.planned, trial.device, trial.own, field("stages"), 3, changed, why));
  EXPECT_EQ(changed.config.words_unlike(trial.own.config), "stages=3");
  EXPECT_FALSE(lab::change_field(trial.planned, trial.device, trial.own, field("programmatic"), 1, changed, why));
  EXPECT_NE(why.find("programmatic = 1: must be 0 on sm_80"), std::string::npos) << why;
}

TEST(TuneSearch, ASmallGainOrAWideSpreadIsNoGain) {
  EXPECT_TRUE(lab::is_faster({9.7, 9.8, 9.9}, {10, 10.1, 10.2}));
  EXPECT_FALSE(lab::is_faster({9.7, 9.8, 10.0}, {10, 10.1, 10.2})) << "quartiles touch";
  EXPECT_FALSE(lab::is_faster({10.0, 10.01, 10.02}, {10.03, 10.1, 10.2})) << "less than 1 %";
  EXPECT_FALSE(lab::is_faster({10, 10, 10}, {10, 10, 10}));
  Trial trial;
  const TuneResult result = trial.search([](const TunePoint& point) { return of(point, "stages") == 3 ? 9.95 : 10.0; });
  EXPECT_FALSE(result.faster);
  EXPECT_EQ(result.best.words(), trial.own.words());
  EXPECT_DOUBLE_EQ(result.time.median, 10);
}

// The thorough comparison at the end decides, not the quick ones.
TEST(TuneSearch, AGainThatDoesNotRepeatIsNotKept) {
  Trial trial;
  bool last = false;
  TuneRequest request{trial.planned, trial.device, trial.families, trial.own,
                      [&](const TunePoint& candidate, const TunePoint& best, bool thorough) {
                        last = thorough;
                        const auto us = [&](const TunePoint& p) {
                          return !thorough && of(p, "stages") == 3 ? 5.0 : 10.0;
                        };
                        return Comparison{Comparison::timed, "", steady(us(candidate)), steady(us(best))};
                      }};
  const TuneResult result = tune_search(request);
  EXPECT_TRUE(last);
  EXPECT_FALSE(result.faster);
  EXPECT_EQ(result.best.words(), trial.own.words());
}

TEST(TuneSearch, WrongAndDroppedCandidatesAreNeverKept) {
  Trial trial;
  const TuneResult result = trial.search([](const TunePoint& point) {
    if (of(point, "block_n") == 32) return static_cast<double>(NAN);
    if (of(point, "stages") == 1) return -1.0;
    return distance(point, {{"block_n", 16}, {"stages", 1}});
  });
  EXPECT_NE(of(result.best, "block_n"), 32);
  EXPECT_NE(of(result.best, "stages"), 1);
  EXPECT_GT(result.dropped, 0);
  ASSERT_FALSE(result.wrong.empty());
  EXPECT_TRUE(result.wrong[0].starts_with("family=attention_sm80 block_m=")) << result.wrong[0];
  EXPECT_NE(result.wrong[0].find("block_n=32"), std::string::npos);
  EXPECT_TRUE(result.wrong[0].ends_with(": out: max_abs = 9"));
}

// If the winner gives wrong results in the thorough comparison, it is reported, and the planner's choice stays.
TEST(TuneSearch, AWrongWinnerIsNoRow) {
  Trial trial;
  const TuneRequest request{trial.planned, trial.device, trial.families, trial.own,
                            [&](const TunePoint& candidate, const TunePoint& best, bool thorough) {
                              const auto us = [](const TunePoint& p) { return of(p, "stages") == 3 ? 5.0 : 10.0; };
                              if (thorough && us(candidate) < 6) return Comparison{Comparison::wrong, "out: 3"};
                              return Comparison{Comparison::timed, "", steady(us(candidate)), steady(us(best))};
                            }};
  const TuneResult result = tune_search(request);
  EXPECT_FALSE(result.faster);
  ASSERT_EQ(result.wrong.size(), 1u);
  EXPECT_DOUBLE_EQ(result.own.median, 10);
}

TEST(TuneSearch, AnUnusableChoiceOfThePlannerIsAFailure) {
  Trial trial;
  const TuneResult result = trial.search([](const TunePoint&) { return static_cast<double>(NAN); });
  EXPECT_FALSE(result.faster);
  EXPECT_EQ(result.failure, trial.own.words() + ": out: max_abs = 9");
  EXPECT_EQ(result.wrong, std::vector<std::string>{result.failure});
  EXPECT_EQ(trial.quick + trial.thorough_ones, 1) << "nothing is searched";
}

TEST(TuneSearch, AnInterruptEndsItWithoutAResult) {
  Trial trial;
  trial.interrupt_after = 5;
  const TuneResult result = trial.search([](const TunePoint& point) {
    return distance(point, {{"block_n", 32}, {"stages", 3}});
  });
  EXPECT_TRUE(result.interrupted);
  EXPECT_FALSE(result.faster);
  EXPECT_EQ(trial.quick, 5);
  EXPECT_EQ(trial.thorough_ones, 0);
}

TEST(TuneSearch, TheBudgetEndsItWithTheBestSoFar) {
  Trial whole;
  const auto us = [](const TunePoint& point) {
    return distance(point, {{"block_m", 16}, {"block_n", 16}, {"stages", 4}});
  };
  const TuneResult all = whole.search(us);
  Trial trial;
  trial.budget = 4;
  const TuneResult result = trial.search(us);
  EXPECT_TRUE(result.out_of_time);
  EXPECT_FALSE(result.interrupted);
  EXPECT_LE(trial.quick, 5) << "one more: the family's best against the best of all";
  EXPECT_EQ(trial.thorough_ones, 1);
  EXPECT_TRUE(result.faster);
  EXPECT_LT(all.time.median, result.time.median);
}

TEST(TuneSearch, OtherFamiliesAreSearchedUnlessTheyAreHopeless) {
  for (const double factor : {0.5, 1.5, 3.0}) {
    Trial trial("f16 b4 h16 q2048 k2048 d128", "h100", {&attention_sm90, &attention_sm80});
    const TuneResult result = trial.search([&](const TunePoint& point) {
      if (point.family == &attention_sm90) return 10.0;
      return of(point, "stages") == 3 ? 8.0 : 10 * factor;
    });
    const bool searched = std::any_of(trial.compared.begin(), trial.compared.end(), [](const std::string& words) {
      return words.starts_with("family=attention_sm80") && words.find("stages=3") != std::string::npos;
    });
    EXPECT_EQ(searched, factor < lab::hopeless);
    EXPECT_EQ(result.best.family, factor < lab::hopeless ? &attention_sm80 : &attention_sm90);
  }
}

}  // namespace rapt::test
