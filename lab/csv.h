// Lines, cells and numbers of the CSV that Nsight Compute prints. Used by profile_metrics.cpp and
// profile_hot_spots.cpp.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rapt::lab {

// Takes the first line off the text; without its end.
std::string_view next_line(std::string_view& text);

// Splits one line. Cells may be quoted; a quote inside a quoted cell is doubled.
std::vector<std::string> cells_of(std::string_view line);

// A cell to write: in quotes if it has a comma or a quote, or always.
std::string csv_cell(const std::string& text, bool always_quoted = false);

// Without blanks at both ends.
std::string_view trimmed(std::string_view text);

// "1,205.00" -> 1205. No value for "n/a", "" and numbers that are not finite.
std::optional<double> number_of(std::string_view text);

}  // namespace rapt::lab
