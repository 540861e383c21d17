// The stages of attention_sm90 for rapt profile --trace (device/trace.cuh, docs/lab.md). Device only.
#pragma once

#include "device/trace.cuh"

RAPT_TRACE_STAGES(
    "start|producer: tile|producer: load Q|producer: load K|producer: load V|"
    "consumer #: wait tile|consumer #: wait Q|consumer #: wait turn|consumer #: wait K|consumer #: Q.K|"
    "consumer #: wait V|consumer #: P.V|consumer #: softmax|consumer #: wait P.V|consumer #: skip|"
    "consumer #: epilogue")
