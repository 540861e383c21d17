// The machine as reports name it: CPU model, caches, memory. Facts for people and result files, never for planning
// (that is src/device/device.h). Called by info and bench; what the system does not tell stays empty or 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rapt::lab {

struct Cache {
  int level = 0;
  std::string type;  // Data, Instruction, Unified
  int64_t bytes = 0;
};

struct Machine {
  std::string cpu_name;
  std::vector<Cache> caches;    // of CPU 0
  int64_t available_bytes = 0;  // of memory, now
  int64_t last_level_cache() const;
};

Machine this_machine();

// The NVIDIA driver: "CUDA 13.0, 580.82.07" (the newest CUDA it supports, its kernel module where the system tells it);
// "" where there is none.
std::string driver_text();

// A name fit for a folder: letters, digits, dot and dash; "Intel(R) Xeon(R) Processor" -> "intel-xeon-processor".
std::string file_safe(const std::string& name);

// 20261127T093000Z
std::string utc_stamp();

}  // namespace rapt::lab
