// A family of two kernels for tests: parts of the keys write their states to the workspace, a second kernel combines
// them. Only plain dense f32 attention. The first kernel counts its blocks; the second one writes NaN unless all have
// finished, and resets the counter. Passed to a context by ContextOptions::family. Used by workspace_test.cpp and
// tests/gpu/workspace_test.cpp.
#pragma once

#include "kernels/family.h"

namespace rapt::test {

extern const Family two_steps;

// The workspace of the step that this thread launched last.
Workspace last_workspace();

}  // namespace rapt::test
