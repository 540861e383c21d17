/* The smallest use of rapt from C: one query, two keys, and a result that can be calculated by hand.
 * Built and run by tests/packaging/consumers.sh. Exits with 0 if the numbers are right. */
#include <math.h>
#include <rapt/rapt.h>
#include <stdio.h>

int main(void) {
  /* The scores are 0 and ln 3, so the weights are 1/4 and 3/4. So out = 0.25 * 1 + 0.75 * 5 = 4, and lse = ln 4. */
  float q[] = {1.0f}, k[] = {0.0f, 1.0986123f}, v[] = {1.0f, 5.0f}, out[] = {0.0f}, lse[] = {0.0f};
  const int64_t one[] = {1, 1, 1, 1}, two[] = {1, 1, 2, 1};
  const rapt_device cpu = {RAPT_DEVICE_CPU, 0};
  const rapt_tensor tq = {q, cpu, RAPT_F32, 4, one, NULL}, tk = {k, cpu, RAPT_F32, 4, two, NULL};
  const rapt_tensor tv = {v, cpu, RAPT_F32, 4, two, NULL}, to = {out, cpu, RAPT_F32, 4, one, NULL};
  const rapt_tensor tl = {lse, cpu, RAPT_F32, 3, one, NULL};
  rapt_sdpa_args args = {0};
  args.struct_size = sizeof args;
  args.q = &tq;
  args.k = &tk;
  args.v = &tv;
  args.out = &to;
  args.lse = &tl;
  if (rapt_sdpa(NULL, &args, NULL) != RAPT_OK) {
    fprintf(stderr, "%s\n", rapt_last_error());
    return 1;
  }
  printf("rapt %s: out %.6f (4), lse %.6f (ln 4)\n", rapt_version(), out[0], lse[0]);
  return fabsf(out[0] - 4.0f) < 1e-5f && fabsf(lse[0] - 1.3862944f) < 1e-5f ? 0 : 1;
}
