// rapt_kv_append on the CPU. Called by src/operations/kv_append.cpp with validated parameters and contents.
#pragma once

#include "cpu/threads.h"
#include "kernels/shared/kv_append.h"

namespace rapt::cpu {

// Throws std::bad_alloc before anything is written.
void kv_append(ThreadPool& pool, const KvAppendParams& params);

}  // namespace rapt::cpu
