// Store options from the environment: RAPT_CACHE, RAPT_PACKS and RAPT_PACKS_TRUST.
// Used if a context or the lab creates a store without its own options.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "jit/jit.h"

namespace rapt::jit {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

Store::Options Store::from_environment() {
  Options options;
  const std::string given = environment("RAPT_CACHE"), home = environment("HOME"), xdg = environment("XDG_CACHE_HOME");
  if (given == "off") {
    options.cache_directory = "";
  } else if (!given.empty() && given.find('/') == std::string::npos) {
    options.cache_note = concat("compiled kernels are not cached: RAPT_CACHE = '", given,
                                "': must be off or a directory with a '/' in its name, such as './", given, "'");
  } else if (!given.empty()) {
    options.cache_directory = given;
  } else if (xdg.starts_with('/')) {  // XDG rule: ignore a relative path
    options.cache_directory = xdg + "/rapt";
  } else if (!home.empty()) {
    options.cache_directory = home + "/.cache/rapt";
  } else {
    options.cache_note = "compiled kernels are not cached: RAPT_CACHE, XDG_CACHE_HOME and HOME are not set";
  }
  const std::string packs = environment("RAPT_PACKS"), trust = environment("RAPT_PACKS_TRUST");
  options.trust_any_pack = trust == "any";
  if (!trust.empty() && trust != "any" && trust != "owner")
    warn_once(concat("RAPT_PACKS_TRUST = '", trust, "': must be owner or any; using owner"));
  for (size_t begin = 0; begin < packs.size();) {
    const size_t end = std::min(packs.find(':', begin), packs.size());
    if (end > begin) options.packs.push_back(packs.substr(begin, end - begin));
    begin = end + 1;
  }
  return options;
}

}  // namespace rapt::jit
