# Short commands for CMake presets. Each installs missing packages (Debian 12, Ubuntu 24.04) and prints what it does.
# `make run`: attention on a real sample. `make test`: all tests. The work is done in CMakeLists.txt and scripts/.
.PHONY: help run test build compiler pack ledger kit format clean
.DEFAULT_GOAL := help

JOBS ?= $(shell nproc)
# Additional options for cmake, for example CONFIGURE=-DRAPT_HIGHWAY=OFF.
CONFIGURE ?=
SAMPLE := examples/data/minilm-layer0.safetensors
SOURCES = $(shell git ls-files -co --exclude-standard '*.cpp' '*.hpp' '*.h' '*.c' '*.cuh')

help:
	@echo "make run     build release and run attention on $(SAMPLE)"
	@echo "make test    build everything and run every test"
	@echo "make build   build the library, the program and the tests into build/"
	@echo "make kit     build/carry: program, library and cases, to copy to another machine"
	@echo "make format  clang-format all sources in place"
	@echo "make clean   remove the build trees"
	@echo "make pack    build/rapt.pack: the GPU kernels of check/cases/shipped.txt, compiled; needs no GPU"
	@echo "make ledger  rewrite src/kernels/resources.json: the resources of those kernels on each architecture"

run:
	@scripts/bootstrap.sh run
	@cmake --preset release --log-level=WARNING $(CONFIGURE) >/dev/null
	@cmake --build --preset release --target rapt_program -j $(JOBS)
	build/rapt run $(SAMPLE) -o build/out.safetensors

build:
	@scripts/bootstrap.sh test
	@cmake --preset release --log-level=WARNING $(CONFIGURE) >/dev/null
	@cmake --build --preset release -j $(JOBS)

test: build
	@scripts/run_tests.sh release -j $(JOBS)

kit:
	@scripts/bootstrap.sh run
	@cmake --preset release --log-level=WARNING $(CONFIGURE) >/dev/null
	@cmake --build --preset release --target rapt_program rapt_shared -j $(JOBS)
	@scripts/kit.sh build build/carry

# Builds the program that compiles kernels, and finds NVRTC.
compiler:
	@scripts/bootstrap.sh test
	@cmake --preset release --log-level=WARNING $(CONFIGURE) >/dev/null
	@cmake --build --preset release --target rapt_program -j $(JOBS)

pack: compiler
	@scripts/kernels.sh build pack

ledger: compiler
	@scripts/kernels.sh build ledger

format:
	@scripts/bootstrap.sh ci
	clang-format -i $(SOURCES)

clean:
	rm -rf build build-dev build-asan build-tsan build-scalar build-python
