// DefaultArithmetic: sets the default floating-point environment for a scope. Used by every call that computes on the
// CPU and by worker threads, because the caller can have changed the environment of its thread.
#pragma once

#include <cfenv>

namespace rapt::cpu {

// Reason: XLA and torch.set_flush_denormal make the CPU flush subnormal numbers to zero (and one sixteenth of all E4M3
// values is subnormal). Other libraries change the rounding mode. Without this class, results would depend on the
// caller. The destructor restores the previous environment.
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
