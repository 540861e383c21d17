// The work that a problem gives to each unit, and the time of this work at the measured peaks. Called by bench.
#include "lab/roofline.h"

#include <algorithm>

#include "kernels/family.h"
#include "lab/tile_size.h"

namespace rapt::lab {
namespace {

// An instruction that computes products, and its rate.
struct Instruction {
  std::string_view name;
  double flops = 0;  // per second
};
struct Products {
  Instruction qk, pv;
  // Number of products with V for each weight, because P can be a sum of several FP8 terms, and f32 a sum of two TF32
  // terms. The same for Q.K.
  double p_terms = 1, qk_terms = 1;
};

Instruction faster(const Instruction& a, const Instruction& b) { return b.flops > a.flops ? b : a; }

struct Instructions {
  Instruction f32, mma_f16, mma_tf32, mma_fp8, wgmma_f16, wgmma_fp8;
  explicit Instructions(const Roof& roof)
      : f32{"f32", roof.fma_flops},
        mma_f16{"mma.sync f16", roof.f16_flops},
        mma_tf32{"mma.sync tf32", roof.tf32_flops},
        mma_fp8{"mma.sync fp8", roof.fp8_flops},
        wgmma_f16{"wgmma f16", roof.wgmma_f16_flops},
        wgmma_fp8{"wgmma fp8", roof.wgmma_fp8_flops} {}
  Instruction best_f16() const { return faster(mma_f16, wgmma_f16); }
  Instruction best_fp8() const { return faster(faster(mma_fp8, wgmma_fp8), best_f16()); }
};

// The number of TF32 products for a product of these dtypes (sm80/tf32.cuh); 0: it has no TF32 operands.
double tf32_terms(DType a, DType b, AccMode acc) {
  const int wide = (a == DType::f32) + (b == DType::f32);
  if (wide == 0) return is_16bit(a) && is_16bit(b) && a != b ? 1 : 0;
  return acc == AccMode::tf32 ? 1 : 1 + wide;
}

// Replaces the instructions of products with TF32 operands. P has the dtype of V.
void use_tf32(Products& products, const Problem& problem, const Instructions& have) {
  if (const double terms = tf32_terms(problem.q, problem.k, problem.acc); terms > 0)
    products.qk = have.mma_tf32, products.qk_terms = terms;
  if (const double terms = tf32_terms(problem.v, problem.v, problem.acc); terms > 0)
    products.pv = have.mma_tf32, products.p_terms = terms;
}

// FP8 weights (pv=fp8) are less exact, so only the caller can choose them. Other problems multiply P in 16 bits.
Products best_products(const Problem& problem, const Instructions& have) {
  Products products{have.best_f16(), have.best_f16()};
  use_tf32(products, problem, have);
  if (products.qk.flops / products.qk_terms < have.f32.flops) products.qk = have.f32, products.qk_terms = 1;
  if (products.pv.flops / products.p_terms < have.f32.flops) products.pv = have.f32, products.p_terms = 1;
  if (is_tensor_core_fp8(problem.q) && is_tensor_core_fp8(problem.k)) products.qk = have.best_fp8();
  const bool fp8_p = problem.pv == PvMode::fp8 || problem.pv == PvMode::fp8x2;
  if (!fp8_p || !is_tensor_core_fp8(problem.v)) return products;
  const double terms = problem.pv == PvMode::fp8x2 ? 2 : 1;
  if (have.best_fp8().flops / terms <= have.best_f16().flops) return products;  // f16 is as fast as all FP8 terms
  products.pv = have.best_fp8();
  products.p_terms = terms;
  return products;
}

// We assume that a family which is not named here uses the best instructions.
Products products_of(const Step& step, const Problem& problem, const Instructions& have) {
  const std::string_view family = step.family->name;
  if (family == "attention_scalar") return {have.f32, have.f32};
  if (family != "attention_sm80" && family != "attention_decode") return best_products(problem, have);
  const auto mma = [&](const char* field) { return step.config.number(field) != 0 ? have.mma_fp8 : have.mma_f16; };
  const bool fp8_pv = step.config.number("fp8_pv") != 0;
  Products products{mma("fp8_qk"), mma("fp8_pv"), fp8_pv ? static_cast<double>(step.config.number("p_terms", 1)) : 1.0};
  use_tf32(products, problem, have);
  return products;
}

struct Work {
  double qk_flops = 0, pv_flops = 0, exponentials = 0, bytes = 0;
};

Work work_of(const Problem& problem) {
  const double all = flops(problem), dims = static_cast<double>(problem.head_dim + problem.head_dim_v);
  if (dims == 0) return {};
  const double of_qk = static_cast<double>(problem.head_dim) / dims;
  return {all * of_qk, all * (1 - of_qk), all / (2 * dims), bytes(problem)};
}

// The number of bytes that are read from L2. Every CTA reads the keys and values that its block_m rows see. 0 if the
// configuration has neither block_m nor warpgroups.
double tile_bytes(const Problem& problem, const Step& step, const Work& work) {
  const auto rows = static_cast<double>(rows_of_a_tile(step.config));
  if (rows == 0) return 0;
  return work.exponentials / rows *
         static_cast<double>(problem.head_dim * bytes_of(problem.k) + problem.head_dim_v * bytes_of(problem.v));
}

class BoundMaker {
 public:
  void add(std::string_view unit, double work, double rate) {
    if (work <= 0 || rate <= 0) return;
    for (UnitTime& known : bound_.units)  // if both products use the same unit, their times are added
      if (known.unit == unit) {
        known.us += work / rate * 1e6;
        return;
      }
    bound_.units.push_back({unit, work / rate * 1e6});
  }
  Bound finish(double launch_us) {
    bound_.launch_us = launch_us;
    bound_.unit = "launch";
    double longest = 0;
    for (const UnitTime& unit : bound_.units) {
      if (unit.us > std::max(longest, launch_us)) bound_.unit = unit.unit;
      longest = std::max(longest, unit.us);
    }
    bound_.floor_us = longest + launch_us;
    return std::move(bound_);
  }

 private:
  Bound bound_;
};

Bound bound_of(const Products& products, const Work& work, double l2_bytes, const Roof& roof, bool from_l2,
               int launches) {
  BoundMaker maker;
  maker.add(products.qk.name, work.qk_flops * products.qk_terms, products.qk.flops);
  maker.add(products.pv.name, work.pv_flops * products.p_terms, products.pv.flops);
  maker.add("exp2", work.exponentials, roof.exponentials);
  maker.add("L2", std::max(work.bytes, l2_bytes), roof.l2_bytes);
  if (!from_l2) maker.add("DRAM", work.bytes, roof.read_bytes);
  return maker.finish(roof.launch_seconds * 1e6 * launches);
}

}  // namespace

std::optional<Roofline> roofline(const Problem& problem, const Plan& plan, const Roof& roof, bool from_l2) {
  if (roof.f16_flops <= 0) return std::nullopt;
  const Instructions have(roof);
  const Work work = work_of(problem);
  const Step& step = plan.steps[0];
  return Roofline{
      bound_of(products_of(step, problem, have), work, tile_bytes(problem, step, work), roof, from_l2, plan.step_count),
      bound_of(best_products(problem, have), work, 0, roof, from_l2, 1)};
}

}  // namespace rapt::lab
