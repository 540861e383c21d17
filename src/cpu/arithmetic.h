// DefaultArithmetic: IEEE arithmetic as the language starts with it, for a scope. Held around every call that computes
// on the CPU and by its workers, since callers may have made something else of their threads.
#pragma once

#include <cfenv>

namespace rapt::cpu {

// XLA and torch.set_flush_denormal flush subnormal numbers to zero, of which a sixteenth of all E4M3 values is, and
// others round another way: bits would depend on who calls. What was is put back.
class DefaultArithmetic {
 public:
  DefaultArithmetic() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultArithmetic() { std::fesetenv(&before_); }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace rapt::cpu
