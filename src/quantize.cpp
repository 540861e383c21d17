// rapt_quantize: its shape is settled, no family carries it out yet, and it says so.
#include "error.h"
#include "sdpa.h"
#include "tensor_rules.h"

namespace rapt {

void quantize(Context&, const rapt_quantize_args& args, void*) {
  check_struct_size("args", args.struct_size, &args, sizeof args);
  unsupported(
      "rapt_quantize: no kernel family of this build quantises; pass FP8 tensors with their descale factors to "
      "rapt_sdpa");
}

}  // namespace rapt
