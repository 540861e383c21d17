// rapt.quantize. It writes to arrays that python/rapt has allocated. Called by python/rapt.
#include "call.h"
#include "reading.h"

namespace rapt::python {
namespace {

// The arguments of _core.quantize, in their order.
enum Argument {
  a_x,
  a_codes,
  a_descale,  // an output; an input if `supplied` is true
  a_mean,
  a_cu_seqlens,
  a_layout,
  a_scales,
  a_dtype,
  a_hadamard,
  a_smooth,
  a_supplied,
  a_percentile,
  a_max_seqlen,
  a_context,
  argument_count
};

void run(PyObject* const* args) {
  const bool swapped = word_value("layout", args[a_layout], {{"bhsd", 0}, {"bshd", 1}}) != 0;
  const bool supplied = boolean("supplied", args[a_supplied]);
  Reading reading("x", args[a_x]);
  rapt_quantize_args call{};
  call.struct_size = sizeof call;
  call.input = reading.input("x", args[a_x]);
  if (swapped) swap_heads(reading.last());
  call.output = reading.output("out", args[a_codes]);
  set_stored_dtype("out", "dtype", args[a_dtype], reading.last());
  if (swapped) swap_heads(reading.last());
  call.descale = supplied ? reading.input("descale", args[a_descale]) : reading.output("out.descale", args[a_descale]);
  call.mean = reading.output("out.mean", args[a_mean]);
  call.cu_seqlens = reading.input("cu_seqlens", args[a_cu_seqlens]);
  call.scales = scale_kind("scales", args[a_scales]);
  if (boolean("hadamard", args[a_hadamard])) call.flags |= RAPT_QUANTIZE_HADAMARD;
  if (boolean("smooth", args[a_smooth])) call.flags |= RAPT_QUANTIZE_SMOOTH;
  if (supplied) call.flags |= RAPT_QUANTIZE_SUPPLIED;
  if (args[a_percentile] != Py_None) {
    call.has |= RAPT_QUANTIZE_HAS_PERCENTILE;
    call.percentile = number("percentile", args[a_percentile]);
  }
  if (args[a_max_seqlen] != Py_None) {
    call.has |= RAPT_QUANTIZE_HAS_MAX_SEQLEN;
    call.max_seqlen = integer("max_seqlen", args[a_max_seqlen]);
  }
  reading.call(args[a_context], rapt_quantize, call);
  for (const Argument output : {a_codes, a_descale, a_mean})
    if (args[output] != Py_None && !(supplied && output == a_descale))
      report_written(reading.framework(), args[output]);
}

}  // namespace

PyObject* quantize(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded("quantize", count, argument_count, [&] {
    run(args);
    return Py_NewRef(Py_None);
  });
}

}  // namespace rapt::python
