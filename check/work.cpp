// The only Work object of the process.
#include "work.h"

namespace rapt::check {

Work& work() {
  static Work one;
  return one;
}

Stage::Stage(const char* name, int64_t total)
    : before_(work().stage), done_before_(work().done), total_before_(work().total) {
  work().done = 0, work().total = total, work().stage = name;
  if (void (*const changed)() = work().changed) changed();
}

Stage::~Stage() { work().stage = before_, work().done = done_before_, work().total = total_before_; }

}  // namespace rapt::check
