// libFuzzer harness of tuned rows: any line either parses or throws Error. A parsed row must print, and parse to a row
// that prints the same. Seeds: corpus/tuned_row.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "runtime/tuned_rows.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string printed;
  try {
    printed = rapt::to_string(rapt::parse_tuned_row({reinterpret_cast<const char*>(data), size}));
  } catch (const rapt::Error&) {
    return 0;
  }
  try {
    if (rapt::to_string(rapt::parse_tuned_row(printed)) == printed) return 0;
  } catch (const rapt::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  std::fprintf(stderr, "does not round-trip: %s\n", printed.c_str());
  std::abort();
}
