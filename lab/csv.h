// Lines, cells and numbers of the CSV that Nsight Compute prints. Used by profile_metrics.cpp and
// profile_hot_spots.cpp.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rapt::lab {

// Removes the first line from `text`, and returns the line without its line break.
std::string_view next_line(std::string_view& text);

// Splits one line. Cells may be quoted; a quote inside a quoted cell is doubled.
std::vector<std::string> cells_of(std::string_view line);

// The text of a cell to write. It is quoted if it contains a comma or a quote, or if `always_quoted`.
std::string csv_cell(const std::string& text, bool always_quoted = false);

// The text without blanks at its ends.
std::string_view trimmed(std::string_view text);

// "1,205.00" -> 1205. No value for "n/a", "" and numbers that are not finite.
std::optional<double> number_of(std::string_view text);

}  // namespace rapt::lab
