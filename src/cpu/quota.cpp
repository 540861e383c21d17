// Reads /proc/self/cgroup (the groups), /proc/self/mountinfo (their directories), cpu.max (v2) and cpu.cfs_* (v1).
// Files that cannot be read or parsed are ignored.
#include "cpu/quota.h"

#include <fcntl.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files.h"

namespace rapt::cpu {
namespace {

constexpr size_t max_bytes = size_t{4} << 20;  // mountinfo can be long on a host with many containers

std::string text_of(const std::string& path) {
  std::string text;
  return read_regular(AT_FDCWD, path, max_bytes, text).empty() ? text : "";
}

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of(separators, begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

bool has_word(std::string_view list, std::string_view word) {
  const std::vector<std::string_view> words = split(list, ",");
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Parses a positive integer. Everything else, such as "max" or "-1" (no quota), gives 0.
double positive(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value > 0 ? static_cast<double>(value) : 0;
}

double ratio(double quota, double period) { return quota > 0 && period > 0 ? quota / period : no_quota; }

// The quota of one group, without its parents.
double quota_v2(const std::string& group) {
  const std::string text = text_of(group + "/cpu.max");
  const std::vector<std::string_view> words = split(text, " \n");
  return words.size() == 2 ? ratio(positive(words[0]), positive(words[1])) : no_quota;
}

double quota_v1(const std::string& group) {
  const std::string quota = text_of(group + "/cpu.cfs_quota_us"), period = text_of(group + "/cpu.cfs_period_us");
  const std::vector<std::string_view> quotas = split(quota, " \n"), periods = split(period, " \n");
  return quotas.size() == 1 && periods.size() == 1 ? ratio(positive(quotas[0]), positive(periods[0])) : no_quota;
}

// A mounted cgroup file system: its root group and its mount point.
struct Mount {
  bool v2;
  std::string root, point;
};

// Decodes the octal escapes of mountinfo, for example \040 for a blank.
std::string unescaped(std::string_view text) {
  const auto is_octal = [](char c) { return c >= '0' && c <= '7'; };
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    const std::string_view code = text.substr(at, 4);
    if (code.size() == 4 && code[0] == '\\' && std::all_of(code.begin() + 1, code.end(), is_octal)) {
      out += static_cast<char>((code[1] - '0') * 64 + (code[2] - '0') * 8 + (code[3] - '0'));
      at += 3;
    } else {
      out += text[at];
    }
  }
  return out;
}

// Fields of a line: number, parent, device, root, mount point, options, any number of tags, "-", type, source, options.
std::vector<Mount> cgroup_mounts(const std::string& mountinfo) {
  std::vector<Mount> mounts;
  for (const std::string_view line : split(mountinfo, "\n")) {
    const std::vector<std::string_view> words = split(line, " ");
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 10 || words.end() - dash < 4 || dash - words.begin() < 6) continue;
    const bool v2 = dash[1] == "cgroup2";
    if (!v2 && (dash[1] != "cgroup" || !has_word(dash[3], "cpu"))) continue;
    mounts.push_back({v2, unescaped(words[3]), unescaped(words[4])});
  }
  if (mounts.empty()) mounts = {{true, "/", "/sys/fs/cgroup"}, {false, "/", "/sys/fs/cgroup/cpu"}};
  return mounts;
}

// The process's group from lines such as "0::/a/b" (v2) and "4:cpu,cpuacct:/a/b" (v1); "/" if there is none.
std::string group_of(const std::string& list, bool v2) {
  for (const std::string_view line : split(list, "\n")) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const bool named = v2 ? line.substr(0, first) == "0" && controllers.empty() : has_word(controllers, "cpu");
    if (named) return std::string(line.substr(second + 1));
  }
  return "/";
}

// The group's path relative to the mount's root; "" if it is the root, or not below it.
std::string below_root(const std::string& group, const std::string& root) {
  const std::string top = root == "/" ? "" : root;
  if (!group.starts_with(top + "/") || group.starts_with("/..")) return "";
  const std::string rest = group.substr(top.size());
  return rest == "/" ? "" : rest;
}

}  // namespace

double quota_cpus(const std::string& root) {
  const std::string groups = text_of(root + "/proc/self/cgroup");
  double tightest = no_quota;
  for (const Mount& mount : cgroup_mounts(text_of(root + "/proc/self/mountinfo"))) {
    std::string below = below_root(group_of(groups, mount.v2), mount.root);
    while (true) {
      const std::string group = concat(root, mount.point, below);
      tightest = std::min(tightest, mount.v2 ? quota_v2(group) : quota_v1(group));
      if (below.empty()) break;
      below.resize(below.rfind('/'));
    }
  }
  return tightest;
}

}  // namespace rapt::cpu
