// rapt_qk and rapt_gemm on GPUs, host code: chooses the kernel and its tiles, and describes the launch. Kernels:
// products.cuh.
#include "kernels/products/products_gpu.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/config_table.h"

namespace rapt {
namespace {

// Returns whether rows of FP8 are contiguous and 16-byte aligned.
bool copies_by_16(const TensorRef& t) {
  const auto address = reinterpret_cast<uintptr_t>(t.data);
  return t.column == 1 && address % 16 == 0 && t.batch % 16 == 0 && t.head % 16 == 0 && t.row % 16 == 0;
}

int arch_for(const Device& device) { return device.arch.empty() ? device.sm : arch_number(device.arch); }

bool fits_tensor_cores(const ProductParams& p, int arch) {
  constexpr index_t max_depth = index_t{1} << 30;  // k blocks are counted in int
  return arch >= 89 && is_tensor_core_fp8(p.a.dtype) && is_tensor_core_fp8(p.b.dtype) && p.depth % 16 == 0 &&
         p.depth <= max_depth && copies_by_16(p.a) && copies_by_16(p.b);
}

constexpr ConfigField config_fields[] = {
    config_field<ProductConfig, &ProductConfig::a>("a"),
    config_field<ProductConfig, &ProductConfig::b>("b"),
    config_field<ProductConfig, &ProductConfig::out>("out"),
    config_field<ProductConfig, &ProductConfig::tensor_cores>("tensor_cores"),
    config_field<ProductConfig, &ProductConfig::block_m>("block_m"),
    config_field<ProductConfig, &ProductConfig::block_n>("block_n"),
    config_field<ProductConfig, &ProductConfig::warps_m>("warps_m"),
    config_field<ProductConfig, &ProductConfig::warps_n>("warps_n"),
    config_field<ProductConfig, &ProductConfig::block_k>("block_k"),
    config_field<ProductConfig, &ProductConfig::stages>("stages"),
    config_field<ProductConfig, &ProductConfig::promotion_interval>("promotion_interval"),
    config_field<ProductConfig, &ProductConfig::min_blocks>("min_blocks"),
};
constexpr ConfigType config_table = config_type<ProductConfig>("ProductConfig", config_fields);

}  // namespace

ProductConfig product_config(const ProductParams& p, const Device& device) {
  ProductConfig c;
  c.a = p.a.dtype, c.b = p.b.dtype, c.out = p.out.dtype;
  c.promotion_interval = p.depth > product_promotion_interval ? product_promotion_interval : 0;
  const int arch = arch_for(device);
  c.tensor_cores = fits_tensor_cores(p, arch);
  if (!c.tensor_cores) return c;
  c.block_k = 64, c.stages = 3;
  c.block_m = c.block_n = 128;
  if (arch >= 90 && arch < 120)  // no native FP8 mma.sync: the emulation needs more registers
    c.block_n = 64, c.warps_m = 4, c.warps_n = 2;
  else if (c.promotion_interval == 0)
    c.min_blocks = 2;
  if (product_tiles(p, c) >= device.sm_count) return c;
  c.block_m = c.block_n = 64, c.warps_m = c.warps_n = 2, c.min_blocks = 1;  // smaller tiles occupy more SMs
  return c;
}

KernelUnit product_unit(const ProductConfig& c) {
  return {emit_unit("products/products.cuh", "multiply_rows", config_table, &c, "ProductParams"), c.threads(),
          static_cast<size_t>(c.shared_bytes())};
}

LaunchSpec product_launch(const ProductParams& params, const ProductConfig& config) {
  LaunchSpec spec(params);
  // The kernel is a grid-stride loop over tiles.
  if (params.batch * params.heads * params.rows_a * params.rows_b > 0)
    spec.grid_x = static_cast<unsigned>(std::min(product_tiles(params, config), max_grid_x));
  return spec;
}

}  // namespace rapt
