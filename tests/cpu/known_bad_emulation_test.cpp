// Emulates attention_sm90 and attention_decode with each defect of known_bad_edits.h on this CPU. The check must fail
// for each defect, and pass for the correct kernel. tests/gpu/known_bad_test.cpp does the same on a GPU.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "check/check.h"
#include "cpu/threads.h"
#include "lab/emulate.h"
#include "lab/host_compiler.h"
#include "tests/cpu/emulation.h"
#include "tests/cpu/jit_support.h"
#include "tests/cpu/known_bad_edits.h"
#include "tests/cpu/program.h"

namespace rapt::test {
namespace {

TEST(KnownBadEmulatedSource, EveryEditOccursOnce) {
  for (const Edit& edit : emulated_edits()) EXPECT_NO_THROW(edited(edit)) << edit.name;
  for (const Edit& edit : invariance_edits()) EXPECT_NO_THROW(edited(edit)) << edit.name;
}

class KnownBadEmulated : public testing::Test {
 protected:
  void SetUp() override {
    RAPT_NEEDS_FIBERS();
    if (lab::usable_gpu()) GTEST_SKIP() << "this machine has a GPU, so variants are not emulated";
    try {
      lab::find_host_compiler();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

TEST_F(KnownBadEmulated, TheSoundKernelPasses) {
  const lab::Common options;
  lab::Emulator emulator(options, device_preset("sm_90a"));
  std::vector<lab::EmulatedProblem> problems;
  for (const Edit& edit : emulated_edits()) problems.push_back({parse_problem(edit.line), config_of(edit)});
  emulator.compile(problems);
  for (const Edit& edit : emulated_edits()) {
    const check::Result result =
        check_problem(parse_problem(edit.line), edit.fill, 1, emulator.kernel(config_of(edit)));
    EXPECT_TRUE(result.pass) << edit.name << ": " << result.message;
  }
}

// Runs `rapt check` on a source with the defect, as a user does. NVRTC is switched off, because it would take seconds.
Outcome check_of(const Edit& edit, const std::string& folder) {
  const std::string variant = concat(folder, "/", edit.file);
  std::filesystem::create_directories(std::filesystem::path(variant).parent_path());
  write_file(variant, edited(edit));
  return run_in(folder, concat("RAPT_NVRTC=/nowhere '", RAPT_BINARY_DIR, "/rapt' check '", edit.line, "' --fill ",
                               check::name_of(edit.fill), " --arch sm_90a --config '", config_of(edit), "' --variant '",
                               variant, "' --json"));
}

TEST_F(KnownBadEmulated, EveryDefectFailsItsCheck) {
  const TemporaryFolder folder;
  const std::vector<Edit> edits = emulated_edits();
  std::vector<Outcome> outcomes(edits.size());
  cpu::ThreadPool pool(cpu::available_threads());
  pool.parallel_for(static_cast<int64_t>(edits.size()), [&](int, int64_t i) {
    const Edit& edit = edits[static_cast<size_t>(i)];
    const std::string own = folder / edit.name;
    std::filesystem::create_directory(own);
    outcomes[static_cast<size_t>(i)] = check_of(edit, own);
  });
  for (size_t i = 0; i < edits.size(); ++i) {
    const Outcome& outcome = outcomes[i];
    ASSERT_EQ(outcome.code, 1) << edits[i].name << " passes, or cannot run: " << outcome.out << outcome.err;
    // The check must fail because of wrong numbers, not because of a crash or a refusal.
    const auto checked = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(checked["results"][0]["verdict"], "fail") << edits[i].name << ": " << outcome.out;
    EXPECT_GT(checked["results"][0]["samples"], 0) << edits[i].name << ": " << outcome.out;
  }
}

// Returns the number of rows whose bits depend on the schedule. variant: a kernel source, or empty.
int64_t rows_that_depend_on_the_schedule(const std::string& variant) {
  lab::Common options;
  options.variant = variant;
  lab::Emulator emulator(options, device_preset("sm_90a"));
  const check::Kernel kernel = emulator.kernel(config_of(invariance_edits().front()));
  RandomSchedules schedules(invariance_schedules(), 3, [&](Call& call) {
    call.out = check::make_outputs(call.problem);
    kernel(call.problem, call.in, call.out);
  });
  expect_oracle(schedules.whole().back());
  return schedules.differing_rows(40);
}

TEST_F(KnownBadEmulated, SchedulesFindDefectsOfInvariance) {
  EXPECT_EQ(rows_that_depend_on_the_schedule(""), 0);
  const TemporaryFolder folder;
  for (const Edit& edit : invariance_edits()) {
    SCOPED_TRACE(edit.name);
    const std::string variant = folder / concat(edit.name, "/", edit.file);
    std::filesystem::create_directories(std::filesystem::path(variant).parent_path());
    write_file(variant, edited(edit));
    EXPECT_GT(rows_that_depend_on_the_schedule(variant), 0);
  }
}

}  // namespace
}  // namespace rapt::test
