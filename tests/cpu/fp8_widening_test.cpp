// Tests widening of FP8 codes with vector instructions on the CPU, for every instruction set of the machine. Every code
// except E4M3's NaN is widened correctly. If E4M3's NaN occurs anywhere, the code uses tables instead. With one row
// (decoding), codes are widened in registers; this gives the same bits as widening into scratch memory.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/isa.h"
#include "isa.h"
#include "support.h"

namespace rapt::test {
namespace {

class Fp8Widening : public testing::TestWithParam<CpuIsa> {
 protected:
  IsaLimit limit_{GetParam()};
};

unsigned char& code_at(HostTensor& t, int64_t row, int64_t channel) {
  return reinterpret_cast<unsigned char&>(t.data()[row * t.strides[2] + channel * t.strides[3]]);
}

// Fills a tensor with all finite codes, in an order that depends on the seed.
void fill_finite_codes(HostTensor& t, unsigned seed) {
  for (int64_t row = 0; row < t.shape[2]; ++row)
    for (int64_t d = 0; d < t.shape[3]; ++d) {
      unsigned code = static_cast<unsigned>(d + 131 * row) * 77 + seed;
      if (t.dtype == DType::e4m3 && (code & 0x7f) == 0x7f) code ^= 1;
      if (t.dtype == DType::e5m2 && (code & 0x7c) == 0x7c) code ^= 4;
      code_at(t, row, d) = static_cast<unsigned char>(code);
    }
}

}  // namespace

TEST_P(Fp8Widening, EveryFiniteCode) {
  for (const char* type : {"e4m3", "e5m2", "sim8"})
    for (const char* rows : {"q1", "q2", "q20"})
      for (const char* width : {"8:256", "8:251", "8:288", "8:35"}) {
        Call call =
            make(std::string("q=f32 k=f32 v=") + type + " out=f32 b1 h1 v_scales=tensor k1 d" + width + " " + rows);
        SCOPED_TRACE(to_string(call.problem));
        const float factor = 0.37f;
        fill(call.in.v_descale, static_cast<double>(factor));
        fill_finite_codes(call.in.v, 0);
        run(call);
        each_index(call.out.out.shape, [&](const auto& at) {
          const auto stored = static_cast<float>(call.in.v.at({0, 0, 0, at[3]}));
          EXPECT_EQ(call.out.out.at(at), static_cast<double>(stored * factor)) << "channel " << at[3];
        });
      }
}

TEST_P(Fp8Widening, NanIsSeenWhereverItStands) {
  for (const char* line : {"q1 k3 d96", "q3 k3 d83", "q20 k3 d64"})
    for (const int code : {0x7f, 0xff}) {
      Call call = make(std::string("q=f32 k=e4m3 v=e4m3 out=f32 b1 h1 k_scales=head v_scales=token ") + line);
      SCOPED_TRACE(to_string(call.problem));
      fill(call.in.q, 1e-3);
      for (int64_t d = 0; d < call.problem.head_dim; ++d) {
        fill_finite_codes(call.in.k, 3), fill_finite_codes(call.in.v, 5);
        code_at(call.in.v, 1, d) = static_cast<unsigned char>(code);
        run(call);
        each_index(call.out.out.shape, [&](const auto& at) {
          EXPECT_EQ(std::isnan(call.out.out.at(at)), at[3] == d) << "channel " << at[3] << ", NaN in " << d << " of V";
        });
        fill_finite_codes(call.in.v, 5);
        code_at(call.in.k, 2, d) = static_cast<unsigned char>(code);
        run(call);
        each_index(call.out.out.shape,
                   [&](const auto& at) { EXPECT_TRUE(std::isnan(call.out.out.at(at))) << "NaN in " << d << " of K"; });
      }
    }
}

// The comparison uses strided codes, because they are widened with a table into scratch memory.
TEST_P(Fp8Widening, OneRowHasTheBitsOfTheWayByScratch) {
  for (const char* type : {"e4m3", "e5m2", "sim8"})
    for (const char* scales : {"", "head", "token", "block64"})
      for (const char* shape : {"q1 k1 d64", "q1 k203 d128", "q1 k203 d96", "q1 k98 d32:160", "q1 k203 d48 softcap=5",
                                "q1 k203 d128 pv=fp8", "q1 k203 d128 k_strides=40000,40000,150,1"}) {
        std::string words = std::string("q=f16 k=") + type + " v=" + type + " out=f32 b1 h1 lse scale=0.001 " + shape;
        if (*scales != 0) words += std::string(" k_scales=") + scales + " v_scales=" + scales;
        Call near = make(words);
        SCOPED_TRACE(words);
        fill_hash(near.in.q, 1);
        fill_finite_codes(near.in.k, 7), fill_finite_codes(near.in.v, 9);
        for (HostTensor* t : {&near.in.k_descale, &near.in.v_descale}) {
          int64_t n = 0;
          if (t->present()) fill(*t, [&](const auto&) { return 0.013 * static_cast<double>(1 + n++ % 5); });
        }
        Call apart = near;
        for (HostTensor* t : {&apart.in.k, &apart.in.v}) {
          const int64_t row = 2 * t->shape[3];
          *t = copy_with_strides(*t, {row * t->shape[2], row * t->shape[2], row, 2});
        }
        expect_same_bits(run(near), run(apart));
      }
}

INSTANTIATE_TEST_SUITE_P(Isa, Fp8Widening, testing::ValuesIn(available_cpu_isas()), isa_name);

}  // namespace rapt::test
