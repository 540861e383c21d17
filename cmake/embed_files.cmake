# Writes a C++ source that contains text files. rapt_embed (RaptEmbed.cmake) runs it with cmake -P. Its inputs are LIST
# (a file that sets symbol, base_dir and names) and OUTPUT.
include("${LIST}")
string(REGEX MATCH "^(.*)::([^:]+)$" unused "${symbol}")
set(namespace "${CMAKE_MATCH_1}")
set(function "${CMAKE_MATCH_2}")
set(piece_bytes 15000)  # some compilers support literals of only 16 KB

set(entries "")
foreach(name IN LISTS names)
  file(READ "${base_dir}/${name}" text)
  string(FIND "${text}" ")rapt_text\"" closing)
  if(NOT closing EQUAL -1)
    message(FATAL_ERROR "${base_dir}/${name} holds )rapt_text\", which ends the literal that it is put into")
  endif()
  set(literals "")
  string(LENGTH "${text}" left)
  while(left GREATER 0)
    set(take ${left})
    if(left GREATER piece_bytes)
      string(SUBSTRING "${text}" 0 ${piece_bytes} piece)
      string(FIND "${piece}" "\n" newline REVERSE)  # cut between lines, so never inside a UTF-8 character
      if(newline EQUAL -1)
        message(FATAL_ERROR "${base_dir}/${name} has a line longer than ${piece_bytes} bytes")
      endif()
      math(EXPR take "${newline} + 1")
    endif()
    string(SUBSTRING "${text}" 0 ${take} piece)
    string(SUBSTRING "${text}" ${take} -1 text)
    string(LENGTH "${text}" left)
    string(APPEND literals "R\"rapt_text(${piece})rapt_text\"\n")
  endwhile()
  if(literals STREQUAL "")
    set(literals "\"\"\n")
  endif()
  string(APPEND entries "{\"${name}\", text_of(${literals})},\n")
endforeach()

file(WRITE "${OUTPUT}" "// Written by cmake/embed_files.cmake; edit the files that it holds.
#include <map>
#include <string_view>
#if defined(__clang__)
#pragma clang diagnostic ignored \"-Woverlength-strings\"
#endif

namespace ${namespace} {

const std::map<std::string_view, std::string_view>& ${function}();

const std::map<std::string_view, std::string_view>& ${function}() {
  [[maybe_unused]] const auto text_of = []<size_t bytes>(const char (&text)[bytes]) {
    return std::string_view(text, bytes - 1);
  };
  static const std::map<std::string_view, std::string_view> files = {
${entries}  };
  return files;
}

}  // namespace ${namespace}
")
