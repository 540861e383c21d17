// rapt_qk and rapt_gemm: sums of products by themselves. Called by c_api.cpp.
#include "error.h"
#include "sdpa.h"
#include "tensor_rules.h"

namespace rapt {

void qk(Context&, const rapt_qk_args& args, void*) {
  check_struct_size("args", args.struct_size, &args, sizeof args);
  unsupported("rapt_qk: no kernel family of this build takes it");
}

void gemm(Context&, const rapt_gemm_args& args, void*) {
  check_struct_size("args", args.struct_size, &args, sizeof args);
  unsupported("rapt_gemm: no kernel family of this build takes it");
}

}  // namespace rapt
