// Describes the machine for reports. Reads /proc and /sys.
// Called by info and bench.
#include "lab/machine.h"

#include <algorithm>
#include <cctype>
#include <ctime>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "cuda/driver.h"

namespace rapt::lab {
namespace {

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

// The value of "key : value" (/proc/cpuinfo, /proc/meminfo), or "".
std::string value_of(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

// Converts "2048K" to 2097152.
int64_t size_with_unit(const std::string& text) {
  int64_t value = 0;
  size_t at = 0;
  for (; at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])); ++at)
    value = value * 10 + (text[at] - '0');
  const char unit = at < text.size() ? text[at] : ' ';
  return value << (unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : 0);
}

std::vector<Cache> caches_of_cpu0() {
  std::vector<Cache> caches;
  for (int index = 0;; ++index) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    const std::string level = first_line(folder + "level");
    if (level.empty()) return caches;
    caches.push_back({static_cast<int>(size_with_unit(level)), first_line(folder + "type"),
                      size_with_unit(first_line(folder + "size"))});
  }
}

}  // namespace

int64_t Machine::last_level_cache() const {
  int64_t bytes = 0;
  for (const Cache& cache : caches) bytes = std::max(bytes, cache.bytes);
  return bytes;
}

Machine this_machine() {
  Machine machine;
  machine.cpu_name = value_of("/proc/cpuinfo", "model name");
  if (machine.cpu_name.empty()) machine.cpu_name = value_of("/proc/cpuinfo", "CPU part");  // ARM
  machine.caches = caches_of_cpu0();
  machine.available_bytes = size_with_unit(value_of("/proc/meminfo", "MemAvailable")) << 10;
  return machine;
}

std::string driver_text() {
  const cuda::Driver* driver = cuda::find_driver();
  if (driver == nullptr) return "";
  const std::string text = concat("CUDA ", driver->version / 1000, ".", driver->version % 1000 / 10);
  // The line is "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.82.07  Wed ...".
  std::istringstream words(value_of("/proc/driver/nvidia/version", "NVRM version"));
  for (std::string word; words >> word;)
    if (std::isdigit(static_cast<unsigned char>(word[0])) && word.find('.') != std::string::npos)
      return text + ", " + word;
  return text;
}

std::string file_safe(const std::string& name) {
  std::string text = name, safe;
  for (const char* mark : {"(R)", "(TM)", "(tm)", "(r)"})
    for (size_t at = 0; (at = text.find(mark)) != std::string::npos;) text.erase(at, std::string(mark).size());
  for (const char c : text) {
    const bool keep = std::isalnum(static_cast<unsigned char>(c)) || c == '.';
    if (keep) safe += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (!keep && !safe.empty() && safe.back() != '-') safe += '-';
  }
  while (!safe.empty() && (safe.back() == '-' || safe.back() == '.')) safe.pop_back();
  while (!safe.empty() && safe.front() == '.') safe.erase(safe.begin());
  return safe.empty() ? "unknown-cpu" : safe;
}

std::string utc_stamp() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  return std::string(text, std::strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &parts));
}

}  // namespace rapt::lab
