// The rapt program: parses the command line, runs a command, turns errors into a sentence and an exit code. Called by
// main(), and by tests without a process of their own.
#pragma once

namespace rapt::lab {

int run_program(int argc, const char* const* argv);

}  // namespace rapt::lab
