// R114: an append and attention that reads the new tokens. reports.h describes the report.
#include <gtest/gtest.h>

#include "append_then_attend.h"
#include "reports.h"

namespace rapt::test {

TEST(Reports, R114) {
  for (const int64_t old : {15, 16, 17})
    for (const int64_t fresh : {1, 2, 3}) {
      SCOPED_TRACE(concat(old, " old tokens, ", fresh, " new"));
      const AppendThenAttend step(old, fresh);
      append_on_cpu(step.append);
      const AppendArgs places(step.append);
      step.with_attention(places.args, check::in_host_memory, [](const rapt_sdpa_args& args) {
        EXPECT_EQ(rapt_sdpa(nullptr, &args, nullptr), RAPT_OK) << rapt_last_error();
      });
      expect_same_bits(step.out, step.dense());
    }
}

}  // namespace rapt::test
