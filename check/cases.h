// Case files: problem lines with comments, in check/cases/NAME.txt.
// Read by tests, `rapt check --cases` and `rapt bench`.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "fill.h"

namespace rapt::check {

// A line of a case file: `problem words [; fills=normal,huge | unpacked]`. `#` starts a comment. Default fill: normal.
struct Case {
  std::string line;  // only the problem line
  std::vector<Fill> fills;
  bool packed = true;  // false: `rapt pack` compiles and checks its kernels, but does not put them into the pack
  std::string file;
  int64_t number = 0;         // line number in the file, from 1
  std::string where() const;  // "check/cases/smoke.txt:12"
  Problem problem() const;    // parses `line`; an Error contains where()
};

// True if `name` is the name of a set ("smoke") and not a path. A path has a dot or a slash.
bool is_case_set(const std::string& name);
// Reads the cases in a text. Error sentences use `path` as the name of the text.
std::vector<Case> read_cases(std::istream& file, const std::string& path);
// Reads the cases of a set or a file. name: the name of a set ("smoke" is smoke.txt in `directory`), or the path of a
// file. Error sentences have the file and the line.
std::vector<Case> load_cases(const std::string& name, const std::string& directory = "check/cases");

}  // namespace rapt::check
