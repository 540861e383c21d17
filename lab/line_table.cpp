// Runs the line number program of DWARF 2 to 4 (dwarfstd.org, "Line Number Information"). NVIDIA's compilers add one
// opcode to it: 0x90. For code of an inlined function, its operand is the number of the row of the call. NVIDIA's
// patches of gdb and LLVM's description of the NVPTX target describe this opcode.
#include "lab/line_table.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "lab/cubin.h"

namespace rapt::lab {
namespace {

constexpr std::string_view unit_file = "unit.cu";  // the name that jit/nvrtc.cpp gives to the translation unit
constexpr size_t most_calls = 64;                  // the deepest nesting of inlined functions that is followed

}  // namespace

class LineTable::Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  size_t left() const { return left_.size(); }

  std::string_view take(uint64_t bytes) {
    if (bytes > left_.size()) invalid("cubin: its line table ends early");
    const std::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(taken.size());
    return taken;
  }
  template <class T>
  T fixed() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  uint64_t unsigned_number() {  // LEB128
    uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      const auto byte = fixed<uint8_t>();
      if (shift < 64) value |= uint64_t{byte & 0x7fu} << shift;
      if ((byte & 0x80) == 0) return value;
    }
  }
  int64_t signed_number() {
    uint64_t value = 0;
    for (unsigned shift = 0;;) {
      const auto byte = fixed<uint8_t>();
      if (shift < 64) value |= uint64_t{byte & 0x7fu} << shift;
      shift += 7;
      if ((byte & 0x80) != 0) continue;
      if ((byte & 0x40) != 0 && shift < 64) value |= ~uint64_t{0} << shift;
      return static_cast<int64_t>(value);
    }
  }
  std::string text() {
    const std::string_view found = left_.substr(0, left_.find('\0'));
    take(found.size() + 1);
    return std::string(found);
  }

 private:
  std::string_view left_;
};

LineTable::LineTable(std::string_view cubin) {
  const auto section = cubin_section(cubin, ".debug_line");
  if (!section || section->empty()) return;
  Reader whole(*section);
  Reader table(whole.take(whole.fixed<uint32_t>()));
  const auto version = table.fixed<uint16_t>();
  if (version < 2 || version > 4) invalid("cubin: its line table has version ", version, ": must be 2 to 4");
  Reader header(table.take(table.fixed<uint32_t>()));
  const unsigned smallest_step = header.fixed<uint8_t>();
  if (version == 4) header.take(1);  // maximum_operations_per_instruction
  header.take(1);                    // default_is_stmt
  const int line_base = header.fixed<int8_t>();
  const unsigned line_range = header.fixed<uint8_t>(), opcode_base = header.fixed<uint8_t>();
  if (line_range == 0 || opcode_base == 0) invalid("cubin: the header of its line table is malformed");
  const std::string_view argument_counts = header.take(opcode_base - 1);
  read_files(header);
  read_rows(table, argument_counts, opcode_base, smallest_step, line_base, line_range);
}

// Every file name begins with the compiler's working folder. This function finds that folder from the entry of the
// translation unit, and removes it from all names.
void LineTable::read_files(Reader& reader) {
  std::vector<std::string> folders = {""};
  for (std::string name = reader.text(); !name.empty(); name = reader.text()) folders.push_back(name + "/");
  std::string root;
  for (std::string name = reader.text(); !name.empty(); name = reader.text()) {
    const uint64_t folder = reader.unsigned_number();
    reader.unsigned_number(), reader.unsigned_number();  // time, size
    if (folder >= folders.size()) invalid("cubin: its line table has no folder ", folder);
    if (name == unit_file) root = folders[folder];
    files_.push_back(folders[folder] + name);
  }
  for (std::string& file : files_)
    if (file.starts_with(root)) file.erase(0, root.size());
}

void LineTable::read_rows(Reader& reader, std::string_view argument_counts, unsigned opcode_base,
                          unsigned smallest_step, int line_base, unsigned line_range) {
  // Standard opcodes, and after them extended ones.
  enum { extended, copy, advance_pc, advance_line, set_file, skip_1, skip_2, skip_3, const_add_pc, fixed_advance_pc };
  enum { end_sequence = 1, set_address = 2, inlined_call = 0x90 };
  bool ended = false;
  for (Row row; reader.left() > 0;) {
    const unsigned code = reader.fixed<uint8_t>();
    if (ended) invalid("cubin: its line table has more than one function");
    if (code >= opcode_base) {
      row.offset += uint64_t{(code - opcode_base) / line_range} * smallest_step;
      row.line += line_base + static_cast<int>((code - opcode_base) % line_range);
      rows_.push_back(row);
    } else if (code == extended) {
      Reader arguments(reader.take(reader.unsigned_number()));
      const unsigned kind = arguments.fixed<uint8_t>();
      ended = kind == end_sequence;
      if (kind == set_address) row.offset = arguments.fixed<uint64_t>();
      if (kind == inlined_call) row.context = arguments.unsigned_number();
    } else if (code == copy) {
      rows_.push_back(row);
    } else if (code == advance_pc) {
      row.offset += reader.unsigned_number() * smallest_step;
    } else if (code == advance_line) {
      row.line += reader.signed_number();
    } else if (code == set_file) {
      row.file = reader.unsigned_number();
    } else if (code == const_add_pc) {
      row.offset += uint64_t{(255 - opcode_base) / line_range} * smallest_step;
    } else if (code == fixed_advance_pc) {
      row.offset += reader.fixed<uint16_t>();
    } else {
      for (int i = 0; i < argument_counts[code - 1]; ++i) reader.unsigned_number();
    }
  }
  const auto before = [](const Row& a, const Row& b) { return a.offset < b.offset; };
  if (!std::is_sorted(rows_.begin(), rows_.end(), before)) invalid("cubin: the rows of its line table are not sorted");
}

std::vector<SourceLine> LineTable::at(uint64_t offset) const {
  std::vector<SourceLine> lines;
  auto row = std::upper_bound(rows_.begin(), rows_.end(), offset,
                              [](uint64_t wanted, const Row& each) { return wanted < each.offset; });
  while (row != rows_.begin() && lines.size() < most_calls) {
    --row;
    if (row->file == 0 || row->file > files_.size()) break;
    lines.push_back({files_[row->file - 1], static_cast<int>(row->line)});
    if (row->context == 0 || row->context > rows_.size()) break;
    row = rows_.begin() + static_cast<std::ptrdiff_t>(row->context);
  }
  return lines;
}

}  // namespace rapt::lab
