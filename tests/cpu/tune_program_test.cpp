// rapt tune as a command: wrong options, the list of candidates, and searches with the stand-in driver. The stand-in
// runs no kernel. So only a problem without elements has a correct result, and all times are equal.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "jit/jit.h"
#include "program.h"
#include "runtime/tuned_rows.h"
#include "stand_in.h"

namespace rapt::test {
namespace {

using json = nlohmann::ordered_json;

class TuneProgram : public testing::Test {
 protected:
  void SetUp() override {
    folder = std::filesystem::path(testing::TempDir()) / ("rapt-tune-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder);
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  Outcome rapt(const std::string& words, const std::string& before = "") const {
    return run_in(folder, concat("env -u RAPT_TUNED RAPT_CACHE='", folder.string(), "/cache' ", before, " '",
                                 RAPT_BINARY_DIR, "/rapt' ", words));
  }
  // With one GPU of the stand-in driver.
  Outcome on_stand_in(const std::string& words, const std::string& before = "") const {
    return rapt(words, concat(stand_in_environment(80), " ", before));
  }
  std::string rows() const { return text_of(folder / "cache/tuned.txt"); }
  int64_t line_count() const {
    const std::string text = rows();
    return std::count(text.begin(), text.end(), '\n');
  }

  std::filesystem::path folder;
};

const std::string empty_problem = "'f32 b0 h2 q8 d64' --budget 60 ";

bool has_compiler() { return jit::find_compiler() != nullptr; }

}  // namespace

TEST_F(TuneProgram, WrongOptionsAreRefusedByASentence) {
  for (const auto& [words, sentence] : std::vector<std::pair<std::string, std::string>>{
           {"", "tune: give either a problem line or --suite"},
           {"'f16 h2 q8 d64' --suite perf", "tune: give either a problem line or --suite"},
           {"'f16 h2 q8 d64' --device cpu",
            "tune --device cpu: selects the CPU kernel, which has no fields to tune; tune needs a GPU"},
           {"'f16 h2 q8 d64' --threads 2",
            "tune --threads: selects the CPU kernel, which has no fields to tune; tune needs a GPU"},
           {"'f16 h2 q8 d64' --arch cpu-avx2 --dry-run", "--arch cpu-avx2: selects the CPU kernel"},
           {"'f16 h2 q8 d64' --arch sm_90a --dry-run --output ./rows.txt",
            "--output ./rows.txt: not with --dry-run, which writes no rows"},
           {"'f16 h2 q8 d64' --arch sm_90a --dry-run --again", "--again: not with --dry-run, which measures nothing"},
           {"'f16 h2 q8 d64' --arch sm_89", "--arch sm_89: only with --dry-run"},
           {"'f16 h2 q8 d64 invariant' --dry-run --arch sm_89",
            "invariant: the bits of such a problem must not depend"},
           {"'f16 h2 q8 d64' --family attention_sm70 --dry-run --arch sm_89",
            "family = attention_sm70: must be one of"},
           {"'f16 h2 q8 x64'", "x64"},
           {"'f16 h2 q8 d64' --budget 0", "--budget"},
           {"'f16 h2 q8 d64' --dry-run --arch sm_89 --budget nan", "nan must be a number of seconds above 0"},
           {"'f16 h2 q8 d64' --dry-run --arch sm_89 --budget inf", "inf must be a number of seconds above 0"},
           {"'f16 h2 q8 d64' --dry-run --arch sm_89 --family 'attention_sm80 block_m=64'",
            "--family attention_sm80 block_m=64: must be the name of one kernel family"},
           {"'f16 h2 q8 d64' --config block_n=32", "--config"}}) {
    const Outcome outcome = rapt("tune " + words);
    EXPECT_EQ(outcome.code, 2) << words << "\n" << outcome.err;
    EXPECT_NE(outcome.err.find(sentence), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.out, "") << words;
  }
  const Outcome family = rapt("tune 'f32 h2 q8 d60' --family attention_sm80 --dry-run --arch sm_89");
  EXPECT_EQ(family.code, 3);
  EXPECT_NE(family.err.find("attention_sm80: head_dim 60"), std::string::npos) << family.err;
}

TEST_F(TuneProgram, WithoutAGpuItSaysWhy) {
  const Outcome outcome = rapt("tune 'f16 h2 q8 d64'", "CUDA_VISIBLE_DEVICES=");
  if (outcome.code == 0) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_NE(outcome.err.find("rapt: --device cuda:0: "), std::string::npos) << outcome.err;
}

TEST_F(TuneProgram, ADryRunListsCandidatesAndRefusals) {
  const Outcome text = rapt("tune 'f16 b4 h16 q1000 k2048 d64' --dry-run --arch sm_89");
  ASSERT_EQ(text.code, 0) << text.err;
  for (const char* part :
       {"class    f16 b4 h16 q1024 k2048 d64\n", "start    family=attention_sm80 block_m=", "\n         stages=1\n",
        "refused  programmatic=1: config: programmatic = 1: must be 0 on sm_89",
        "start    family=attention_scalar block_m=32 "})
    EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out;
  const Outcome listed = rapt("tune 'f16 b4 h16 q1000 k2048 d64' --dry-run --arch h100 --json --family attention_sm90");
  ASSERT_EQ(listed.code, 0) << listed.err;
  const json all = json::parse(listed.out);
  ASSERT_EQ(all["families"].size(), 1u);
  EXPECT_EQ(all["device"], "h100, sm_90a, 132 multiprocessors");
  EXPECT_GT(all["families"][0]["candidates"].size(), 10u);
  EXPECT_FALSE(std::filesystem::exists(folder / "cache")) << "nothing is written";
}

TEST_F(TuneProgram, ADryRunOfASuiteGoesOnAfterARefusal) {
  std::ofstream(folder / "three.txt") << "f16 h2 q8 d64 invariant\nf32 h2 q8 d60\nf16 h2 q8 d64\n";
  const Outcome outcome = rapt("tune --suite ./three.txt --dry-run --arch sm_89 --family attention_sm80");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("refused  f16 b1 h2 q8 k8 d64 invariant\n        invariant: "), std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find("refused  f32 b1 h2 q8 k8 d60\n        attention_sm80: head_dim 60"), std::string::npos)
      << outcome.err;
  EXPECT_TRUE(outcome.out.starts_with("problem  f16 b1 h2 q8 k8 d64\n")) << outcome.out;
  EXPECT_EQ(outcome.out.find("problem", 1), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find(" candidates, "), std::string::npos) << outcome.out;
  std::ofstream(folder / "none.txt") << "f32 h2 q8 d60\n";
  const Outcome none = rapt("tune --suite ./none.txt --dry-run --arch sm_89 --family attention_sm80");
  EXPECT_EQ(none.code, 3) << none.err;
  EXPECT_EQ(none.out, "");
}

TEST_F(TuneProgram, ASuiteOfInvariantProblemsIsWrongInput) {
  std::ofstream(folder / "invariant.txt") << "f16 h2 q8 d64 invariant\nf16 h2 q9 d64 invariant\n";
  for (const char* words :
       {"'f16 h2 q8 d64 invariant'", "--suite ./invariant.txt", "'f16 h2 q8 d64 invariant' --dry-run --arch sm_89",
        "--suite ./invariant.txt --dry-run --arch sm_89"}) {
    const Outcome outcome = rapt(concat("tune ", words));
    EXPECT_EQ(outcome.code, 2) << words << outcome.err;
    EXPECT_NE(outcome.err.find("invariant: the bits of such a problem"), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.out, "") << words;
  }
}

// The first problem's tensors are larger than any memory.
TEST_F(TuneProgram, ASuiteGoesOnAfterAFailure) {
  if (!has_compiler()) GTEST_SKIP() << "no NVRTC";
  std::ofstream(folder / "two.txt") << "f16 b60000 h2000 q1000000 d64\nf32 b0 h2 q8 d64\n";
  const Outcome outcome = on_stand_in("tune --suite ./two.txt --budget 0.01");
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_NE(outcome.err.find("failed   f16 b60000 "), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.out.find("f32 b0 h2 q8 k8 d64\n  planner  "), std::string::npos) << outcome.out;
  EXPECT_EQ(line_count(), 2) << rows();
}

TEST_F(TuneProgram, ASearchWritesARowAndTheNextOneSkipsIt) {
  if (!has_compiler()) GTEST_SKIP() << "no NVRTC";
  const Outcome first = on_stand_in("tune " + empty_problem + "--json");
  ASSERT_EQ(first.code, 0) << first.err;
  const json result = json::parse(first.out);
  EXPECT_EQ(result["wrong"], json::array());
  EXPECT_GT(result["tried"].get<int>() + result["dropped"].get<int>(), 3) << first.out;
  EXPECT_EQ(result["complete"], true);
  const std::string written = rows();
  const TunedRow row = parse_tuned_row(written.substr(written.find('\n') + 1, written.size() - written.find('\n') - 2));
  EXPECT_EQ(row.problem, result["class"]);
  EXPECT_EQ(row.words, result["config"]);
  EXPECT_EQ(row.command, concat("rapt tune ", empty_problem, "--json"));

  const Outcome second = on_stand_in("tune " + empty_problem);
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_NE(second.out.find("tuned.txt:2 has a row of this version; --again measures it again"), std::string::npos)
      << second.out;
  EXPECT_EQ(rows(), written);

  const Outcome explained = on_stand_in("explain 'f32 b0 h2 q8 d64' --device cuda:0");
  EXPECT_NE(explained.out.find("tuned    " + (folder / "cache/tuned.txt").string() + ":2: "), std::string::npos)
      << explained.out << explained.err;
  const Outcome off = on_stand_in("explain 'f32 b0 h2 q8 d64' --device cuda:0", "RAPT_TUNED=off");
  EXPECT_EQ(off.out.find("tuned "), std::string::npos) << off.out;

  const Outcome again = on_stand_in("tune 'f32 b0 h2 q8 d64' --again --budget 0.01");
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.out.find("the budget ended the search"), std::string::npos) << again.out;
  EXPECT_NE(rows(), written);
  EXPECT_EQ(line_count(), 2) << "the row was replaced: " << rows();
}

TEST_F(TuneProgram, AClassIsSearchedOnce) {
  if (!has_compiler()) GTEST_SKIP() << "no NVRTC";
  std::ofstream(folder / "class.txt") << "f32 b0 h2 q17 d64\nf32 b0 h2 q18 d64\nf32 b0 h2 q19 d64 invariant\n";
  const Outcome outcome = on_stand_in("tune --suite ./class.txt --budget 0.01 --again");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("f32 b0 h2 q18 k18 d64\n  skipped: "), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("tuned.txt:2 has a row of this class, measured by this command\n"), std::string::npos)
      << outcome.out;
  EXPECT_NE(outcome.err.find("refused  f32 b0 h2 q19 k19 d64 invariant\n        invariant: "), std::string::npos)
      << outcome.err;
  EXPECT_EQ(line_count(), 2);
}

TEST_F(TuneProgram, TheLogSaysWhyACandidateWasDropped) {
  if (!has_compiler()) GTEST_SKIP() << "no NVRTC";
  const Outcome outcome = on_stand_in("tune " + empty_problem + "--json", "RAPT_LOG=info");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  ASSERT_GT(json::parse(outcome.out)["dropped"].get<int>(), 0) << outcome.out;
  EXPECT_NE(outcome.err.find(": dropped: its registers spill ("), std::string::npos) << outcome.err;
}

// The stand-in runs no kernel: the outputs stay unwritten.
TEST_F(TuneProgram, WrongResultsAreErrorsAndNoRows) {
  if (!has_compiler()) GTEST_SKIP() << "no NVRTC";
  const Outcome outcome = on_stand_in("tune 'f32 b1 h2 q8 d60' --budget 0.01");
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_NE(outcome.err.find("WRONG, not used  family=attention_scalar block_m=32"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("to reproduce: rapt check"), std::string::npos) << outcome.err;
  EXPECT_EQ(line_count(), 1) << "only the heading: " << rows();
}

TEST_F(TuneProgram, AnInterruptKeepsFinishedRows) {
  if (!has_compiler()) GTEST_SKIP() << "no NVRTC";
  std::ofstream(folder / "two.txt") << "f32 b0 h2 q8 d64\nf16 b0 h2 q8 d64\n";
  // The second problem has two families with many candidates: it takes longer than the first one.
  const Outcome outcome = on_stand_in(
      "tune --suite ./two.txt --json >out & job=$!; while [ ! -s out ]; do sleep 0.05; done; kill -INT $job; wait "
      "$job");
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_NE(outcome.err.find("stopping after the current candidate"), std::string::npos) << outcome.err;
  EXPECT_EQ(line_count(), 2) << rows();
}

TEST_F(TuneProgram, AFileThatCannotKeepRowsIsFoundOutFirst) {
  if (!has_compiler()) GTEST_SKIP() << "no NVRTC";
  std::ofstream(folder / "open.txt") << "# rows\n";
  std::filesystem::permissions(folder / "open.txt", std::filesystem::perms(0666));
  const Outcome open = on_stand_in("tune " + empty_problem + "--output ./open.txt");
  EXPECT_EQ(open.code, 3);
  EXPECT_NE(open.err.find("the file is not used: it may be written by its group or others (mode 666)"),
            std::string::npos)
      << open.err;
  const Outcome device = on_stand_in("tune " + empty_problem + "--output /dev/null");
  EXPECT_EQ(device.code, 3);
  EXPECT_NE(device.err.find("tuned rows '/dev/null': the file is not a regular file"), std::string::npos) << device.err;
  EXPECT_EQ(device.out, "");
  const Outcome none = on_stand_in("tune " + empty_problem, "RAPT_TUNED=off");
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("there is no file to keep rows in"), std::string::npos) << none.err;
  const Outcome word = on_stand_in("tune " + empty_problem, "RAPT_TUNED=rows");
  EXPECT_EQ(word.code, 2);
  EXPECT_NE(word.err.find("RAPT_TUNED = 'rows': must be off or a file with a '/'"), std::string::npos) << word.err;
}

}  // namespace rapt::test
