// A family of two kernels for tests. It computes only plain dense f32 attention. The first kernel computes the states
// of parts of the keys, writes them to the workspace, and counts its finished blocks. The second kernel combines the
// states. If not all blocks have finished, it writes NaN. It resets the counter. Tests pass the family to a context by
// ContextOptions::family. Used by workspace_test.cpp and tests/gpu/workspace_test.cpp.
#pragma once

#include "kernels/family.h"

namespace rapt::test {

extern const Family two_steps;

// The workspace of the step that this thread launched last.
Workspace last_workspace();

}  // namespace rapt::test
