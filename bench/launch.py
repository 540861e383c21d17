"""Times a bare cuLaunchKernel of an empty kernel in C. This time is the lower bound of the host cost of a call.

Called by call_cost.py. A Python loop through ctypes would add a microsecond to every launch, so the compared calls
would look better than they are. Therefore this module compiles a few lines of C with the machine's compiler, and calls
them once for each block.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile

PARAMETER_BYTES = 256  # about as many as an attention kernel has
SOURCE = (
    r"""
#include <time.h>
typedef int (*launch_t)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                        void**);
/* Returns microseconds per launch, or the driver's error code as a negative number. */
double time_launches(launch_t launch, void* function, void* stream, unsigned blocks, unsigned threads, int launches) {
  char bytes[%d] = {0};
  void* parameters[] = {bytes};
  struct timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (int i = 0; i < launches; ++i) {
    const int error = launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, 0);
    if (error) return -error;
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  return ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / 1e3 / launches;
}
"""
    % PARAMETER_BYTES
)
PTX = (
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    f".visible .entry empty(.param .align 8 .b8 parameters[{PARAMETER_BYTES}]) {{ ret; }}\n"
).encode()


class NotHere(RuntimeError):
    """Raised if a bare launch cannot be timed on this machine."""


def compile_loop(folder: str) -> ctypes.CDLL:
    """Compiles the C loop to a shared library in `folder`."""
    compiler = next(
        (found for found in map(shutil.which, (os.environ.get("CC") or "cc", "gcc", "clang")) if found), None
    )
    if compiler is None:
        raise NotHere("no C compiler (cc, gcc, clang) for the loop of bare launches")
    source, library = os.path.join(folder, "launch.c"), os.path.join(folder, "launch.so")
    with open(source, "w") as file:
        file.write(SOURCE)
    done = subprocess.run([compiler, "-O2", "-shared", "-fPIC", source, "-o", library], capture_output=True, text=True)
    if done.returncode != 0:
        raise NotHere(f"{compiler}: {done.stderr.strip().splitlines()[-1:]}")
    return ctypes.CDLL(library)


class BareLaunch:
    """An empty kernel in the current CUDA context. block(n) returns microseconds of host time per launch."""

    def __init__(self, stream: int, blocks: int = 128, threads: int = 256):
        self.stream, self.shape = stream, (blocks, threads)
        with tempfile.TemporaryDirectory(prefix="rapt-launch-") as folder:
            self.loop = compile_loop(folder)
        self.loop.time_launches.restype = ctypes.c_double
        try:
            self.driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise NotHere(str(error)) from None
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check("cuModuleLoadData", ctypes.byref(module), PTX)
        self._check("cuModuleGetFunction", ctypes.byref(self.function), module, b"empty")

    def _check(self, name: str, *words) -> None:
        error = getattr(self.driver, name)(*words)
        if error:
            raise NotHere(f"{name}: error {error}")

    def block(self, launches: int) -> float:
        blocks, threads = self.shape
        us = self.loop.time_launches(
            self.driver.cuLaunchKernel,
            self.function,
            ctypes.c_void_p(self.stream),
            ctypes.c_uint(blocks),
            ctypes.c_uint(threads),
            ctypes.c_int(launches),
        )
        if us < 0:
            raise RuntimeError(f"cuLaunchKernel: error {-us:.0f}")
        return us
