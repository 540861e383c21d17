// Compares with the float64 oracle: every length of keys and queries, every head dimension, both families on the same
// problems, strides, and large sizes and offsets.
#include <algorithm>

#include "base/error.h"
#include "gpu_support.h"
#include "kernels/family.h"

namespace rapt::test {
namespace {

class GpuShape : public GpuTest {};

}  // namespace

TEST_F(GpuShape, EveryLengthOfKeys) {
  std::vector<Job> jobs;
  for (int k = 1; k <= 640; ++k) {
    jobs.push_back({concat("f16 b1 h1 q33 k", k, " d64")});
    jobs.push_back({concat("f16 b1 h1 q33 k", k, " d64 causal")});
  }
  for (int k : {1,  2,  7,   8,   9,   15,  16,  17,  31,  32,  33,  63,  64,  65,   79,   95,
                96, 97, 127, 128, 129, 255, 256, 257, 511, 512, 513, 639, 640, 1023, 1024, 1025}) {
    jobs.push_back({concat("bf16 b1 h1 q65 k", k, " d128")});
    jobs.push_back({concat("bf16 b1 h1 q65 k", k, " d128 causal")});
  }
  expect_pass(jobs);
}

TEST_F(GpuShape, EveryLengthOfQueries) {
  std::vector<Job> jobs;
  for (int q = 1; q <= 160; ++q) {
    jobs.push_back({concat("f16 b1 h4 q", q, " k77 d64")});
    jobs.push_back({concat("bf16 b1 h4 q", q, " k77 d64 causal")});
  }
  expect_pass(jobs);
}

TEST_F(GpuShape, EveryHeadDimension) {
  std::vector<Job> jobs;
  for (int d = 8; d <= 256; d += 8)
    for (const char* type : {"f16", "bf16"}) {
      jobs.push_back({concat(type, " b1 h2 q70 k150 d", d)});
      if (d % 32 == 8)
        jobs.push_back({concat(type, " b1 h2 q70 k150 d", d, " causal softcap=9"), check::Fill::outlier});
    }
  for (const Job& job : jobs)
    EXPECT_TRUE(attention_sm80.accepts(parse_problem(job.line), cuda::device(0), nullptr)) << job.line;
  expect_pass(jobs);
  expect_pass(jobs, make_context({.config = "family=attention_sm80"}).get());
}

TEST_F(GpuShape, HeadDimensionsOfTheirOwn) {
  std::vector<Job> jobs;
  for (const char* dims :
       {"8:256", "256:8", "64:128", "128:64", "192:128", "40:72", "72:40", "16:24", "24:16", "80:96", "104:248"})
    for (const char* type : {"f16", "bf16"}) jobs.push_back({concat(type, " b1 h2 q70 k150 d", dims, " causal")});
  for (const char* dims : {"584", "264:520", "64:520", "7", "100:36"})
    jobs.push_back({concat("f16 b1 h2 q40 k70 d", dims)});
  expect_pass(jobs);
}

// Head dims above 256 in 16 bits. With `invariant` the planner uses the tiles for many rows.
TEST_F(GpuShape, WideHeadDimensions) {
  std::vector<Job> jobs;
  for (const char* dims : {"264", "320", "384", "408", "512", "576:512", "40:512", "512:40", "264:64", "64:264"})
    for (const char* type : {"f16", "bf16"})
      for (const char* rest :
           {"", " causal", " window=30,9", " causal softcap=9 alibi bias=f32[1,h,q,k] mask=[b,1,q,k]"})
        for (const char* tail : {" lse", " invariant lse sinks"})
          jobs.push_back({concat(type, " b1 h4:2 q70 k300 d", dims, rest, tail)});
  for (const char* shape : {"b1 h8:1 q1 k3000 d576:512", "b8 h32 q1 k300 d320", "b1 h1 q2100 k700 d512 causal",
                            "h4:2 d384 varlen=33:5,0:9,64:0,40:300 causal", "b3 h2 q40 k70 d512 seqused_q=0,33,40"}) {
    jobs.push_back({concat("f16 ", shape, " lse")});
    jobs.push_back({concat("bf16 out=f32 ", shape, " partial lse")});
  }
  for (const char* line :
       {"f16 b1 h2 q70 k300 d320 causal lse", "bf16 b1 h2 q70 k300 d576:512 window=20,0 invariant"}) {
    jobs.push_back({line, check::Fill::hidden_nan});
    jobs.push_back({line, check::Fill::seen_nan});
  }
  for (const Job& job : jobs) EXPECT_STRNE(chosen_family(parse_problem(job.line)).name, "attention_scalar") << job.line;
  expect_pass(jobs);
  expect_pass(jobs, make_context({.config = "family=attention_sm80"}).get());
}

// Few or many keys with few or many rows. The planner divides the keys among warps for some of them.
TEST_F(GpuShape, ShortAndLongProblems) {
  std::vector<Job> jobs;
  for (const char* shape : {"b1 h8 q512 d64", "b1 h1 q1 k5000 d64", "b1 h8:1 q4 k3000 d128", "b4 h2 q16 k16 d64",
                            "b1 h2 q1100 k40 d64", "b1 h16 q64 d80", "b2 h4:2 q257 k513 d96"})
    for (const char* type : {"f16", "bf16"})
      for (const char* mask : {"", " causal", " window=100,7"}) jobs.push_back({concat(type, " ", shape, mask)});
  expect_pass(jobs);
}

// Tests, on small problems, the tiles of attention_sm80 for problems that fill the GPU: with `invariant` it has only
// these. And the tiles that the planner chooses for `invariant`.
TEST_F(GpuShape, TilesOfLongProblemsAtEveryLength) {
  std::vector<Job> jobs;
  for (int n = 1; n <= 300; n += n < 40 ? 1 : 7)
    for (const char* words : {"f16 b1 h1 q70 k", "bf16 b1 h2 q130 k"})
      for (const char* tail : {" d64 invariant", " d128 causal invariant", " d192 window=30,9 invariant"})
        jobs.push_back({concat(words, n, tail)});
  for (int q = 1; q <= 280; q += q < 40 ? 3 : 9)
    jobs.push_back({concat("f16 b1 h2 q", q, " k150 d64 causal invariant")});
  for (int d = 8; d <= 256; d += 8) jobs.push_back({concat("f16 b1 h2 q70 k150 d", d, " invariant")});
  expect_pass(jobs);
  expect_pass(jobs, make_context({.config = "family=attention_sm80"}).get());
}

// Tiles that the planner does not choose now, but that tuning could choose.
TEST_F(GpuShape, OtherTiles) {
  for (const char* words : {"block_m=64 block_n=64 warps_m=4 warps_n=1 stages=2 min_blocks=1",
                            "block_m=64 block_n=32 warps_m=2 warps_n=2 stages=3",
                            "block_m=32 block_n=32 warps_m=2 warps_n=4 stages=2 q_in_registers=1",
                            "block_m=128 block_n=64 warps_m=8 warps_n=1 stages=1 min_blocks=1 q_in_registers=1",
                            "block_m=16 block_n=16 warps_m=1 warps_n=4 stages=4 min_blocks=1"}) {
    SCOPED_TRACE(words);
    const auto context = make_context({.config = words});
    std::vector<Job> jobs;
    for (int k : {1, 15, 16, 17, 63, 64, 65, 100, 128, 129, 200, 300, 513})
      for (const char* tail : {" d64", " d64 causal", " d40:72 window=20,5"})
        jobs.push_back({concat("f16 b1 h2 q75 k", k, tail)});
    expect_pass(jobs, context.get());
  }
}

TEST_F(GpuShape, AttentionScalarTakesWhatAttentionSm80Takes) {
  std::vector<Job> jobs, scalar_jobs;
  for (const char* type : {"f16", "bf16"})
    for (const char* words :
         {"b2 h4:2 q33 k90 d64 causal", "b1 h2 q90 k17 d40 window=9,3 softcap=5", "b1 h2 q40 k100 d128 alibi sinks",
          "b2 h2 q33 k77 d32 mask=[b,h,q,k]", "b2 h2 q33 k77 d32 bias=f16[1,h,q,k] causal", "h2 d64 varlen=17,0,64,100",
          "b1 h2 q64 k300 d256", "b2 h2 q20 k60 d16 seqused=33,0", "b2 h2 q70 k60 d16 seqused_q=33,0"})
      for (check::Fill fill : {check::Fill::normal, check::Fill::hidden_nan}) {
        const std::string line = concat(type, " ", words);
        EXPECT_TRUE(attention_sm80.accepts(parse_problem(line), cuda::device(0), nullptr)) << line;
        EXPECT_STREQ(chosen_family(parse_problem(for_attention_scalar(line))).name, "attention_scalar") << line;
        jobs.push_back({line, fill});
        scalar_jobs.push_back({for_attention_scalar(line), fill});
      }
  expect_pass(scalar_jobs);
  expect_pass(jobs);
  expect_pass(jobs, make_context({.config = "family=attention_sm80"}).get());
}

TEST_F(GpuShape, AttentionScalarTakesEveryStorage) {
  std::vector<Job> jobs;
  for (const char* q : {"f32", "f16", "bf16", "e4m3", "e5m2", "sim8"})
    for (const char* kv : {"f32", "f16", "bf16", "e4m3", "e5m2", "sim8"})
      for (const char* out : {"f32", "f16", "bf16"}) {
        const std::string line = concat("q=", q, " k=", kv, " v=", kv, " out=", out, " b1 h4:2 q33 k70 d40:24 causal");
        jobs.push_back({for_attention_scalar(line)});
      }
  expect_pass(jobs);
}

TEST_F(GpuShape, StridesOfEveryKind) {
  std::vector<Job> jobs;
  for (const char* type : {"f16", "f32"})
    for (const char* words :
         {"b2 h3 q33 k65 d24 layout=bshd",
          "b2 h2 q20 k30 d16 q_strides=0,320,16,1 k_strides=0,0,16,1 v_strides=0,0,0,0",
          "b1 h2 q20 k30 d16 q_strides=640,320,-16,1 k_strides=960,-480,-16,1 v_strides=960,480,16,-1",
          "b1 h2 q9 k20 d8 out_strides=300,150,16,2", "b1 h2 q9 k20 d8 out_strides=1,9,1,18",
          "b1 h2 q9 k20 d8 out_strides=400,200,20,1", "b2 h2 q33 k40 d64 out_strides=9000,72,144,1",
          "b2 h2 q33 k40 d64 k_strides=6000,70,140,1", "b1 h1 q40 k50 d64 v_strides=9999,9999,65,1"})
      jobs.push_back({concat(type, " ", words)});
  expect_pass(jobs);
}

TEST_F(GpuShape, MoreHeadsThanAGridDimension) {
  expect_pass({{"f16 b70000 h1 q1 k3 d8"},
               {"bf16 b3 h25000 q2 k5 d8 causal"},
               {"f32 b70000 h1 q1 k3 d4"},
               {"e4m3 out=f16 b1 h66000:33000 q1 k2 d8"}});
}

TEST_F(GpuShape, SizesOfZero) {
  expect_pass({{"f16 b0 h2 q8 d8"},
               {"f16 b2 h0:0 q8 d8"},
               {"f16 b1 h2 q0 k8 d8"},
               {"f16 b1 h2 q8 k0 d8"},
               {"f32 b1 h2 q8 k0 d8 sinks"},
               {"bf16 b1 h2 q8 k0 d64 causal"},
               {"f16 h2 d32 varlen=0,0,0"},
               {"f32 h2 d32 b0 varlen="}});
}

namespace {

// The tensors of a small call, placed in GPU memory with the test's strides.
class Spread {
 public:
  Spread(const Call& call, std::vector<int64_t> q, std::vector<int64_t> k, std::vector<int64_t> v,
         std::vector<int64_t> out)
      : call_(call),
        buffers_{buffer(call.in.q, q), buffer(call.in.k, k), buffer(call.in.v, v), buffer(call.out.out, out)} {
    spread(wide_in_.q, call.in.q, q), spread(wide_in_.k, call.in.k, k), spread(wide_in_.v, call.in.v, v);
    spread(wide_out_.out, call.out.out, out);
    each_row(wide_in_.q, 0, call.in.q, true), each_row(wide_in_.k, 1, call.in.k, true);
    each_row(wide_in_.v, 2, call.in.v, true), each_row(wide_out_.out, 3, call.out.out, true);
  }

  void run() {
    const cuda::Stream stream;
    const check::SdpaCall sdpa(call_.problem, wide_in_, wide_out_, [&](const std::string& name, const HostTensor&) {
      return check::Address{buffers_[name == "q" ? 0 : name == "k" ? 1 : name == "v" ? 2 : 3].data(), first_gpu};
    });
    ASSERT_EQ(rapt_sdpa(nullptr, &sdpa.args, stream.handle()), RAPT_OK) << rapt_last_error();
    stream.synchronize();
    each_row(wide_out_.out, 3, call_.out.out, false);
  }

 private:
  static int64_t last(const HostTensor& t, const std::vector<int64_t>& strides) {
    int64_t element = 0;
    for (size_t d = 0; d < strides.size(); ++d) element += (t.shape[d] - 1) * strides[d];
    return element;
  }
  static cuda::Buffer buffer(const HostTensor& t, const std::vector<int64_t>& strides) {
    EXPECT_GT(last(t, strides), int64_t{1} << 31);
    return cuda::Buffer(static_cast<size_t>(last(t, strides) + 1) * static_cast<size_t>(bytes_of(t.dtype)));
  }
  static void spread(HostTensor& wide, const HostTensor& t, const std::vector<int64_t>& strides) {
    wide = t;
    wide.strides = strides;
  }
  // Copies every row (last dimension, contiguous on both sides) to or from the GPU.
  void each_row(const HostTensor& wide, size_t which, const HostTensor& host, bool up) {
    const auto width = static_cast<size_t>(bytes_of(host.dtype));
    const size_t row_bytes = static_cast<size_t>(host.shape[3]) * width;
    each_index({host.shape[0], host.shape[1], host.shape[2]}, [&](const std::vector<int64_t>& at) {
      const auto element =
          static_cast<size_t>(at[0] * wide.strides[0] + at[1] * wide.strides[1] + at[2] * wide.strides[2]);
      std::byte* row = host.data() + host.index({at[0], at[1], at[2], 0}) * static_cast<int64_t>(width);
      up ? buffers_[which].upload(row, row_bytes, element * width)
         : buffers_[which].download(row, row_bytes, element * width);
    });
  }

  const Call& call_;
  check::Inputs wide_in_;
  check::Outputs wide_out_;
  std::array<cuda::Buffer, 4> buffers_;
};

}  // namespace

// This test needs 22 GB. Every tensor has elements beyond 2^31, because of its batch, head or row stride.
TEST_F(GpuShape, ElementsBeyondTwoToThe31) {
  for (const char* line : {"f16 b2 h2 q40 k100 d64 causal", "f16 b2 h2 q40 k100 d60 causal"}) {
    SCOPED_TRACE(line);
    Call call = make(line);
    fill_hash(call);
    call.out = check::make_outputs(call.problem);
    call.out.out = make_tensor(call.problem.out, call.out.out.shape);
    try {
      Spread spread(call, {128, 64, 60'000'000, 1}, {2'200'000'000, 6400, 64, 1}, {6400, 2'200'000'000, 64, 1},
                    {64, 128, 60'000'000, 1});
      spread.run();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::out_of_memory) return skip(concat("22 GB of GPU memory: ", error.what()));
      throw;
    }
    expect_oracle(call);
  }
}

}  // namespace rapt::test
