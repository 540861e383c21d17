// Tests behaviour of the program other than correct numbers. If output is lost, the exit code is 3. Files are embedded.
// Error messages give hints. Wrong configurations are refused before compiling. Progress within a case is shown.
// Variants work without a GPU. FP8 inputs get both errors. Commands run in their own process (build/rapt), as users run
// them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/nearest.h"
#include "jit/jit.h"
#include "lab/commands.h"
#include "lab/kernels.h"
#include "lab/load.h"
#include "lab/npy.h"
#include "problem/hint.h"
#include "runtime/plan.h"
#include "tests/cpu/program.h"

namespace rapt::lab {
namespace {

using test::Outcome;
using test::run_in;
using test::text_of;

using nlohmann::json;

const std::string program = RAPT_BINARY_DIR "/rapt";
const std::string sample = RAPT_SOURCE_DIR "/examples/data/minilm-layer0.safetensors";

class LabPromises : public testing::Test {
 protected:
  void SetUp() override {
    folder = std::filesystem::path(testing::TempDir()) / ("rapt-promises-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder);
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  Outcome rapt(const std::string& words, const std::string& with = program) const {
    return run_in(folder, concat("'", with, "' ", words));
  }
  void expect_refused(const std::string& words, int code, const std::string& part) const {
    const Outcome outcome = rapt(words);
    EXPECT_EQ(outcome.code, code) << words << "\n" << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << words << "\n" << outcome.err;
  }

  std::filesystem::path folder;
};

TEST_F(LabPromises, LostOutputIsExitCode3) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  write_safetensors(folder / "in.safetensors", {{"q", check::make_tensor(DType::f32, {1, 1, 2, 8})},
                                                {"k", check::make_tensor(DType::f32, {1, 1, 2, 8})},
                                                {"v", check::make_tensor(DType::f32, {1, 1, 2, 8})}});
  for (const char* words : {"explain 'f16 h8 q512 d64' --arch cpu-avx2", "explain 'f16 h8 q512 d64' --arch l4 --json",
                            "check 'f32 q8 d8' --device cpu", "check 'f32 q8 d8' --device cpu --stages", "info",
                            "info --json", "--help", "--version", "help", "help problem-line", "info --kernels",
                            "run in.safetensors --device cpu", "quantize in.safetensors -o o.safetensors --device cpu",
                            "calibrate in.safetensors -o o.json", "bench 'f32 q8 d8' --iterations 1 --threads 1"})
    for (const char* where : {" >/dev/full", " >&-"}) {
      const Outcome outcome = rapt(concat(words, where));
      EXPECT_EQ(outcome.code, 3) << words << where << outcome.err;
      EXPECT_NE(outcome.err.find("rapt: stdout: cannot be written"), std::string::npos) << words << outcome.err;
      EXPECT_EQ(outcome.err.find("internal error"), std::string::npos) << words << outcome.err;
    }
  EXPECT_EQ(rapt("frobnicate >/dev/full").code, 2);  // this command prints nothing to stdout
  EXPECT_EQ(rapt("frobnicate 2>/dev/full").code, 2);
  EXPECT_EQ(rapt("check 'f32 q8 d8 casual' 2>&-").code, 2);
}

// If stdout is closed, the next opened file would get its number, and the report would go into that file.
TEST_F(LabPromises, ClosedStandardStreamsDoNotBecomeFiles) {
  const Outcome outcome = rapt("quantize '" + sample + "' -o o.safetensors --device cpu >&- 2>&- <&-");
  EXPECT_EQ(outcome.code, 3);
  EXPECT_NO_THROW(read_safetensors(FileSource(folder / "o.safetensors")));
}

TEST_F(LabPromises, OutputsThatCannotBeAreRefusedAtOnce) {
  for (const char* name : {"q", "k", "v"})
    write_npy((folder / name).string() + ".npy", check::make_tensor(DType::f32, {1, 1, 2, 8}));
  std::filesystem::create_directory(folder / "elsewhere");
  std::filesystem::create_symlink(folder, folder / "elsewhere/link");
  std::ofstream(folder / "suite.txt") << "f32 q8 d8\n";
  const std::string here = folder.string();
  for (const std::string& out : {std::string("."), std::string("./"), here + "/", std::string("elsewhere/link/")})
    expect_refused("run . --device cpu -o " + out, 2, "holds inputs");
  expect_refused("run '" + sample + "' --device cpu -o ./", 2, "holds inputs");  // they are the inputs of another run
  expect_refused("run . --device cpu -o nowhere/o.safetensors", 3, "there is no folder nowhere");
  expect_refused("quantize '" + sample + "' --device cpu -o nowhere/o.safetensors", 3, "there is no folder nowhere");
  expect_refused("bench --suite ./suite.txt --device cpu --output suite.txt", 2, "is the suite itself");
  expect_refused("bench 'f32 q8 d8' --device cpu --output elsewhere", 2, "is a folder");
  expect_refused("pack --cases ./suite.txt --arch sm_80 -o suite.txt", 2, "is a file of cases itself");
  EXPECT_EQ(text_of(folder / "suite.txt"), "f32 q8 d8\n");
  EXPECT_FALSE(std::filesystem::exists(folder / "o.npy"));
  EXPECT_EQ(rapt("run . --device cpu -o elsewhere/").code, 0);
  EXPECT_EQ(rapt("run . --device cpu").code, 0);
}

TEST_F(LabPromises, AProgramAloneHasItsCasesAndPages) {
  const std::string alone = folder / "rapt";
  std::filesystem::copy_file(program, alone);
  const Outcome check = rapt("check --cases varlen --fill constant --device cpu", alone);
  EXPECT_EQ(check.code, 0) << check.err << check.out;
  for (const char* page : {"problem-line", "semantics", "lab", "fp8", "packs", "ladder"}) {
    const Outcome help = rapt(std::string("help ") + page, alone);
    EXPECT_EQ(help.code, 0) << help.err;
    EXPECT_EQ(help.out, text_of(concat(RAPT_SOURCE_DIR "/docs/", page, ".md"))) << page;
  }
  EXPECT_EQ(rapt("help check", alone).out, rapt("check --help", alone).out);
  EXPECT_EQ(rapt("help", alone).out, rapt("--help", alone).out);
  const Outcome unknown = rapt("explain 'f16 q8 d64 xyzzy'", alone);
  EXPECT_NE(unknown.err.find("`rapt help problem-line` lists every word"), std::string::npos) << unknown.err;
  expect_refused("help problm-line", 2, "did you mean problem-line?");
}

TEST(LabCarried, SetsAreThoseOfTheCheckout) {
  size_t sets = 0;
  for (const auto& entry : std::filesystem::directory_iterator(RAPT_SOURCE_DIR "/check/cases")) {
    const std::string name = entry.path().stem();
    const auto carried = cases_named("--cases", name), read = check::load_cases(entry.path());
    ASSERT_EQ(carried.size(), read.size()) << name;
    for (size_t i = 0; i < read.size(); ++i) {
      EXPECT_EQ(carried[i].line, read[i].line);
      EXPECT_EQ(carried[i].fills, read[i].fills);
      EXPECT_EQ(carried[i].packed, read[i].packed);
    }
    EXPECT_EQ(carried[0].where(), concat("check/cases/", name, ".txt:", read[0].number));
    ++sets;
  }
  EXPECT_GE(sets, 8u);
}

TEST_F(LabPromises, CommandLineHints) {
  expect_refused("chek", 2, "did you mean check?");
  expect_refused("explian 'f16 q8 d64'", 2, "did you mean explain?");
  expect_refused("check 'f16 q8 d64' --caes smoke", 2, "did you mean --cases?");
  expect_refused("check 'f16 q8 d64' --Seed=3", 2, "did you mean --seed?");
  expect_refused("check --cases smok", 2, "did you mean smoke?");
  expect_refused("bench --suite perv", 2, "did you mean perf?");
  expect_refused(
      "check --cases zzz", 2,
      "must be a file or one of the sets features-small features mask paged perf-long perf quant ragged seed shipped "
      "smoke varlen");
  expect_refused("explain 'f16 q8 d64' --arch l4 --config blok_n=32", 2, "did you mean block_n?");
  EXPECT_EQ(rapt("frobnicate").err.find("did you mean"), std::string::npos);
}

TEST(Nearest, OneEditForThreeLetters) {
  const std::vector<std::string_view> known = {"causal", "window", "scale", "q"};
  for (const auto& [word, want] : std::vector<std::pair<std::string, std::string>>{{"casual", "causal"},
                                                                                   {"CAUSAL", "causal"},
                                                                                   {"causl", "causal"},
                                                                                   {"widow", "window"},
                                                                                   {"scales", "scale"},
                                                                                   {"casino", ""},
                                                                                   {"x", ""},
                                                                                   {"", ""},
                                                                                   {std::string(5000, 'a'), ""}})
    EXPECT_EQ(nearest(word, known), want) << word;
  EXPECT_EQ(edit_distance("ab", "ba"), 1u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
}

TEST(ProblemHints, WhatWasProbablyMeant) {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"casual", "'causal'"},
      {"is_causal=true", "'causal'"},
      {"is_causal", "'causal'"},
      {"causal=True", "'causal'"},
      {"CAUSAL", "'causal'"},
      {"windw=4,0", "'window=4,0'"},
      {"fp16", "'f16'"},
      {"bfloat16", "'bf16'"},
      {"dtype=f16", "'f16'"},
      {"float8_e4m3fn", "'e4m3'"},
      {"BF16", "'bf16'"},
      {"bshd", "'layout=bshd'"},
      {"head_dim=64", "'d64'"},
      {"num_heads=8", "'h8'"},
      {"num_kv_heads=8", "'hQ:K'"},
      {"sm_scale=2", "'scale=2'"},
      {"use_alibi=1", "'alibi'"},
      {"return_lse=true", "'lse'"},
      {"softcap", "'softcap='"},
      {"sliding_window=9", "'window=L,R'"},
      {"num_splits=4", "'splits=4'"},
      {"smoth_k", "'smooth_k'"},
      {"cu_seqlens_q=1,2", "'varlen='"},
  };
  const auto sentence = [](const std::string& word) -> std::string {
    try {
      parse_problem("q8 d64 " + word);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  for (const auto& [word, want] : table)
    EXPECT_NE(sentence(word).find(concat("did you mean ", want, "?")), std::string::npos) << sentence(word);
  EXPECT_NE(sentence("is_causal=False").find("leave it out for no causal"), std::string::npos);
  EXPECT_EQ(sentence("xyzzy").find("did you mean"), std::string::npos);
  EXPECT_EQ(sentence(std::string(100000, 'w')).find("did you mean"), std::string::npos);
}

// Wrong shapes are refused with a hint; unusual shapes are allowed with a note.
TEST_F(LabPromises, ShapesThatLookLikeBshd) {
  const auto write = [&](std::vector<int64_t> q, std::vector<int64_t> k) {
    write_safetensors(folder / "in.safetensors", {{"q", check::make_tensor(DType::f32, std::move(q))},
                                                  {"k", check::make_tensor(DType::f32, k)},
                                                  {"v", check::make_tensor(DType::f32, k)}});
  };
  write({1, 20, 8, 16}, {1, 30, 2, 16});
  expect_refused("run in.safetensors --device cpu", 2, "look like bshd");
  EXPECT_EQ(rapt("run in.safetensors layout=bshd --device cpu").code, 0);
  write({1, 1, 8, 16}, {1, 30, 2, 16});  // decoding
  expect_refused("run in.safetensors --device cpu", 2, "look like bshd");
  write({1, 4, 20, 16}, {1, 3, 30, 16});  // these shapes are wrong for another reason
  const Outcome wrong = rapt("run in.safetensors --device cpu");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(wrong.err.find("bshd"), std::string::npos) << wrong.err;
  write({1, 200, 8, 16}, {1, 200, 2, 16});
  const Outcome unusual = rapt("run in.safetensors --device cpu");
  EXPECT_EQ(unusual.code, 0) << unusual.err;
  EXPECT_NE(unusual.err.find("add layout=bshd"), std::string::npos) << unusual.err;
  EXPECT_EQ(rapt("run in.safetensors layout=bhsd --device cpu").err, "");
  const Outcome quantised = rapt("quantize in.safetensors -o o.safetensors --device cpu");
  EXPECT_NE(quantised.err.find("--layout bshd"), std::string::npos) << quantised.err;
  write({1, 32, 1, 16}, {1, 8, 40, 16});
  EXPECT_EQ(rapt("run in.safetensors --device cpu").err, "");
}

// For FP8 inputs, run reports two errors: the kernel's error on the codes, and, if the original file is available, the
// error that includes the quantisation error.
TEST_F(LabPromises, Fp8InputsHaveBothErrors) {
  std::filesystem::create_directory(folder / "sub");
  const check::Inputs in = check::make_inputs(parse_problem("f16 b1 h4:2 q64 k96 d32"), check::Fill::normal, 1);
  write_safetensors(folder / "in.safetensors", {{"q", in.q}, {"k", in.k}, {"v", in.v}});
  ASSERT_EQ(rapt("quantize in.safetensors -o sub/q.safetensors --tensors q --device cpu").code, 0);
  ASSERT_EQ(rapt("quantize sub/q.safetensors -o qkv.safetensors --tensors k,v --smooth-k --device cpu").code, 0);
  const auto report = [&](const std::string& words) {
    const Outcome run = rapt("run " + words + " --device cpu --json");
    EXPECT_EQ(run.code, 0) << run.err;
    return run.code == 0 ? json::parse(run.out) : json();
  };
  for (const char* words : {"sub/q.safetensors causal", "qkv.safetensors causal"}) {
    const json both = report(words);
    EXPECT_LT(both["err"]["rel_rms"], 1e-3) << words;
    EXPECT_GT(both["err_with_quantising"]["rel_rms"], 5e-3) << words;
    EXPECT_LT(both["err_with_quantising"]["rel_rms"], 5e-2) << words;
    EXPECT_NE(both["original"].get<std::string>().find("in.safetensors"), std::string::npos) << both;
  }
  const std::string text = rapt("run qkv.safetensors --device cpu").out;
  EXPECT_NE(text.find("kernel only, against float64 attention on the FP8 values"), std::string::npos) << text;
  EXPECT_NE(text.find("with the quantisation error, against float64 attention on in.safetensors"), std::string::npos)
      << text;

  std::filesystem::rename(folder / "in.safetensors", folder / "moved.safetensors");
  const json lost = report("qkv.safetensors");
  EXPECT_TRUE(lost["err_with_quantising"].is_null());
  EXPECT_NE(lost["original_note"].get<std::string>().find("in.safetensors"), std::string::npos) << lost;
  EXPECT_NE(rapt("run qkv.safetensors --device cpu").out.find("which is unknown"), std::string::npos);
  EXPECT_TRUE(report("qkv.safetensors --original moved.safetensors")["err_with_quantising"].is_object());

  TensorFile other = read_safetensors(FileSource(folder / "moved.safetensors"));
  other.tensors.at("v").set({0, 0, 0, 0}, 0.5);
  write_safetensors(folder / "in.safetensors",
                    {{"q", other.tensors.at("q")}, {"k", other.tensors.at("k")}, {"v", other.tensors.at("v")}});
  EXPECT_TRUE(report("qkv.safetensors")["err_with_quantising"].is_null()) << "another file of that name";
  expect_refused("run qkv.safetensors --device cpu --original in.safetensors", 2,
                 "are not the tensors that were quantised");
  expect_refused("run moved.safetensors --device cpu --original moved.safetensors", 2, "are not quantised");
  EXPECT_FALSE(report("moved.safetensors").contains("err_with_quantising"));
}

std::string config_fault(const std::string& line, const std::string& device, const std::string& words,
                         bool own_text = true) {
  try {
    plan_with(parse_problem(line), device_preset(device), words, own_text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
    return error.what();
  }
  return "";
}

TEST(Families, OneCanBeForced) {
  const Problem problem = parse_problem("f16 h8 q512 d64");
  const Device card = device_preset("l4");
  EXPECT_EQ(plan_with(problem, card, "").steps[0].family, &attention_sm80);
  EXPECT_EQ(plan_with(problem, card, "family=attention_scalar").steps[0].family, &attention_scalar);
  EXPECT_EQ(plan_with(problem, card, "family=attention_sm80 block_m=64").steps[0].config.number("block_m"), 64);
  EXPECT_THROW(plan_with(parse_problem("f32 h8 q512 d60"), card, "family=attention_sm80"), Error);
  EXPECT_THROW(plan_with(problem, card, "family=attention_cpu"), Error);
}

TEST_F(LabPromises, FamilyOption) {
  const Outcome forced = rapt("explain 'f16 h8 q512 d64' --arch l4 --family attention_scalar");
  EXPECT_EQ(forced.code, 0) << forced.err;
  EXPECT_NE(forced.out.find("config   attention_scalar q=f16"), std::string::npos) << forced.out;
  expect_refused("explain 'f32 h8 q512 d60' --arch l4 --family attention_sm80", 3,
                 "head_dim 60:60, q=f32: must be multiples of 8");
  expect_refused("check 'f16 h1 q8 d64' --device cpu --family attention_scalar", 2,
                 "--family attention_scalar: only for GPU kernels");
  expect_refused("bench 'f16 h1 q8 d64' --device cpu --against attention_scalar", 2,
                 "--against attention_scalar: only for GPU kernels");
  expect_refused("explain 'f16 h8 q512 d64' --arch l4 --family fast", 2, "family = fast: must be one of");
  expect_refused("bench 'f16 h8 q512 d64' --against fast", 2, "family = fast: must be one of");
}

TEST(ConfigRules, EachFieldIsHeldToItsRule) {
  const char* f16 = "f16 h8 q512 d64";
  const std::vector<std::tuple<const char*, const char*, const char*, const char*>> refused = {
      {f16, "l4", "block_n=63", "block_n = 63: must be a multiple of 16"},
      {f16, "l4", "block_n=16384", "block_n = 16384: must be 1 to 1024"},
      {f16, "l4", "block_n=0", "block_n = 0: must be"},
      {f16, "l4", "block_m=24", "block_m = 24: must be a multiple of 32"},
      {f16, "l4", "block_m=100000", "block_m = 100000: must be"},
      {f16, "l4", "warps_m=3", "must be a multiple of 48"},
      {f16, "l4", "warps_m=32 block_m=512", "4096 threads; at most 1024"},
      {f16, "l4", "warps_n=0", "warps_n = 0: must be"},
      {f16, "l4", "stages=0", "stages = 0: must be"},
      {f16, "l4", "stages=7", "bytes of shared memory"},
      {f16, "l4", "min_blocks=0", "min_blocks = 0: must be"},
      {f16, "l4", "min_blocks=32", "a multiprocessor of l4 has 1536 threads"},
      {f16, "l4", "promotion_interval=24", "promotion_interval = 24: must be a multiple of 16"},
      {f16, "l4", "programmatic=1", "programmatic = 1: must be 0 on sm_89"},
      {f16, "l4", "fp8_qk=1", "q and k must be e4m3 or e5m2"},
      {f16, "l4", "fp8_pv=1", "needs pv=fp8"},
      {f16, "l4", "mask=1", "mask = 1: must be 0"},
      {f16, "l4", "head_dim=32", "head_dim = 32: must be 64"},
      {f16, "l4", "q=bf16", "q = bf16: must be f16"},
      {f16, "l4", "p_terms=1", "p_terms = 1: must be 0"},
      {f16, "l4", "k_descale_block=64", "k_descale_block = 64: must be 0"},
      {"f16 h8 q512 d64 causal", "l4", "causal_or_local=0", "causal_or_local = 0: this problem is causal"},
      {"f16 h8 q512 d64 alibi", "l4", "scale_in_exp2=1", "scale_in_exp2 = 1: this problem"},
      {"e4m3 h8 q512 d64", "l4", "block_n=16 fp8_qk=0", "block_n = 16: must be a multiple of 32"},
      {"e4m3 h8 q512 d64", "a100", "fp8_qk=1", "has no FP8 instructions"},
      {"e4m3 h8 q512 d64 scales=block64", "h100", "block_n=128 warps_n=1 stages=1", "must divide 64"},
      {"f16 b70000 h1 q100 d64", "a100", "warps_n=2 stages=1", "must be 1 if batch or heads_q exceeds"},
      {"f32 h8 q512 d60", "l4", "block_n=64", "block_n = 64: must be 32, as attention_scalar"},
      {"f32 h8 q512 d60", "l4", "block_m=33", "block_m = 33: must be a multiple of 8"},
      {"f32 h8 q512 d60", "l4", "block_m=1024", "bytes of shared memory"},
      {"f32 h8 q512 d60", "l4", "stages=3", "fields that can be changed: block_m, warps_m, min_blocks"},
      {"f32 h8 q512 d64", "cpu-scalar", "block_m=32", "attention_cpu has no configuration"},
      {f16, "h100", "family=attention_sm90 warpgroups=5", "warpgroups = 5: must be"},
      {f16, "h100", "family=attention_sm90 block_n=24", "block_n = 24: must be a multiple of 16"},
      {f16, "h100", "family=attention_sm90 kv_stages=-1",
       "kv_stages = -1: must be a whole number from 0 to 2147483647"},
      {f16, "h100", "family=attention_sm90 warpgroups=2 block_n=128 kv_stages=16", "bytes of shared memory"},
      {f16, "h100", "family=attention_sm90 warpgroups=3 block_n=256",
       "take 224 registers, but must take at most 136 with warpgroups = 3"},
      {f16, "h100", "family=attention_sm90 warpgroups=1", "ping_pong = 1: needs at least 2 warpgroups"},
      {f16, "h100", "family=attention_sm90 score_stages=3", "score_stages = 3: has no effect with boxes = 0"},
      {f16, "h100", "family=attention_sm90 boxes=1", "boxes = 1: bias and mask must be contiguous along the keys"},
      {"f16 b16 h8 q512 d64 mask=[b,1,q,k]", "h100", "family=attention_sm90 score_stages=0",
       "score_stages = 0: must be"},
      {"f16 b16 h8 q512 d64 mask=[b,1,q,k]", "h100", "family=attention_sm90 warpgroups=2 block_n=80",
       "boxes = 0 loads them without"},
      {"f16 b32 h16:1 q4 k64 d64 mask=[b,1,1,k]", "h100", "family=attention_sm90 packed_heads=1 boxes=1",
       "the planner's choice for this problem must have boxes, too"},
      {f16, "h100", "family=attention_sm90 head_dim=128",
       "fields that can be changed: warpgroups, block_n, q_stages, kv_stages"},
      {f16, "l4", "family=attention_scalar block_n=64", "block_n = 64: must be 32, as attention_scalar"},
      {f16, "l4", "family=sm80", "family = sm80: must be one of attention_cpu, attention_decode"},
      {f16, "l4", "family=attention_sm80 family=attention_scalar", "attention_sm80 was named before"},
  };
  for (const auto& [line, device, words, part] : refused)
    EXPECT_NE(config_fault(line, device, words).find(part), std::string::npos)
        << line << " " << words << ": " << config_fault(line, device, words);
  for (const char* words :
       {"", " ", "block_n=32", "scale_in_exp2=0", "causal_or_local=1", "block_m=64 block_n=64 warps_m=4 warps_n=1",
        "stages=1 q_in_registers=0", "promotion_interval=32"})
    EXPECT_EQ(config_fault(f16, "l4", words), "") << words;
  EXPECT_EQ(config_fault(f16, "h100", "programmatic=1"), "");
  // The configurations that tests/gpu/shape_test.cpp runs.
  for (const char* words : {"block_m=64 block_n=64 warps_m=4 warps_n=1 stages=2 min_blocks=1",
                            "block_m=64 block_n=32 warps_m=2 warps_n=2 stages=3",
                            "block_m=32 block_n=32 warps_m=2 warps_n=4 stages=2 q_in_registers=1",
                            "block_m=128 block_n=64 warps_m=8 warps_n=1 stages=1 min_blocks=1 q_in_registers=1",
                            "block_m=16 block_n=16 warps_m=1 warps_n=4 stages=4 min_blocks=1"})
    for (const char* line : {"f16 b1 h2 q75 k513 d64", "f16 b1 h2 q75 k100 d40:72 window=20,5"})
      EXPECT_EQ(config_fault(line, "h100", words), "") << line << words;
  EXPECT_EQ(config_fault("f32 h8 q512 d60", "l4", "block_m=64"), "");
  // A variant is allowed to have its own tiles, but must stay within the limits of the GPU.
  EXPECT_EQ(config_fault(f16, "l4", "block_m=24", false), "");
  EXPECT_NE(config_fault(f16, "l4", "block_m=1024 block_n=512", false).find("shared memory"), std::string::npos);
}

TEST_F(LabPromises, ConfigurationsAreRefusedBeforeAnythingIsCompiled) {
  for (const char* words : {"block_n=63", "block_n=16384", "mask=1"})
    expect_refused(concat("explain 'f16 h8 q512 d64' --arch l4 --config ", words), 2, "config: ");
}

class Compiled : public LabPromises {
 protected:
  void SetUp() override {
    LabPromises::SetUp();
    std::string why;
    if (jit::find_compiler(&why) == nullptr) GTEST_SKIP() << "no NVRTC: " << why;
  }
};

// Configurations that the rules allow also pass the kernels' static assertions.
TEST_F(Compiled, AllowedConfigurationsCompile) {
  const std::tuple<const char*, const char*, const char*> allowed[] = {
      {"f16 h8 q512 d64", "l4", "block_m=48 block_n=16 warps_m=3 warps_n=1 stages=1"},
      {"e4m3 h8 q512 d64 scales=block64 pv=fp8", "l4",
       "block_m=32 block_n=32 warps_m=2 warps_n=1 promotion_interval=32"},
      {"f32 h8 q64 d60", "l4", "block_m=24 warps_m=8"},
  };
  for (const auto& [line, device, words] : allowed) {
    EXPECT_EQ(config_fault(line, device, words), "") << words;
    const KernelSelection chosen = select_kernels({parse_problem(line)}, {device_preset(device)}, {words, {}});
    EXPECT_NO_THROW(compile_kernels(chosen.kernels, 1)) << words;
  }
}

TEST_F(Compiled, AVariantNeedsNoGpu) {
  const std::string text = RAPT_SOURCE_DIR "/src/kernels/sm80/attention_sm80.cuh";
  const Outcome explained = rapt("explain 'f16 h8 q512 d64' --arch sm_89 --variant '" + text + "' --json");
  ASSERT_EQ(explained.code, 0) << explained.err;
  const json compiled = json::parse(explained.out)["compiled"][0];
  EXPECT_GT(compiled["registers"], 32);
  EXPECT_EQ(compiled["spill_bytes"], 0);
  EXPECT_GT(compiled["blocks_per_sm"], 0);
  EXPECT_GT(compiled["instructions"]["hmma"], 0);
  EXPECT_GT(compiled["instructions"]["total"], compiled["instructions"]["hmma"]);
  for (const std::string command : {"explain", "pack -o own.pack"})
    EXPECT_NE(
        rapt(command + " 'f16 h8 q512 d64' --arch sm_89 --variant '" + text + "'").out.find("instructions: HMMA "),
        std::string::npos)
        << command;
  EXPECT_NE(rapt("explain 'f16 h8 q512 d64' --arch compute_89 --variant '" + text + "'").out.find("only the driver"),
            std::string::npos);
  EXPECT_NE(rapt("explain 'f16 h8 q512 d64' --arch sm_89 --variant '" + text + "'").out.find("not checked"),
            std::string::npos);

  std::ofstream(folder / "broken.cuh") << "this is no kernel\n";
  expect_refused("explain 'f16 h8 q512 d64' --arch sm_89 --variant broken.cuh", 2, "cannot compile it");
  expect_refused("explain 'f16 h8 q512 d64' --arch sm_89 --variant broken.cuh", 2, "\n  broken.cuh(1): error");
  expect_refused("explain 'f16 h8 q512 d64' --arch sm_89 --family attention_scalar --variant broken.cuh", 2,
                 "attention_scalar for ");
  expect_refused("explain 'f16 h8 q512 d64' --arch sm_89 --variant missing.cuh", 2, "missing.cuh: cannot be opened");
  expect_refused("pack 'f16 h8 q512 d64' --arch sm_89 --variant broken.cuh -o p.pack", 2, "cannot compile it");

  // Two families have a config.h, so the path must contain the family's folder.
  std::filesystem::create_directories(folder / "sm80");
  for (const char* name : {"config.h", "sm80/config.h"})
    std::ofstream(folder / name) << text_of(RAPT_SOURCE_DIR "/src/kernels/sm80/config.h") << "// the same\n";
  expect_refused("explain 'f16 h8 q512 d64' --arch sm_89 --variant config.h", 2,
                 "--variant config.h: the library has scalar/config.h and sm80/config.h");
  EXPECT_EQ(rapt("explain 'f16 h8 q512 d64' --arch sm_89 --variant sm80/config.h").code, 0);
  for (const char* command : {"explain", "check"})
    expect_refused(concat(command, " 'f32 h8 q9 d60' --arch sm_89 --variant sm80/config.h"), 2,
                   "it replaces sm80/config.h, which no kernel of this problem includes");

  // The kernel in a pack of the variant has another signature, because its source is different.
  std::ofstream(folder / "attention_sm80.cuh") << text_of(text) << "// another text\n";
  for (const char* words : {"-o own.pack", "--variant attention_sm80.cuh -o variant.pack"})
    ASSERT_EQ(rapt(concat("pack 'f16 h8 q512 d64' --arch sm_89 ", words)).code, 0);
  const jit::PackInfo own = jit::read_pack_info(folder / "own.pack"),
                      variant = jit::read_pack_info(folder / "variant.pack");
  ASSERT_EQ(variant.entries.size(), 1u);
  EXPECT_NE(variant.entries[0].signature, own.entries[0].signature);
}

// This test checks only that the variant is compiled. emulate_test.cpp tests the results of the emulation.
TEST_F(Compiled, CheckOfAVariantWithoutAGpuCompilesIt) {
  if (usable_gpu()) GTEST_SKIP() << "a GPU";
  const std::string variant =
      "check 'f16 h2 q64 d64' --variant '" RAPT_SOURCE_DIR "/src/kernels/sm80/attention_sm80.cuh'";
  const Outcome checked = rapt(variant + " --arch sm_89");
  EXPECT_NE(checked.out.find("registers"), std::string::npos) << checked.out << checked.err;
  expect_refused(variant, 3, "add --arch");
  expect_refused(variant + " --arch sm_89 --device cuda:0", 3, "libcuda");
  expect_refused(variant + " --arch sm_89 --config block_n=63", 2, "cannot compile it");  // by its static assertions
  expect_refused(variant + " --arch sm_89 --config mask=1", 2, "mask = 1: must be 0");
}

// During one long case, the program shows progress on a terminal, and Ctrl-C ends it immediately.
TEST_F(LabPromises, ALongCaseShowsProgressAndCtrlCEndsIt) {
  using Clock = std::chrono::steady_clock;
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0) GTEST_SKIP() << "no pseudo terminals";
  const int other_end = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  ASSERT_GE(other_end, 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
    dup2(other_end, STDERR_FILENO);
    execl(program.c_str(), "rapt", "check", "f32 h8 q8192 d256", "--device", "cpu", nullptr);
    _exit(127);
  }
  close(other_end);
  std::string shown;
  const auto patience = Clock::now() + std::chrono::minutes(1);
  while (shown.find("f32 b1 h8 q8192 k8192 d256: ") == std::string::npos && Clock::now() < patience) {
    pollfd readable{terminal, POLLIN, 0};
    char bytes[512];
    if (poll(&readable, 1, 1000) <= 0) continue;
    const ssize_t got = read(terminal, bytes, sizeof bytes);
    if (got <= 0) break;
    shown.append(bytes, static_cast<size_t>(got));
  }
  EXPECT_NE(shown.find("[1/1] f32 b1 h8 q8192 k8192 d256: "), std::string::npos) << shown;
  kill(child, SIGINT);
  const auto asked = Clock::now();
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_LT(Clock::now() - asked, std::chrono::seconds(1));
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  close(terminal);
}

}  // namespace
}  // namespace rapt::lab
