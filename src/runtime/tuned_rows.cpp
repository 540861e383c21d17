// Parses, prints, finds and writes tuned rows; see tuned_rows.h.
#include "runtime/tuned_rows.h"

#include <fcntl.h>
#include <sys/file.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "problem/length_class.h"

namespace rapt {
namespace {

constexpr size_t largest_file = size_t{16} << 20;
constexpr std::string_view separator = " | ";
constexpr size_t field_count = 8;
constexpr int most_warnings = 5;  // the maximum for the lines of one file
constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
constexpr std::array<const char*, field_count> field_names{"device",           "problem", "config",  "median",
                                                           "planner's median", "date",    "version", "command"};
constexpr const char* heading =
    "# Configurations that rapt tune measured: device | problem class | config | median us | planner's median us | "
    "date | version | command\n";

// Replaces the separator and line ends, which cannot be part of a field.
std::string one_field(std::string text) {
  for (char& c : text)
    if (c == '|' || c == '\n' || c == '\r') c = '?';
  return text;
}

double microseconds(size_t field, std::string_view text) {
  double value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value <= 0)
    invalid(field_names[field], " = ", text, ": must be a number of microseconds above 0");
  return value;
}

// Checks only the form of a date: where the pattern has a 0, the text must have a digit.
void check_date(std::string_view text) {
  constexpr std::string_view pattern = "0000-00-00T00:00:00Z";
  bool good = text.size() == pattern.size();
  for (size_t i = 0; good && i < text.size(); ++i)
    good = pattern[i] == '0' ? text[i] >= '0' && text[i] <= '9' : text[i] == pattern[i];
  if (!good) invalid("date = ", text, ": must be UTC, such as 2026-11-29T20:06:22Z");
}

// Returns the fields of a line.
std::array<std::string_view, field_count> split(std::string_view line) {
  std::array<std::string_view, field_count> fields;
  for (size_t i = 0; i < field_count; ++i) {
    const size_t end = i + 1 < field_count ? line.find(separator) : line.size();
    if (end == std::string_view::npos)
      invalid("the row has ", i + 1, " fields: must be ", field_count, ", separated by '", separator, "'");
    fields[i] = line.substr(0, end);
    if (fields[i].empty()) invalid(field_names[i], " is empty");
    line.remove_prefix(std::min(end + separator.size(), line.size()));
  }
  return fields;
}

bool has_word(std::string_view text, std::string_view word) {
  return concat(" ", text, " ").find(concat(" ", word, " ")) != std::string::npos;
}

// Throws if no call can use a row of this class, or if the text is a problem line in another form than plan_line()
// prints. A text with unknown lengths ("?") or facts about tensors (";") is not a problem line, so it is not checked.
void check_class(const std::string& line) {
  if (has_word(line.substr(0, line.find(';')), "invariant"))
    invalid("problem = ", line, ": an invariant problem never uses a row, because its bits must not depend on lengths");
  if (line.find('@') != std::string::npos)
    invalid("problem = ", line,
            ": a class has no file of lengths; rapt tune --dry-run prints the class of this problem");
  if (line.find_first_of("?;") != std::string::npos) return;
  const std::string class_line = plan_line(longest_of_class(parse_problem(line)));
  if (class_line != line) invalid("problem = ", line, ": is not a class of problems; its class is ", class_line);
}

std::string key_of(const std::string& device, const std::string& problem) { return concat(device, separator, problem); }
std::string key_of(const TunedRow& row) { return key_of(row.device, row.problem); }

// Removes a CR at the end. Lines of files from other systems end with CR and LF.
std::string_view without_cr(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

bool is_row(std::string_view line) { return !line.empty() && line[0] != '#'; }

// Calls visit(line, number) for each line.
template <class Visit>
void each_line(std::string_view text, const Visit& visit) {
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    visit(text.substr(0, end), number);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// Returns "" or why the file is not used. If the file does not exist, sets `exists` to false and leaves `text` empty.
std::string read_trusted(const std::string& path, std::string& text, bool& exists) {
  FileHandle file;
  size_t bytes = 0;
  errno = 0;
  const std::string wrong = open_regular(AT_FDCWD, path, file, bytes);
  exists = wrong.empty() || errno != ENOENT;
  if (!wrong.empty()) return exists ? wrong : "";
  if (const std::string why = why_others_may_write(file, path); !why.empty()) return "is not used: " + why;
  if (bytes > largest_file) return concat("has ", bytes, " bytes: must be at most ", largest_file);
  if (!read_exactly(file, 0, bytes, text)) return concat("cannot be read: ", system_error());
  if (text.starts_with(byte_order_mark)) text.erase(0, byte_order_mark.size());
  return "";
}

// Returns the file to write: the path itself or, if the path is a symbolic link, the file that it points to. Throws
// Error{environment} with the reason if the path exists and is not a regular file.
std::string target_of(const std::string& path) {
  namespace fs = std::filesystem;
  const auto refuse = [](const std::string& why) { throw Error(ErrorCode::environment, why); };
  std::error_code failure;
  const fs::file_status status = fs::status(path, failure);
  if (fs::exists(status) && !fs::is_regular_file(status)) refuse("is not a regular file");
  if (!fs::exists(status) && fs::is_symlink(fs::symlink_status(path, failure)))
    refuse("is a symbolic link to a file that does not exist");
  const fs::path target = fs::weakly_canonical(path, failure);
  if (failure) refuse(concat("cannot be found: ", failure.message()));
  return target.string();
}

// Calls body(target) while this process has locked the folder. So no other rapt process writes the file meanwhile, and
// no lock file remains. Returns body's failure, or why the file cannot be written.
template <class Body>
std::string with_lock(const std::string& path, const Body& body) {
  try {
    const std::string target = target_of(path);
    const size_t slash = target.find_last_of('/');
    const FileHandle folder =
        open_file(AT_FDCWD, slash == std::string::npos ? "." : target.substr(0, slash + 1), O_RDONLY | O_DIRECTORY);
    if (!folder.is_open() || flock(folder.fd(), LOCK_EX) != 0)
      return concat("cannot be written, because its folder cannot be locked: ", system_error());
    return body(target);
  } catch (const Error& error) {
    return error.what();
  }
}

// Returns false for most lines that are not rows. This takes much less time than parsing such a line and catching the
// error.
bool has_all_fields(std::string_view line) {
  size_t fields = 1;
  for (size_t at = line.find(separator); at != std::string_view::npos && fields < field_count;
       at = line.find(separator, at + separator.size()))
    ++fields;
  return fields == field_count;
}

// Returns whether the line is a row of the same class and GPU.
bool is_replaced(std::string_view line, const TunedRow& row) {
  line = without_cr(line);
  if (!is_row(line) || !has_all_fields(line)) return false;
  try {
    return key_of(parse_tuned_row(line)) == key_of(row);
  } catch (const Error&) {
    return false;  // a line that is not a row stays; read() warns about it
  }
}

}  // namespace

std::string tuned_device(const Device& device) {
  return one_field(concat(device.name, ", ", device.arch, ", ", device.sm_count, " multiprocessors"));
}

std::string to_string(const TunedRow& row) {
  const std::array<std::string, field_count> fields{
      row.device, row.problem, row.words, concat(row.us), concat(row.planner_us), row.date, row.version, row.command};
  std::string text;
  for (const std::string& field : fields) text += concat(text.empty() ? "" : separator, one_field(field));
  return text;
}

TunedRow parse_tuned_row(std::string_view line) {
  const auto fields = split(line);
  TunedRow row;
  row.device = fields[0], row.problem = fields[1], row.words = fields[2];
  row.us = microseconds(3, fields[3]), row.planner_us = microseconds(4, fields[4]);
  check_date(fields[5]);
  row.date = fields[5], row.version = fields[6], row.command = fields[7];
  check_class(row.problem);
  return row;
}

TunedFile tuned_file(const std::string& cache_directory) {
  const char* value = std::getenv("RAPT_TUNED");
  const std::string given = value == nullptr ? "" : value;
  if (given == "off") return {"", true};
  if (given.empty()) return {cache_directory.empty() ? "" : cache_directory + "/tuned.txt", false};
  if (given.find('/') != std::string::npos) return {given, true};
  return {"", true,
          concat("tuned rows are not used: RAPT_TUNED = '", given,
                 "': must be off or a file with a '/' in its name, such as './", given, "'")};
}

TunedRows TunedRows::read(const TunedFile& file) {
  TunedRows rows;
  if (!file.note.empty()) warn_once(file.note);
  if (file.path.empty()) return rows;
  rows.path_ = file.path;
  std::string text;
  bool exists = false;
  const std::string wrong = read_trusted(file.path, text, exists);
  if (!wrong.empty() || (file.named && !exists))
    warn_once(
        concat("tuned rows '", file.path, "': the file ", wrong.empty() ? "of RAPT_TUNED does not exist" : wrong));
  if (!wrong.empty()) return rows;
  int64_t bad = 0;
  each_line(text, [&](std::string_view line, int number) {
    line = without_cr(line);
    if (!is_row(line)) return;
    if (bad >= most_warnings && !has_all_fields(line)) {
      ++bad;
      return;
    }
    try {
      TunedRow row = parse_tuned_row(line);
      row.line = number;
      const std::string key = key_of(row);
      rows.rows_[key] = std::move(row);  // a later row replaces an earlier one
    } catch (const Error& error) {
      if (++bad <= most_warnings)
        warn_once(concat(file.path, ":", number, ": the tuned row is ignored: ", error.what()));
    }
  });
  if (bad > most_warnings)
    warn_once(concat(file.path, ": ", bad - most_warnings, " more lines are ignored, because no call can use them"));
  return rows;
}

const TunedRow* TunedRows::find(const Problem& planned, const Device& device) const {
  if (rows_.empty() || device.kind != DeviceKind::cuda || planned.invariant) return nullptr;
  const auto found = rows_.find(key_of(tuned_device(device), plan_line(planned)));
  return found == rows_.end() ? nullptr : &found->second;
}

std::string TunedRows::place(const TunedRow& row) const { return concat(path_, ":", row.line); }

std::string create_tuned_file(const std::string& path) {
  return with_lock(path, [](const std::string& target) {
    std::string text;
    bool exists = false;
    std::string wrong = read_trusted(target, text, exists);
    if (!wrong.empty() || exists) return wrong;
    wrong = replace_file(AT_FDCWD, target, heading, 0644);
    return wrong.empty() ? read_trusted(target, text, exists) : wrong;
  });
}

std::string replace_tuned_row(const std::string& path, const TunedRow& row) {
  return with_lock(path, [&](const std::string& target) -> std::string {
    std::string old, text;
    bool exists = false;
    if (std::string wrong = read_trusted(target, old, exists); !wrong.empty()) return wrong;
    if (!exists) text = heading;  // another process has removed the file
    each_line(old, [&](std::string_view line, int) {
      if (!is_replaced(line, row)) text += concat(line, "\n");
    });
    return replace_file(AT_FDCWD, target, concat(text, to_string(row), "\n"), 0644);
  });
}

}  // namespace rapt
