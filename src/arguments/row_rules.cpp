// Implements row_rules.h by loops over the rows of the two tables in sdpa_arguments.h.
#include "arguments/row_rules.h"

#include <cmath>
#include <span>
#include <string>

#include "arguments/tensor_rules.h"
#include "base/error.h"

namespace rapt {
namespace {

constexpr Dim score_dims[max_rank] = {Dim::batch, Dim::heads_q, Dim::seqlen_q, Dim::seqlen_k};

// Returns the names of the dimensions: "[batch, heads_q]".
std::string text_of(const Dims& dims) {
  std::string text = "[";
  for (int i = 0; i < rank_of(dims); ++i)
    text += concat(i > 0 ? ", " : "", dim_names[static_cast<size_t>(dims[static_cast<size_t>(i)])]);
  return text + "]";
}

// Throws the error for a shape that is wrong at `axis`. If no earlier tensor has determined a size, the sentence shows
// the tensor's own size.
[[noreturn]] void refuse_shape(const TensorArgument& row, const rapt_tensor& t, const Dims& dims, bool packed,
                               const Sizes& sizes, int axis) {
  const int rank = rank_of(dims);
  const std::string rule =
      rank_of(row.shape.other) > 0 ? concat(text_of(row.shape.dense), " or ", text_of(row.shape.other)) : text_of(dims);
  int64_t expected[max_rank] = {};
  for (int i = 0; i < rank; ++i) {
    const Dim dim = dims[static_cast<size_t>(i)];
    if (t.rank != rank && !sizes.knows(dim))
      invalid(row.name, ".rank = ", t.rank, " (shape ", shape_text(t), "): must be ", rank, ", ",
              packed ? "packed " : "", rule, packed ? " with cu_seqlens" : "");
    expected[i] = sizes.knows(dim) ? sizes[dim] : t.shape[i];
  }
  const rapt_tensor wanted{nullptr, {}, 0, rank, expected, nullptr};
  const Dim wrong = dims[static_cast<size_t>(axis)];
  const std::string whose = t.rank == rank ? concat("; ", dim_names[static_cast<size_t>(wrong)], " is that of ",
                                                    sizes.from(wrong) != nullptr ? sizes.from(wrong) : row.name)
                                           : "";
  invalid(row.name, ".shape = ", shape_text(t), ": must be ", rule, " = ", shape_text(wanted), whose);
}

void match_dims(const TensorArgument& row, const rapt_tensor& t, bool packed, Sizes& sizes) {
  const ShapeRule& rule = row.shape;
  const int other = rank_of(rule.other);
  const bool paged = sizes.knows(Dim::page_size) && rank_of(rule.paged) > 0;
  const Dims& dims = paged ? rule.paged : other > 0 && t.rank == other ? rule.other : packed ? rule.packed : rule.dense;
  if (t.rank != rank_of(dims)) refuse_shape(row, t, dims, packed, sizes, 0);
  for (int i = 0; i < t.rank; ++i) {
    const Dim dim = dims[static_cast<size_t>(i)];
    if (sizes.knows(dim)) {
      if (t.shape[i] != sizes[dim]) refuse_shape(row, t, dims, packed, sizes, i);
      continue;
    }
    if (dim == Dim::batch_plus_1) {
      if (t.shape[i] < 1) invalid(row.name, ".shape = [0]: must be [batch + 1], at least [1]");
      sizes.set(Dim::batch, t.shape[i] - 1, row.name);
    }
    sizes.set(dim, t.shape[i], row.name);
  }
}

// Checks that the tensor broadcasts, right-aligned, to the shape of the scores.
void match_broadcast(const TensorArgument& row, const rapt_tensor& t, const Sizes& sizes) {
  for (int i = 0; i < t.rank; ++i) {
    const Dim dim = score_dims[max_rank - t.rank + i];
    if (t.shape[i] == sizes[dim] || t.shape[i] == 1) continue;
    invalid(row.name, ".shape = ", shape_text(t),
            ": must broadcast, aligned right, to [batch, heads_q, seqlen_q, seqlen_k] = [", sizes[Dim::batch], ", ",
            sizes[Dim::heads_q], ", ", sizes[Dim::seqlen_q], ", ", sizes[Dim::seqlen_k], "]");
  }
}

// Returns the dtypes that the tensor may have on its device. On a GPU a list must have the dtype that kernels read. On
// the CPU a list is converted first (host_lists.h), so it may have either dtype.
Dtypes dtypes_on(const rapt_tensor& t, const TensorArgument& row) {
  if (!row.is_list() || t.device.type == RAPT_DEVICE_CPU) return row.dtypes;
  return {static_cast<DType>(row.list_dtype())};
}

void check_row(const TensorArgument& row, const rapt_sdpa_args& args, bool packed, Sizes& sizes) {
  const rapt_tensor* const tensor = args.*row.member;
  if (tensor == nullptr) return;
  check_tensor(row.name, *tensor);
  require_dtype(row.name, *tensor, dtypes_on(*tensor, row));
  require_same_device(row.name, *tensor, *args.q, "q");
  if (row.shape.kind == ShapeRule::dims) match_dims(row, *tensor, packed, sizes);
  if (row.shape.kind == ShapeRule::broadcast) match_broadcast(row, *tensor, sizes);
}

void check_real(const char* name, double value) {
  if (!std::isfinite(value) || std::abs(value) > std::numeric_limits<float>::max())
    invalid(name, " = ", value, ": must be a finite float");
  if (static_cast<float>(value) == 0.0f && value != 0.0)
    invalid(name, " = ", value, ": too small for a float, which would make it 0");
}

}  // namespace

void check_tensor_rows(const rapt_sdpa_args& args, bool packed, Sizes& sizes) {
  const std::span all(tensor_arguments);
  for (const TensorArgument& row : all.subspan(output_count)) check_row(row, args, packed, sizes);
  for (const TensorArgument& row : all.first(output_count)) check_row(row, args, packed, sizes);
}

void check_scalar_rows(const rapt_sdpa_args& args) {
  for (const ScalarArgument& row : scalar_arguments) {
    if (row.has != 0 && (args.has & row.has) == 0) continue;
    if (row.real != nullptr) {
      check_real(row.name, args.*row.real);
      continue;
    }
    const int64_t value = row.integer != nullptr ? args.*row.integer : args.*row.word;
    if (value < row.range.low || value > row.range.high) invalid(row.name, " = ", value, ": ", row.range.rule);
  }
}

}  // namespace rapt
