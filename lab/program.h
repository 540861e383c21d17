// The rapt program: parses the command line, runs a command, and turns errors into a sentence and an exit code. Called
// by main(). Tests call it, too, so they need no child process.
#pragma once

namespace rapt::lab {

int run_program(int argc, const char* const* argv);

}  // namespace rapt::lab
