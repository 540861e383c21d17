// Converts K and V of a call to the types and the layout that wgmma needs, before attention_sm90 computes its tiles:
// FP8 K to the 16-bit type of Q, FP8 V to f16, or FP8 V to a transposed copy. The converted tensors are in the
// workspace (ConvertedKv). All CTAs of the kernel share the work. It is divided into units of 64 keys and 64 channels,
// one for each warp. Device only.
//
// A CTA takes its units from a counter. So each unit is taken by a CTA that runs, and the wait for the other CTAs ends
// even if some CTAs of the kernel start later.
#pragma once

#include "device/numeric.cuh"
#include "ptx/copy.cuh"
#include "ptx/tma.cuh"
#include "row_tile.cuh"
#include "shared_state.cuh"

namespace rapt {

// The rows of K or V of one sequence and kv head, whose elements have one byte.
struct KeyRows {
  const PageTable& pages;
  const TensorRef& tensor;
  const int batch;
  const int count;    // of keys, at least 1
  const char* first;  // row of key 0; paged: row 0 of page 0

  // Returns the address of the row of a key, or of the last key.
  const char* address(int key) const {
    key = key < count ? key : count - 1;
    if (!pages.present()) return first + key * tensor.row;
    const PageTable::Place place = pages.of(batch, static_cast<unsigned>(key));
    return first + place.page * tensor.batch + place.row * tensor.row;
  }
};

template <const Sm90Config& cfg>
struct KvConversion {
  static constexpr int keys = ConvertedKv::unit_keys, dims = ConvertedKv::unit_dims;
  const Sm90Params& params;
  const int lane = static_cast<int>(threadIdx.x % 32);

  // Converts unit `n`. The order of units: K before V, then batch, kv head, keys, channels.
  void convert(unsigned n) const {
    const bool of_k = n < params.converted.units_k;
    if constexpr (cfg.converts_k())
      if (of_k) convert_tensor<cfg.k, cfg.key_type(), cfg.head_dim, false>(params.attention.k, params.converted.k, n);
    if constexpr (cfg.converts_v())
      if (!of_k)
        convert_tensor<cfg.v, cfg.value_type(), cfg.head_dim_v, cfg.transposes_v()>(
            params.attention.v, params.converted.v, n - params.converted.units_k);
  }

 private:
  // A unit's keys and channels, and the sequence that they belong to.
  struct Unit {
    int batch, head_k, first_key, first_dim;
  };
  template <int dim>
  Unit unit(unsigned n) const {
    constexpr unsigned across = (dim + dims - 1) / dims;
    const FastDivmod &along = params.converted.units_along, &heads = params.converted.heads;
    const unsigned rest = n / across, sequence = along.quotient(rest), batch = heads.quotient(sequence);
    return {static_cast<int>(batch), static_cast<int>(sequence - batch * heads.value),
            static_cast<int>(rest - sequence * along.value) * keys, static_cast<int>(n % across) * dims};
  }

  template <DType from, DType to, int dim, bool transposes>
  void convert_tensor(const TensorRef& tensor, void* converted, unsigned n) const {
    const AttentionParams& p = params.attention;
    const Unit at = unit<dim>(n);
    const int count = params.sequences.at(p, at.batch).band.seqlen_k;
    // A block can begin before the sequence's end and end after it.
    if (count == 0 || at.first_key >= (count + cfg.block_n - 1) / cfg.block_n * cfg.block_n) return;
    const index_t first_k = p.cu_seqlens_k.present() ? clamped(p.cu_seqlens_k[at.batch], 0, p.total_k) : 0;
    const KeyRows rows_of_keys{
        p.pages, tensor, at.batch, count,
        static_cast<const char*>(tensor.data) + tensor.index(p.pages.present() ? 0 : at.batch, at.head_k, first_k)};
    const index_t sequence = index_t{at.batch} * params.converted.heads.value + at.head_k;
    char* const rows = static_cast<char*>(converted) + bytes_of(to) * sequence * params.converted.pitch * dim;
    if constexpr (transposes)
      transpose<dim>(at, rows, rows_of_keys);
    else
      widen<from, to, dim>(at, rows, rows_of_keys);
  }

  // A lane converts 16 channels of four keys, in each half of the unit's channels. All its loads come first, because
  // they take long.
  static constexpr int halves = dims / 32;
  int channel_of(const Unit& at, int half) const { return at.first_dim + 32 * half + lane % 2 * 16; }

  // Loads 16 codes of each half and key. Keys after the sequence read as zeros. The addresses are always valid, so that
  // no load waits for a branch.
  template <int dim>
  void load(const Unit& at, const KeyRows& from_rows, const int (&key)[4], Bytes16 (&codes)[halves][4]) const {
    const char* row[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) row[i] = from_rows.address(key[i]);
#pragma unroll
    for (int half = 0; half < halves; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int channel = channel_of(at, half);
        codes[half][i] = *reinterpret_cast<const Bytes16*>(row[i] + (channel < dim ? channel : 0));
      }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (key[i] >= from_rows.count)
#pragma unroll
        for (int half = 0; half < halves; ++half) codes[half][i] = Bytes16{};
  }

  template <DType from, DType to, int dim>
  void widen(const Unit& at, char* rows, const KeyRows& from_rows) const {
    const int first_key = at.first_key + lane / 2;
    Bytes16 codes[halves][4];
    load<dim>(at, from_rows, {first_key, first_key + 16, first_key + 32, first_key + 48}, codes);
#pragma unroll
    for (int i = 0; i < 4 * halves; ++i) {
      if (channel_of(at, i / 4) >= dim) continue;
      Bytes16 wide[2];
#pragma unroll
      for (int word = 0; word < 4; ++word)
        widen4<from, to>(codes[i / 4][i % 4].word[word], wide[word / 2].word[word % 2 * 2],
                         wide[word / 2].word[word % 2 * 2 + 1]);
      char* const row = rows + 2 * ((first_key + 16 * (i % 4)) * index_t{dim} + channel_of(at, i / 4));
      store_global_16(row, wide[0]), store_global_16(row + 16, wide[1]);
    }
  }

  // The lane's four keys are those whose slots are neighbours (slot_key).
  template <int dim>
  void transpose(const Unit& at, char* rows, const KeyRows& from_rows) const {
    const int slots = lane / 2, first_key = at.first_key + slots / 4 * 16 + slot_key(slots % 4);
    Bytes16 codes[halves][4];
    load<dim>(at, from_rows, {first_key, first_key + 1, first_key + 8, first_key + 9}, codes);
    const index_t pitch = params.converted.pitch;
#pragma unroll
    for (int half = 0; half < halves; ++half) {
      if (channel_of(at, half) >= dim) continue;
      char* const to = rows + channel_of(at, half) * pitch + at.first_key + 4 * slots;
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        unsigned of_channel[4];
        transpose_4x4(codes[half], word, of_channel);
#pragma unroll
        for (int i = 0; i < 4; ++i) *reinterpret_cast<unsigned*>(to + (4 * word + i) * pitch) = of_channel[i];
      }
    }
  }
  // of_channel[i]: the four keys of channel i of a word.
  static void transpose_4x4(const Bytes16 (&key)[4], int word, unsigned (&of_channel)[4]) {
    unsigned pair[2][2];  // [channels 0 and 1, or 2 and 3][keys 0 and 1, or 2 and 3]
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      pair[0][i] = byte_perm(key[2 * i].word[word], key[2 * i + 1].word[word], 0x5140);
      pair[1][i] = byte_perm(key[2 * i].word[word], key[2 * i + 1].word[word], 0x7362);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) of_channel[i] = byte_perm(pair[i / 2][0], pair[i / 2][1], i % 2 == 0 ? 0x5410 : 0x7632);
  }
};

// Converts K and V with all threads of all CTAs. Afterwards wait_converted() waits until everything is converted.
template <const Sm90Config& cfg>
inline void convert_kv(const Sm90Params& params, const SharedState<cfg>& shared) {
  constexpr unsigned warps = cfg.threads() / 32;
  const KvConversion<cfg> conversion{params};
  const ConvertedKv& converted = params.converted;
  const bool leads = threadIdx.x == 0;
  unsigned taken = leads ? atomicAdd(converted.counters, warps) : 0, done = 0;
#pragma unroll 1
  for (;; done += warps) {
    if (leads) store_shared(shared.tile(0), taken);
    __syncthreads();
    const unsigned first = load_shared(shared.tile(0));
    if (first >= converted.units) break;
    if (leads) taken = atomicAdd(converted.counters, warps);  // takes long, so the next units are taken now
    if (const unsigned n = first + threadIdx.x / 32; n < converted.units) conversion.convert(n);
    __syncthreads();
  }
  __syncthreads();  // all threads have read the last number of units, and all writes of the CTA come before the next
                    // ones
  if (!leads || done == 0) return;
  fence_async_proxy_global();
  add_release(converted.counters + 1, done);
}

// The thread that loads converted K and V by TMA calls this before its first load of them.
inline void wait_converted(const ConvertedKv& converted) {
  while (load_acquire(converted.counters + 1) < converted.units) {
  }
  fence_async_proxy_global();
}

}  // namespace rapt
