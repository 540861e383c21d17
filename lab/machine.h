// Describes the machine in reports: CPU model, caches, memory. The planner does not use this description (it uses
// src/device/device.h). Called by info and bench. Values that the system does not report are empty or 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rapt::lab {

struct Cache {
  int level = 0;
  std::string type;  // "Data", "Instruction" or "Unified"
  int64_t bytes = 0;
};

struct Machine {
  std::string cpu_name;
  std::vector<Cache> caches;    // the caches of CPU 0
  int64_t available_bytes = 0;  // memory that is free now
  int64_t last_level_cache() const;
};

Machine this_machine();

// The NVIDIA driver as text: "CUDA 13.0, 580.82.07". The first part is the newest CUDA that it supports. The second
// part is the version of its kernel module, if the system reports it. "" if there is no driver.
std::string driver_text();

// `name` as a folder name of letters, digits, dots and dashes; "Intel(R) Xeon(R) Processor" -> "intel-xeon-processor".
std::string file_safe(const std::string& name);

// The current time: "20261127T093000Z".
std::string utc_stamp();

}  // namespace rapt::lab
