// The fills with which rapt tune checks a candidate: which fills, in which order, and how an error names a fill.
#include "lab/tune_fills.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "check/check.h"
#include "lab/bench.h"

namespace rapt::test {
namespace {

using check::Fill;

std::string sentence_of(const std::function<void()>& body, ErrorCode code) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "";
}

}  // namespace

TEST(TuneFills, HiddenKeysAreTestedIfTheProblemCanHideThem) {
  const std::vector<Fill> plain{Fill::normal, Fill::huge, Fill::outlier, Fill::rescale, Fill::rescale_reversed};
  std::vector<Fill> hiding = plain;
  hiding.push_back(Fill::hidden_nan);
  for (const char* line : {"f16 h2 q8 d64", "f16 h2 q8 k40 d64 softcap=30 sinks"})
    EXPECT_EQ(lab::tune_fills(parse_problem(line)), plain) << line;
  for (const char* line :
       {"f16 h2 q8 d64 causal", "f16 h2 q8 k40 d64 window=7,0", "f16 h2 d64 varlen=3:5,6:7",
        "f16 b2 h2 q8 k40 d64 seqused=3,7", "f16 h2 q8 k40 d64 mask=[1,1,1,k]", "f16 h2 q8 k40 d64 causal_top_left"})
    EXPECT_EQ(lab::tune_fills(parse_problem(line)), hiding) << line;
}

TEST(TuneFills, AccumulatorsOfF16GetNoValuesThatOverflowThem) {
  EXPECT_EQ(lab::tune_fills(parse_problem("f16 h2 q8 d64 acc=f16")), (std::vector<Fill>{Fill::normal, Fill::outlier}));
  EXPECT_EQ(lab::tune_fills(parse_problem("f32 h2 q8 d64 acc=tf32")), (std::vector<Fill>{Fill::normal, Fill::outlier}));
  EXPECT_EQ(lab::tune_fills(parse_problem("f16 h2 q8 d64 acc=f16 causal")),
            (std::vector<Fill>{Fill::normal, Fill::outlier, Fill::hidden_nan}));
}

TEST(TuneFills, TheFirstWrongFillIsNamed) {
  const std::vector<Fill> fills = lab::tune_fills(parse_problem("f16 h2 q8 d64"));
  std::vector<Fill> ran;
  const auto failing = [&](Fill bad, ErrorCode code) {
    ran.clear();
    return [&, bad, code] {
      lab::check_fills(fills, [&](Fill fill) {
        ran.push_back(fill);
        if (fill == bad || fill == Fill::rescale_reversed) throw Error(fill == bad ? code : ErrorCode::internal, "why");
      });
    };
  };
  EXPECT_EQ(sentence_of(failing(Fill::outlier, ErrorCode::internal), ErrorCode::internal), "fill outlier: why");
  EXPECT_EQ(ran, (std::vector<Fill>{Fill::normal, Fill::huge, Fill::outlier}));
  EXPECT_EQ(sentence_of(failing(Fill::huge, ErrorCode::unsupported), ErrorCode::internal),
            "fill rescale_reversed: why");
  EXPECT_EQ(ran, fills);
  EXPECT_EQ(sentence_of(failing(Fill::normal, ErrorCode::unsupported), ErrorCode::unsupported), "why");
  EXPECT_EQ(sentence_of(failing(Fill::huge, ErrorCode::device), ErrorCode::device), "why");
}

// A kernel that is wrong only if the first value of q is above 30. Fill::normal has no such value, but Fill::huge does.
TEST(TuneFills, WrongResultsOfLargeLogitsAreFound) {
  const Problem problem = parse_problem("f32 h2 q33 k70 d32");
  const check::Kernel kernel = check::library_kernel();
  const std::string sentence = sentence_of(
      [&] {
        lab::check_fills(lab::tune_fills(problem), [&](Fill fill) {
          check::Inputs inputs = check::make_inputs(problem, fill, 1);
          const check::Outputs outputs = check::make_outputs(problem);
          kernel(problem, inputs, outputs);
          if (std::abs(inputs.q.at({0, 0, 0, 0})) > 30) outputs.out.data()[3] ^= std::byte{1};
          lab::BenchRow row;
          lab::judge_call(problem, inputs, outputs, 1, " --device cpu", row, fill);
        });
      },
      ErrorCode::internal);
  EXPECT_TRUE(sentence.starts_with("fill huge: out: max_abs")) << sentence;
  EXPECT_NE(sentence.find("--fill huge --seed 1 --device cpu"), std::string::npos) << sentence;
}

}  // namespace rapt::test
