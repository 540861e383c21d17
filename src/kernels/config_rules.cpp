// Implements config_rules.h.
#include "kernels/config_rules.h"

namespace rapt {
namespace {

// Returns fields with their values: "warps_m = 4, warps_n = 1".
std::string values_of(const KernelConfig& config, std::initializer_list<std::string_view> fields) {
  std::string text;
  for (const std::string_view field : fields)
    text += concat(text.empty() ? "" : ", ", field, " = ", config.word(field));
  return text;
}

}  // namespace

void require_range(const char* field, int value, int least, int most) {
  if (value < least || value > most) bad_config(field, value, "must be ", least, " to ", most);
}

void require_multiple(const char* field, int value, int of) {
  if (value % of != 0) bad_config(field, value, "must be a multiple of ", of);
}

void require_planned(const char* family, const ConfigChange& change) {
  for (const ConfigField& field : change.chosen.type().fields) {
    if (field.role == ConfigRole::tunable) continue;
    const std::string now = field.word(change.changed.data()), planned = field.word(change.chosen.data());
    if (now != planned)
      invalid("config: ", field.name, " = ", now, ": must be ", planned, ", as ", family,
              " computes this problem; fields that can be changed: ", tunable_fields(change.chosen.type()));
  }
}

void require_fits(const ConfigChange& change, const CtaResources& demand) {
  const Device& device = change.device;
  constexpr int max_threads = 1024;  // the limit of a block on every GPU
  if (demand.threads > max_threads)
    invalid("config: ", values_of(change.changed, demand.thread_fields), ": a block of ", demand.threads,
            " threads; at most ", max_threads);
  if (demand.smem_bytes > device.smem_per_block)
    invalid("config: ", values_of(change.changed, demand.smem_fields), ": take ", demand.smem_bytes,
            " bytes of shared memory; a block of ", device.name, " has ", device.smem_per_block);
  if (demand.min_blocks * demand.threads > device.threads_per_sm)
    bad_config("min_blocks", demand.min_blocks, "blocks of ", demand.threads, " threads; a multiprocessor of ",
               device.name, " has ", device.threads_per_sm, " threads");
}

}  // namespace rapt
