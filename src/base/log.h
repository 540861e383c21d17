// Log lines on stderr. $RAPT_LOG selects off, warn (default) or info.
// Use it if something works, but not as well as it could, and no error reports this. Do not use it in warm calls.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

namespace rapt {

enum class LogLevel { off, warn, info };

inline void log_line(std::string_view sentence) {
  // One write() for the complete line, so that lines of several processes do not mix.
  const std::string line = "rapt: " + std::string(sentence) + "\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

inline LogLevel log_level() {
  static const LogLevel level = [] {
    const char* value = std::getenv("RAPT_LOG");
    const std::string_view word = value ? value : "";
    if (word == "off") return LogLevel::off;
    if (word == "info") return LogLevel::info;
    if (!word.empty() && word != "warn")
      log_line("RAPT_LOG = '" + std::string(word) + "': expected off, warn or info; warn is used");
    return LogLevel::warn;
  }();
  return level;
}

inline void log_info(std::string_view sentence) {
  if (log_level() >= LogLevel::info) log_line(sentence);
}

// Logs the same sentence only once in a process.
inline void warn_once(const std::string& sentence) {
  if (log_level() < LogLevel::warn) return;
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard lock(mutex);
  if (said.insert(sentence).second) log_line(sentence);
}

}  // namespace rapt
