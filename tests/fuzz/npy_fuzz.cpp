// libFuzzer harness of the .npy reader: any bytes give a tensor that fits the file, or rapt::Error.
// Run by CI: npy_fuzz -max_total_time=60 tests/fuzz/corpus/npy
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "lab/npy.h"
#include "lab/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  constexpr rapt::DType raws[] = {rapt::DType::none, rapt::DType::bf16, rapt::DType::e4m3};
  const rapt::DType raw = raws[data[size - 1] % 3];  // the last byte selects the dtype of raw bytes
  try {
    const std::string_view bytes(reinterpret_cast<const char*>(data), size);
    const rapt::check::HostTensor tensor = rapt::lab::read_npy(rapt::lab::MemorySource("fuzz", bytes), raw);
    if (rapt::lab::contiguous_bytes(tensor).size() > size) std::abort();
  } catch (const rapt::Error&) {
  }
  return 0;
}
