// attention_decode: few query rows against many keys. The loop over keys is that of attention_sm80. Three things
// differ:
// - The rows of all query heads of a KV head share a tile, so K and V are read once.
// - The keys of a tile are divided among CTAs (decode_walk.cuh), evenly, also if one sequence is much longer than the
//   others.
// - If several CTAs compute a tile, each writes a partial state. The last one to arrive merges them, in an order that
//   depends only on their number. So the result does not depend on the order of arrival (Flash-Decoding, with the merge
//   in the same kernel).
// With part_keys > 0 (`invariant`) it takes any number of query rows, and divides the keys at fixed places
// (FixedParts). Device only.
#pragma once

#include "attention_sm80.cuh"
#include "decode_walk.cuh"

namespace rapt {

template <const Sm80Config& cfg>
struct DecodeAttention : CtaOf<cfg>::Type {
  using Base = typename CtaOf<cfg>::Type;
  using Base::p, Base::cta, Base::scale, Base::band, Base::offset, Base::n_blocks, Base::first_n_block, Base::k_view,
      Base::v_view;
  using typename Base::Softmax, typename Base::OFragment, typename Base::CtaEpilogue;
  static constexpr int threads = cfg.threads(), chunks = cfg.head_dim_v / 8;
  static_assert(cfg.warps_n > 1, "warps share the keys of a block");

  const DecodeParams& params;

  DecodeAttention(const DecodeParams& all, unsigned smem_address, unsigned thread_index)
      : Base(all.sm80, smem_address, thread_index), params(all) {}

  // Runs one pass over the CTA's part of a tile. Returns whether another pass is needed (NanPass).
  template <class Work>
  bool run(const Work& work, NanPass pass) {
    begin_tile(work);
    Base::prologue();
    if (pass == normal) griddepcontrol_launch_dependents<cfg.programmatic>();
    scale = uniform_scale<cfg>(p, cta);
    Softmax softmax(Base::softmax_scale_log2());
    OFragment o = {};
    Base::mainloop(pass, softmax, o);
    RAPT_TRACE("epilogue", 0);
    cp_async_wait_group(0);
    const CtaEpilogue epilogue{p, cta, pass};
    Base::stage_rows(epilogue, softmax, o);
    const float v_scale = epilogue.v_descale();
    const auto store = [&](int row, int chunk, auto& sums) {
      if (work.parts.is_stored(work.part())) {
        store_part(work.parts.slot(work.part()), row, chunk, sums, pass);
        return;
      }
      if (pass != count_non_finite) epilogue.finish_chunk(row, chunk, v_scale, sums);
      epilogue.store_8(cta.first_row + row, chunk, sums.o);
    };
    const float nan_if_nonfinite = Base::combine_staged(epilogue, softmax, [&](int row, int chunk, auto& sums) {
      if constexpr (cfg.part_keys > 0) {
        if (work.parts.folds && work.part() > 0 && pass != count_non_finite) {
          MergedRow all(load_part(work.parts.slot(work.part() - 1), row, chunk));  // stored by this CTA
          all.add_next(sums);
          store(row, chunk, all);
          return;
        }
      }
      store(row, chunk, sums);
    });
    if (!cfg.masks_differ_by_row() || pass == count_non_finite) return false;
    const bool any = __syncthreads_or(nan_if_nonfinite != 0.0f);
    return pass == zero_non_finite || any;
  }

  // Sets the members that describe the tile and the CTA's keys.
  template <class Work>
  void begin_tile(const Work& work) {
    const Sequence& sequence = work.sequence;
    cta.batch = work.batch, cta.head_k = work.head_k, cta.head = work.head_k * static_cast<int>(p.by_group.value);
    cta.first_row = work.row_tile * cfg.block_m, cta.seqlen_q = decode_rows(sequence, p.by_group);
    cta.first_q = sequence.first_q, cta.first_k = sequence.first_k, offset = sequence.offset;
    band = Band::of(p.position_mask, sequence.offset, sequence.seqlen_k);
    const KeyTiles<int> keys = keys_of_row_tile(p, sequence, work.row_tile, cfg);
    first_n_block = keys.first(Base::cta_block_n) + work.from;
    n_blocks = keys.empty() ? 0 : work.count;
    k_view.rows = KvView(p, p.k, bytes_of(cfg.k), cta.batch, cta.head_k, sequence.first_k).rows;
    v_view.rows = KvView(p, p.v, bytes_of(cfg.v), cta.batch, cta.head_k, sequence.first_k).rows;
  }

  float* slot_row(unsigned slot, int row) const {
    const int rows = cfg.part_keys > 0 ? params.slot_rows : cfg.block_m;
    return params.slots + static_cast<index_t>(slot) * (rows * decode_row_floats(cfg)) + row * decode_row_floats(cfg);
  }

  // Writes 8 channels of a partial state. The thread of chunk 0 also writes the row's statistics. In the third pass the
  // sums are counts, and elements with a count above 0 become NaN.
  template <class Sums>
  void store_part(unsigned slot, int row, int chunk, const Sums& sums, NanPass pass) const {
    float* const to = slot_row(slot, row);
    if (pass == count_non_finite) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (sums.o[i] > 0.0f) to[chunk * 8 + i] = detail::float_of(0x7fffffffu);
      return;
    }
    store_global_4(to + chunk * 8, sums.o[0], sums.o[1], sums.o[2], sums.o[3]);
    store_global_4(to + chunk * 8 + 4, sums.o[4], sums.o[5], sums.o[6], sums.o[7]);
    if (chunk == 0) store_global_4(to + cfg.head_dim_v, sums.row_max, sums.row_sum, sums.scale_log2, 0.0f);
  }

  // Merges the parts of a tile, which are all in the workspace, and stores the rows. A warp takes one row at a time.
  // Its lanes divide the channels, in chunks of 8, and also the parts.
  static constexpr int part_groups = cfg.part_keys > 0 || chunks > 16 ? 1 : chunks > 8 ? 2 : chunks > 4 ? 4 : 8;
  template <class Work>
  void merge(const Work& work) {
    begin_tile(work);
    const CtaEpilogue epilogue{p, cta, normal};
    const float v_scale = epilogue.v_descale();
    const int rows = cta.seqlen_q - cta.first_row < cfg.block_m ? cta.seqlen_q - cta.first_row : cfg.block_m;
#pragma unroll 1
    for (int row = cta.thread / 32; row < rows; row += threads / 32)
      for (int first = 0; first < chunks; first += 32) {
        constexpr int lanes = chunks < 32 ? chunks : 32;
        const int chunk = first + cta.lane % lanes, group = cta.lane / lanes;
        MergedRow all;
        if (group < part_groups && chunk < chunks) all = merged_parts(work.parts, group, row, chunk);
#pragma unroll
        for (int step = part_groups / 2; step > 0; step /= 2) all.add_from_lane(cta.lane + step * lanes);
        if (group == 0 && chunk < chunks) {
          epilogue.finish_chunk(row, chunk, v_scale, all);
          epilogue.store_8(cta.first_row + row, chunk, all.o);
        }
      }
  }

  // The merged state of some parts, for 8 channels of a row.
  struct MergedRow : CtaEpilogue::WarpsResult {
    using State = typename CtaEpilogue::WarpsResult;
    MergedRow() : State{minus_infinity, 0.0f, 0.0f, {}} {}
    explicit MergedRow(const State& part) : State(part) {}

    float factor(float from) const {
      return from == this->row_max ? 1.0f : Softmax::rescale_factor(from, this->row_max, this->scale_log2);
    }
    void raise_max(float to) {
      const float old_max = this->row_max;
      this->row_max = fmaxf(old_max, to);
      const float by = factor(old_max);
      this->row_sum *= by;
#pragma unroll
      for (float& x : this->o) x *= by;
    }
    // The row_max of `part` must not be above this row_max.
    void add(const State& part) {
      const float by = factor(part.row_max);
      this->row_sum = fmaf(by, part.row_sum, this->row_sum);
#pragma unroll
      for (int j = 0; j < 8; ++j) this->o[j] = fmaf(by, part.o[j], this->o[j]);
    }
    // Adds the part after the parts that this state has. Adding a part without visible keys, or adding a part to such a
    // state, changes no bit of the other, except that -0 becomes 0.
    void add_next(const State& part) {
      raise_max(part.row_max);
      add(part);
    }
    void add_from_lane(int lane) {
      State other{__shfl_sync(~0u, this->row_max, lane), __shfl_sync(~0u, this->row_sum, lane), 0.0f, {}};
#pragma unroll
      for (int j = 0; j < 8; ++j) other.o[j] = __shfl_sync(~0u, this->o[j], lane);
      add_next(other);
    }
  };

  // Merges the parts group, group + part_groups, and so on. The loads of several parts are issued together: their
  // latency would dominate the merge.
  template <class Parts>
  MergedRow merged_parts(const Parts& parts, int group, int row, int chunk) const {
    constexpr int together = threads * cfg.min_blocks > 384 ? 4 : 8;  // as many as the registers allow
    MergedRow all;
#pragma unroll 1
    for (unsigned first = static_cast<unsigned>(group); first < parts.count; first += together * part_groups) {
      typename MergedRow::State part[together];
#pragma unroll
      for (int i = 0; i < together; ++i) {
        const unsigned number = first + static_cast<unsigned>(i * part_groups);
        part[i] = load_part(parts.slot(number < parts.count ? number : parts.count - 1), row, chunk);
      }
#pragma unroll
      for (int i = 1; i < together; ++i)
        if (first + static_cast<unsigned>(i * part_groups) >= parts.count) part[i] = MergedRow();
      all.scale_log2 = part[0].scale_log2;
      if constexpr (cfg.part_keys > 0) {
#pragma unroll
        for (int i = 0; i < together; ++i) all.add_next(part[i]);
      } else {
        float row_max = part[0].row_max;
#pragma unroll
        for (int i = 1; i < together; ++i) row_max = fmaxf(row_max, part[i].row_max);
        all.raise_max(row_max);
#pragma unroll
        for (int i = 0; i < together; ++i) all.add(part[i]);
      }
    }
    return all;
  }
  typename MergedRow::State load_part(unsigned slot, int row, int chunk) const {
    const float* const from = slot_row(slot, row);
    typename MergedRow::State part;
    float unused;
    load_global_4(from + cfg.head_dim_v, part.row_max, part.row_sum, part.scale_log2, unused);
    load_global_4(from + chunk * 8, part.o[0], part.o[1], part.o[2], part.o[3]);
    load_global_4(from + chunk * 8 + 4, part.o[4], part.o[5], part.o[6], part.o[7]);
    return part;
  }
};

// All threads of a CTA call this function after they have written the results of one of `count` parts. Returns whether
// all other parts are already written; their results are then visible to all threads. The counter goes back to 0.
// The barriers and the order of thread 0's atomic operation make all writes of the CTA visible (PTX ISA 9.0, section
// 8.8, causality order).
inline bool is_last_arrival(unsigned* counter, unsigned count) {
  __syncthreads();
  return __syncthreads_or(threadIdx.x == 0 && atomic_inc_acq_rel(counter, count - 1) == count - 1);
}

// Rows beyond seqused_q: out = 0 and lse = -inf.
template <const Sm80Config& cfg>
inline void clear_unused_decode_rows(const AttentionParams& p) {
  constexpr int words = bytes_of(cfg.out) * cfg.head_dim_v / 16;
  for (index_t i = blockIdx.x; i < p.batch * p.heads_q; i += gridDim.x) {
    const Sequence s = sequence_of(p, i / p.heads_q);
    const UnusedRows rows{i / p.heads_q, i % p.heads_q, s.first_q, s.seqlen_q, s.rows_q, 0, words, 1};
    clear_unused_rows<Bytes16, cfg.threads()>(p, rows, true);
  }
}

template <const Sm80Config& cfg>
void attention_decode(const DecodeParams& params) {
  RAPT_TRACE_BEGIN("prologue");
  extern __shared__ __align__(1024) char decode_memory[];
  if (params.sm80.attention.has_lists()) griddepcontrol_wait<cfg.programmatic>();
  typename WalkOf<cfg>::Type walk(params);
  auto work = walk.start(shared_address(decode_memory));
  griddepcontrol_wait<cfg.programmatic>();
  if (params.sm80.attention.seqused_q.present()) clear_unused_decode_rows<cfg>(params.sm80.attention);
  while (work.blocks > 0) {
    bool again = true;
#pragma unroll 1
    for (int pass = normal; again; ++pass) {
      DecodeAttention<cfg> attention(params, shared_address(decode_memory), volatile_copy(threadIdx.x));
      again = attention.run(work, static_cast<NanPass>(pass));
    }
    RAPT_TRACE("arrive", 0);
    const unsigned parts = work.parts.to_merge();
    if (parts > 1 && is_last_arrival(params.arrivals + tile_number(params, work), parts)) {
      RAPT_TRACE("merge", 0);
      DecodeAttention<cfg>(params, shared_address(decode_memory), threadIdx.x).merge(work);
    }
    if (!walk.advance(work)) break;
    __syncthreads();  // the next tile takes the place of the results in shared memory
    RAPT_TRACE("prologue", 0);
  }
  RAPT_TRACE_END();
}

}  // namespace rapt
