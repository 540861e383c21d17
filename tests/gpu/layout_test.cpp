// Shared-memory layouts of every head dimension, checked at compile time by NVRTC; see prim_layout.cuh. Needs no GPU.
#include <gtest/gtest.h>

#include <map>
#include <string_view>

#include "base/error.h"
#include "jit/jit.h"

namespace rapt::test {

const std::map<std::string_view, std::string_view>& device_sources();  // the files of this folder

namespace {

// Compiles a check of one dimension's layout. `edited`, if not empty, replaces device/tile.cuh.
void compile_layout(int dim, const std::string& edited = {}) {
  jit::Request request{.unit = concat("#include \"prim_layout.cuh\"\nstatic_assert(rapt::test::check_layout<", dim,
                                      ">());\nextern \"C\" __global__ void rapt_kernel() {}\n"),
                       .arch = "compute_80",
                       .label = "the layout test",
                       .files = {}};
  for (const auto& [name, text] : device_sources()) request.files.emplace(name, text);
  if (!edited.empty()) request.files["device/tile.cuh"] = edited;
  jit::compile(request);
}

class Layout : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (jit::find_compiler(&why) == nullptr) GTEST_SKIP() << why;
  }
};

}  // namespace

TEST_F(Layout, EveryDimensionIsABijectionWithoutBankConflicts) {
  for (int dim = 16; dim <= 256; dim += 16) EXPECT_NO_THROW(compile_layout(dim)) << "dim " << dim;
}

TEST_F(Layout, ALayoutWithoutSwizzleIsRefused) {
  std::string text(jit::embedded_files().at("device/tile.cuh"));
  const std::string swizzled = "chunk ^ swizzle(row)";
  ASSERT_NE(text.find(swizzled), std::string::npos);
  text.replace(text.find(swizzled), swizzled.size(), "chunk");
  try {
    compile_layout(64, text);
    FAIL() << "dim 64 without swizzle was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("share a bank"), std::string::npos) << error.what();
  }
}

}  // namespace rapt::test
