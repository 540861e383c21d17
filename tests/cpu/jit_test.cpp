// Tests NVRTC, includes, signatures and the resources that ptxas reports, without a GPU. Needs NVRTC. If it is missing,
// the tests fail and print where they searched.
#include <gtest/gtest.h>

#include <thread>

#include "jit/sources.h"
#include "jit_support.h"

namespace rapt::test {
namespace {

using jit::Request;

Request with_files(const std::string& unit, std::map<std::string, std::string> files) {
  return {unit, "sm_80", "a test", std::move(files)};
}

constexpr const char* entry = "extern \"C\" __global__ void rapt_kernel(int* out) { *out = value; }\n";

TEST(Jit, CompilerIsFound) {
  std::string why;
  const jit::Compiler* compiler = jit::find_compiler(&why);
  ASSERT_NE(compiler, nullptr) << why;
  EXPECT_GE(compiler->major, 12);
  EXPECT_TRUE(compiler->version.starts_with(std::to_string(compiler->major) + "." + std::to_string(compiler->minor)));
  EXPECT_GE(std::count(compiler->version.begin(), compiler->version.end(), '.'), 2) << compiler->version;
  EXPECT_TRUE(std::filesystem::exists(compiler->path)) << compiler->path;
  EXPECT_EQ(compiler, jit::find_compiler()) << "opened twice";
}

TEST(Jit, CompilesForEveryArchitecture) {
  for (const char* arch : {"sm_80", "sm_89", "sm_90a", "sm_120"}) {
    const jit::Image image = jit::compile(small_kernel(1, arch));
    EXPECT_EQ(image.arch, arch);
    EXPECT_TRUE(
        image.bytes.starts_with("\x7f"
                                "ELF"))
        << arch;
    EXPECT_TRUE(contains(image.bytes, "rapt_kernel")) << arch;
    EXPECT_EQ(image.signature, jit::signature(small_kernel(1, arch)));
    EXPECT_TRUE(jit::parse_resources(image.log).known) << image.log;
    EXPECT_GT(jit::parse_resources(image.log).registers, 0) << image.log;
  }
  const jit::Image ptx = jit::compile(small_kernel(1, "compute_89"));
  EXPECT_TRUE(contains(ptx.bytes, ".target sm_89"));
  EXPECT_EQ(ptx.bytes.find('\0'), ptx.bytes.size() - 1) << "PTX ends with its only NUL";
  EXPECT_TRUE(contains(ptx.bytes, "V" + ptx.compiler)) << "the full version is the one that PTX names";
}

TEST(Jit, EqualRequestsGiveEqualBytesInEveryThread) {
  const jit::Image alone = jit::compile(small_kernel(2, "sm_89"));
  std::vector<jit::Image> images(4);
  std::vector<std::thread> threads;
  for (jit::Image& image : images) threads.emplace_back([&image] { image = jit::compile(small_kernel(2, "sm_89")); });
  for (std::thread& thread : threads) thread.join();
  for (const jit::Image& image : images) {
    EXPECT_EQ(image.bytes, alone.bytes);
    EXPECT_EQ(image.log, alone.log);
  }
}

TEST(Jit, WrongArchitecturesAreNamed) {
  const auto message = [](const char* arch, ErrorCode code) {
    return error_of([&] { jit::compile(small_kernel(1, arch)); }, code);
  };
  EXPECT_TRUE(contains(message("sm_999", ErrorCode::environment), "sm_999"));
  EXPECT_TRUE(contains(message("sm_999", ErrorCode::environment), "89, 90"));
  for (const char* arch : {"", "sm_", "sm_90x", "ampere", "sm_9000000000", "compute_"})
    EXPECT_TRUE(contains(message(arch, ErrorCode::invalid_argument), concat("'", arch, "'"))) << arch;
}

TEST(Jit, CompileErrorsCarryTheLabelAndTheFirstLines) {
  Request request = small_kernel(1);
  request.unit = "int a = nothing;\n";
  const std::string own = error_of([&] { jit::compile(request); }, ErrorCode::internal);
  EXPECT_TRUE(contains(own, request.label)) << own;
  EXPECT_TRUE(contains(own, "\"nothing\" is undefined")) << own;
  EXPECT_TRUE(contains(own, "unit.cu(1)")) << own;
  request.files["mod.cuh"] = "int b = missing;\n";
  request.unit = "#include \"mod.cuh\"\n";
  const std::string callers = error_of([&] { jit::compile(request); }, ErrorCode::invalid_argument);
  EXPECT_TRUE(contains(callers, "mod.cuh(1)")) << callers;
}

TEST(Jit, IncludesAreFoundBesideTheFileOrFromTheRoot) {
  const Request request =
      with_files(std::string("#include \"prim/a.cuh\"\n") + entry,
                 {{"prim/a.cuh", "#pragma once\n  #  include \"../shared/b.h\"  // up\n#include \"c.cuh\"\n"},
                  {"prim/c.cuh", "#pragma once\n#include \"shared/b.h\"\n#include \"a.cuh\"\n"},
                  {"shared/b.h", "#pragma once\n#include \"d.h\"\n"},
                  {"shared/d.h", "constexpr int value = 7;\n"},
                  {"d.h", "constexpr int value = unreachable;\n"}});
  const jit::Sources sources = jit::collect_sources(request);
  std::vector<std::string> names;
  for (const auto& [name, text] : sources.headers) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"prim/a.cuh", "prim/c.cuh", "shared/b.h", "shared/d.h"}));
  EXPECT_EQ(sources.headers.at("prim/a.cuh"),
            "#pragma once\n  #  include \"shared/b.h\"  // up\n#include \"prim/c.cuh\"\n");
  EXPECT_FALSE(jit::compile(request).bytes.empty());
}

TEST(Jit, IncludesThatLeadNowhereAreErrors) {
  const auto message = [](const std::string& unit) {
    return error_of(
        [&] {
          jit::signature(with_files(unit, {{"a.h", "#include \"../../b.h\"\n"}}));
        },
        ErrorCode::invalid_argument);
  };
  EXPECT_TRUE(contains(message("#include \"none.h\"\n"), "\"none.h\""));
  EXPECT_TRUE(contains(message("#include \"a.h\"\n"), "a.h includes \"../../b.h\""));
  EXPECT_TRUE(contains(message("#include FILE\n"), "#include FILE"));
  EXPECT_TRUE(contains(message("#include \"a.h\n"), "in quotes"));
}

TEST(Jit, FilesOfTheFolderAreNeverRead) {
  // An include must not use a file from the process's current folder.
  const TemporaryFolder folder;
  write_file(folder / "stray.h", "constexpr int value = 1;\n");
  EXPECT_TRUE(contains(error_of([&] { jit::compile(with_files("#include \"" + (folder / "stray.h") + "\"\n", {})); },
                                ErrorCode::invalid_argument),
                       "stray.h"));
}

TEST(Jit, SharedHeadersAreCarriedAndReachable) {
  const auto& files = jit::embedded_files();
  ASSERT_TRUE(files.contains("shared/variant.h"));
  ASSERT_TRUE(files.contains("shared/params.h"));
  for (const auto& [name, text] : files)
    EXPECT_TRUE(text == file_bytes(RAPT_SOURCE_DIR "/src/kernels/" + std::string(name))) << name;
  Request request = small_kernel(1);
  request.unit = "#include \"shared/variant.h\"\n" + request.unit;
  EXPECT_FALSE(jit::compile(request).bytes.empty());
}

TEST(JitSignature, CoversWhatIsCompiledAndNothingElse) {
  const Request base = with_files(std::string("#include \"a.h\"\n") + entry,
                                  {{"a.h", "#include \"b.h\"\n"}, {"b.h", "constexpr int value = 1;\n"}, {"c.h", "x"}});
  const std::string original = jit::signature(base);
  EXPECT_EQ(original.size(), 64u);
  EXPECT_EQ(original, jit::signature(base));
  const auto changed = [&](auto change) {
    Request request = base;
    change(request);
    return jit::signature(request) != original;
  };
  EXPECT_TRUE(changed([](Request& r) { r.unit += " "; }));
  EXPECT_TRUE(changed([](Request& r) { r.files["a.h"] += "\n"; }));
  EXPECT_TRUE(changed([](Request& r) { r.files["b.h"] = "constexpr int value = 2;\n"; }));
  EXPECT_TRUE(changed([](Request& r) { r.arch = "sm_89"; }));
  EXPECT_TRUE(changed([](Request& r) { r.arch = "compute_80"; }));
  EXPECT_FALSE(changed([](Request& r) { r.files["c.h"] = "y"; })) << "not reachable";
  EXPECT_FALSE(changed([](Request& r) { r.files["d.h"] = "y"; })) << "not reachable";
  EXPECT_FALSE(changed([](Request& r) { r.label = "another problem"; }));
}

TEST(JitSignature, AnEmbeddedFileCanBeReplaced) {
  Request request = small_kernel(1);
  request.unit = "#include \"shared/variant.h\"\n" + request.unit;
  const std::string original = jit::signature(request);
  request.files["shared/dtype.h"] = std::string(jit::embedded_files().at("shared/dtype.h"));
  EXPECT_EQ(jit::signature(request), original) << "the same text";
  request.files["shared/dtype.h"] += "// edited\n";
  EXPECT_NE(jit::signature(request), original) << "reached through an embedded file";
}

TEST(JitResources, AreReadFromTheLog) {
  const jit::Resources r = jit::parse_resources(
      "ptxas info    : 8 bytes gmem\n"
      "ptxas info    : Compiling entry function 'rapt_kernel' for 'sm_89'\n"
      "ptxas info    : Function properties for rapt_kernel\n"
      "ptxas         .     120 bytes stack frame, 36 bytes spill stores, 48 bytes spill loads\n"
      "ptxas info    : Used 255 registers, used 2 barriers, 120 bytes cumulative stack size, 4096 bytes smem\n"
      "ptxas info    : (C7519) warpgroup.arrive is injected in around line 1\n");
  EXPECT_TRUE(r.known);
  EXPECT_EQ(r.registers, 255);
  EXPECT_EQ(r.stack_bytes, 120);
  EXPECT_EQ(r.spill_store_bytes, 36);
  EXPECT_EQ(r.spill_load_bytes, 48);
  EXPECT_EQ(r.shared_bytes, 4096);
  EXPECT_EQ(r.barriers, 2);
  ASSERT_EQ(r.warnings.size(), 1u);
  EXPECT_TRUE(contains(r.warnings[0], "C7519"));
  EXPECT_FALSE(jit::parse_resources("").known);
}

TEST(JitResources, SpillsOfARealKernelAreSeen) {
  Request request = small_kernel(1);
  request.unit =
      "extern \"C\" __global__ void __launch_bounds__(1024, 2) rapt_kernel(float* p) {\n"
      "  __shared__ float tile[512];\n"
      "  float x[96];\n"
      "  for (int i = 0; i < 96; ++i) x[i] = p[i * 1024 + threadIdx.x];\n"
      "  tile[threadIdx.x % 512] = x[0];\n"
      "  __syncthreads();\n"
      "  for (int j = 0; j < 96; ++j)\n"
      "    for (int i = 0; i < 96; ++i) x[i] = x[i] * x[(i * 7 + j) % 96] + tile[i];\n"
      "  for (int i = 0; i < 96; ++i) p[i * 1024 + threadIdx.x] = x[i];\n"
      "}\n";
  const jit::Resources r = jit::parse_resources(jit::compile(request).log);
  EXPECT_LE(r.registers, 32);
  EXPECT_GT(r.spill_store_bytes + r.stack_bytes, 0);
  EXPECT_EQ(r.shared_bytes, 2048);
  EXPECT_EQ(r.barriers, 1);
}

}  // namespace
}  // namespace rapt::test
