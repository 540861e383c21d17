// What the process's environment says about the store: RAPT_CACHE, RAPT_PACKS and
// RAPT_PACKS_TRUST.
// Used where a context or the lab makes a store without options of its own.
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
    options.cache_note = concat("compiled kernels are not kept: RAPT_CACHE = '", given,
                                "': must be off or a directory with a '/' in its name, such as './", given, "'");
  } else if (!given.empty()) {
    options.cache_directory = given;
  } else if (xdg.starts_with('/')) {  // the XDG rules: a relative path counts as not set
    options.cache_directory = xdg + "/rapt";
  } else if (!home.empty()) {
    options.cache_directory = home + "/.cache/rapt";
  } else {
    options.cache_note = "compiled kernels are not kept: neither RAPT_CACHE nor XDG_CACHE_HOME nor HOME is set";
  }
  const std::string packs = environment("RAPT_PACKS"), trust = environment("RAPT_PACKS_TRUST");
  options.trust_any_pack = trust == "any";
  if (!trust.empty() && trust != "any" && trust != "owner")
    warn_once(concat("RAPT_PACKS_TRUST = '", trust, "': must be owner or any; owner is used"));
  for (size_t begin = 0; begin < packs.size();) {
    const size_t end = std::min(packs.find(':', begin), packs.size());
    if (end > begin) options.packs.push_back(packs.substr(begin, end - begin));
    begin = end + 1;
  }
  return options;
}

}  // namespace rapt::jit
