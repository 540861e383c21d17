// The entry point of the rapt program. lab/program.cpp does the work, so that tests can link it.
#include "lab/program.h"

int main(int argc, char** argv) { return rapt::lab::run_program(argc, argv); }
