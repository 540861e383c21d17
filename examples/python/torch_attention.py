"""Attention on PyTorch tensors: eager, under torch.compile, and on a GPU in a CUDA graph."""

import torch

import rapt

device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.float16 if device == "cuda" else torch.float32
q, k, v = (torch.randn(1, 8, 512, 64, device=device, dtype=dtype) for _ in range(3))

with torch.inference_mode():
    out = rapt.sdpa(q, k, v, causal=True)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    print("largest difference from PyTorch's own", (out - expected).abs().max().item())
    assert (out - expected).abs().max() < 5e-3

    rapt.sdpa(q, k, v, causal=True, out=out)  # writes into your tensor

    layer = torch.compile(lambda q, k, v: rapt.sdpa(q, k, v, causal=True) * 2, fullgraph=True)
    assert torch.equal(layer(q, k, v), out * 2)

    if device == "cuda":
        graph = (
            torch.cuda.CUDAGraph()
        )  # the calls above have loaded the kernel; rapt.prepare(q, k, v, causal=True) would too
        with torch.cuda.graph(graph):
            captured = rapt.sdpa(q, k, v, causal=True)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured, out)

    # FP8 keys with one scale per head, 16-bit queries and values.
    scale = k.abs().amax(dim=(2, 3)).float() / 448
    k8 = (k / scale[..., None, None].to(k.dtype)).to(torch.float8_e4m3fn)
    out8 = rapt.sdpa(q, k8, v, causal=True, k_descale=scale, k_scales="head")
    print("largest difference with FP8 keys", (out8 - out).abs().max().item())
