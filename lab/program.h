// The rapt program: command line to command, errors to a sentence and an exit code.
// Called by main(), and by tests that need no process of their own.
#pragma once

namespace rapt::lab {

int run_program(int argc, const char* const* argv);

}  // namespace rapt::lab
