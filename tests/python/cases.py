"""Options of rapt.sdpa that the tests of every framework use. NumPy makes the arrays."""

import numpy as np


def options(rng, batch, heads, seqlen_q, seqlen_k):
    """{name: keyword arguments}; each must equal conftest.reference with the same arguments."""
    mask = rng.random((batch, 1, seqlen_q, seqlen_k)) < 0.7
    mask[0, 0, 3] = False  # a row that sees no key
    return {
        "plain": {},
        "causal": {"causal": True},
        "bottom_right": {"causal": "bottom_right"},
        "top_left": {"causal": "top_left"},
        "window": {"window": (3, 2)},
        "softcap": {"softcap": 1.5},
        "bias": {"bias": rng.standard_normal((heads, seqlen_q, seqlen_k), dtype=np.float32)},
        "mask": {"mask": mask},
        "alibi": {"alibi_slopes": np.linspace(0.1, 0.5, heads, dtype=np.float32)},
        "sinks": {"sinks": rng.standard_normal(heads, dtype=np.float32), "causal": True},
        "scale": {"scale": -0.3},
        "scale_zero": {"scale": 0},
        "starts": {"q_start": 5, "k_start": 2, "causal": True},
        "all": {
            "causal": True,
            "window": (9, -1),
            "softcap": 2.0,
            "scale": 0.2,
            "sinks": np.zeros(heads, np.float32),
            "alibi_slopes": np.full(heads, 0.05, np.float32),
            "mask": mask,
            "bias": rng.standard_normal((seqlen_q, seqlen_k), dtype=np.float32),
        },
    }


NAMES = tuple(options(np.random.default_rng(0), 1, 1, 8, 8))
