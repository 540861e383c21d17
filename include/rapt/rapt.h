/* rapt.h: the C ABI of rapt, scaled dot-product attention on NVIDIA GPUs and CPUs.
 * Used by C, by C++ (through rapt.hpp) and by every binding. It needs only a C99 compiler.
 * Exact semantics: docs/semantics.md. Terms: docs/glossary.md. Names and memory layouts are those that are common in
 * attention libraries. In this file "FP8" means e4m3, e5m2 and also sim8.
 *
 * The operation (forward), for batch b, query head h, query i, key j (kv head = h / (heads_q / heads_k)):
 *   x[i,j] = softmax_scale * dot(q[i], k[j]);  x = softcap * tanh(x / softcap);  x += bias[i,j];
 *   x -= alibi_slope[h] * |i + off - j|;  masked keys are removed;  o[i] = sum_j softmax(x[i])[j] * v[j]
 * off is the offset between query and key positions. For each sequence off = seqlen_k - seqlen_q, where only the keys
 * and queries in use count. For top-left causal, off = 0. If q_start or k_start is given, off = q_start - k_start.
 * A row that sees no key gets o = 0 and lse = -inf (with a sink: lse = sink). A row after seqused_q gets o = 0 and
 * lse = -inf, also with a sink. A masked key never affects a row, even if it holds NaN.
 * References: Vaswani et al. 2017 (attention); Milakov & Gimelshein 2018 (online softmax); Dao 2023
 * (FlashAttention-2); Press et al. 2022 (ALiBi); Gemma 2 report 2024 (soft cap); Xiao et al. 2024 (sinks).
 */
#ifndef RAPT_H_
#define RAPT_H_

#include <stddef.h>
#include <stdint.h>

#if defined(RAPT_STATIC)
#define RAPT_API
#else
#define RAPT_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define RAPT_VERSION_MAJOR 0
#define RAPT_VERSION_MINOR 1
#define RAPT_VERSION_PATCH 0

/* Every function that can fail returns one of these. After a failure rapt_last_error() holds the error sentence. */
typedef enum rapt_status {
  RAPT_OK = 0,
  RAPT_ERROR_INVALID_ARGUMENT = 1, /* the call is wrong; the sentence names argument, value and rule */
  RAPT_ERROR_UNSUPPORTED = 2,      /* the call is legal, but no kernel of this build supports it */
  RAPT_ERROR_OUT_OF_MEMORY = 3,
  RAPT_ERROR_ENVIRONMENT = 4, /* a driver, GPU, NVRTC or file is missing or unusable */
  RAPT_ERROR_DEVICE = 5,      /* the driver reported a failure */
  RAPT_ERROR_INTERNAL = 6     /* a defect of rapt: please report it */
} rapt_status;

/* Numbers are those of DLPack's DLDeviceType. */
typedef enum rapt_device_type { RAPT_DEVICE_CPU = 1, RAPT_DEVICE_CUDA = 2 } rapt_device_type;

typedef struct rapt_device {
  int32_t type;  /* rapt_device_type */
  int32_t index; /* 0 for the CPU */
} rapt_device;

typedef enum rapt_dtype {
  RAPT_DTYPE_NONE = 0,
  RAPT_F32 = 1,
  RAPT_F16 = 2,
  RAPT_BF16 = 3,
  RAPT_E4M3 = 4, /* OCP FP8 E4M3 (no infinity, max 448) */
  RAPT_E5M2 = 5, /* OCP FP8 E5M2 (max 57344) */
  RAPT_SIM8 = 6, /* 8 bits: maps [-448, 448] linearly to 0..255; 0 is stored as code 128 (1.76); a reference format */
  RAPT_U8 = 7,   /* boolean masks: 0 masks a key, 1 keeps it; other values are errors. The CPU always checks this; a GPU
                    only with RAPT_CHECK_CONTENTS */
  RAPT_I32 = 8,  /* lengths and offsets */
  RAPT_I64 = 9   /* starts (positions) */
} rapt_dtype;

/* A view: rapt never owns or moves the data. Strides are in elements. Strides of inputs may be 0 or negative.
 * strides = NULL means contiguous (last dimension fastest). A tensor of rank 0 is a scalar. data may be NULL if the
 * tensor has no elements. Functions take a pointer to a tensor; NULL means absent. */
typedef struct rapt_tensor {
  void* data;
  rapt_device device;
  int32_t dtype; /* rapt_dtype */
  int32_t rank;
  const int64_t* shape;
  const int64_t* strides;
} rapt_tensor;

/* Bits of rapt_sdpa_args.has. If a bit is 0, rapt ignores the field and uses its default. */
#define RAPT_HAS_SCALE (UINT64_C(1) << 0)
#define RAPT_HAS_SOFTCAP (UINT64_C(1) << 1)
#define RAPT_HAS_WINDOW (UINT64_C(1) << 2)
#define RAPT_HAS_Q_START (UINT64_C(1) << 3) /* q_start: one for all sequences. (q_starts: one for each) */
#define RAPT_HAS_K_START (UINT64_C(1) << 4)
#define RAPT_HAS_MAX_SEQLEN_Q (UINT64_C(1) << 5)
#define RAPT_HAS_MAX_SEQLEN_K (UINT64_C(1) << 6)
#define RAPT_HAS_SPLITS (UINT64_C(1) << 7)

/* Bits of rapt_sdpa_args.flags. Unknown bits are errors. */
#define RAPT_CAUSAL (UINT64_C(1) << 0)          /* bottom-right: j <= i + off */
#define RAPT_CAUSAL_TOP_LEFT (UINT64_C(1) << 1) /* j <= i, and off = 0 */
#define RAPT_PARTIAL (UINT64_C(1) << 2)         /* a partial state for rapt_merge: out must be f32, lse is required */
/* The bits of a row do not depend on other rows, heads, sequences or lengths of the call, nor on pages. The call is
   slower. See "invariant" in docs/semantics.md. Not allowed with splits above 1. Default: not set. */
#define RAPT_INVARIANT (UINT64_C(1) << 3)
/* GPUs: also checks the values of lengths, starts, mask, descales and k_mean. It copies them to the host and waits. */
#define RAPT_CHECK_CONTENTS (UINT64_C(1) << 4)

/* The format of the softmax weights in P.V (their product with V) if V is FP8. AUTO is the same as F16. */
typedef enum rapt_pv_mode { RAPT_PV_AUTO = 0, RAPT_PV_F16 = 1, RAPT_PV_FP8 = 2, RAPT_PV_FP8X2 = 3 } rapt_pv_mode;
/* The precision of Q.K and P.V. F32: sums are f32, and the error of f32 tensors is that of f32 arithmetic. F16: sums
   are f16; it needs q, k and v in f16, and a GPU. TF32: f32 numbers are rounded to TF32 (11 bits) before they are
   multiplied, and sums are f32; it needs q, k or v in f32, and a GPU. */
typedef enum rapt_acc_mode { RAPT_ACC_F32 = 0, RAPT_ACC_F16 = 1, RAPT_ACC_TF32 = 2 } rapt_acc_mode;

/* A user-defined score modification. On GPUs it is the source text of a device function
 * `float apply(float score, long b, long h, long q, long k, const void*)`. On CPUs it is a pointer to a host function
 * with the same meaning. No kernel supports it yet. */
typedef struct rapt_score_mod {
  size_t struct_size;
  const char* device_source;
  const void* args;
  size_t args_bytes;
  float (*host)(float score, int64_t b, int64_t h, int64_t q, int64_t k, const void* args);
} rapt_score_mod;

/* Arguments of attention. Set all bytes to 0, set struct_size = sizeof(rapt_sdpa_args), then set the fields you need.
 *
 * Dense:   q [batch, heads_q, seqlen_q, head_dim], k [batch, heads_k, seqlen_k, head_dim],
 *          v [batch, heads_k, seqlen_k, head_dim_v], out [batch, heads_q, seqlen_q, head_dim_v],
 *          lse [batch, heads_q, seqlen_q].
 * Packed:  q [total_q, heads_q, head_dim], k [total_k, heads_k, head_dim],
 *          v [total_k, heads_k, head_dim_v], out [total_q, heads_q, head_dim_v],
 *          lse [heads_q, total_q].
 * A call is packed if cu_seqlens_q and cu_seqlens_k are given. Give both or neither.
 * Shapes have this logical order. Strides give the order in memory. heads_q must be a multiple of heads_k.
 * q, k, v: f32, f16, bf16, e4m3, e5m2 or sim8; they may differ. out: f32, f16 or bf16. lse: f32, natural log.
 * All tensors must be on one device. It selects the CPU or GPU code. Two elements of an output must not share memory,
 * and an output must not overlap another tensor.
 */
typedef struct rapt_sdpa_args {
  size_t struct_size;
  uint64_t has;   /* RAPT_HAS_* */
  uint64_t flags; /* RAPT_CAUSAL ... */

  const rapt_tensor* q;
  const rapt_tensor* k;
  const rapt_tensor* v;
  const rapt_tensor* out;
  const rapt_tensor* lse; /* optional output */

  const rapt_tensor* bias; /* f32, f16 or bf16; broadcasts (right-aligned) to [batch, heads_q, seqlen_q, seqlen_k]
                              (packed: to [batch, heads_q, max_seqlen_q, max_seqlen_k]; indices start at 0 in each
                              sequence) */
  const rapt_tensor* mask; /* u8, 1 keeps a key, 0 masks it; broadcasts like bias */
  const rapt_tensor* alibi_slopes; /* f32 [heads_q] or [batch, heads_q] */
  const rapt_tensor* sinks;        /* f32 [heads_q]: one logit per head; exp(sink) is added to the denominator only */

  const rapt_tensor* cu_seqlens_q; /* i32 [batch + 1], starts at 0, never decreases. On the CPU cu_seqlens_q,
                                      cu_seqlens_k, seqused_q and seqused_k may also be i64 */
  const rapt_tensor* cu_seqlens_k;
  const rapt_tensor* seqused_k;   /* i32 [batch], dense or packed: number of keys in use of each sequence */
  const rapt_tensor* block_table; /* i32 [batch, pages]: k, v are [num_pages, heads_k, page_size, dim] */

  /* f32 factors of the stored FP8 values. The *_scales fields below select the kind. The kind gives the shape: see the
   * table in docs/semantics.md, "FP8 and scales". */
  const rapt_tensor* q_descale;
  const rapt_tensor* k_descale;
  const rapt_tensor* v_descale;

  const rapt_tensor* q_starts; /* i64 [batch] (CPU: or i32): position of the first query of each sequence */
  const rapt_tensor* k_starts; /* i64 [batch] */

  double softmax_scale; /* RAPT_HAS_SCALE: any finite float, also 0 or negative. Default: 1/sqrt(head_dim) */
  double softcap;       /* RAPT_HAS_SOFTCAP: > 0. Default: no soft cap */
  int64_t window_left;  /* RAPT_HAS_WINDOW: i + off - left <= j <= i + off + right; -1: no limit */
  int64_t window_right;
  int64_t q_start;      /* RAPT_HAS_Q_START */
  int64_t k_start;      /* RAPT_HAS_K_START */
  int64_t max_seqlen_q; /* RAPT_HAS_MAX_SEQLEN_Q: required with cu_seqlens. A longer sequence is an error on the CPU and
                           with RAPT_CHECK_CONTENTS. Without the check a GPU uses only the first max_seqlen_q rows of
                           the sequence and does not write the rows after them */
  int64_t max_seqlen_k; /* RAPT_HAS_MAX_SEQLEN_K: the same for keys. Without the check a GPU ignores the keys after
                           the first max_seqlen_k */
  int64_t splits;       /* RAPT_HAS_SPLITS: the largest number of parts that the keys are split into, 1 or more. rapt
                           may make fewer: a part has at least one tile of keys. Default: the planner decides */

  int32_t q_scales; /* the kind of q_descale (rapt_scale_kind), RAPT_SCALE_NONE if q_descale is absent */
  int32_t k_scales;
  int32_t v_scales;
  int32_t pv;  /* rapt_pv_mode */
  int32_t acc; /* rapt_acc_mode */
  int32_t reserved;

  const rapt_score_mod* score_mod;

  void* workspace; /* scratch memory. NULL: the context's workspace (GPUs: one for each stream). Otherwise it must
                      have at least rapt_workspace_size bytes and be aligned to 64 bytes. Set its first N bytes to 0,
                      where N is the *zero_bytes of rapt_workspace_size. It must not overlap a tensor */
  size_t workspace_bytes;

  const rapt_tensor* k_mean; /* f32 [batch, heads_k, head_dim], only if k is FP8: the mean that rapt_quantize subtracted
                                from k and wrote to its `mean`. Key j is k[j] * k_descale + k_mean, so logits, soft cap,
                                sinks and lse are those of the original k. NULL: nothing was subtracted */

  const rapt_tensor* seqused_q; /* i32 [batch], dense or packed: number of queries in use of each sequence. Rows after
                                   them get out = 0 and lse = -inf, independent of the values of q in these rows. off
                                   uses the lengths in use */
} rapt_sdpa_args;

typedef enum rapt_scale_kind {
  RAPT_SCALE_NONE = 0,
  RAPT_SCALE_TENSOR = 1,
  RAPT_SCALE_HEAD = 2,
  RAPT_SCALE_TOKEN = 3,
  RAPT_SCALE_BLOCK64 = 4,
  RAPT_SCALE_BLOCK128 = 5,
  RAPT_SCALE_CHANNEL = 6
} rapt_scale_kind;

/* A context owns threads, plans and workspaces. NULL means the process default, which the first call creates.
 * Contexts are thread-safe. CPU calls on one context run one at a time. GPU calls run concurrently, with two
 * exceptions. A call waits if another thread is already compiling the kernel it needs. Calls on the same stream that
 * use the context's workspace wait for each other while they launch their kernels. After a fork the child may use a
 * context on the CPU. If the parent process used a GPU before the fork, GPU calls in the child return
 * RAPT_ERROR_ENVIRONMENT. */
typedef struct rapt_context rapt_context;

typedef struct rapt_context_options {
  size_t struct_size;
  int32_t num_threads; /* number of CPU threads. 0: as many as affinity, quotas and RAPT_THREADS allow */
  int32_t reserved;
} rapt_context_options;

/* options may be NULL. *context is set on success only. */
RAPT_API rapt_status rapt_context_create(const rapt_context_options* options, rapt_context** context);
/* Does nothing for NULL. No call may be running on the context. */
RAPT_API void rapt_context_destroy(rapt_context* context);

/* Computes attention, as described above. With CPU tensors the result is ready on return; stream must be NULL. With
 * CUDA tensors the call enqueues the work on stream, a CUstream of the tensors' GPU (NULL: the legacy default stream).
 * A refused call writes no output. */
RAPT_API rapt_status rapt_sdpa(rapt_context* context, const rapt_sdpa_args* args, void* stream);

/* Does all work of rapt_sdpa except the launch: it plans, compiles, loads and sizes the workspace. Use it to warm up.
 * It reads shapes, strides, dtypes and alignment, but never contents. On a GPU it prepares a class of lengths. Each
 * length up to 16 is its own class. Above 16, there are eight equal classes between one power of two and the next;
 * 4097 to 4608 is one class. Before graph capture, call it on the stream that you will capture. Then you can capture
 * all lengths of the class. rapt refuses a call on a captured stream if it must load a kernel, or if the stream's
 * workspace is too small. A graph uses the workspace of the stream on which it was captured. Do not run it at the same
 * time as other work that uses this workspace. If both must run at the same time, pass each captured call its own
 * `workspace`. */
RAPT_API rapt_status rapt_prepare(rapt_context* context, const rapt_sdpa_args* args, void* stream);

/* Gives the bytes of workspace that rapt_sdpa(args) needs (*bytes, may be 0). The caller must set the first *zero_bytes
 * of them to 0 once, before the first use. Either pointer may be NULL. */
RAPT_API rapt_status rapt_workspace_size(rapt_context* context, const rapt_sdpa_args* args, size_t* bytes,
                                         size_t* zero_bytes);

/* Writes a text for people: the problem line, and for each kernel family "chosen" or the reason why it was not chosen.
 * Writes at most capacity bytes, including the NUL. *length gets the full length without NUL; length may be NULL. */
RAPT_API rapt_status rapt_explain(rapt_context* context, const rapt_sdpa_args* args, char* buffer, size_t capacity,
                                  size_t* length);

/* Merges partial states (RAPT_PARTIAL outputs over disjoint sets of keys) in the given order:
 *   lse = ln((sum_p exp(lses[p])) + exp(sink));  out = sum_p exp(lses[p] - lse) * outs[p].
 * Without sinks, the term exp(sink) is missing.
 * outs[p]: f32 [batch, heads, seqlen, head_dim_v] or packed [total, heads, head_dim_v]; lses[p]: f32, lse's shape.
 * out: f32, f16 or bf16; lse: optional, f32; sinks: optional, f32 [heads]. A part with lse = -inf adds nothing: a
 * merge with an empty part returns the other part bit for bit. GPUs take at most 48 parts. Before graph capture, call
 * rapt_merge once. */
typedef struct rapt_merge_args {
  size_t struct_size;
  uint64_t has;   /* no bits yet */
  uint64_t flags; /* no bits yet */
  int64_t count;  /* number of parts, 1 or more */
  const rapt_tensor* const* outs;
  const rapt_tensor* const* lses;
  const rapt_tensor* sinks;
  const rapt_tensor* out;
  const rapt_tensor* lse;
} rapt_merge_args;
RAPT_API rapt_status rapt_merge(rapt_context* context, const rapt_merge_args* args, void* stream);

/* Quantises input (f32, f16 or bf16; [batch, heads, seqlen, dim], or packed [total, heads, dim] with cu_seqlens) to
 * output (e4m3, e5m2 or sim8; same shape, any strides) and descale (f32), so that output * descale approximates y:
 *   y = input, rotated or smoothed on request;
 *   descale = amax / largest number of the format (e4m3: 448, e5m2: 57344, sim8: 448), at least 2^-126, and 1 if amax
 *   is 0;
 *   output = y * (1 / descale), rounded to nearest even and saturated.
 * amax is the largest finite |y| of all elements that share the descale, including later keys of the block, head or
 * tensor. A descale without elements (a block after the end of a packed sequence) is 1. rapt does not write packed rows
 * outside all sequences. Values beyond the largest number, infinities included, become the largest number. NaN stays
 * NaN (code 0x7f). In sim8, which has no NaN, it becomes the code of 0 (128). CPU and GPU give the same bits.
 * RAPT_QUANTIZE_HADAMARD: y = H S x / sqrt(n) over each aligned group of n channels. n is the largest power of two that
 *   divides dim, at most 256; H is Sylvester's matrix; S are fixed signs (docs/fp8.md). Apply it to both q and k: then
 *   their products do not change.
 * RAPT_QUANTIZE_SMOOTH: subtracts the mean of each channel over the sequence's finite values (after the rotation) and
 *   writes it to mean. Pass that to rapt_sdpa as k_mean.
 * RAPT_QUANTIZE_SUPPLIED: descale is an input. It must be finite and at least 2^-126, because rapt divides by it. GPUs
 *   do not check this. */
#define RAPT_QUANTIZE_HADAMARD (UINT64_C(1) << 0)
#define RAPT_QUANTIZE_SMOOTH (UINT64_C(1) << 1)
#define RAPT_QUANTIZE_SUPPLIED (UINT64_C(1) << 2)
#define RAPT_QUANTIZE_HAS_PERCENTILE (UINT64_C(1) << 0)
#define RAPT_QUANTIZE_HAS_MAX_SEQLEN (UINT64_C(1) << 1)
typedef struct rapt_quantize_args {
  size_t struct_size;
  uint64_t has;   /* RAPT_QUANTIZE_HAS_* */
  uint64_t flags; /* RAPT_QUANTIZE_* */
  const rapt_tensor* input;
  const rapt_tensor* output;
  const rapt_tensor* descale; /* f32; the kind gives the shape (docs/semantics.md, "FP8 and scales"). Here every tensor
                                 may use channel: [batch, heads, dim] */
  int32_t scales;             /* the kind of descale (rapt_scale_kind), not NONE */
  int32_t reserved;
  const rapt_tensor* mean;       /* output, f32 [batch, heads, dim]: required with RAPT_QUANTIZE_SMOOTH, else NULL */
  const rapt_tensor* cu_seqlens; /* i32 [batch + 1] (CPU: or i64): packed input */
  int64_t max_seqlen; /* RAPT_QUANTIZE_HAS_MAX_SEQLEN: required with cu_seqlens. A longer sequence is an error
                         on the CPU; a GPU does not write its rows after max_seqlen */
  double percentile;  /* RAPT_QUANTIZE_HAS_PERCENTILE: above 0, at most 100. amax is this percentile of the finite |y|;
                         larger values saturate. Default: 100 (the maximum) */
} rapt_quantize_args;
RAPT_API rapt_status rapt_quantize(rapt_context* context, const rapt_quantize_args* args, void* stream);

/* Appends new tokens to a KV cache: writes k and v into k_cache and v_cache, in one pass. On the way it can rotate k
 * (and q) by rotary position embeddings (Su et al. 2021) and quantise k and v to FP8. CPU and GPU give the same bits.
 *
 * New tokens: k [batch, heads_k, seqlen_new, dim] and v [batch, heads_k, seqlen_new, dim_v]. Packed: k [total, heads_k,
 * dim] and v [total, heads_k, dim_v], with cu_seqlens_new (or with slot_mapping alone: then all tokens are one
 * sequence). Cache: k_cache [batch_cache, heads_k, capacity, dim] and v_cache [batch_cache, heads_k, capacity, dim_v]
 * (dense), or [num_pages, heads_k, page_size, ...] (paged), any strides. dtypes: f32, f16, bf16, e4m3 or e5m2. A cache
 * has the dtype of its input, or it is FP8 and has a descale.
 *
 * Exactly one argument says where the tokens go:
 * - seqused_k [batch]: the lengths before the append, not negative. Token i of sequence b gets position
 *   seqused_k[b] + i.
 * - starts [batch]: the same, but a start may be negative.
 * - slot_mapping [batch, seqlen_new], packed [total]: slot = page * page_size + row (dense: batch row * capacity +
 *   position).
 * A token with a negative position or slot is skipped: it is not an error, and nothing is written. A position past the
 * end of the cache or of the sequence's pages, an entry of block_table or cache_batch_idx outside the cache, a slot
 * past the end, a position past the rotary tables, and two tokens with the same place are errors on the CPU, and on a
 * GPU with RAPT_KV_APPEND_CHECK_CONTENTS. Without this check a GPU does not write such a token (if two tokens have the
 * same place, one of them is written).
 *
 * Rotary embedding: cos and sin [positions, rotary_dim / 2] (rapt_rotary_tables fills them). Let c = cos[position, j]
 * and s = sin[position, j]. The pair (x, y) becomes (x c - y s, y c + x s), in f32, each product and sum rounded, no
 * FMA. Pair j is channels (j, j + rotary_dim / 2), with RAPT_KV_APPEND_INTERLEAVED (2 j, 2 j + 1). Channels from
 * rotary_dim on are copied. The result is rounded once, to the dtype of the cache (q: of q_out). A NaN of the result is
 * the canonical NaN: 0x7fc00000, f16 0x7e00, bf16 0x7fc0. The position is that of the append, or that of `positions`.
 * Query i of sequence b is rotated at starts[b] + i (or positions). A query with a negative position is not written.
 *
 * FP8: y is the rotated k (or v), in f32. RAPT_SCALE_HEAD: descale is an input, f32 [batch, heads_k], finite and at
 * least 2^-126 (when rapt checks contents, it also checks this). RAPT_SCALE_TOKEN: descale is an output for each token
 * and head, by the rule of rapt_quantize, so older tokens never change. It is written at the token's place:
 * [batch_cache, heads_k, capacity]; with block_table or slot_mapping [num_pages, page_size, heads_k]. code = y * (1 /
 * descale), as in rapt_quantize. Without rotation and quantisation, bits are copied. */
#define RAPT_KV_APPEND_INTERLEAVED (UINT64_C(1) << 0) /* rotary pairs are neighbouring channels */
#define RAPT_KV_APPEND_Q_AT_START (UINT64_C(1) << 1)  /* all queries of a sequence are rotated at its start */
/* GPUs: also checks lengths, starts, slots, positions, block_table and supplied descales. Copies them to the host and
 * waits. */
#define RAPT_KV_APPEND_CHECK_CONTENTS (UINT64_C(1) << 2)
typedef struct rapt_kv_append_args {
  size_t struct_size;
  uint64_t has;   /* no bits yet */
  uint64_t flags; /* RAPT_KV_APPEND_* */
  const rapt_tensor* k;
  const rapt_tensor* v;
  const rapt_tensor* k_cache; /* outputs */
  const rapt_tensor* v_cache;
  const rapt_tensor* cu_seqlens_new; /* i32 or i64 [batch + 1]: packed k and v. Rows after the last value are skipped */
  const rapt_tensor* seqused_k;      /* i32 or i64 */
  const rapt_tensor* starts;         /* i64 or i32 */
  const rapt_tensor* slot_mapping;   /* i64 or i32 */
  const rapt_tensor* block_table; /* i32 [batch, pages], only with seqused_k or starts: position p of sequence b is row
                                     p % page_size of page block_table[b, p / page_size] */
  const rapt_tensor* cache_batch_idx; /* i32 or i64 [batch], only for dense caches: the batch row of sequence b in the
                                         caches. NULL: row b, and batch_cache must be batch */
  const rapt_tensor* k_descale;
  const rapt_tensor* v_descale;
  int32_t k_scales; /* rapt_scale_kind: NONE, HEAD or TOKEN */
  int32_t v_scales;
  const rapt_tensor* cos;       /* f32, f16 or bf16 [positions, rotary_dim / 2]; NULL: no rotary embedding */
  const rapt_tensor* sin;       /* as cos */
  const rapt_tensor* positions; /* i64 or i32 [batch, seqlen_new], packed [total]: rotary positions. Required with cos
                                   and slot_mapping */
  const rapt_tensor* q; /* f32, f16 or bf16 [batch, heads_q, seqlen_q, dim], packed [total, heads_q, dim]: is rotated,
                           too. seqlen_q may differ from seqlen_new without slot_mapping and positions */
  const rapt_tensor* q_out; /* output, shape and dtype of q. It may be q itself (same data and strides) */
} rapt_kv_append_args;
RAPT_API rapt_status rapt_kv_append(rapt_context* context, const rapt_kv_append_args* args, void* stream);

/* Fills tables for rapt_kv_append, on the CPU: cos[p, j] = round(m cos(a)), sin[p, j] = round(m sin(a)) with the angle
 * a = (first_position + p) * f_j. f_j, m and the angles are float64, and the result is rounded once to f32. With d =
 * rotary_dim, the frequency without scaling is base^(-2 j / d). The rules are those of Hugging Face transformers, with
 * its names of parameters: LINEAR: f_j / factor (Chen et al. 2023, position interpolation). DYNAMIC (dynamic NTK): base
 * is multiplied by (factor * L / M - (factor - 1))^(d / (d - 2)). L is the larger one of seqlen and M; M is
 * original_max_position_embeddings. YARN (Peng et al. 2023): a mix of f_j and f_j / factor between the dimensions that
 * turn beta_fast and beta_slow times in original_max_position_embeddings positions. m is attention_factor, or follows
 * from mscale, mscale_all_dim and factor. LLAMA3 (Llama 3.1): f_j for wavelengths below M / high_freq_factor, f_j /
 * factor for those above M / low_freq_factor, and a mix between them. A parameter that the rule does not use must be
 * absent. */
typedef enum rapt_rotary_kind {
  RAPT_ROTARY_DEFAULT = 0,
  RAPT_ROTARY_LINEAR = 1,
  RAPT_ROTARY_DYNAMIC = 2,
  RAPT_ROTARY_YARN = 3,
  RAPT_ROTARY_LLAMA3 = 4
} rapt_rotary_kind;
#define RAPT_ROTARY_HAS_BASE (UINT64_C(1) << 0)
#define RAPT_ROTARY_HAS_FACTOR (UINT64_C(1) << 1)
#define RAPT_ROTARY_HAS_SEQLEN (UINT64_C(1) << 2)
#define RAPT_ROTARY_HAS_ORIGINAL_MAX_POSITION_EMBEDDINGS (UINT64_C(1) << 3)
#define RAPT_ROTARY_HAS_BETA_FAST (UINT64_C(1) << 4)
#define RAPT_ROTARY_HAS_BETA_SLOW (UINT64_C(1) << 5)
#define RAPT_ROTARY_HAS_ATTENTION_FACTOR (UINT64_C(1) << 6)
#define RAPT_ROTARY_HAS_MSCALE (UINT64_C(1) << 7)
#define RAPT_ROTARY_HAS_MSCALE_ALL_DIM (UINT64_C(1) << 8)
#define RAPT_ROTARY_HAS_LOW_FREQ_FACTOR (UINT64_C(1) << 9)
#define RAPT_ROTARY_HAS_HIGH_FREQ_FACTOR (UINT64_C(1) << 10)
#define RAPT_ROTARY_NO_TRUNCATE \
  (UINT64_C(1) << 0) /* flags; YARN: does not round the bounds of the mix to whole pairs */
typedef struct rapt_rotary_args {
  size_t struct_size;
  uint64_t has;           /* RAPT_ROTARY_HAS_* */
  uint64_t flags;         /* RAPT_ROTARY_NO_TRUNCATE */
  const rapt_tensor* cos; /* outputs, f32 [positions, rotary_dim / 2] in host memory, any strides */
  const rapt_tensor* sin;
  int32_t kind; /* rapt_rotary_kind */
  int32_t reserved;
  int64_t first_position; /* position of row 0, 0 or more */
  int64_t seqlen;         /* DYNAMIC: the longest length in use. Default: original_max_position_embeddings */
  double base;            /* above 1, also called rope_theta. Default: 10000 */
  double factor;          /* above 0; required for all kinds but DEFAULT */
  double original_max_position_embeddings; /* above 0; required for DYNAMIC, YARN and LLAMA3 */
  double beta_fast;                        /* YARN. Default: 32 */
  double beta_slow;                        /* YARN. Default: 1 */
  double attention_factor;                 /* YARN: above 0. Default: from mscale, mscale_all_dim and factor */
  double mscale;                           /* YARN: with mscale_all_dim, or both absent */
  double mscale_all_dim;
  double low_freq_factor; /* LLAMA3: required, above 0 and below high_freq_factor */
  double high_freq_factor;
} rapt_rotary_args;
RAPT_API rapt_status rapt_rotary_tables(rapt_context* context, const rapt_rotary_args* args);

/* Computes only the product of q and k: out[b,h,i,j] = scale * q_descale * k_descale * dot(q[b,h,i], k[b,h/g,j]).
 * g = heads_q / heads_k. q [batch, heads_q, seqlen_q, head_dim] and k [batch, heads_k, seqlen_k, head_dim] are f32,
 * f16, bf16, e4m3, e5m2 or sim8; they may differ. out [batch, heads_q, seqlen_q, seqlen_k] is f32, f16 or bf16. Sums
 * are f32, except that the FP8 tensor cores of sm_89 keep fewer bits (docs/api.md). out is rounded to nearest even; in
 * f16, a magnitude of 65520 or more becomes infinite. Descales are those of rapt_sdpa: tensor, head, token, block64,
 * block128. */
#define RAPT_QK_HAS_SCALE (UINT64_C(1) << 0)
typedef struct rapt_qk_args {
  size_t struct_size;
  uint64_t has;   /* RAPT_QK_HAS_* */
  uint64_t flags; /* no bits yet */
  const rapt_tensor* q;
  const rapt_tensor* k;
  const rapt_tensor* out;
  const rapt_tensor* q_descale;
  const rapt_tensor* k_descale;
  int32_t q_scales; /* rapt_scale_kind */
  int32_t k_scales;
  double scale; /* RAPT_QK_HAS_SCALE: any finite float. Default: 1 */
} rapt_qk_args;
RAPT_API rapt_status rapt_qk(rapt_context* context, const rapt_qk_args* args, void* stream);

/* Computes out[i,j] = a_descale[i] * b_descale[j] * sum over l of a[i,l] * b[l,j]. Sums are as in rapt_qk.
 * a [m, k] and b [k, n] are e4m3, e5m2, f16, bf16, f32 or sim8; they may differ. out [m, n] is f32, f16 or bf16.
 * Strides may be any. The call is fastest if the elements along dimension k are contiguous in a and in b, as in
 * torch._scaled_mm. Descales: tensor ([] or [1]) or token ([m] for a, [n] for b). */
typedef struct rapt_gemm_args {
  size_t struct_size;
  uint64_t has;   /* no bits yet */
  uint64_t flags; /* no bits yet */
  const rapt_tensor* a;
  const rapt_tensor* b;
  const rapt_tensor* out;
  const rapt_tensor* a_descale;
  const rapt_tensor* b_descale;
  int32_t a_scales; /* RAPT_SCALE_NONE, _TENSOR or _TOKEN */
  int32_t b_scales;
} rapt_gemm_args;
RAPT_API rapt_status rapt_gemm(rapt_context* context, const rapt_gemm_args* args, void* stream);

/* Adds a pack of compiled GPU kernels (`rapt pack`, docs/packs.md) to this context. The context searches memory, then
 * packs, then the cache directory, then calls NVRTC. The call needs no GPU. It returns RAPT_ERROR_ENVIRONMENT if the
 * file is missing or damaged. */
RAPT_API rapt_status rapt_load_pack(rapt_context* context, const char* path);

/* Returns "0.1.0", never NULL. */
RAPT_API const char* rapt_version(void);
/* Returns the error sentence of this thread's last failed call, or "" if none failed. It is valid until this thread
 * calls rapt again. */
RAPT_API const char* rapt_last_error(void);

#ifdef __cplusplus
}
#endif
#endif /* RAPT_H_ */
