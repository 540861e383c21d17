// The entry point of the rapt program, and nothing else: lab/program.cpp does the work, so that tests can link it.
// Called by the system.
#include "lab/program.h"

int main(int argc, char** argv) { return rapt::lab::run_program(argc, argv); }
