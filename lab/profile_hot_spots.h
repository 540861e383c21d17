// The hot spots of a profiled kernel: the instructions and source lines at which ncu's samples found most warps. Parses
// ncu's source page (CSV), and finds the source lines by the line table in the kernel's cubin. Used by profile.cpp and
// tests; needs neither ncu nor a GPU.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jit/jit.h"
#include "lab/line_table.h"

namespace rapt::lab {

// One row of the page.
struct SassInstruction {
  uint64_t offset = 0;  // from the kernel's first instruction
  std::string text;     // the instruction; branch targets are offsets, too
  double samples = 0;
  std::vector<double> stalls;  // number of samples for each of SassPage::reasons
};

struct SassPage {
  std::vector<std::string> reasons;  // stall reasons as the metrics name them ("long_scoreboard"); not "selected"
  std::vector<SassInstruction> instructions;
  double samples = 0;
  std::string why;  // the reason why there are no samples; "" if there are samples
  // The page with offsets instead of addresses, and without zeros, empty columns and the columns "(Not Issued)". So it
  // is small, and can be compared with the page of another run.
  std::string csv;
};
// Parses the output of `ncu --csv --page source --print-source sass`. Never throws Error: if the text has another form,
// the result has no instructions, and `why` gives the reason.
SassPage parse_sass_page(std::string_view text);

// The lines of the kernel that was profiled.
class KernelLines {
 public:
  KernelLines() = default;  // no lines
  // image: the kernel that the store returns for the request with line_info. A kernel from a pack has no lines. In this
  // case the constructor compiles the request, and uses the lines of the result if the machine code is the same. Never
  // throws Error.
  KernelLines(jit::Request request, const jit::Image& image);

  std::string why = "not searched";  // the reason why there are no lines, or ""
  size_t instructions = 0;
  // Same as LineTable::at().
  std::vector<SourceLine> at(uint64_t offset) const { return table_ ? table_->at(offset) : std::vector<SourceLine>(); }
  // The text of a line, without blanks at both ends.
  std::string text_of(const SourceLine& line) const;

 private:
  jit::Request request_;
  std::optional<LineTable> table_;
};

struct MainStall {
  std::string reason;  // the most frequent stall reason; "" if no sample was stalled
  double share = 0;    // share of this reason in the samples of the instruction or line
};
struct HotInstruction {
  uint64_t offset = 0;
  std::string text;
  double samples = 0, share = 0;  // share: `samples` divided by all samples of the kernel
  MainStall stall;
  std::vector<SourceLine> source;  // the instruction's line, then the line that calls its function, ...
};
// A line of the kernel's own file. Samples in functions that this line calls also count for this line.
struct HotLine {
  SourceLine line;
  std::string text;
  double samples = 0, share = 0;
  MainStall stall;
  SourceLine inner;  // where most of this line's samples are: a line of a called function, or this line
  double inner_share = 0;
};
struct HotSpots {
  std::string why, why_no_lines;  // the reasons why there are no samples, or no lines; "" if there are some
  double samples = 0;
  std::vector<HotInstruction> instructions;  // hottest first
  std::vector<HotLine> lines;
};
HotSpots hot_spots(const SassPage& page, const KernelLines& lines);

// The lines `hot` and `hot line` of the verdict.
std::string to_text(const HotSpots& spots);
nlohmann::ordered_json to_json(const HotSpots& spots);

}  // namespace rapt::lab
