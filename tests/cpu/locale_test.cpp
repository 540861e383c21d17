// Texts that programs read (kernels, problem lines, signatures, files) must be the same in every locale of the process.
// Tests a C++ locale that groups every digit, and, if the system has one, a C locale with a decimal comma.
#include <gtest/gtest.h>

#include <clocale>
#include <cstdlib>
#include <locale>
#include <nlohmann/json.hpp>

#include "check/cases.h"
#include "jit/image_file.h"
#include "jit_support.h"
#include "kernels/family.h"
#include "kernels/merge/merge_gpu.h"
#include "kernels/products/products_gpu.h"
#include "kernels/quantize/quantize_gpu.h"
#include "lab/ledger.h"
#include "lab/quantize.h"
#include "lab/report.h"
#include "lab/safetensors.h"
#include "operations/products.h"
#include "operations/quantize_rules.h"
#include "products_support.h"
#include "quantize_call.h"
#include "runtime/plan.h"

namespace rapt::test {
namespace {

// This locale writes 1,0,2,4 and 0;5.
struct GroupsEveryDigit : std::numpunct<char> {
  char do_thousands_sep() const override { return ','; }
  char do_decimal_point() const override { return ';'; }
  std::string do_grouping() const override { return "\1"; }
};

class GlobalLocale {
 public:
  GlobalLocale() : before_(std::locale::global(std::locale(std::locale::classic(), new GroupsEveryDigit))) {}
  ~GlobalLocale() { std::locale::global(before_); }
  GlobalLocale(const GlobalLocale&) = delete;
  GlobalLocale& operator=(const GlobalLocale&) = delete;

 private:
  std::locale before_;
};

using Texts = std::vector<std::string>;

const char* const lines[] = {
    "f16 b12 h32:8 q4096 k1000 d128 causal scale=0.0625 softcap=30.5 lse",
    "f32 b1000 h16 q1024 k1024 d80 window=1024,100 alibi",
    "bf16 h12 d256 varlen=1024,2048,17 window=100,-1",
    "q=f16 k=e4m3 v=e4m3 out=f16 b1 h32 q1 k10000 d128 k_scales=block128 v_scales=block128",
    "f16 b1 h1 q4096 k4096 d4096",
};

void add_plans(Texts& texts) {
  for (const char* line : lines) {
    const Problem problem = parse_problem(line);
    texts.push_back(to_string(problem));
    for (const char* preset : {"cpu-avx2", "a100", "l4", "h100", "sm_121"}) {
      const Device device = device_preset(preset);
      texts.push_back(explain(problem, device));
      for (const Family* family : all_families()) {
        std::string why;
        if (!family->accepts(problem, device, &why)) texts.push_back(why);
        if (why.empty() && family->unit != nullptr)
          texts.push_back(family->unit(family->configure(problem, device)).text);
      }
    }
  }
}

void add_operations(Texts& texts) {
  for (const DType out : {DType::f32, DType::f16, DType::bf16}) texts.push_back(merge_unit({.out = out}).text);
  const ProductCall calls[] = {make_gemm(DType::e4m3, DType::e4m3, DType::f16, 16, 16, 1024),
                               make_qk(DType::f16, DType::f16, DType::f32, {1, 1, 1, 16, 16, 128})};
  for (const ProductCall& call : calls)
    for (const char* preset : {"l4", "h100"}) {
      const ProductArgs args(call);
      ProductParams params = call.gemm ? product_of(args.gemm, nullptr) : product_of(args.qk, nullptr);
      params.rows_a = params.rows_b = 8192;
      texts.push_back(product_unit(product_config(params, device_preset(preset))).text);
    }
  for (const int64_t dim : {128, 776})
    for (const int32_t scales : {RAPT_SCALE_TENSOR, RAPT_SCALE_TOKEN, RAPT_SCALE_BLOCK128, RAPT_SCALE_CHANNEL}) {
      QuantizeCall call;
      call.input = make_tensor(DType::f16, {1, 1, 256, dim});
      call.scales = scales, call.flags = RAPT_QUANTIZE_HADAMARD | RAPT_QUANTIZE_SMOOTH;
      if (scales == RAPT_SCALE_TENSOR) call.percentile = 99.5;
      call.poison(DType::e4m3);
      for (const QuantizeConfig& config : quantize_configs(quantize_params(QuantizeArgs(call).args)))
        texts.push_back(quantize_unit(config).text);
    }
}

// Adds signatures, which are names in the cache and in packs; rows, ledgers and scales as JSON; and a file's header.
void add_files(Texts& texts) {
  const TemporaryFolder folder;
  jit::Request request = small_kernel(1024, "sm_120");
  request.unit += concat("// ", 4096, " ", 1.5, " ", size_t{1} << 40, "\n");
  texts.push_back(request.unit);
  texts.push_back(jit::signature(request));
  jit::write_pack(folder / "a.pack", {{jit::signature(request), "sm_120", std::string(2000, 'x'), "13.0.88", "log"}});
  texts.push_back(file_bytes(folder / "a.pack"));
  lab::BenchRow row;
  row.problem = to_string(parse_problem(lines[0]));
  row.samples.us = {1234.5, 1300.25, 1250.125};
  row.cold_us = 123456.75, row.flops = 1.5e12, row.bytes = 4096, row.threads = 1024;
  texts.push_back(lab::to_json(row).dump());
  texts.push_back(lab::to_text(lab::shipped_ledger()));
  lab::StaticScales scales;
  scales.dtype = DType::e4m3, scales.granularity = ScaleKind::head, scales.percentile = 99.5, scales.samples = 1024;
  scales.descale["q"] = {0.125f, 1234.5f}, scales.amax["q"] = {1.5f, 4096.25f};
  texts.push_back(lab::to_json(scales));
  const lab::StaticScales read = lab::parse_static_scales(texts.back(), "scales");
  EXPECT_EQ(read.descale.at("q"), scales.descale.at("q"));
  EXPECT_EQ(read.percentile, 99.5);
  lab::write_safetensors(folder / "a.safetensors", {{"q", make_tensor(DType::f16, {1, 1, 1024, 128})}}, {});
  texts.push_back(file_bytes(folder / "a.safetensors").substr(0, 200));
}

void add_sentences(Texts& texts) {
  for (const char* line : {"f16 q1024 d64 seqused=4096", "f16 q1024 d64 splits=2199511627776",
                           "f16 b1024 q8 d64 seqused=3", "f32 h1000000 q1099511627776 d1099511627776"})
    texts.push_back(error_of([&] { validate(parse_problem(line)); }, ErrorCode::invalid_argument));
  texts.push_back(concat(1024, ' ', -4096L, ' ', 1e6, ' ', 0.5, ' ', 12345678ull, ' ', true, ' ', 'x', ' ', 2.5f));
}

Texts all_texts() {
  Texts texts;
  add_plans(texts);
  add_operations(texts);
  add_files(texts);
  add_sentences(texts);
  return texts;
}

void expect_same(const Texts& plain, const Texts& there) {
  ASSERT_EQ(plain.size(), there.size());
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(plain[i], there[i]);
}

TEST(Locale, ConcatPrintsWhatAClassicStreamDoes) {
  EXPECT_EQ(concat(1024, ' ', int64_t{-5}, ' ', 1e6, ' ', 1234567.0, ' ', 0.1f, ' ', 1e-7, ' ', true),
            "1024 -5 1e+06 1.23457e+06 0.1 1e-07 1");
  EXPECT_EQ(concat(0.0, ' ', -0.0, ' ', std::numeric_limits<double>::infinity(), ' ', std::nan(""), ' ', 1e300),
            "0 -0 inf nan 1e+300");
  EXPECT_EQ(concat(static_cast<const void*>(nullptr), ' ', reinterpret_cast<void*>(0x1f0)), "0 0x1f0");
  EXPECT_EQ(concat(std::string("a"), std::string_view("b"), "c", 'd', uint64_t{18446744073709551615u}),
            "abcd18446744073709551615");
}

TEST(Locale, TextsDoNotFollowTheGlobalLocale) {
  const Texts plain = all_texts();
  EXPECT_GT(plain.size(), 100u);
  const GlobalLocale scope;
  std::ostringstream shown;
  shown << 1024;
  ASSERT_EQ(shown.str(), "1,0,2,4") << "this locale would show";
  expect_same(plain, all_texts());
}

TEST(Locale, TextsDoNotFollowTheLocaleOfC) {
  const TemporaryFolder folder;
  const Texts plain = all_texts();
  const std::string made =
      concat("localedef -i de_DE -f UTF-8 '", folder / "de_DE.UTF-8", "' >'", folder / "log", "' 2>&1");
  const bool can_make = std::system(made.c_str()) == 0 && setenv("LOCPATH", folder.path().c_str(), 1) == 0;
  const bool set = can_make && std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr;
  unsetenv("LOCPATH");
  if (!set) GTEST_SKIP() << "no locale with a decimal comma here, and none can be made";
  char shown[16];
  std::snprintf(shown, sizeof shown, "%.1f", 0.5);
  const Texts there = all_texts();
  std::setlocale(LC_ALL, "C");
  ASSERT_EQ(std::string(shown), "0,5") << "this locale would show";
  expect_same(plain, there);
}

}  // namespace
}  // namespace rapt::test
