// libFuzzer harness of the .safetensors reader: any bytes give tensors that fit the file, or rapt::Error.
// Run by CI: safetensors_fuzz -max_total_time=60 tests/fuzz/corpus/safetensors
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "lab/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string_view bytes(reinterpret_cast<const char*>(data), size);
    const rapt::lab::TensorFile file = rapt::lab::read_safetensors(rapt::lab::MemorySource("fuzz", bytes));
    size_t total = 0;
    for (const auto& [name, tensor] : file.tensors) total += rapt::lab::contiguous_bytes(tensor).size();
    if (total > size) std::abort();
  } catch (const rapt::Error&) {
  }
  return 0;
}
