"""FP8 on PyTorch tensors: attention over quantised keys and values, and training with FP8 rounding."""

import torch

import rapt

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
q, k, v = (torch.randn(1, 8, 512, 64, device=device) for _ in range(3))
k[:, :, :, 5] += 8  # a channel that is always large, as in real models

with torch.inference_mode():
    exact = rapt.sdpa(q, k, v, causal=True)
    for options in ({}, {"smooth": True}, {"hadamard": True}):
        hadamard = options.get("hadamard", False)
        q8 = rapt.quantize(q, scales="head", hadamard=hadamard)  # q is rotated if k is rotated; q is never smoothed
        k8 = rapt.quantize(k, scales="head", **options)
        v8 = rapt.quantize(v, scales="channel")
        out = rapt.sdpa(
            q8.codes,
            k8.codes,
            v8.codes,
            causal=True,
            out_dtype=torch.float32,
            **q8.options("q"),
            **k8.options("k"),
            **v8.options("v"),
        )
        print(f"{str(options):<20} largest error {(out - exact).abs().max().item():.3f}")
    assert (out - exact).abs().mean() < 0.05

# Train weights that are rounded to FP8 in the forward pass.
layer = torch.nn.Linear(64, 64, device=device)
teacher = torch.randn(64, 64, device=device)
optimizer = torch.optim.Adam(layer.parameters(), 0.02)
for _ in range(100):
    x = torch.randn(256, 64, device=device)
    weight = rapt.fake_quantize(layer.weight[None, None], scales="token")[0, 0]
    loss = (torch.nn.functional.linear(x, weight, layer.bias) - x @ teacher).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss after training", loss.item())
assert loss.item() < 20
