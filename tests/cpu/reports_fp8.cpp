// Reports R40 and R126..R140: FP8 storage, conversion, and scales, which come from the caller or from rapt_quantize.
// reports.h describes each report.
#include "check/format.h"
#include "check/oracle.h"
#include "kernels/shared/dtype.h"
#include "quantize_call.h"
#include "support.h"

namespace rapt::test {
namespace {

// Quantises `exact` [b, h, s, d] with one scale for each block of keys: amax / 448, or 0 if the block is all zeros.
void quantise_blocks(const HostTensor& exact, int64_t block, HostTensor& stored, HostTensor& scales) {
  fill(scales, 0);
  each_index(exact.shape, [&](const auto& at) {
    const std::vector<int64_t> place{at[0], at[1], at[2] / block};
    put(scales, place, std::max(scales.at(place), std::abs(exact.at(at)) / 448));
  });
  fill(stored, [&](const auto& at) {
    const double scale = scales.at({at[0], at[1], at[2] / block});
    return scale == 0 ? 0.0 : exact.at(at) / scale;
  });
}

// Quantises with the library.
QuantizeCall quantized(const HostTensor& exact, int32_t scales, uint64_t flags = 0) {
  QuantizeCall call;
  call.input = exact, call.scales = scales, call.flags = flags;
  call.poison(DType::e4m3);
  quantize_on_cpu(call);
  return call;
}

double rms_error(const Call& call, const std::vector<double>& expected) {
  double sum = 0, size = 0;
  size_t n = 0;
  each_index(call.out.out.shape, [&](const auto& at) {
    const double wanted = expected[n++], got = call.out.out.at(at);
    sum += (got - wanted) * (got - wanted);
    size += wanted * wanted;
  });
  return std::sqrt(sum / size);
}

}  // namespace

TEST(Reports, R40) {
  double error[3] = {};
  const int64_t lengths[] = {128, 150, 192};
  for (size_t n = 0; n < 3; ++n) {
    const std::string shape = " b1 h2 q150 k" + std::to_string(lengths[n]) + " d64 lse";
    Call exact = make("f32" + shape), call = make("q=f32 k=e4m3 v=f32 out=f32 k_scales=block64" + shape);
    fill_hash(exact);
    call.in.q = exact.in.q;
    call.in.v = exact.in.v;
    HostTensor buffer = make_tensor(DType::e4m3, {1, 2, 256, 64});
    call.in.k = slice(buffer, 2, 0, lengths[n]);
    quantise_blocks(exact.in.k, 64, call.in.k, call.in.k_descale);
    expect_oracle(run(call));
    error[n] = rms_error(call, oracle(exact).out);
    Call poisoned = make("q=f32 k=e4m3 v=f32 out=f32 k_scales=block64" + shape);
    poisoned.in = call.in;
    HostTensor beyond = slice(buffer, 2, lengths[n], 256);
    fill(beyond, 1e4);
    expect_same_bits(run(poisoned), call);
  }
  EXPECT_GT(error[1], 0);
  EXPECT_LE(error[1], 1.5 * std::max(error[0], error[2]));

  for (size_t n = 0; n < 3; ++n) {  // the same test with scales from the library
    const std::string shape = " b1 h2 q150 k" + std::to_string(lengths[n]) + " d64 lse";
    Call exact = make("f32" + shape), call = make("q=f32 k=e4m3 v=f32 out=f32 k_scales=block64" + shape);
    fill_hash(exact);
    HostTensor buffer = make_tensor(DType::f32, {1, 2, 256, 64});
    fill(buffer, 1e4);  // rows after the tensor
    HostTensor keys = slice(buffer, 2, 0, lengths[n]);
    each_index(keys.shape, [&](const auto& at) { put(keys, at, exact.in.k.at(at)); });
    const QuantizeCall k = quantized(keys, RAPT_SCALE_BLOCK64);
    expect_same_bits(k.descale, quantized(exact.in.k, RAPT_SCALE_BLOCK64).descale);
    call.in.q = exact.in.q, call.in.v = exact.in.v, call.in.k = k.output, call.in.k_descale = k.descale;
    expect_oracle(run(call));
    error[n] = rms_error(call, oracle(exact).out);
  }
  EXPECT_GT(error[1], 0);
  EXPECT_LE(error[1], 1.5 * std::max(error[0], error[2]));
}

TEST(Reports, R126) {
  for (const char* shape : {" b1 h2 q40 k40 d64 lse", " varlen=40,17 h2 d64 lse", " b1 h2 q1 k40 d64 lse",
                            " b1 h2 q1 k40 d64 page=16 lse"}) {
    SCOPED_TRACE(shape);
    Call exact = make(std::string("bf16 out=f32") + shape);
    fill_hash(exact);
    Call call = make(std::string("q=bf16 k=e4m3 v=e4m3 out=f32 k_scales=tensor v_scales=tensor") + shape);
    call.in.q = exact.in.q;
    fill(call.in.k, [&](const auto& at) { return exact.in.k.at(at) / 0.25; });
    fill(call.in.v, [&](const auto& at) { return exact.in.v.at(at) / 0.5; });
    fill(call.in.k_descale, 0.25);
    fill(call.in.v_descale, 0.5);
    expect_oracle(run(call));
    // The error relative to attention on the unquantised inputs comes from rounding K and V (2^-4 of an element), and
    // is averaged over keys.
    EXPECT_LE(rms_error(call, oracle(exact).out), 0.0625);
    Call doubled = make(std::string("q=bf16 k=e4m3 v=e4m3 out=f32 k_scales=tensor v_scales=tensor") + shape);
    doubled.in = call.in;
    doubled.in.v_descale = make_tensor(DType::f32, {1});
    fill(doubled.in.v_descale, 1.0);
    run(doubled);
    each_index(call.out.out.shape, [&](const auto& at) { EXPECT_EQ(doubled.out.out.at(at), 2 * call.out.out.at(at)); });
  }
}

TEST(Reports, R128) {
  for (DType type : {DType::e4m3, DType::e5m2}) {
    Call call = make(type, "b1 h4:2 q3 k5 d64 out=bf16 v_scales=head lse");
    fill_hash(call.in.q, 1);
    fill(call.in.v, 1);
    put(call.in.v_descale, {0, 0}, 1);
    put(call.in.v_descale, {0, 1}, 4);
    run(call);
    for (int64_t h = 0; h < 4; ++h)
      for (int64_t i = 0; i < 3; ++i) expect_row(call, {0, h, i}, std::vector<double>(64, h < 2 ? 1.0 : 4.0));
  }
}

TEST(Reports, R131) {
  const auto converted = [](double x) {
    return static_cast<double>(e4m3_to_float(float_to_e4m3(static_cast<float>(x))));
  };
  for (double x : {448.0, 464.0, 465.0, 1000.0, infinity}) EXPECT_EQ(converted(x), 448) << x;
  EXPECT_EQ(converted(-1000), -448);
  EXPECT_EQ(converted(-infinity), -448);
  EXPECT_TRUE(std::isnan(converted(nan)));
  const auto wide = [](double x) { return static_cast<double>(e5m2_to_float(float_to_e5m2(static_cast<float>(x)))); };
  EXPECT_EQ(wide(1e6), 57344);
  EXPECT_EQ(wide(-infinity), -57344);
  EXPECT_TRUE(std::isnan(wide(nan)));

  // The same through rapt_quantize, with a scale of 1, which is too small for the value 1000.
  QuantizeCall call;
  call.input = make_tensor(DType::f32, {1, 1, 1, 7});
  const double values[] = {448, 464, 465, 1000, -1000, infinity, nan};
  fill(call.input, [&](const auto& at) { return values[at[3]]; });
  call.flags = RAPT_QUANTIZE_SUPPLIED;
  call.descale = make_tensor(DType::f32, {1});
  fill(call.descale, 1);
  call.poison(DType::e4m3);
  quantize_on_cpu(call);
  for (int64_t d = 0; d < 6; ++d)
    EXPECT_EQ(call.output.at({0, 0, 0, d}), std::clamp(values[d], -448.0, 448.0)) << values[d];
  EXPECT_TRUE(std::isnan(call.output.at({0, 0, 0, 6})));
}

TEST(Reports, R133) {
  struct Code {
    DType type;
    uint8_t bits;
    double value;
  };
  const Code codes[] = {{DType::e4m3, 0x7f, nan},  {DType::e4m3, 0xff, nan},
                        {DType::e4m3, 0x7e, 448},  {DType::e4m3, 0x01, std::ldexp(1.0, -9)},
                        {DType::e4m3, 0x80, -0.0}, {DType::e5m2, 0x7c, infinity},
                        {DType::e5m2, 0x7d, nan}};
  for (const Code& code : codes)
    for (int64_t key : {0, 1}) {
      SCOPED_TRACE(std::string(name_of(code.type)) + " byte " + std::to_string(code.bits) + " at key " +
                   std::to_string(key));
      Call call = make(code.type, "b1 h1 q1 k2 d8 out=f32 mask=[1,1,1,k] lse");
      fill(call.in.v, 1);
      put(call.in.mask, {0, 0, 0, 1}, 0);  // key 0 is seen, key 1 is not
      reinterpret_cast<uint8_t*>(call.in.v.data())[key * 8 + 3] = code.bits;
      run(call);
      for (int64_t d = 0; d < 8; ++d) {
        const double got = call.out.out.at({0, 0, 0, d}), wanted = d == 3 && key == 0 ? code.value : 1.0;
        if (std::isfinite(wanted))
          EXPECT_EQ(got, wanted) << d;
        else
          EXPECT_EQ(std::isnan(got), std::isnan(wanted)) << d << ": " << got;
      }
    }
}

TEST(Reports, R134) {
  enum Zero { value_channel, key_channel, key_block, all_values };
  for (Zero zero : {value_channel, key_channel, key_block, all_values}) {
    SCOPED_TRACE(zero);
    Call exact = make("f32 b1 h2 q70 k70 d64 lse"),
         call = make("q=f32 k=e4m3 v=e4m3 out=f32 b1 h2 q70 k70 d64 k_scales=block64 v_scales=channel lse");
    fill_hash(exact);
    call.in.q = exact.in.q;
    each_index(exact.in.k.shape, [&](const auto& at) {
      if ((zero == key_channel && at[3] == 5) || (zero == key_block && at[2] < 64)) put(exact.in.k, at, 0);
    });
    quantise_blocks(exact.in.k, 64, call.in.k, call.in.k_descale);
    const auto hidden = [&](int64_t d) { return zero == all_values || (zero == value_channel && d == 5); };
    fill(call.in.v_descale, [&](const auto& at) { return hidden(at[2]) ? 0.0 : 1.0 / 448; });
    fill(call.in.v, [&](const auto& at) { return hidden(at[3]) ? 0.0 : exact.in.v.at(at) * 448; });
    expect_oracle(run(call));
    expect_finite(call.out.out);
    each_index({2, 70, 64}, [&](const auto& at) {
      if (hidden(at[2])) {
        EXPECT_EQ(call.out.out.at({0, at[0], at[1], at[2]}), 0.0);
      }
    });

    Call own = make("q=f32 k=e4m3 v=e4m3 out=f32 b1 h2 q70 k70 d64 k_scales=block64 v_scales=channel lse");
    each_index(exact.in.v.shape, [&](const auto& at) {
      if (hidden(at[3])) put(exact.in.v, at, 0);
    });
    const QuantizeCall k = quantized(exact.in.k, RAPT_SCALE_BLOCK64), v = quantized(exact.in.v, RAPT_SCALE_CHANNEL);
    own.in.q = exact.in.q, own.in.k = k.output, own.in.k_descale = k.descale;
    own.in.v = v.output, own.in.v_descale = v.descale;
    expect_oracle(run(own));
    expect_finite(own.out.out);
    each_index({2, 70, 64}, [&](const auto& at) {
      if (hidden(at[2])) {
        EXPECT_EQ(own.out.out.at({0, at[0], at[1], at[2]}), 0.0);
      }
    });
  }
}

TEST(Reports, R137) {
  // If the caller supplies the scales, later values never change earlier rows.
  Call a = make("q=f32 k=e4m3 v=e4m3 out=f32 b1 h1 q64 k64 d64 causal v_scales=tensor lse"), b = a;
  fill_hash(a);
  fill(a.in.v_descale, 0.25);
  b.in = a.in;
  b.in.v = make_tensor(DType::e4m3, {1, 1, 64, 64});
  fill(b.in.v, [&](const auto& at) { return a.in.v.at(at) * (at[2] > 10 ? 1000 : 1); });
  expect_oracle(run(a));
  expect_oracle(run(b));
  expect_same_bits(slice(a.out.out, 2, 0, 11), slice(b.out.out, 2, 0, 11));
  EXPECT_NE(bits(slice(a.out.out, 2, 11, 64)), bits(slice(b.out.out, 2, 11, 64)));

  // With scales that the library computes, this is true only for token scales, because a head's scale depends on later
  // tokens, too (docs/semantics.md).
  HostTensor exact[2] = {make_tensor(DType::f32, {1, 1, 64, 64}), make_tensor(DType::f32, {1, 1, 64, 64})};
  fill_hash(exact[0], 3);
  fill(exact[1], [&](const auto& at) { return exact[0].at(at) * (at[2] > 10 ? 1000 : 1); });
  for (const bool by_token : {true, false}) {
    HostTensor out[2];
    for (int n = 0; n < 2; ++n) {
      Call call = make(std::string("q=f32 k=e4m3 v=e4m3 out=f32 b1 h1 q64 k64 d64 causal lse v_scales=") +
                       (by_token ? "token" : "head"));
      const QuantizeCall v = quantized(exact[n], by_token ? RAPT_SCALE_TOKEN : RAPT_SCALE_HEAD);
      call.in.q = a.in.q, call.in.k = a.in.k, call.in.v = v.output, call.in.v_descale = v.descale;
      expect_oracle(run(call));
      out[n] = slice(call.out.out, 2, 0, 11);
    }
    EXPECT_EQ(bits(out[0]) == bits(out[1]), by_token);
  }
}

TEST(Reports, R138) {
  for (const int64_t length : {300, 12}) {
    SCOPED_TRACE(length);
    const std::string shape = " b1 h1 q" + std::to_string(length) + " k" + std::to_string(length) + " d128 lse";
    Call exact = make("f32" + shape);
    fill_hash(exact);
    each_index(exact.in.k.shape, [&](const auto& at) {
      if (at[3] % 16 == 5) put(exact.in.k, at, exact.in.k.at(at) + 50);
    });
    double error[2] = {};
    for (const bool smooth : {false, true}) {
      const QuantizeCall k = quantized(exact.in.k, RAPT_SCALE_HEAD, smooth ? RAPT_QUANTIZE_SMOOTH : 0);
      Call call = make("q=f32 k=e4m3 v=f32 out=f32 k_scales=head" + shape + (smooth ? " smooth_k" : ""));
      call.in.q = exact.in.q, call.in.v = exact.in.v;
      call.in.k = k.output, call.in.k_descale = k.descale, call.in.k_mean = k.mean;
      expect_oracle(run(call));
      expect_finite(call.out.out);
      error[smooth ? 1 : 0] = rms_error(call, oracle(exact).out);
    }
    // Smoothing does not change the exact result (also not lse), and the error is smaller.
    if (length == 300) {
      EXPECT_LE(error[1], error[0] / 2);
    }
  }
}

TEST(Reports, R140) {
  Call call = make("e4m3 out=bf16 b1 h2 q70 k70 d64 scales=block64 mask=[1,1,q,k] lse");
  fill_hash(call);
  const std::vector<const HostTensor*> inputs{&call.in.q,         &call.in.k,         &call.in.v,        &call.in.mask,
                                              &call.in.q_descale, &call.in.k_descale, &call.in.v_descale};
  std::vector<std::vector<unsigned char>> before, after;
  for (const HostTensor* input : inputs) before.push_back(bits(*input));
  expect_oracle(run(call));
  const check::Outputs first = call.out;
  run(call);
  for (const HostTensor* input : inputs) after.push_back(bits(*input));
  EXPECT_EQ(before, after);
  expect_same_bits(call.out.out, first.out);
  expect_same_bits(call.out.lse, first.lse);

  // Smoothing subtracts the mean from a copy, not from the caller's k.
  HostTensor k = make_tensor(DType::f32, {1, 2, 70, 64});
  fill_hash(k, 7);
  const std::vector<unsigned char> unchanged = bits(k);
  const uint64_t flags = RAPT_QUANTIZE_SMOOTH | RAPT_QUANTIZE_HADAMARD;
  const QuantizeCall once = quantized(k, RAPT_SCALE_BLOCK64, flags), twice = quantized(k, RAPT_SCALE_BLOCK64, flags);
  EXPECT_EQ(bits(k), unchanged);
  expect_same_outputs(once, twice);
}

}  // namespace rapt::test
