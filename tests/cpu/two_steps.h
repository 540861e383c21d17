// A family of two kernels for tests: parts of the keys leave their states in the workspace, a second kernel combines
// them. f32 and plain dense attention only; the first kernel counts its blocks, the second one writes NaN unless all
// have come, and sets the counter back. Given to a context by ContextOptions::family. Used by workspace_test.cpp and
// tests/gpu/workspace_test.cpp.
#pragma once

#include "kernels/family.h"

namespace rapt::test {

extern const Family two_steps;

// The workspace that the step launched last in this thread was given.
Workspace last_workspace();

}  // namespace rapt::test
