"""A Llama-like model of Hugging Face transformers generates tokens with rapt's attention, and with PyTorch's.

    pip install torch transformers; python examples/python/transformers_generate.py

The weights are random, so the tokens have no meaning. A real model needs only
from_pretrained(name, attn_implementation="rapt"). Uses a GPU if there is one. Run by tests/python/test_examples.py.
"""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import rapt.compat

rapt.compat.transformers.register()

device = "cuda" if torch.cuda.is_available() else "cpu"
config = LlamaConfig(
    vocab_size=1000,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    initializer_range=0.1,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(config, attn_implementation="rapt").to(device).eval()

# Two prompts of 12 and 7 tokens. The shorter one is padded on the left, as usual for decoders.
prompts = torch.randint(3, 1000, (2, 12), device=device)
attention_mask = torch.ones_like(prompts)
attention_mask[1, :5] = 0
options = dict(attention_mask=attention_mask, max_new_tokens=20, do_sample=False)

tokens = model.generate(prompts, **options)
model.set_attn_implementation("sdpa")
expected = model.generate(prompts, **options)

for row in tokens[:, 12:].tolist():
    print(*row)
if not torch.equal(tokens, expected):
    raise SystemExit("the tokens differ from those of PyTorch's attention")
print(f"{tokens[:, 12:].numel()} tokens on {device}, the same as with PyTorch's attention")
