/* Causal grouped-query attention from C in one call: 8 query heads share 2 key and value heads.
 *
 * With an installed rapt:  cc attention.c $(pkg-config --cflags --libs rapt) -lm -o attention
 * Prints the log-sum-exp of a few rows. Exits with 1 if a row is wrong.
 */
#include <math.h>
#include <rapt/rapt.h>
#include <stdio.h>
#include <stdlib.h>

enum { batch = 1, heads_q = 8, heads_k = 2, seqlen = 100, head_dim = 64 };

/* A tensor is a view: the caller owns the memory. strides = NULL means contiguous, last dimension fastest. */
static rapt_tensor view(float* data, int32_t rank, const int64_t* shape) {
  rapt_tensor tensor = {0};
  tensor.data = data;
  tensor.device.type = RAPT_DEVICE_CPU;
  tensor.dtype = RAPT_F32;
  tensor.rank = rank;
  tensor.shape = shape;
  return tensor;
}

static float* floats(size_t count) {
  float* data = calloc(count, sizeof(float));
  if (data == NULL) exit(3);
  return data;
}

int main(void) {
  const int64_t q_shape[4] = {batch, heads_q, seqlen, head_dim};
  const int64_t k_shape[4] = {batch, heads_k, seqlen, head_dim};
  const size_t q_count = (size_t)batch * heads_q * seqlen * head_dim,
               k_count = (size_t)batch * heads_k * seqlen * head_dim;
  float *q = floats(q_count), *k = floats(k_count), *v = floats(k_count), *out = floats(q_count);
  float* lse = floats((size_t)batch * heads_q * seqlen);

  /* All keys are zero, so every visible key has the same weight. Value j is j. So row i is the mean of 0..i, and its
   * lse is ln(i+1). */
  for (size_t i = 0; i < q_count; ++i) q[i] = 1.0f;
  for (size_t i = 0; i < k_count; ++i) v[i] = (float)(i / head_dim % seqlen);

  const rapt_tensor q_view = view(q, 4, q_shape), k_view = view(k, 4, k_shape), v_view = view(v, 4, k_shape);
  const rapt_tensor out_view = view(out, 4, q_shape), lse_view = view(lse, 3, q_shape);

  /* Zero the struct, set struct_size, then set the fields you need. A NULL context is the process default. */
  rapt_sdpa_args args = {0};
  args.struct_size = sizeof args;
  args.flags = RAPT_CAUSAL;
  args.q = &q_view;
  args.k = &k_view;
  args.v = &v_view;
  args.out = &out_view;
  args.lse = &lse_view;
  if (rapt_sdpa(NULL, &args, NULL) != RAPT_OK) {
    fprintf(stderr, "rapt_sdpa: %s\n", rapt_last_error());
    return 1;
  }

  int wrong = 0;
  for (int i = 0; i < seqlen; ++i) {
    const float* row = out + (size_t)i * head_dim; /* head 0 */
    wrong += fabsf(row[0] - (float)i / 2) > 1e-4f * (float)(i + 1) || fabsf(lse[i] - logf((float)(i + 1))) > 1e-5f;
    if (i % 33 == 0) printf("row %2d: out %6.2f, lse %.4f\n", i, (double)row[0], (double)lse[i]);
  }
  printf("rapt %s: %s\n", rapt_version(), wrong ? "WRONG" : "as expected");
  free(q), free(k), free(v), free(out), free(lse);
  return wrong ? 1 : 0;
}
