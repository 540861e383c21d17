// Products of rows, host half: which of the two kernels, in which tiles, its launch. What runs is products.cuh.
#include "kernels/products/products_gpu.h"

#include <algorithm>

#include "base/error.h"

namespace rapt {
namespace {

// Rows whose codes lie side by side and begin at multiples of 16 bytes.
bool copies_by_16(const TensorRef& t) {
  const auto address = reinterpret_cast<uintptr_t>(t.data);
  return t.column == 1 && address % 16 == 0 && t.batch % 16 == 0 && t.head % 16 == 0 && t.row % 16 == 0;
}

int arch_for(const Device& device) { return device.arch.empty() ? device.sm : arch_number(device.arch); }

bool fits_tensor_cores(const ProductParams& p, int arch) {
  constexpr index_t most_depth = index_t{1} << 30;  // steps are counted in int
  return arch >= 89 && is_code(p.a.dtype) && is_code(p.b.dtype) && p.depth % 16 == 0 && p.depth <= most_depth &&
         copies_by_16(p.a) && copies_by_16(p.b);
}

std::string code_of(const ProductConfig& c) {
  const auto dtype = [](DType t) { return concat("rapt::DType::", name_of(t)); };
  return concat("rapt::ProductConfig{.a = ", dtype(c.a), ", .b = ", dtype(c.b), ", .out = ", dtype(c.out),
                ", .tensor_cores = ", c.tensor_cores ? "true" : "false", ", .block_m = ", c.block_m,
                ", .block_n = ", c.block_n, ", .warps_m = ", c.warps_m, ", .warps_n = ", c.warps_n,
                ", .depth_step = ", c.depth_step, ", .stages = ", c.stages, ", .flush = ", c.flush,
                ", .min_blocks = ", c.min_blocks, "}");
}

}  // namespace

ProductConfig product_config(const ProductParams& p, const Device& device) {
  ProductConfig c;
  c.a = p.a.dtype, c.b = p.b.dtype, c.out = p.out.dtype;
  c.flush = p.depth > product_flush ? product_flush : 0;
  const int arch = arch_for(device);
  c.tensor_cores = fits_tensor_cores(p, arch);
  if (!c.tensor_cores) return c;
  c.depth_step = 64, c.stages = 3;
  c.block_m = c.block_n = 128;
  if (arch >= 90 && arch < 120)  // no such instruction: what the compiler puts in its place takes more registers
    c.block_n = 64, c.warps_m = 4, c.warps_n = 2;
  else if (c.flush == 0)
    c.min_blocks = 2;
  if (product_tiles(p, c) >= device.sm_count) return c;
  c.block_m = c.block_n = 64, c.warps_m = c.warps_n = 2, c.min_blocks = 1;  // more of the card has something to do
  return c;
}

KernelUnit product_unit(const ProductConfig& c) {
  return {concat("#include \"products/products.cuh\"\nconstexpr rapt::ProductConfig cfg = ", code_of(c),
                 ";\nextern \"C\" __global__ void __launch_bounds__(cfg.threads(), cfg.min_blocks) "
                 "rapt_kernel(const __grid_constant__ rapt::ProductParams p) { rapt::multiply_rows<cfg>(p); }\n"),
          c.threads(), static_cast<size_t>(c.shared_bytes())};
}

LaunchSpec product_launch(const ProductParams& params, const ProductConfig& config) {
  LaunchSpec spec(params);
  // The kernel strides over tiles beyond the grid.
  if (params.batch * params.heads * params.rows_a * params.rows_b > 0)
    spec.grid_x = static_cast<unsigned>(std::min(product_tiles(params, config), most_blocks));
  return spec;
}

}  // namespace rapt
