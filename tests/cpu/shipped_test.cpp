// Tests rapt pack, the ledger of shipped kernels, and occupancy, without a GPU and with the available NVRTC. The CI
// step `kernels` compiles all of check/cases/shipped.txt. These tests compile only a few small kernels.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "check/cases.h"
#include "jit_support.h"
#include "lab/ledger.h"
#include "lab/pack.h"
#include "runtime/gpu.h"
#include "runtime/plan.h"

namespace rapt::test {
namespace {

constexpr const char* small_problem = "f16 b1 h1 q16 d16";

lab::PackOptions options_of(const std::string& problem, const std::string& arch, const std::string& output) {
  lab::PackOptions options;
  options.words = {problem};
  options.common.arch = arch;
  options.output = output;
  return options;
}

// The text that `call` prints.
template <class Call>
std::string output_of(const Call& call) {
  testing::internal::CaptureStdout();
  call();
  return testing::internal::GetCapturedStdout();
}

TEST(Shipped, PacksAreTheSameBytesWhenRepeated) {
  const TemporaryFolder folder;
  write_file(folder / "one.txt", "f16 b1 h1 q16 d16\nf16 b1 h2 q8 d16 lse\nf16 b1 h1 q16 d16 causal\n");
  write_file(folder / "two.txt", "f16 b1 h1 q16 d16 window=3,3\nf16 b1 h1 q16 d16\n");
  lab::PackOptions options;
  options.common.arch = "sm_80,sm_89";
  options.common.threads = 1;
  options.cases = {folder / "one.txt"};
  options.output = folder / "a.pack";
  EXPECT_EQ(lab::pack(options), 0);
  options.common.arch = "sm_89,sm_80,a100";  // one architecture twice, in another order; other lines, more threads
  options.common.threads = 2;
  options.cases = {folder / "two.txt", folder / "one.txt"};
  options.output = folder / "b.pack";
  EXPECT_EQ(lab::pack(options), 0);
  EXPECT_EQ(jit::read_pack_info(folder / "a.pack").entries.size(), 4u) << "two kernels for each architecture";
  EXPECT_EQ(file_bytes(folder / "a.pack"), file_bytes(folder / "b.pack"));
}

TEST(Shipped, APackHoldsWhatALaterCallAsksFor) {
  const TemporaryFolder folder;
  EXPECT_EQ(lab::pack(options_of(small_problem, "sm_80", folder / "x.pack")), 0);
  jit::Store::Options only_pack;
  only_pack.packs = {folder / "x.pack"};
  only_pack.use_compiler = false;
  jit::Store store(only_pack);
  // Another length and number of heads of the same class, planned for a GPU instead of an architecture.
  const auto get = [&](const char* line) {
    const Device device = device_preset("a100");
    const Plan chosen = plan(parse_problem(line), device);
    return store.get(request_for(chosen.steps[0].family->unit(chosen.steps[0].config), device.arch, line));
  };
  EXPECT_EQ(static_cast<int>(get("f16 b2 h3 q33 k99 d16 lse")->source), static_cast<int>(jit::Image::Source::pack));
  const std::string missing = error_of([&] { get("f16 b2 h3 q33 k99 d24"); }, ErrorCode::environment);
  EXPECT_TRUE(contains(missing, "f16 b2 h3 q33 k99 d24")) << missing;
}

TEST(Shipped, WhatIsSkippedIsSaid) {
  const TemporaryFolder folder;
  write_file(folder / "cases.txt", "f16 b1 h1 q16 d16\nf16 b1 h1 q16 d16 mod=ab\n");
  lab::PackOptions options;
  options.common.arch = "sm_80,sm_89";
  options.cases = {folder / "cases.txt"};
  options.output = folder / "x.pack";
  const std::string text = output_of([&] { EXPECT_EQ(lab::pack(options), 0); });
  for (const char* arch : {"sm_80", "sm_89"})
    EXPECT_TRUE(contains(text, concat("skipped   f16 b1 h1 q16 k16 d16 mod=ab on ", arch, ": "))) << text;
  EXPECT_TRUE(contains(text, "score modifications are not supported")) << text;
}

TEST(Shipped, WrongWordsAreRefused) {
  const TemporaryFolder folder;
  const auto refusal = [&](const lab::PackOptions& options) {
    return error_of([&] { lab::pack(options); }, ErrorCode::invalid_argument);
  };
  EXPECT_TRUE(contains(refusal(options_of(small_problem, "cpu", folder / "x")), "--arch cpu: must be a GPU"));
  EXPECT_TRUE(contains(refusal(options_of(small_problem, "sm_89,,l4", folder / "x")), "known presets are"));
  EXPECT_TRUE(contains(refusal(options_of(small_problem, "", folder / "x")), "--arch"));
  EXPECT_TRUE(contains(refusal(options_of(small_problem, "sm_89", "")), "-o FILE or --ledger FILE"));
  EXPECT_TRUE(contains(refusal(options_of("f16 b1 h1 q16 d16 mod=ab", "sm_89", folder / "x")), "no images"));
  lab::PackOptions nothing = options_of(small_problem, "sm_89", folder / "x");
  nothing.words.clear();
  EXPECT_TRUE(contains(refusal(nothing), "problem line"));
  EXPECT_FALSE(std::filesystem::exists(folder / "x"));
}

// The ledger that `--update` wrote passes. After each edit of the ledger, the comparison fails with a sentence that
// names the kernel.
TEST(Shipped, ALedgerIsCompared) {
  const TemporaryFolder folder;
  lab::PackOptions options = options_of(small_problem, "sm_80", "");
  options.ledger = folder / "ledger.json";
  options.update = true;
  EXPECT_EQ(lab::pack(options), 0);
  options.update = false;
  EXPECT_EQ(lab::pack(options), 0);

  const lab::Ledger written = lab::parse_ledger(file_bytes(options.ledger), "ledger");
  ASSERT_EQ(written.rows.size(), 1u);
  EXPECT_GT(written.rows[0].registers, 0);
  EXPECT_EQ(written.nvrtc, jit::find_compiler()->version);
  const auto sentence = [&](lab::Ledger edited) {
    write_file(options.ledger, lab::to_text(edited));
    testing::internal::CaptureStderr();
    EXPECT_EQ(lab::pack(options), 1);
    return testing::internal::GetCapturedStderr();
  };
  lab::Ledger edited = written;
  edited.rows[0].registers += 8;
  std::string said = sentence(edited);
  EXPECT_TRUE(contains(said, written.rows[0].name() + ": registers is ")) << said;
  edited = written;
  edited.rows[0].config += " alibi=1";
  said = sentence(edited);
  EXPECT_TRUE(contains(said, "alibi=1: in the ledger, but no shipped problem needs it any more")) << said;
  EXPECT_TRUE(contains(said, written.rows[0].name() + ": not in the ledger")) << said;

  edited = written;
  edited.nvrtc = "12.9.86";
  write_file(options.ledger, lab::to_text(edited));
  const std::string other = error_of([&] { lab::pack(options); }, ErrorCode::environment);
  EXPECT_TRUE(contains(other, "made by NVRTC 12.9.86")) << other;
}

// If the rows of one architecture are rewritten, the rows of the others are kept.
TEST(Shipped, ALedgerIsWrittenByArchitecture) {
  const TemporaryFolder folder;
  lab::PackOptions options = options_of(small_problem, "sm_80,sm_90a", "");
  options.ledger = folder / "ledger.json";
  options.update = true;
  EXPECT_EQ(lab::pack(options), 0);
  const std::string both = file_bytes(options.ledger);
  options.common.arch = "sm_80";
  EXPECT_EQ(lab::pack(options), 0);
  EXPECT_EQ(file_bytes(options.ledger), both);
  options.update = false;
  EXPECT_EQ(lab::pack(options), 0);
}

lab::LedgerRow sound_row() {
  lab::LedgerRow row;
  row.arch = "sm_89", row.family = "attention_x", row.config = "head_dim=64 alibi=1";
  row.registers = 64, row.threads = 128, row.blocks_per_sm = 8, row.occupancy = 0.667;
  return row;
}

TEST(Shipped, FaultsOfALedger) {
  const auto faults = [](const lab::LedgerRow& row, const std::vector<lab::LedgerReason>& reasons = {}) {
    std::string text;
    for (const std::string& fault : lab::faults_of({"13.0.88", reasons, {row}})) text += fault + "\n";
    return text;
  };
  EXPECT_EQ(faults(sound_row()), "");
  lab::LedgerRow row = sound_row();
  row.spill_bytes = 8;
  EXPECT_TRUE(contains(faults(row), "8 bytes of registers spilled"));
  row = sound_row();
  row.warnings = {"ptxas info : (C7514) Potential Performance Loss: wgmma.mma_async instructions are serialized"};
  EXPECT_TRUE(contains(faults(row), "the compiler warns: ptxas info : (C7514)"));
  row = sound_row();
  row.dynamic_bytes = 99 * 1024, row.static_bytes = 0;
  EXPECT_EQ(faults(row), "");
  row.static_bytes = 16;
  EXPECT_TRUE(contains(faults(row), "101392 bytes of shared memory: at most 101376"));
  row.arch = "sm_90a";
  EXPECT_EQ(faults(row), "");
  row = sound_row();
  row.blocks_per_sm = 0;
  EXPECT_TRUE(contains(faults(row), "a multiprocessor cannot hold one of its blocks"));

  row = sound_row();
  row.occupancy = 0.25;
  EXPECT_EQ(faults(row), "");
  row.occupancy = 0.249;
  EXPECT_TRUE(contains(faults(row), "occupancy 0.249 is below 0.25, but the ledger has no reason"));
  EXPECT_EQ(faults(row, {{"attention_x alibi=1", "so it is"}}), "");
  EXPECT_TRUE(contains(faults(row, {{"attention_x alibi", "part of a word is no word"}}), "no reason"));
  lab::LedgerRow hopper = sound_row();
  hopper.arch = "sm_90a";
  lab::Ledger two{"13.0.88", {{"attention_x", "not needed"}}, {sound_row(), hopper}};
  ASSERT_EQ(lab::faults_of(two).size(), 1u);
  EXPECT_TRUE(contains(lab::faults_of(two)[0], "applies to no kernel"));
  two.rows[1].occupancy = 0.188;
  EXPECT_EQ(lab::faults_of(two), std::vector<std::string>{}) << "a reason may be for Hopper alone";
  row.arch = "sm_80";
  EXPECT_EQ(faults(row), "") << "judged on sm_89";

  lab::Ledger many{"13.0.88", {}, {}};
  for (size_t i = 0; i <= lab::kernels_allowed; ++i) {
    many.rows.push_back(sound_row());
    many.rows.back().config = concat("head_dim=", i);
  }
  ASSERT_EQ(lab::faults_of(many).size(), 1u);
  EXPECT_EQ(lab::faults_of(many)[0], "sm_89: 151 kernels: at most 150");
}

TEST(Shipped, LedgersAreReadBackAsWritten) {
  lab::Ledger ledger{"13.0.88", {{"sm_89 attention_x", "because \"so\""}}, {sound_row(), sound_row()}};
  ledger.rows[1].arch = "sm_80";
  const std::string text = lab::to_text(ledger);
  const lab::Ledger again = lab::parse_ledger(text, "ledger");
  EXPECT_EQ(lab::to_text(again), text);
  EXPECT_EQ(again.rows[0].arch, "sm_80") << "sorted";
  EXPECT_EQ(again.rows[1], sound_row());
  EXPECT_EQ(again.reasons[0].reason, "because \"so\"");

  const auto refusal = [](const std::string& wrong) {
    return error_of([&] { lab::parse_ledger(wrong, "some.json"); }, ErrorCode::invalid_argument);
  };
  EXPECT_TRUE(contains(refusal("{"), "some.json: not a ledger"));
  EXPECT_TRUE(contains(refusal(R"({"nvrtc": "1", "reasons": [], "kernels": [{"arch": "sm_80"}]})"), "family"));
  ledger.rows[1] = ledger.rows[0];
  EXPECT_TRUE(contains(refusal(lab::to_text(ledger)), "appears twice"));
}

// The ledger in the repository has a row for every kernel of shipped.txt, and no row with a fault. The CI step
// `kernels` compares its numbers with those of the compiler.
TEST(Shipped, TheLedgerKnowsEveryShippedKernel) {
  const lab::Ledger ledger = lab::shipped_ledger();
  std::vector<Problem> problems;
  for (const check::Case& item : check::load_cases("shipped", RAPT_SOURCE_DIR "/check/cases"))
    problems.push_back(item.problem());
  const lab::KernelSelection selection = lab::select_kernels(problems, lab::gpu_presets("sm_80,sm_89,sm_90a,sm_120"));
  EXPECT_TRUE(selection.skipped.empty());
  std::set<std::string> needed, known;
  for (const lab::PlannedKernel& kernel : selection.kernels)
    needed.insert(kernel.device.arch + " " + kernel.family + " " + kernel.config);
  for (const lab::LedgerRow& row : ledger.rows) known.insert(row.name());
  EXPECT_EQ(known, needed) << "make ledger";
  for (const std::string& fault : lab::faults_of(ledger)) ADD_FAILURE() << fault;
}

// The default pack has these head dimensions for both 16-bit types, with and without masks, for short and long
// sequences; for decoding, the two most common ones.
TEST(Shipped, TheDefaultPackCoversCommonModels) {
  std::vector<Problem> problems;
  for (const check::Case& item : check::load_cases("shipped", RAPT_SOURCE_DIR "/check/cases"))
    problems.push_back(item.problem());
  for (const char* arch : {"sm_80", "sm_89", "sm_90a"}) {
    std::set<std::string> shipped;
    for (const lab::PlannedKernel& kernel : lab::select_kernels(problems, {device_preset(arch)}).kernels)
      shipped.insert(kernel.signature);
    std::vector<Problem> common;
    for (const char* dtype : {"f16", "bf16"})
      for (const int dim : {64, 80, 96, 128, 256})
        for (const char* bound : {"", " causal", " window=256,0", " causal_top_left", " causal lse"})
          for (const char* size : {" b1 h8 q64 k64", " b1 h8 q512 k512", " b1 h16 q1024 k1024", " b8 h32 q2048 k2048"})
            common.push_back(parse_problem(concat(dtype, size, " d", dim, bound)));
    for (const char* dtype : {"f16", "bf16"})
      for (const int dim : {64, 128})
        for (const char* bound : {"", " causal", " window=256,0"})
          for (const char* heads : {" b1 h32", " b1 h32:8", " b64 h28:4"})
            common.push_back(parse_problem(concat(dtype, heads, " q1 k4096 d", dim, bound)));
    for (const lab::PlannedKernel& kernel : lab::select_kernels(common, {device_preset(arch)}).kernels)
      EXPECT_TRUE(shipped.contains(kernel.signature)) << arch << ": " << kernel.problem << ": " << kernel.config;
  }
}

// The expected numbers were computed by the method of the CUDA Occupancy Calculator (cuda_occupancy.h). Each row tests
// one limit.
TEST(Occupancy, EachLimit) {
  struct Row {
    const char* preset;
    lab::KernelNeeds needs;
    int blocks;
    double share;
  };
  const Row rows[] = {
      {"a100", {32, 64, 1, 0}, 32, 1.0},                 // blocks of a multiprocessor
      {"a10", {32, 64, 1, 0}, 16, 16 * 64 / 1536.0},     // fewer of them
      {"l4", {32, 64, 1, 0}, 24, 1.0},                   //
      {"h100", {64, 256, 1, 0}, 4, 0.5},                 // registers: 64 * 32 per warp, 8 warps per partition
      {"h100", {65, 256, 1, 0}, 3, 0.375},               // rounded up to 72 per thread: 7 warps per partition
      {"h100", {168, 384, 1, 0}, 1, 384 / 2048.0},       //
      {"h100", {255, 256, 1, 0}, 1, 256 / 2048.0},       // 2 warps per partition
      {"h100", {255, 288, 1, 0}, 0, 0},                  // 9 warps need 3 on one partition
      {"l4", {40, 512, 1, 0}, 3, 1.0},                   // threads: 1536
      {"l4", {32, 128, 1, 32 * 1024}, 3, 384 / 1536.0},  // shared memory, plus 1 KiB for each block
      {"l4", {32, 128, 1, 33 * 1024}, 2, 256 / 1536.0},  //
      {"l4", {32, 128, 1, 99 * 1024}, 1, 128 / 1536.0},  //
      {"l4", {32, 128, 1, 99 * 1024 + 1}, 0, 0},         // more than a block may request
      {"a100", {32, 128, 1, 163 * 1024}, 1, 128 / 2048.0},
      {"rtx5090", {32, 64, 2, 0}, 12, 12 * 64 / 1536.0},  // barriers, from sm_90 on
      {"l4", {32, 64, 2, 0}, 24, 1.0},
      {"l4", {32, 33, 1, 0}, 24, 1.0},  // whole warps
  };
  for (const Row& row : rows) {
    const lab::Occupancy found = lab::occupancy(device_preset(row.preset), row.needs);
    const std::string what = concat(row.preset, " ", row.needs.registers, " registers ", row.needs.threads, " threads ",
                                    row.needs.shared_bytes, " bytes");
    EXPECT_EQ(found.blocks, row.blocks) << what;
    EXPECT_DOUBLE_EQ(found.share, row.share) << what;
  }
}

}  // namespace
}  // namespace rapt::test
