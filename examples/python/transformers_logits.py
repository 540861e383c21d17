"""Compares logits of a decoder and an encoder of Hugging Face transformers: with rapt's attention, with PyTorch's
attention, and in float64.

    pip install torch transformers; python examples/python/transformers_logits.py

The weights are random. One sequence of the batch is padded (on the left for the decoder). If there is a GPU, it is
used, too. The script fails if rapt's error against float64 is more than twice the error of PyTorch's attention. Run by
tests/python/test_examples.py.
"""

import torch
import transformers

import rapt.compat

rapt.compat.transformers.register()
SIZES = dict(
    vocab_size=1000,
    hidden_size=512,
    intermediate_size=1024,
    num_hidden_layers=4,
    num_attention_heads=8,
    initializer_range=0.05,
    pad_token_id=0,
)
MODELS = {
    "llama": (
        transformers.AutoModelForCausalLM,
        transformers.LlamaConfig(**SIZES, num_key_value_heads=2, bos_token_id=1, eos_token_id=2),
    ),
    "bert": (transformers.AutoModelForMaskedLM, transformers.BertConfig(**SIZES)),
}
PLACES = [("cpu", torch.float32), ("cpu", torch.bfloat16)]
if torch.cuda.is_available():
    PLACES += [("cuda", dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)]


def logits(model, name, tokens, mask):
    model.set_attn_implementation(name)
    with torch.inference_mode():
        return model(tokens, attention_mask=mask).logits.double()[mask.bool()]


for name, (kind, config) in MODELS.items():
    for device, dtype in PLACES:
        torch.manual_seed(0)
        model = kind.from_config(config, attn_implementation="sdpa").to(device, dtype).eval()
        tokens = torch.randint(3, 1000, (3, 200), device=device)
        mask = torch.ones_like(tokens)
        mask[1, slice(0, 60) if name == "llama" else slice(140, 200)] = 0
        theirs, ours = logits(model, "sdpa", tokens, mask), logits(model, "rapt", tokens, mask)
        exact = logits(model.double(), "sdpa", tokens, mask)
        far = {who: (out - exact).abs().max().item() for who, out in (("rapt", ours), ("sdpa", theirs))}
        apart = (ours - theirs).abs().max().item()
        print(
            f"{name} {device} {str(dtype).removeprefix('torch.')}: logits up to {exact.abs().max().item():.2f};",
            end=" ",
        )
        print(f"rapt - sdpa {apart:.1e}, rapt - float64 {far['rapt']:.1e}, sdpa - float64 {far['sdpa']:.1e} (largest)")
        if not far["rapt"] <= 2 * far["sdpa"]:
            raise SystemExit("rapt's error against float64 is more than twice that of PyTorch's attention")
