// rapt.hpp: the C++20 API of rapt. It is header only and calls the C ABI of rapt.h. docs/api.md describes the whole
// API. It needs only the standard library and librapt. A failed call throws rapt::Exception. All names are in the
// inline namespace v0. A release can change this name. Then the linker never mixes its functions with those of an
// earlier release.
#ifndef RAPT_HPP_
#define RAPT_HPP_

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "rapt/rapt.h"

namespace rapt {
inline namespace v0 {

// A failed call throws this exception. It holds the C ABI's status. what() is the error sentence.
class Exception : public std::runtime_error {
 public:
  Exception(rapt_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  rapt_status status() const { return status_; }

 private:
  rapt_status status_;
};

// Element types; the values are those of rapt_dtype.
enum class Type : int32_t {
  none = RAPT_DTYPE_NONE,
  f32 = RAPT_F32,
  f16 = RAPT_F16,
  bf16 = RAPT_BF16,
  e4m3 = RAPT_E4M3,
  e5m2 = RAPT_E5M2,
  sim8 = RAPT_SIM8,
  u8 = RAPT_U8,
  i32 = RAPT_I32,
  i64 = RAPT_I64
};

// Storage tags for formats without a C++20 type. A pointer to one of them tells Tensor the format.
struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};
struct E4m3 {
  uint8_t bits;
};
struct E5m2 {
  uint8_t bits;
};

// The Type of a C++ element type. Specialise it for a half type of your own:
//   template <> inline constexpr rapt::Type rapt::type_of<my::half> = rapt::Type::f16;
template <class T>
inline constexpr Type type_of = Type::none;
template <>
inline constexpr Type type_of<float> = Type::f32;
template <>
inline constexpr Type type_of<Float16> = Type::f16;
template <>
inline constexpr Type type_of<BFloat16> = Type::bf16;
template <>
inline constexpr Type type_of<E4m3> = Type::e4m3;
template <>
inline constexpr Type type_of<E5m2> = Type::e5m2;
template <>
inline constexpr Type type_of<uint8_t> = Type::u8;
template <>
inline constexpr Type type_of<bool> = Type::u8;
template <>
inline constexpr Type type_of<int32_t> = Type::i32;
template <>
inline constexpr Type type_of<int64_t> = Type::i64;

inline constexpr rapt_device host_device{RAPT_DEVICE_CPU, 0};
constexpr rapt_device cuda_device(int32_t index) { return {RAPT_DEVICE_CUDA, index}; }

// A shape or strides: at most 4 numbers.
class Dims {
 public:
  static constexpr size_t max_rank = 4;

  Dims() = default;
  Dims(std::initializer_list<int64_t> values) : Dims(std::span(values.begin(), values.size())) {}
  Dims(const std::vector<int64_t>& values) : Dims(std::span(values.data(), values.size())) {}
  explicit Dims(std::span<const int64_t> values) : rank_(values.size()) {
    if (rank_ > max_rank)
      throw Exception(RAPT_ERROR_INVALID_ARGUMENT,
                      "rank " + std::to_string(rank_) + ": tensors have at most 4 dimensions");
    for (size_t d = 0; d < rank_; ++d) values_[d] = values[d];
  }

  size_t rank() const { return rank_; }
  const int64_t* data() const { return values_.data(); }
  int64_t operator[](size_t d) const { return values_[d]; }

 private:
  std::array<int64_t, max_rank> values_{};
  size_t rank_ = 0;
};

// A view of the caller's memory. It owns its shape and strides (in elements), but never the data.
// A default-constructed Tensor means "absent".
class Tensor {
 public:
  Tensor() = default;

  // The pointer's type determines the element type. Without strides, the tensor is contiguous and the last dimension
  // varies fastest.
  template <class T>
  requires(type_of<std::remove_const_t<T>> != Type::none)
      Tensor(T* data, const Dims& shape, const Dims& strides = {}, rapt_device device = host_device)
      : Tensor(static_cast<const void*>(data), type_of<std::remove_const_t<T>>, shape, strides, device,
               std::is_const_v<T>) {}

  // Like the constructor above, for GPU memory: Tensor(p, shape, cuda_device(0)).
  template <class T, std::same_as<rapt_device> Device>
  requires(type_of<std::remove_const_t<T>> != Type::none) Tensor(T* data, const Dims& shape, Device device)
      : Tensor(data, shape, Dims{}, device) {}

  // Like the constructors above, with an explicit element type, for untyped memory.
  Tensor(void* data, Type type, const Dims& shape, const Dims& strides = {}, rapt_device device = host_device)
      : Tensor(data, type, shape, strides, device, false) {}
  Tensor(const void* data, Type type, const Dims& shape, const Dims& strides = {}, rapt_device device = host_device)
      : Tensor(data, type, shape, strides, device, true) {}
  template <std::same_as<rapt_device> Device>
  Tensor(void* data, Type type, const Dims& shape, Device device) : Tensor(data, type, shape, Dims{}, device) {}
  template <std::same_as<rapt_device> Device>
  Tensor(const void* data, Type type, const Dims& shape, Device device) : Tensor(data, type, shape, Dims{}, device) {}

  bool present() const { return type_ != Type::none; }
  bool read_only() const { return read_only_; }
  Type type() const { return type_; }
  const Dims& shape() const { return shape_; }
  void* data() const { return data_; }

  // The C view. It points into this Tensor and is valid until this Tensor is changed or destroyed.
  rapt_tensor view() const& {
    const int64_t* strides = strides_ ? strides_->data() : nullptr;
    return {data_, device_, static_cast<int32_t>(type_), static_cast<int32_t>(shape_.rank()), shape_.data(), strides};
  }
  rapt_tensor view() && = delete;

 private:
  Tensor(const void* data, Type type, const Dims& shape, const Dims& strides, rapt_device device, bool read_only)
      : data_(const_cast<void*>(data)), type_(type), device_(device), shape_(shape), read_only_(read_only) {
    if (strides.rank() == 0) return;
    if (strides.rank() != shape.rank())
      throw Exception(RAPT_ERROR_INVALID_ARGUMENT, "strides of rank " + std::to_string(strides.rank()) +
                                                       " for a shape of rank " + std::to_string(shape.rank()) +
                                                       ": the ranks must be equal");
    strides_ = strides;
  }

  void* data_ = nullptr;
  Type type_ = Type::none;
  rapt_device device_ = host_device;
  Dims shape_;
  std::optional<Dims> strides_;
  bool read_only_ = false;
};

enum class CausalMask { none, bottom_right, top_left };

// Query i sees keys i + off - left to i + off + right, inclusive; off is the position offset (docs/semantics.md). left
// = -1 or right = -1: no limit on that side.
struct SlidingWindow {
  int64_t left = -1;
  int64_t right = -1;
};

// The granularity of the descales: which elements of a tensor share one descale. It does not hold the descales: pass
// those in q_descale, k_descale and v_descale.
enum class Scales : int32_t {
  none = RAPT_SCALE_NONE,
  tensor = RAPT_SCALE_TENSOR,
  head = RAPT_SCALE_HEAD,
  token = RAPT_SCALE_TOKEN,
  block64 = RAPT_SCALE_BLOCK64,
  block128 = RAPT_SCALE_BLOCK128,
  channel = RAPT_SCALE_CHANNEL
};
enum class Pv : int32_t { automatic = RAPT_PV_AUTO, f16 = RAPT_PV_F16, fp8 = RAPT_PV_FP8, fp8x2 = RAPT_PV_FP8X2 };
enum class Accumulate : int32_t { f32 = RAPT_ACC_F32, f16 = RAPT_ACC_F16, tf32 = RAPT_ACC_TF32 };

// A user-defined score modification: device source code for GPUs, and an equivalent host function for CPUs. No kernel
// supports it yet.
struct ScoreMod {
  std::string device_source;
  std::vector<std::byte> args;
  float (*host)(float score, int64_t b, int64_t h, int64_t q, int64_t k, const void* args) = nullptr;
};

struct ContextOptions {
  int32_t num_threads = 0;  // 0: as many as affinity, quotas and RAPT_THREADS allow
};

namespace api_detail {

inline void check(rapt_status status) {
  if (status != RAPT_OK) throw Exception(status, rapt_last_error());
}

inline void check_writable(const char* name, const Tensor& tensor) {
  if (tensor.read_only())
    throw Exception(RAPT_ERROR_INVALID_ARGUMENT,
                    std::string(name) + ": made from a pointer to const, but it is an output");
}

// A C view that stays valid for one call; get() is NULL if the tensor is absent.
class Argument {
 public:
  explicit Argument(const Tensor& tensor) : present_(tensor.present()), view_(tensor.view()) {}
  const rapt_tensor* get() const { return present_ ? &view_ : nullptr; }

 private:
  bool present_;
  rapt_tensor view_;
};

}  // namespace api_detail

// Owns threads, plans and workspaces. Thread-safe. No call may be running on it when it is destroyed.
class Context {
 public:
  explicit Context(const ContextOptions& options = {}) {
    rapt_context_options c_options{};
    c_options.struct_size = sizeof(c_options);
    c_options.num_threads = options.num_threads;
    api_detail::check(rapt_context_create(&c_options, &handle_));
  }
  Context(Context&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Context& operator=(Context&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Context() { rapt_context_destroy(handle_); }

  rapt_context* get() const { return handle_; }

 private:
  rapt_context* handle_ = nullptr;
};

// The optional arguments of sdpa(). Designated initialisers must follow this order:
//   rapt::sdpa(q, k, v, out, {.lse = lse, .causal = rapt::CausalMask::bottom_right, .scale = 0.125});
struct SdpaOptions {
  Tensor lse = {};  // output: f32 [batch, heads_q, seqlen_q], packed [heads_q, total_q]

  CausalMask causal = CausalMask::none;
  std::optional<SlidingWindow> window = {};
  std::optional<double> scale = {};    // default: 1/sqrt(head_dim)
  std::optional<double> softcap = {};  // > 0

  Tensor bias = {};          // f32, f16, bf16; broadcasts right-aligned to [batch, heads_q, seqlen_q, seqlen_k]
  Tensor mask = {};          // u8: 1 keeps a key, 0 masks it; broadcasts like bias
  Tensor alibi_slopes = {};  // f32 [heads_q] or [batch, heads_q]
  Tensor sinks = {};         // f32 [heads_q]

  // cu_seqlens and seqused are i32, on the CPU also i64.
  Tensor cu_seqlens_q = {};  // [batch + 1]: q, k, v are packed. Set both cu_seqlens and both max_seqlen
  Tensor cu_seqlens_k = {};
  std::optional<int64_t> max_seqlen_q = {};
  std::optional<int64_t> max_seqlen_k = {};
  Tensor seqused_q = {};    // [batch]: number of valid queries; later rows get out = 0 and lse = -inf
  Tensor seqused_k = {};    // [batch]: number of valid keys
  Tensor block_table = {};  // i32 [batch, pages]: k and v are a paged cache [num_pages, heads_k, page_size, dim]

  std::optional<int64_t> q_start = {};  // position of the first query, for all sequences
  std::optional<int64_t> k_start = {};  // position of the first key, for all sequences
  Tensor q_starts = {};  // instead of q_start: i64 [batch] (CPU: also i32), one position for each sequence
  Tensor k_starts = {};

  Tensor q_descale = {};  // f32; q_scales below gives the shape
  Tensor k_descale = {};
  Tensor v_descale = {};
  Scales q_scales = Scales::none;  // granularity of q_descale
  Scales k_scales = Scales::none;  // granularity of k_descale
  Scales v_scales = Scales::none;  // granularity of v_descale
  Tensor k_mean = {};              // f32 [batch, heads_k, head_dim]: the mean that quantize() subtracted from k
  Pv pv = Pv::automatic;
  Accumulate acc = Accumulate::f32;

  bool partial = false;    // a partial state for merge(): out must be f32, lse is required
  bool invariant = false;  // a row's bits do not depend on other rows, sequences or lengths of the call, nor on pages
  // GPUs: also checks the values of lengths, starts, mask, descales and k_mean. It copies them to the host and waits.
  bool check_contents = false;
  std::optional<int64_t> splits = {};
  const ScoreMod* score_mod = nullptr;

  void* workspace = nullptr;  // nullptr: the context's workspace
  size_t workspace_bytes = 0;
  const Context* context = nullptr;  // nullptr: the process default
  void* stream = nullptr;            // CPU tensors: nullptr. CUDA tensors: a CUstream
};

struct WorkspaceSize {
  size_t bytes = 0;
  size_t zero_bytes = 0;  // leading bytes that the caller must set to 0 once, before the first use
};

namespace api_detail {

inline rapt_context* handle(const Context* context) { return context ? context->get() : nullptr; }

// The rapt_sdpa_args of one call and all that they point to. The given tensors must outlive it.
class SdpaCall {
 public:
  SdpaCall(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const SdpaOptions& options) {
    check_writable("out", out);
    check_writable("lse", options.lse);
    args_.struct_size = sizeof(args_);
    args_.q = view(q), args_.k = view(k), args_.v = view(v), args_.out = view(out), args_.lse = view(options.lse);
    args_.bias = view(options.bias), args_.mask = view(options.mask);
    args_.alibi_slopes = view(options.alibi_slopes), args_.sinks = view(options.sinks);
    args_.cu_seqlens_q = view(options.cu_seqlens_q), args_.cu_seqlens_k = view(options.cu_seqlens_k);
    args_.seqused_q = view(options.seqused_q), args_.seqused_k = view(options.seqused_k);
    args_.block_table = view(options.block_table);
    args_.q_descale = view(options.q_descale), args_.k_descale = view(options.k_descale);
    args_.v_descale = view(options.v_descale), args_.k_mean = view(options.k_mean);
    args_.q_starts = view(options.q_starts), args_.k_starts = view(options.k_starts);
    set_values(options);
    set_score_mod(options);
  }
  SdpaCall(const SdpaCall&) = delete;
  SdpaCall& operator=(const SdpaCall&) = delete;

  const rapt_sdpa_args* args() const { return &args_; }

 private:
  // A pointer to a C view that stays valid for the call; null for an absent tensor.
  const rapt_tensor* view(const Tensor& tensor) {
    if (!tensor.present()) return nullptr;
    rapt_tensor& kept = views_[used_++];
    kept = tensor.view();
    return &kept;
  }

  template <class T>
  void set(uint64_t bit, T& field, const std::optional<T>& value) {
    if (!value) return;
    args_.has |= bit;
    field = *value;
  }

  void set_values(const SdpaOptions& options) {
    set(RAPT_HAS_SCALE, args_.softmax_scale, options.scale);
    set(RAPT_HAS_SOFTCAP, args_.softcap, options.softcap);
    set(RAPT_HAS_Q_START, args_.q_start, options.q_start);
    set(RAPT_HAS_K_START, args_.k_start, options.k_start);
    set(RAPT_HAS_MAX_SEQLEN_Q, args_.max_seqlen_q, options.max_seqlen_q);
    set(RAPT_HAS_MAX_SEQLEN_K, args_.max_seqlen_k, options.max_seqlen_k);
    set(RAPT_HAS_SPLITS, args_.splits, options.splits);
    if (options.window) {
      args_.has |= RAPT_HAS_WINDOW;
      args_.window_left = options.window->left;
      args_.window_right = options.window->right;
    }
    if (options.causal == CausalMask::bottom_right) args_.flags |= RAPT_CAUSAL;
    if (options.causal == CausalMask::top_left) args_.flags |= RAPT_CAUSAL_TOP_LEFT;
    if (options.partial) args_.flags |= RAPT_PARTIAL;
    if (options.invariant) args_.flags |= RAPT_INVARIANT;
    if (options.check_contents) args_.flags |= RAPT_CHECK_CONTENTS;
    args_.q_scales = static_cast<int32_t>(options.q_scales);
    args_.k_scales = static_cast<int32_t>(options.k_scales);
    args_.v_scales = static_cast<int32_t>(options.v_scales);
    args_.pv = static_cast<int32_t>(options.pv);
    args_.acc = static_cast<int32_t>(options.acc);
    args_.workspace = options.workspace;
    args_.workspace_bytes = options.workspace_bytes;
  }

  void set_score_mod(const SdpaOptions& options) {
    if (!options.score_mod) return;
    mod_.struct_size = sizeof(mod_);
    mod_.device_source = options.score_mod->device_source.c_str();
    mod_.args = options.score_mod->args.data();
    mod_.args_bytes = options.score_mod->args.size();
    mod_.host = options.score_mod->host;
    args_.score_mod = &mod_;
  }

  std::array<rapt_tensor, 20> views_;  // the first used_ are in use
  size_t used_ = 0;
  rapt_score_mod mod_{};
  rapt_sdpa_args args_{};
};

}  // namespace api_detail

// Attention: out = softmax(scale * q k^T, masked) v. With CPU tensors, the result is ready on return. With CUDA
// tensors, the work is enqueued on the stream.
inline void sdpa(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                 const SdpaOptions& options = {}) {
  const api_detail::SdpaCall call(q, k, v, out, options);
  api_detail::check(rapt_sdpa(api_detail::handle(options.context), call.args(), options.stream));
}

// Does all work of sdpa() except the launch: it plans, compiles, loads and sizes the workspace. It never reads the
// contents of tensors. Call it before graph capture, on the stream that you will capture. On a GPU it prepares all
// lengths of the same length class (bucket): see rapt.h.
inline void prepare(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                    const SdpaOptions& options = {}) {
  const api_detail::SdpaCall call(q, k, v, out, options);
  api_detail::check(rapt_prepare(api_detail::handle(options.context), call.args(), options.stream));
}

inline WorkspaceSize workspace_size(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                    const SdpaOptions& options = {}) {
  const api_detail::SdpaCall call(q, k, v, out, options);
  WorkspaceSize size;
  api_detail::check(
      rapt_workspace_size(api_detail::handle(options.context), call.args(), &size.bytes, &size.zero_bytes));
  return size;
}

// Returns the problem line, and for each kernel family "chosen" or the reason why it was not chosen.
inline std::string explain(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                           const SdpaOptions& options = {}) {
  const api_detail::SdpaCall call(q, k, v, out, options);
  rapt_context* const context = api_detail::handle(options.context);
  size_t length = 0;
  api_detail::check(rapt_explain(context, call.args(), nullptr, 0, &length));
  std::string text(length + 1, '\0');
  api_detail::check(rapt_explain(context, call.args(), text.data(), text.size(), &length));
  text.resize(length);
  return text;
}

// A partial state: out (f32) and lse of a call with `partial` over a part of the keys.
struct PartialState {
  Tensor out;
  Tensor lse;
};

struct MergeOptions {
  Tensor lse = {};    // output, f32
  Tensor sinks = {};  // f32 [heads_q]; pass them here, not to the partial calls
  const Context* context = nullptr;
  void* stream = nullptr;
};

// Merges partial states over disjoint sets of keys in the given order.
inline void merge(std::span<const PartialState> parts, const Tensor& out, const MergeOptions& options = {}) {
  api_detail::check_writable("out", out);
  api_detail::check_writable("lse", options.lse);
  std::vector<api_detail::Argument> arguments;
  arguments.reserve(2 * parts.size());  // the pointers below must stay valid
  std::vector<const rapt_tensor*> outs, lses;
  for (const PartialState& part : parts) {
    outs.push_back(arguments.emplace_back(part.out).get());
    lses.push_back(arguments.emplace_back(part.lse).get());
  }
  const api_detail::Argument sinks(options.sinks), merged(out), lse(options.lse);
  rapt_merge_args args{};
  args.struct_size = sizeof(args);
  args.count = static_cast<int64_t>(parts.size());
  args.outs = outs.data();
  args.lses = lses.data();
  args.sinks = sinks.get();
  args.out = merged.get();
  args.lse = lse.get();
  api_detail::check(rapt_merge(api_detail::handle(options.context), &args, options.stream));
}

// The optional arguments of quantize(). Designated initialisers must follow this order.
struct QuantizeOptions {
  Tensor mean = {};        // output: f32 [batch, heads, dim]; required with smooth, else absent
  Tensor cu_seqlens = {};  // i32 [batch + 1] (CPU: or i64): packed input. Needs max_seqlen
  std::optional<int64_t> max_seqlen = {};
  std::optional<double> percentile = {};  // above 0, at most 100; default: 100
  bool hadamard = false;                  // applies a Hadamard rotation to the channels
  bool smooth = false;                    // subtracts each channel's mean over the sequence
  bool supplied = false;                  // uses the given descale instead of computing it
  const Context* context = nullptr;
  void* stream = nullptr;
};

// Quantises input to output (e4m3, e5m2, sim8) and descale (f32), with scales of the given granularity.
inline void quantize(const Tensor& input, const Tensor& output, const Tensor& descale, Scales scales,
                     const QuantizeOptions& options = {}) {
  api_detail::check_writable("output", output);
  if (!options.supplied) api_detail::check_writable("descale", descale);
  api_detail::check_writable("mean", options.mean);
  const api_detail::Argument from(input), to(output), factors(descale), mean(options.mean), list(options.cu_seqlens);
  rapt_quantize_args args{};
  args.struct_size = sizeof(args);
  args.input = from.get();
  args.output = to.get();
  args.descale = factors.get();
  args.mean = mean.get();
  args.cu_seqlens = list.get();
  args.scales = static_cast<int32_t>(scales);
  if (options.hadamard) args.flags |= RAPT_QUANTIZE_HADAMARD;
  if (options.smooth) args.flags |= RAPT_QUANTIZE_SMOOTH;
  if (options.supplied) args.flags |= RAPT_QUANTIZE_SUPPLIED;
  if (options.max_seqlen) args.has |= RAPT_QUANTIZE_HAS_MAX_SEQLEN, args.max_seqlen = *options.max_seqlen;
  if (options.percentile) args.has |= RAPT_QUANTIZE_HAS_PERCENTILE, args.percentile = *options.percentile;
  api_detail::check(rapt_quantize(api_detail::handle(options.context), &args, options.stream));
}

// The optional arguments of kv_append(). Give exactly one of seqused_k, starts and slot_mapping. Designated
// initialisers must follow this order.
struct KvAppendOptions {
  Tensor cu_seqlens_new = {};   // i32 or i64 [batch + 1]: packed k and v
  Tensor seqused_k = {};        // i32 or i64 [batch]: lengths before the append
  Tensor starts = {};           // i64 or i32 [batch]: the same, may be negative (such tokens are skipped)
  Tensor slot_mapping = {};     // i64 or i32 [batch, seqlen_new], packed [total]: page * page_size + row; < 0: skipped
  Tensor block_table = {};      // i32 [batch, pages]: the caches are paged. With seqused_k or starts
  Tensor cache_batch_idx = {};  // i32 or i64 [batch]: the batch row of each sequence in dense caches
  Tensor k_descale = {};        // f32: input if k_scales is head, output if it is token
  Tensor v_descale = {};
  Scales k_scales = Scales::none;  // none, head or token
  Scales v_scales = Scales::none;
  Tensor cos = {};  // f32, f16 or bf16 [positions, rotary_dim / 2]: rotates k (and q)
  Tensor sin = {};
  bool interleaved = false;     // rotary pairs are channels (2 j, 2 j + 1), else (j, j + rotary_dim / 2)
  Tensor positions = {};        // i64 or i32 [batch, seqlen_new], packed [total]: rotary positions
  Tensor q = {};                // f32, f16 or bf16 [batch, heads_q, seqlen_q, dim], packed [total, heads_q, dim]
  Tensor q_out = {};            // output, the rotated q; may be q itself
  bool q_at_start = false;      // all queries of a sequence are rotated at its start
  bool check_contents = false;  // GPUs: also checks the contents of lists and descales. Copies them and waits
  const Context* context = nullptr;
  void* stream = nullptr;
};

// Writes new keys and values to caches: rotates (rotary embedding) and quantises them to FP8 on the way.
inline void kv_append(const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache,
                      const KvAppendOptions& options) {
  api_detail::check_writable("k_cache", k_cache);
  api_detail::check_writable("v_cache", v_cache);
  api_detail::check_writable("q_out", options.q_out);
  if (options.k_scales == Scales::token) api_detail::check_writable("k_descale", options.k_descale);
  if (options.v_scales == Scales::token) api_detail::check_writable("v_descale", options.v_descale);
  const Tensor* const tensors[] = {&k,
                                   &v,
                                   &k_cache,
                                   &v_cache,
                                   &options.cu_seqlens_new,
                                   &options.seqused_k,
                                   &options.starts,
                                   &options.slot_mapping,
                                   &options.block_table,
                                   &options.cache_batch_idx,
                                   &options.k_descale,
                                   &options.v_descale,
                                   &options.cos,
                                   &options.sin,
                                   &options.positions,
                                   &options.q,
                                   &options.q_out};
  using Args = rapt_kv_append_args;
  constexpr const rapt_tensor* Args::*members[] = {
      &Args::k,         &Args::v,         &Args::k_cache,      &Args::v_cache,     &Args::cu_seqlens_new,
      &Args::seqused_k, &Args::starts,    &Args::slot_mapping, &Args::block_table, &Args::cache_batch_idx,
      &Args::k_descale, &Args::v_descale, &Args::cos,          &Args::sin,         &Args::positions,
      &Args::q,         &Args::q_out};
  std::array<rapt_tensor, std::size(members)> views;
  rapt_kv_append_args args{};
  args.struct_size = sizeof(args);
  for (size_t i = 0; i < views.size(); ++i) {
    if (!tensors[i]->present()) continue;
    views[i] = tensors[i]->view();
    args.*members[i] = &views[i];
  }
  args.k_scales = static_cast<int32_t>(options.k_scales);
  args.v_scales = static_cast<int32_t>(options.v_scales);
  if (options.interleaved) args.flags |= RAPT_KV_APPEND_INTERLEAVED;
  if (options.q_at_start) args.flags |= RAPT_KV_APPEND_Q_AT_START;
  if (options.check_contents) args.flags |= RAPT_KV_APPEND_CHECK_CONTENTS;
  api_detail::check(rapt_kv_append(api_detail::handle(options.context), &args, options.stream));
}

// The rule of rotary frequencies (rapt.h, rapt_rotary_tables). The names are those of Hugging Face transformers.
enum class Rotary : int32_t {
  standard = RAPT_ROTARY_DEFAULT,
  linear = RAPT_ROTARY_LINEAR,
  dynamic = RAPT_ROTARY_DYNAMIC,
  yarn = RAPT_ROTARY_YARN,
  llama3 = RAPT_ROTARY_LLAMA3
};
struct RotaryOptions {
  Rotary kind = Rotary::standard;
  int64_t first_position = 0;
  std::optional<double> base = {};    // default: 10000
  std::optional<double> factor = {};  // required for all kinds but standard
  std::optional<int64_t> seqlen = {};
  std::optional<double> original_max_position_embeddings = {};
  std::optional<double> beta_fast = {}, beta_slow = {}, attention_factor = {}, mscale = {}, mscale_all_dim = {};
  std::optional<double> low_freq_factor = {}, high_freq_factor = {};
  bool truncate = true;  // yarn
  const Context* context = nullptr;
};

// Fills cos and sin, f32 [positions, rotary_dim / 2] in host memory, for kv_append().
inline void rotary_tables(const Tensor& cos, const Tensor& sin, const RotaryOptions& options = {}) {
  api_detail::check_writable("cos", cos);
  api_detail::check_writable("sin", sin);
  const api_detail::Argument cosines(cos), sines(sin);
  rapt_rotary_args args{};
  args.struct_size = sizeof(args);
  args.cos = cosines.get(), args.sin = sines.get();
  args.kind = static_cast<int32_t>(options.kind);
  args.first_position = options.first_position;
  if (!options.truncate) args.flags |= RAPT_ROTARY_NO_TRUNCATE;
  const auto set = [&](uint64_t bit, auto& field, const auto& value) {
    if (value) args.has |= bit, field = *value;
  };
  set(RAPT_ROTARY_HAS_BASE, args.base, options.base);
  set(RAPT_ROTARY_HAS_FACTOR, args.factor, options.factor);
  set(RAPT_ROTARY_HAS_SEQLEN, args.seqlen, options.seqlen);
  set(RAPT_ROTARY_HAS_ORIGINAL_MAX_POSITION_EMBEDDINGS, args.original_max_position_embeddings,
      options.original_max_position_embeddings);
  set(RAPT_ROTARY_HAS_BETA_FAST, args.beta_fast, options.beta_fast);
  set(RAPT_ROTARY_HAS_BETA_SLOW, args.beta_slow, options.beta_slow);
  set(RAPT_ROTARY_HAS_ATTENTION_FACTOR, args.attention_factor, options.attention_factor);
  set(RAPT_ROTARY_HAS_MSCALE, args.mscale, options.mscale);
  set(RAPT_ROTARY_HAS_MSCALE_ALL_DIM, args.mscale_all_dim, options.mscale_all_dim);
  set(RAPT_ROTARY_HAS_LOW_FREQ_FACTOR, args.low_freq_factor, options.low_freq_factor);
  set(RAPT_ROTARY_HAS_HIGH_FREQ_FACTOR, args.high_freq_factor, options.high_freq_factor);
  api_detail::check(rapt_rotary_tables(api_detail::handle(options.context), &args));
}

// The optional arguments of qk().
struct QkOptions {
  std::optional<double> scale = {};  // default: 1
  Tensor q_descale = {};             // f32; q_scales below gives the shape: tensor, head, token, block64 or block128
  Tensor k_descale = {};
  Scales q_scales = Scales::none;  // granularity of q_descale
  Scales k_scales = Scales::none;  // granularity of k_descale
  const Context* context = nullptr;
  void* stream = nullptr;
};

// Computes only the first product of attention, with descales: out[b,h,i,j] = scale * dot(q[b,h,i], k[b,h/g,j]).
inline void qk(const Tensor& q, const Tensor& k, const Tensor& out, const QkOptions& options = {}) {
  api_detail::check_writable("out", out);
  const api_detail::Argument from(q), with(k), to(out), q_descale(options.q_descale), k_descale(options.k_descale);
  rapt_qk_args args{};
  args.struct_size = sizeof(args);
  if (options.scale) args.has = RAPT_QK_HAS_SCALE, args.scale = *options.scale;
  args.q = from.get(), args.k = with.get(), args.out = to.get();
  args.q_descale = q_descale.get(), args.k_descale = k_descale.get();
  args.q_scales = static_cast<int32_t>(options.q_scales);
  args.k_scales = static_cast<int32_t>(options.k_scales);
  api_detail::check(rapt_qk(api_detail::handle(options.context), &args, options.stream));
}

// The optional arguments of gemm().
struct GemmOptions {
  Tensor a_descale = {};  // f32; shape [] or [1] if a_scales = tensor, [m] (for b: [n]) if token
  Tensor b_descale = {};
  Scales a_scales = Scales::none;  // none, tensor or token
  Scales b_scales = Scales::none;
  const Context* context = nullptr;
  void* stream = nullptr;
};

// Computes out = a b with descales: a [m, k], b [k, n], out [m, n]. It is fastest if dimension k is contiguous in both.
inline void gemm(const Tensor& a, const Tensor& b, const Tensor& out, const GemmOptions& options = {}) {
  api_detail::check_writable("out", out);
  const api_detail::Argument from(a), with(b), to(out), a_descale(options.a_descale), b_descale(options.b_descale);
  rapt_gemm_args args{};
  args.struct_size = sizeof(args);
  args.a = from.get(), args.b = with.get(), args.out = to.get();
  args.a_descale = a_descale.get(), args.b_descale = b_descale.get();
  args.a_scales = static_cast<int32_t>(options.a_scales);
  args.b_scales = static_cast<int32_t>(options.b_scales);
  api_detail::check(rapt_gemm(api_detail::handle(options.context), &args, options.stream));
}

// Loads a pack of compiled GPU kernels.
inline void load_pack(const std::string& path, const Context* context = nullptr) {
  api_detail::check(rapt_load_pack(api_detail::handle(context), path.c_str()));
}

inline std::string version() { return rapt_version(); }

}  // namespace v0
}  // namespace rapt
#endif  // RAPT_HPP_
