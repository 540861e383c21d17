// Tuned rows: the file's format, who may write it, which calls use a row, and how the planner and explain use it. Tests
// of contexts use the stand-in driver (tests/fake_cuda) and need NVRTC.
#include "runtime/tuned_rows.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/files.h"
#include "check/cases.h"
#include "check/device_tensors.h"
#include "child_process.h"
#include "cuda/cuda.h"
#include "jit_support.h"
#include "kernels/family.h"
#include "runtime/gpu.h"
#include "runtime/plan.h"
#include "stand_in.h"
#include "support.h"

namespace rapt::test {
namespace {

const char* const line = "f16 b4 h16 q1000 k2048 d64";

TunedRow row_for(const Problem& problem, const Device& device, const std::string& words) {
  TunedRow row;
  row.device = tuned_device(device);
  row.problem = plan_line(planned_problem(problem, device));
  row.words = words, row.us = 12.5, row.planner_us = 14.25;
  row.date = "2026-11-29T20:06:22Z", row.version = "0.1.0 2442592abcde";
  row.command = "rapt tune 'f16 b4 h16 q1000 k2048 d64'";
  return row;
}
TunedRow row_for(const std::string& words) { return row_for(parse_problem(line), device_preset("h100"), words); }

TunedRows read(const std::string& path) { return TunedRows::read({path, true}); }

// The rows of a file with this text, and the text that is logged while the file is read.
TunedRows read_text(const TemporaryFolder& folder, const std::string& text, std::string& log) {
  const std::string path = folder / concat("rows", text.size(), ".txt");
  write_file(path, text);
  chmod(path.c_str(), 0644);
  testing::internal::CaptureStderr();
  TunedRows rows = read(path);
  log = testing::internal::GetCapturedStderr();
  return rows;
}

std::string sentence_of(const std::string& text) {
  try {
    parse_tuned_row(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// The row's text with one field replaced.
std::string with_field(size_t field, const std::string& value) {
  std::string text = to_string(row_for("family=attention_sm80 block_n=64")), result;
  for (size_t i = 0; !text.empty(); ++i) {
    const size_t end = std::min(text.find(" | "), text.size());
    result += concat(i > 0 ? " | " : "", i == field ? value : text.substr(0, end));
    text.erase(0, std::min(end + 3, text.size()));
  }
  return result;
}

}  // namespace

TEST(TunedRows, ARowIsReadAsItWasWritten) {
  TunedRow row = row_for("family=attention_sm80 block_n=64");
  const std::string text =
      "h100, sm_90a, 132 multiprocessors | f16 b4 h16 q1024 k2048 d64 | family=attention_sm80 block_n=64 | 12.5 | "
      "14.25 "
      "| 2026-11-29T20:06:22Z | 0.1.0 2442592abcde | rapt tune 'f16 b4 h16 q1000 k2048 d64'";
  EXPECT_EQ(to_string(row), text);
  const TunedRow read = parse_tuned_row(text);
  EXPECT_EQ(to_string(read), text);
  EXPECT_EQ(read.us, 12.5);
  EXPECT_EQ(read.planner_us, 14.25);
  row.command = "a | b\nc";  // these characters would break the line
  EXPECT_EQ(parse_tuned_row(to_string(row)).command, "a ? b?c");
}

TEST(TunedRows, ASentenceForEachWrongField) {
  EXPECT_EQ(sentence_of(with_field(99, "")), "");
  for (const auto& [field, value, sentence] : std::vector<std::tuple<size_t, std::string, std::string>>{
           {0, "", "device is empty"},
           {1, "f16 b4 h16 q1000 k2048 d64",
            "problem = f16 b4 h16 q1000 k2048 d64: is not a class of problems; its class is f16 b4 h16 q1024 k2048 "
            "d64"},
           {1, "f16 b4 h16 q1024 k2048 d64 softcap=30", "its class is f16 b4 h16 q1024 k2048 d64 softcap=1"},
           {1, "f16 b4 h16 x9", "x9"},
           {1, "f16 b4 h16 q1024 k2048 d64 invariant", "an invariant problem never uses a row"},
           {1, "f16 h16 d64 varlen=?4096:4096 invariant; q unaligned", "an invariant problem never uses a row"},
           {1, "f16 h16 d64 varlen=@lengths.txt", "a class has no file of lengths"},
           {3, "fast", "median = fast: must be a number of microseconds above 0"},
           {3, "-1", "median = -1: must be"},
           {3, "1.5us", "median = 1.5us: must be"},
           {4, "inf", "planner's median = inf: must be"},
           {4, "0", "planner's median = 0: must be"},
           {5, "2026-11-29", "date = 2026-11-29: must be UTC, such as"},
           {5, "2026-11-29T20:06:2xZ", "date = 2026-11-29T20:06:2xZ: must be UTC"}})
    EXPECT_NE(sentence_of(with_field(field, value)).find(sentence), std::string::npos)
        << value << ": " << sentence_of(with_field(field, value));
  EXPECT_EQ(sentence_of("h100 | f16"), "the row has 2 fields: must be 8, separated by ' | '");
}

TEST(TunedRows, BadLinesAreNamedAndTheOthersAreUsed) {
  const TemporaryFolder folder;
  const std::string good = to_string(row_for("planner"));
  std::string log;
  const TunedRows rows = read_text(folder, concat("# a comment\n\nnonsense\n", with_field(3, "x"), "\n", good), log);
  EXPECT_EQ(rows.size(), 1u);
  EXPECT_NE(log.find(":3: the tuned row is ignored: the row has 1 fields"), std::string::npos) << log;
  EXPECT_NE(log.find(":4: the tuned row is ignored: median = x"), std::string::npos) << log;
  EXPECT_EQ(log.find(":1:"), std::string::npos) << log;
  EXPECT_EQ(log.find(":5:"), std::string::npos) << log;
}

TEST(TunedRows, AfterFiveBadLinesOnlyTheirNumberIsLogged) {
  const TemporaryFolder folder;
  const std::string good = to_string(row_for("planner"));
  std::string text, log;
  for (int i = 0; i < 100; ++i) text += concat("x\n", with_field(3, "x"), "\n");
  const TunedRows rows = read_text(folder, concat(text, good, "\n"), log);
  EXPECT_EQ(rows.size(), 1u);
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 6) << log;
  EXPECT_NE(log.find(".txt:5: the tuned row is ignored: "), std::string::npos) << log;
  EXPECT_NE(log.find(": 195 more lines are ignored, because no call can use them\n"), std::string::npos) << log;
  const TunedRows few = read_text(folder, "1\n2\n3\n4\n5\n", log);
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 5) << log;
}

TEST(TunedRows, AByteOrderMarkAndLineEndsWithCrAreAccepted) {
  const TemporaryFolder folder;
  const TunedRow row = row_for("planner");
  std::string log;
  TunedRows rows = read_text(folder, concat("\xEF\xBB\xBF", to_string(row), "\r\n\r\n# a comment\r\n"), log);
  EXPECT_EQ(log, "");
  ASSERT_EQ(rows.size(), 1u);
  const Device h100 = device_preset("h100");
  const TunedRow* const found = rows.find(planned_problem(parse_problem(line), h100), h100);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->command, row.command);
  EXPECT_EQ(replace_tuned_row(rows.path(), row), "");
  EXPECT_EQ(file_bytes(rows.path()), concat("\r\n# a comment\r\n", to_string(row), "\n"));
  rows = read_text(folder, concat("# a comment\n\xEF\xBB\xBF", to_string(row), "\n"), log);
  EXPECT_EQ(rows.find(planned_problem(parse_problem(line), h100), h100), nullptr);
}

TEST(TunedRows, FindsTheClassOnTheSameGpuOnly) {
  const TemporaryFolder folder;
  std::string log;
  const Device h100 = device_preset("h100");
  const TunedRows rows = read_text(folder, to_string(row_for("family=attention_sm80 block_n=64")) + "\n", log);
  EXPECT_EQ(log, "");
  const auto found = [&](const std::string& words, const Device& device) {
    return rows.find(planned_problem(parse_problem(words), device), device) != nullptr;
  };
  EXPECT_TRUE(found(line, h100));
  for (const char* same : {"f16 b4 h16 q1024 k2048 d64", "f16 b4 h16 q961 k1921 d64",
                           "f16 b4 h16 q1024 k2048 d64 scale=3", "f16 b4 h16 q1024 k2048 d64 layout=bshd"})
    EXPECT_TRUE(found(same, h100)) << same;
  for (const char* other :
       {"f16 b4 h16 q960 k2048 d64", "f16 b4 h16 q1025 k2048 d64", "f16 b4 h16 q1000 k2049 d64",
        "f16 b3 h16 q1000 k2048 d64", "bf16 b4 h16 q1000 k2048 d64", "f16 b4 h16 q1000 k2048 d64 lse",
        "f16 b4 h16 q1000 k2048 d64 causal", "f16 b4 h16 q1000 k2048 d64 scale=-1",
        "f16 b4 h16 q1000 k2048 d64 softcap=3", "f16 b4 h16 q1000 k2048 d64 invariant"})
    EXPECT_FALSE(found(other, h100)) << other;
  Device changed = h100;
  changed.sm_count = 114;
  EXPECT_FALSE(found(line, changed)) << "another number of multiprocessors";
  changed = h100;
  changed.arch = "compute_90";
  EXPECT_FALSE(found(line, changed));
  for (const char* other : {"h200", "l4", "cpu-avx2"}) EXPECT_FALSE(found(line, device_preset(other))) << other;
  Problem unaligned = planned_problem(parse_problem(line), h100);
  unaligned.access_k.aligned16 = unaligned.access_k.tma = false;
  EXPECT_EQ(rows.find(unaligned, h100), nullptr);
}

TEST(TunedRows, InvariantProblemsTakeNoRow) {
  const TemporaryFolder folder;
  std::string log;
  const Device h100 = device_preset("h100");
  const Problem problem = parse_problem(concat(line, " invariant"));
  const TunedRows rows =
      read_text(folder, to_string(row_for(problem, h100, "family=attention_sm80 block_n=32")) + "\n", log);
  EXPECT_EQ(rows.size(), 0u);
  EXPECT_NE(log.find(":1: the tuned row is ignored: problem = f16"), std::string::npos) << log;
  EXPECT_EQ(rows.find(planned_problem(problem, h100), h100), nullptr);
  EXPECT_EQ(to_string(plan_by_row(problem, h100, rows)), to_string(plan(problem, h100)));
}

// For all pairs of cases: the texts of their classes are equal exactly if they share a plan.
TEST(TunedRows, TheTextOfAClassTellsTheSamePlansApart) {
  std::vector<Problem> classes;
  const Device h100 = device_preset("h100");
  for (const auto& entry : std::filesystem::directory_iterator(RAPT_SOURCE_DIR "/check/cases"))
    for (const check::Case& c : check::load_cases(entry.path().stem(), RAPT_SOURCE_DIR "/check/cases"))
      classes.push_back(planned_problem(c.problem(), h100));
  for (const char* other :
       {"f16 h2 q8 d64", "f16 h2 q8 d64 scale=2", "f16 h2 q8 d64 scale=-2", "f16 h2 q8 d64 scale=0",
        "f16 h2 q8 d64 softcap=2", "f16 h2 q8 d64 softcap=3", "f16 h2 q8 d63", "f16 h2 q8 k31 d64 bias=f32[b,h,q,k]",
        "f16 h2 q8 k32 d64 bias=f32[b,h,q,k]", "f16 h2 q8 k31 d64 mask=[b,h,q,k]", "f16 h2 q8 k32 d64 mask=[b,h,q,k]",
        "f16 h2 q8 d64 k_strides=1024,512,1,8", "f16 h2 q8 d64 k_strides=1025,513,64,1"})
    classes.push_back(planned_problem(parse_problem(other), h100));
  int equal = 0, different = 0;
  for (const Problem& a : classes)
    for (const Problem& b : classes) {
      EXPECT_EQ(plan_line(a) == plan_line(b), same_plan(a, b)) << plan_line(a) << "\n" << plan_line(b);
      ++(same_plan(a, b) ? equal : different);
    }
  EXPECT_GT(equal, static_cast<int>(classes.size()));
  EXPECT_GT(different, 1000);
  for (const Problem& p : classes) {  // every class is accepted in a file, except those that use no row
    if (p.invariant) continue;
    EXPECT_NO_THROW(parse_tuned_row(to_string(row_for(p, h100, "planner")))) << plan_line(p);
  }
}

TEST(TunedRows, ARowChangesThePlanAndExplainSaysSo) {
  const TemporaryFolder folder;
  std::string log;
  const Device h100 = device_preset("h100");
  const Problem problem = parse_problem(line);
  ASSERT_EQ(plan(problem, h100).steps[0].family, &attention_sm90);
  const TunedRows rows = read_text(folder, to_string(row_for("family=attention_sm80 block_n=64 stages=3")) + "\n", log);
  const TunedRow* used = nullptr;
  const Plan tuned = plan_by_row(problem, h100, rows, &used);
  EXPECT_EQ(tuned.steps[0].family, &attention_sm80);
  EXPECT_EQ(tuned.steps[0].config.number("block_n"), 64);
  EXPECT_EQ(tuned.steps[0].config.number("stages"), 3);
  ASSERT_NE(used, nullptr);
  const std::string text = explain(problem, h100, rows);
  for (const std::string& part :
       {concat("family   attention_sm80: chosen, ", to_string(tuned)),
        std::string("family   attention_sm90: possible, but the tuned row names attention_sm80"),
        concat("tuned    ", rows.place(*used),
               ": family=attention_sm80 block_n=64 stages=3: 12.5 us; the planner's own "
               "choice, attention_sm90 "),
        std::string(": 14.25 us; measured 2026-11-29T20:06:22Z by rapt 0.1.0 2442592abcde\n")})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_TRUE(rows.place(*used).ends_with(".txt:1"));
  EXPECT_EQ(explain(problem, h100).find("tuned"), std::string::npos);
  EXPECT_EQ(explain(problem, device_preset("l4"), rows), explain(problem, device_preset("l4")));
}

TEST(TunedRows, ARowMayConfirmThePlanner) {
  const TemporaryFolder folder;
  std::string log;
  const Device h100 = device_preset("h100");
  const TunedRows rows = read_text(folder, to_string(row_for("planner")) + "\n", log);
  EXPECT_EQ(to_string(plan_by_row(parse_problem(line), h100, rows)), to_string(plan(parse_problem(line), h100)));
  EXPECT_NE(explain(parse_problem(line), h100, rows).find(": nothing was faster than the planner's choice, 12.5 us"),
            std::string::npos);
}

TEST(TunedRows, ARowThatBreaksARuleIsIgnoredWithTheRule) {
  const Device h100 = device_preset("h100");
  const Problem problem = parse_problem(line);
  for (const auto& [words, rule] : std::vector<std::pair<std::string, std::string>>{
           {"family=attention_sm80 block_n=63", "config: block_n = 63: must be a multiple of 16"},
           {"family=attention_sm80 head_dim=32", "config: head_dim = 32: must be 64"},
           {"family=attention_sm90 warps_m=2", "config: word warps_m=2: must be FIELD=VALUE"},
           {"family=attention_sm70", "family = attention_sm70: must be one of"},
           {"family=attention_cpu", "attention_cpu: device h100 is not a CPU"}}) {
    const TemporaryFolder folder;
    std::string log;
    const TunedRows rows = read_text(folder, to_string(row_for(words)) + "\n", log);
    const TunedRow* used = nullptr;
    testing::internal::CaptureStderr();
    EXPECT_EQ(to_string(plan_by_row(problem, h100, rows, &used)), to_string(plan(problem, h100)));
    plan_by_row(problem, h100, rows, &used);
    log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(used, nullptr);
    EXPECT_NE(log.find(concat(rows.path(), ":1: the tuned row is ignored: ", rule)), std::string::npos) << log;
    EXPECT_EQ(log.find('\n'), log.size() - 1) << "one line: " << log;
  }
}

// A caller may allocate the workspace of the plan of the row, and then get the planner's own plan in the call.
TEST(TunedRows, TheWorkspaceSufficesForBothPlans) {
  const TemporaryFolder folder;
  const Device h100 = device_preset("h100");
  for (const auto& [problem_line, words, zeroed] : std::vector<std::tuple<std::string, std::string, size_t>>{
           {line, "family=attention_sm90 kv_stages=4", 64},
           {"f16 b4 h16 q1000 k2048 d64 causal", "family=attention_sm90 kv_stages=4", 64},
           {line, "family=attention_sm80 block_n=32", 64}}) {
    const Problem problem = parse_problem(problem_line);
    std::string log;
    const TunedRows rows = read_text(folder, to_string(row_for(problem, h100, words)) + "\n", log);
    const Plan tuned = plan_by_row(problem, h100, rows);
    EXPECT_EQ(tuned.workspace_zero_bytes, zeroed) << words;
    EXPECT_EQ(tuned.workspace_bytes, zeroed) << words;
    EXPECT_NE(to_string(tuned), to_string(plan(problem, h100))) << words;
  }
}

TEST(TunedRows, WritingReplacesTheRowOfTheClassAndKeepsTheRest) {
  const TemporaryFolder folder;
  const std::string path = folder / "tuned.txt";
  EXPECT_EQ(create_tuned_file(path), "");
  const std::string heading = file_bytes(path);
  EXPECT_TRUE(heading.starts_with("# ") && heading.ends_with("\n")) << heading;
  const TunedRow first = row_for("family=attention_sm80 block_n=64"), second = row_for("planner");
  TunedRow other = first;
  other.device = "another GPU, sm_90a, 132 multiprocessors";
  EXPECT_EQ(replace_tuned_row(path, first), "");
  EXPECT_EQ(replace_tuned_row(path, other), "");
  write_file(path, concat(file_bytes(path), "# by hand\nnonsense\n"));
  EXPECT_EQ(replace_tuned_row(path, second), "");
  EXPECT_EQ(file_bytes(path), concat(heading, to_string(other), "\n# by hand\nnonsense\n", to_string(second), "\n"));
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"tuned.txt"}) << "no lock and no temporary file";
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 022, 0u);
  EXPECT_NE(replace_tuned_row(folder / "none/tuned.txt", first), "");
}

// Another process has the lock and writes the first row. A new file must not replace it.
TEST(TunedRows, CreatingAFileWaitsForTheLock) {
  const TemporaryFolder folder;
  const std::string path = folder / "tuned.txt", text = concat(to_string(row_for("planner")), "\n");
  const FileHandle lock = open_file(AT_FDCWD, folder.path(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(flock(lock.fd(), LOCK_EX), 0);
  std::string wrong = "not finished";
  std::thread other([&] { wrong = create_tuned_file(path); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_FALSE(std::filesystem::exists(path));
  write_file(path, text);
  chmod(path.c_str(), 0644);
  ASSERT_EQ(flock(lock.fd(), LOCK_UN), 0);
  other.join();
  EXPECT_EQ(wrong, "");
  EXPECT_EQ(file_bytes(path), text);
}

TEST(TunedRows, ASymbolicLinkStaysAndItsFileIsWritten) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "kept");
  const std::string link = folder / "tuned.txt", file = folder / "kept/rows.txt";
  ASSERT_EQ(create_tuned_file(file), "");
  std::filesystem::create_symlink("kept/rows.txt", link);
  EXPECT_EQ(create_tuned_file(link), "");
  EXPECT_EQ(replace_tuned_row(link, row_for("planner")), "");
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_NE(file_bytes(file).find(to_string(row_for("planner"))), std::string::npos);
  std::filesystem::remove(file);
  EXPECT_EQ(create_tuned_file(link), "is a symbolic link to a file that does not exist");
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  std::filesystem::remove(link);
  std::filesystem::create_symlink("/dev/null", link);
  EXPECT_EQ(create_tuned_file(link), "is not a regular file");
  EXPECT_EQ(replace_tuned_row(link, row_for("planner")), "is not a regular file");
  EXPECT_EQ(create_tuned_file(folder.path()), "is not a regular file");
}

TEST(TunedRows, TheLaterOfTwoRowsOfAClassIsUsed) {
  const TemporaryFolder folder;
  std::string log;
  const TunedRows rows = read_text(
      folder, concat(to_string(row_for("planner")), "\n", to_string(row_for("family=attention_sm80 block_n=32")), "\n"),
      log);
  ASSERT_EQ(rows.size(), 1u);
  const Device h100 = device_preset("h100");
  EXPECT_EQ(rows.find(planned_problem(parse_problem(line), h100), h100)->line, 2);
}

TEST(TunedRows, AFileThatOthersMayWriteIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder / "tuned.txt";
  ASSERT_EQ(create_tuned_file(path), "");
  ASSERT_EQ(replace_tuned_row(path, row_for("planner")), "");
  ASSERT_EQ(read(path).size(), 1u);
  const auto refusal = [&] {
    testing::internal::CaptureStderr();
    EXPECT_EQ(read(path).size(), 0u);
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_NE(replace_tuned_row(path, row_for("planner")), "");
    EXPECT_NE(create_tuned_file(path), "");
    return log;
  };
  for (const auto& [mode, text] : {std::pair{0664u, "(mode 664)"}, {0646u, "(mode 646)"}}) {
    chmod(path.c_str(), mode);
    const std::string log = refusal();
    EXPECT_NE(log.find(concat("tuned rows '", path,
                              "': the file is not used: it may be written by its group or others ", text)),
              std::string::npos)
        << log;
  }
  chmod(path.c_str(), 0644);
  chmod(folder.path().c_str(), 0777);
  EXPECT_NE(refusal().find("its folder '"), std::string::npos);
  chmod(folder.path().c_str(), 0700);
  EXPECT_EQ(read(path).size(), 1u);
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
  EXPECT_NE(refusal().find("it belongs to user 12345"), std::string::npos);
}

TEST(TunedRows, FilesThatAreNoFilesAreRefused) {
  const TemporaryFolder folder;
  testing::internal::CaptureStderr();
  EXPECT_EQ(read(folder / "missing.txt").size(), 0u);
  EXPECT_EQ(read(folder.path()).size(), 0u);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("missing.txt': the file of RAPT_TUNED does not exist"), std::string::npos) << log;
  EXPECT_NE(log.find("is not a regular file"), std::string::npos) << log;
  testing::internal::CaptureStderr();
  EXPECT_EQ(TunedRows::read({folder / "missing.txt", false}).size(), 0u);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "nobody named the default file";
}

TEST(TunedRows, TheEnvironmentNamesTheFile) {
  in_child(
      "RAPT_TUNED=off", [] { EXPECT_EQ(tuned_file("/x").path, ""); }, "1");
  in_child(
      "RAPT_TUNED=/y/rows.txt", [] { EXPECT_EQ(tuned_file("/x").path, "/y/rows.txt"); }, "2");
  in_child(
      "-u RAPT_TUNED",
      [] {
        EXPECT_EQ(tuned_file("/x").path, "/x/tuned.txt");
        EXPECT_EQ(tuned_file("").path, "");
        EXPECT_EQ(tuned_file("").note, "");
      },
      "3");
  in_child(
      "RAPT_TUNED=of",
      [] {
        EXPECT_EQ(tuned_file("/x").path, "");
        EXPECT_EQ(
            tuned_file("/x").note,
            "tuned rows are not used: RAPT_TUNED = 'of': must be off or a file with a '/' in its name, such as './of'");
      },
      "4");
}

// ---- Contexts, with the stand-in driver.

namespace {

ContextOptions with_rows(const std::string& path) {
  ContextOptions options = without_cache();
  options.tuned = path;
  return options;
}

// One call on the stand-in GPU, the text of rapt_explain, and the plan that the context loaded.
struct OneCall {
  explicit OneCall(const std::string& words) : call(make(words)), scope(0, nullptr) {
    call.out = check::make_outputs(call.problem);
    tensors.emplace(0, call.problem, call.in, call.out);
  }
  std::string explained(rapt_context& context) {
    std::string text(10000, '\0');
    size_t length = 0;
    EXPECT_EQ(rapt_explain(&context, &tensors->args(), text.data(), text.size(), &length), RAPT_OK);
    return text.substr(0, length);
  }
  std::string loaded(rapt_context& context) {
    const auto plan = context.impl.gpu().find(call.problem, 0);
    return plan == nullptr ? "" : to_string(plan->plan);
  }
  Call call;
  cuda::ContextScope scope;
  std::optional<check::DeviceCall> tensors;
};

// Writes a row for the stand-in GPU.
std::string file_of(const TemporaryFolder& folder, const std::string& words) {
  const std::string path = folder / "tuned.txt";
  EXPECT_EQ(replace_tuned_row(path, row_for(parse_problem(line), cuda::device(0), words)), "");
  return path;
}

}  // namespace

TEST(TunedRows, AContextUsesTheRow) {
  on_stand_in(80, [] {
    const TemporaryFolder folder;
    rapt_context tuned(with_rows(file_of(folder, "family=attention_sm80 block_m=64 block_n=32"))),
        plain(without_cache());
    OneCall one(line);
    EXPECT_NE(one.explained(tuned).find("tuned    " + folder.path()), std::string::npos) << one.explained(tuned);
    EXPECT_EQ(one.explained(plain).find("tuned"), std::string::npos);
    ASSERT_EQ(rapt_prepare(&tuned, &one.tensors->args(), nullptr), RAPT_OK) << rapt_last_error();
    EXPECT_NE(one.loaded(tuned).find("block_m=64 block_n=32"), std::string::npos) << one.loaded(tuned);
    ASSERT_EQ(rapt_prepare(&plain, &one.tensors->args(), nullptr), RAPT_OK);
    EXPECT_NE(one.loaded(plain), one.loaded(tuned));
    // The file is read once: a later change has no effect on this context, and warm calls never look at it.
    std::filesystem::remove(folder / "tuned.txt");
    EXPECT_EQ(rapt_sdpa(&tuned, &one.tensors->args(), nullptr), RAPT_OK);
    EXPECT_NE(one.explained(tuned).find("tuned    "), std::string::npos);
  });
}

TEST(TunedRows, ConfigWordsOfAContextComeBeforeRows) {
  on_stand_in(80, [] {
    const TemporaryFolder folder;
    ContextOptions options = with_rows(file_of(folder, "family=attention_sm80 block_n=32"));
    options.config = "stages=1";
    rapt_context context(std::move(options));
    OneCall one(line);
    ASSERT_EQ(rapt_prepare(&context, &one.tensors->args(), nullptr), RAPT_OK) << rapt_last_error();
    EXPECT_NE(one.loaded(context).find("stages=1"), std::string::npos);
    EXPECT_EQ(one.loaded(context).find("block_n=32 "), std::string::npos) << one.loaded(context);
  });
}

// Under capture the file is not read and nothing is loaded. So the first call fails, as it does without rows. If only
// the planner's own kernel is loaded, and not the row's kernel, the call records the planner's own kernel.
TEST(TunedRows, UnderCaptureNothingIsReadOrLoaded) {
  on_stand_in(80, [] {
    const TemporaryFolder folder;
    const std::string path = file_of(folder, "family=attention_sm80 block_m=64 block_n=32");
    rapt_context context(with_rows(path));
    OneCall one(line), longer("f16 b4 h16 q1200 k2048 d64");
    const cuda::Stream stream;
    cuda::Graph::begin(stream.handle());
    EXPECT_EQ(rapt_sdpa(&context, &one.tensors->args(), stream.handle()), RAPT_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(rapt_last_error()).find("is being captured"), std::string::npos) << rapt_last_error();
    const cuda::Graph first(stream.handle());
    ASSERT_EQ(rapt_prepare(&context, &longer.tensors->args(), stream.handle()), RAPT_OK) << rapt_last_error();
    cuda::Graph::begin(stream.handle());
    EXPECT_EQ(rapt_sdpa(&context, &one.tensors->args(), stream.handle()), RAPT_OK) << rapt_last_error();
    const cuda::Graph second(stream.handle());
    EXPECT_EQ(one.loaded(context), "") << "the plan without the row is not remembered";
  });
}

// There is no NVRTC, and no pack has the row's kernel.
TEST(TunedRows, WithoutTheKernelOfARowThePlannersOwnIsUsed) {
  on_stand_in(80, [] {
    const TemporaryFolder folder;
    const Device device = cuda::device(0);
    const Problem problem = parse_problem(line);
    const Step own = plan(problem, device).steps[0];
    jit::write_pack(folder / "own.pack", {jit::compile(request_for(own.family->unit(own.config), device.arch, "own"))});
    ContextOptions options = with_rows(file_of(folder, "family=attention_sm80 block_m=64 block_n=32"));
    options.store->packs = {folder / "own.pack"};
    options.store->use_compiler = false;
    rapt_context context(std::move(options));
    OneCall one(line);
    testing::internal::CaptureStderr();
    ASSERT_EQ(rapt_prepare(&context, &one.tensors->args(), nullptr), RAPT_OK) << rapt_last_error();
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_NE(log.find("tuned.txt:2: the tuned row is ignored: "), std::string::npos) << log;
    EXPECT_NE(one.loaded(context).find(own.config.words()), std::string::npos) << one.loaded(context);
  });
}

}  // namespace rapt::test
