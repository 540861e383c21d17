// From a kernel's instructions to source lines: decodes the section .debug_line of a cubin that was compiled with
// jit::Request::line_info. Used by profile_hot_spots.cpp and tests. Needs no GPU and no disassembler.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rapt::lab {

struct SourceLine {
  std::string file;  // the name in jit::embedded_files(): "sm80/attention_sm80.cuh"
  int line = 0;
  friend bool operator==(const SourceLine&, const SourceLine&) = default;
};

class LineTable {
 public:
  // Throws Error{invalid_argument} if the section is malformed or has more than one function. A cubin without the
  // section gives an empty table.
  explicit LineTable(std::string_view cubin);

  bool empty() const { return rows_.empty(); }
  // The line of the instruction at this offset from the kernel's begin. If the line is in an inlined function, the line
  // that calls this function follows, and so on. Empty if the table has no row for the instruction.
  std::vector<SourceLine> at(uint64_t offset) const;

 private:
  struct Row {
    uint64_t offset = 0;
    uint64_t file = 1, context = 0;  // context: number of the row of the call, counted from 1; 0: not inlined
    int64_t line = 1;
  };
  class Reader;
  void read_files(Reader& reader);
  void read_rows(Reader& reader, std::string_view argument_counts, unsigned opcode_base, unsigned smallest_step,
                 int line_base, unsigned line_range);

  std::vector<std::string> files_;  // the first one has number 1
  std::vector<Row> rows_;           // sorted by offset
};

}  // namespace rapt::lab
