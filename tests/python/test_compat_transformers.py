"""attn_implementation="rapt" in Hugging Face transformers: models with random weights, compared with "sdpa".

Run by pytest; needs PyTorch and transformers. Everything runs on the CPU, and on a GPU if there is one.
"""

import copy
import math
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

import rapt  # noqa: E402
from rapt.compat import transformers as compat  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
DTYPES = [torch.float32, torch.bfloat16]
UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}
SIZES = dict(
    vocab_size=97,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    pad_token_id=0,
    max_position_embeddings=64,
    initializer_range=0.25,
)
DECODER = dict(SIZES, num_key_value_heads=2, bos_token_id=1, eos_token_id=2)
CAUSAL, ENCODER = transformers.AutoModelForCausalLM, transformers.AutoModel

# name: (how it is built, its configuration, the implementation to compare with: "sdpa" drops softcap and sinks, "eager"
# not)
MODELS = {
    "llama": (CAUSAL, transformers.LlamaConfig(**DECODER), "sdpa"),
    "mistral": (CAUSAL, transformers.MistralConfig(**DECODER, sliding_window=5), "sdpa"),
    "gemma2": (
        CAUSAL,
        transformers.Gemma2Config(
            **DECODER, head_dim=16, sliding_window=5, query_pre_attn_scalar=16, attn_logit_softcapping=2.0
        ),
        "eager",
    ),
    "gpt-oss": (
        CAUSAL,
        transformers.GptOssConfig(**DECODER, head_dim=16, sliding_window=5, num_local_experts=2, num_experts_per_tok=2),
        "eager",
    ),
    "bert": (ENCODER, transformers.BertConfig(**SIZES), "sdpa"),
    "modernbert": (
        ENCODER,
        transformers.ModernBertConfig(
            **SIZES, local_attention=6, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2
        ),
        "sdpa",
    ),
    "t5": (
        transformers.AutoModelForSeq2SeqLM,
        transformers.T5Config(
            vocab_size=97,
            d_model=64,
            d_kv=16,
            d_ff=96,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=1,
            pad_token_id=0,
            tie_word_embeddings=False,
        ),
        "sdpa",
    ),
}


def exact_attention(
    module,
    query,
    key,
    value,
    attention_mask,
    scaling=None,
    is_causal=None,
    softcap=None,
    s_aux=None,
    position_bias=None,
    **others,
):
    """An attention layer in float64, computed from the definition. The masks are those of transformers for "sdpa"."""
    group, seqlen_q, seqlen_k = query.shape[1] // key.shape[1], query.shape[2], key.shape[2]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    x = query @ key.repeat_interleave(group, 1).transpose(2, 3) * scale
    if softcap is not None:
        x = softcap * torch.tanh(x / softcap)
    if position_bias is not None:
        x = x + position_bias
    if attention_mask is not None:
        x = x.masked_fill(~attention_mask, -math.inf)
    elif seqlen_q > 1 and (module.is_causal if is_causal is None else is_causal):
        x = x.masked_fill(~torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=x.device).tril(), -math.inf)
    if s_aux is not None:
        x = torch.cat([x, s_aux.view(1, -1, 1, 1).expand(*x.shape[:3], 1)], -1)
    assert x.dtype == torch.float64
    p = torch.softmax(x, -1).nan_to_num(0.0)[..., :seqlen_k]
    return (p @ value.repeat_interleave(group, 1)).transpose(1, 2).contiguous(), None


@pytest.fixture(autouse=True)
def registered():
    compat.register()
    transformers.AttentionInterface.register("exact", exact_attention)
    transformers.AttentionMaskInterface.register("exact", transformers.masking_utils.sdpa_mask)


@pytest.fixture
def calls(monkeypatch):
    """The arguments of all calls of rapt.sdpa in a test."""
    seen = []

    def spy(q, k, v, **options):
        seen.append(dict(options, q=q, k=k, v=v))
        return rapt.sdpa(q, k, v, **options)

    monkeypatch.setattr(compat, "attention", spy)
    return seen


def build(name, implementation, device="cpu", dtype=torch.float32):
    """The same random weights for every implementation, device and dtype."""
    auto, config, _ = MODELS[name]
    torch.manual_seed(5)
    model = auto.from_config(copy.deepcopy(config), attn_implementation=implementation).eval()
    if name == "gpt-oss":
        model.set_experts_implementation("eager")  # which float64 has, too
    for parameter_name, parameter in model.named_parameters():
        if "sinks" in parameter_name:  # zero from the constructor
            torch.nn.init.normal_(parameter)
    return model.to(device, dtype)


def tokens(device, padding=None):
    """Three sequences of 11 tokens, and which tokens are real: all of them, or 11, 7 and 4 with padding on the left or
    right.
    """
    ids = torch.randint(3, 97, (3, 11), generator=torch.Generator().manual_seed(1))
    real = torch.ones(3, 11, dtype=torch.long)
    for row, count in enumerate((11, 7, 4) if padding else ()):
        real[row, : 11 - count] = 0 if padding == "left" else 1
        real[row, count:] = 0 if padding == "right" else 1
    return ids.masked_fill(real == 0, 0).to(device), real.to(device)


def rms(tensor):
    return float(tensor.square().mean().sqrt())


@torch.no_grad()
def outputs(model, ids, real, **options):
    """Logits or hidden states of the real tokens, in float64."""
    if model.config.is_encoder_decoder:
        result = model(ids, attention_mask=real, decoder_input_ids=ids[:, :6], **options).logits
        return result.double().flatten(0, 1)
    result = model(ids, attention_mask=real, **options)
    result = result.logits if hasattr(result, "logits") else result.last_hidden_state
    return result[real.bool()].double()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("name", list(MODELS))
def test_outputs_are_as_right_as_the_originals(name, padding, dtype, device, calls):
    """Compares with the model in float64. The error is at most twice that of the original implementation, plus a
    rounding of the output.
    """
    ids, real = tokens(device, padding)
    exact = outputs(build(name, "exact", device, torch.float64), ids, real)
    theirs = outputs(build(name, MODELS[name][2], device, dtype), ids, real)
    ours = outputs(build(name, "rapt", device, dtype), ids, real)
    assert rms(ours - exact) <= 2 * rms(theirs - exact) + UNIT[dtype] * rms(exact)
    layers = 6 if name == "t5" else 3  # t5: two layers of the encoder, and two of the decoder with two attentions each
    assert len(calls) == layers
    if name in ("llama", "mistral", "gemma2", "gpt-oss"):
        assert all(call["k"].shape[1] == 2 for call in calls)  # the 2 key heads are not repeated for 4 query heads


@pytest.mark.parametrize("name", list(MODELS))
def test_outputs_depend_on_attention(name, monkeypatch):
    """Proves that the test above can fail: in float32, scores that are 1 % too large exceed its bounds."""
    ids, real = tokens("cpu", "left")
    exact = outputs(build(name, "exact", dtype=torch.float64), ids, real)
    theirs = outputs(build(name, MODELS[name][2]), ids, real)
    monkeypatch.setattr(compat, "attention", lambda q, k, v, **options: rapt.sdpa(q * 1.01, k, v, **options))
    ours = outputs(build(name, "rapt"), ids, real)
    assert rms(ours - exact) > 10 * (2 * rms(theirs - exact) + UNIT[torch.float32] * rms(exact))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt-oss", "t5"])
@pytest.mark.parametrize("padding", [None, "left"])
def test_generate_gives_the_same_tokens(name, cache, padding, device, calls):
    ids, real = tokens(device, padding)
    options = dict(
        max_new_tokens=12, min_new_tokens=12, do_sample=False, cache_implementation=cache, disable_compile=True
    )
    with sdpa_kernel(SDPBackend.MATH):  # computes everything in float32, on GPUs, too
        theirs = build(name, MODELS[name][2], device).generate(ids, attention_mask=real, **options)
    ours = build(name, "rapt", device).generate(ids, attention_mask=real, **options)
    assert torch.equal(ours, theirs) and ours.shape[1] >= 12
    assert len(calls) >= 12 * (4 if name == "t5" else 3)
    assert len({tuple(row) for row in ours[:, -12:].tolist()}) == 3  # the three answers are different


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_generate_compiles_its_static_cache_on_a_gpu():
    """On GPUs transformers compiles decoding itself, with CUDA graphs."""
    ids, real = tokens("cuda", "left")
    options = dict(max_new_tokens=12, min_new_tokens=12, do_sample=False, cache_implementation="static")
    theirs = build("llama", "eager", "cuda").generate(ids, attention_mask=real, disable_compile=True, **options)
    assert torch.equal(build("llama", "rapt", "cuda").generate(ids, attention_mask=real, **options), theirs)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_generate_replays_one_graph_for_all_steps_on_a_gpu(monkeypatch):
    """transformers runs compiled decode steps with a static cache as CUDA graphs. A replay does not call rapt. So each
    of the three layers calls rapt at most twice: in a step before the recording, and in the recorded step."""
    core, made = rapt._core, []
    launch = core.sdpa_here

    def counted(q, k, v, **options):
        made.append(q.shape[2])
        return launch(q, k, v, **options)

    monkeypatch.setattr(core, "sdpa_here", counted)
    ids, real = tokens("cuda", "left")
    options = dict(max_new_tokens=12, min_new_tokens=12, do_sample=False, cache_implementation="static")
    model = build("llama", "rapt", "cuda")
    first = model.generate(ids, attention_mask=real, **options)
    assert 1 in made
    made.clear()
    assert torch.equal(model.generate(ids, attention_mask=real, **options), first)
    assert made.count(1) <= 2 * 3 < 11 * 3


@pytest.mark.parametrize("device", DEVICES)
@torch.no_grad()
def test_decoding_with_a_static_cache_compiles_into_one_graph(device):
    ids, real = tokens(device, "left")
    model = build("llama", "rapt", device)
    whole = model(ids, attention_mask=real).logits
    torch._dynamo.reset()
    cache = transformers.StaticCache(config=model.config, max_cache_len=16)
    model(ids[:, :7], attention_mask=real[:, :7], past_key_values=cache)
    step = torch.compile(model.forward, fullgraph=True, backend="aot_eager")
    for at in range(7, 11):
        mask = torch.nn.functional.pad(real[:, : at + 1], (0, 15 - at))
        logits = step(ids[:, at : at + 1], attention_mask=mask, past_key_values=cache).logits
        assert rms(logits[:, 0] - whole[:, at]) <= 64 * UNIT[torch.float32] * rms(whole)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt-oss"])
def test_a_static_cache_keeps_one_plan(name, device, monkeypatch):
    """All decode steps of a static cache are the same problem, so they have the same plan. A layer with a sliding
    window has a cache of another size, and so a second problem. A dynamic cache is a new problem in each step."""
    plans = {}

    def recorded(q, k, v, **options):
        if q.shape[2] == 1:
            plans.setdefault(kind, []).append((rapt.explain(q, k, v, **options), options.get("window")))
        return rapt.sdpa(q, k, v, **options)

    monkeypatch.setattr(compat, "attention", recorded)
    ids, real = tokens(device, "left")
    model = build(name, "rapt", device)
    for kind in ("static", "dynamic"):
        options = dict(max_new_tokens=12, min_new_tokens=12, do_sample=False, disable_compile=True)
        model.generate(ids, attention_mask=real, cache_implementation=kind, **options)
    assert len(plans["static"]) == len(plans["dynamic"]) == 11 * 3
    assert len(set(plans["static"])) == (1 if name in ("llama", "mistral") else 2)
    assert len(set(plans["dynamic"])) > 5 or name == "mistral"  # all layers of mistral have a window of 5 keys


def test_sequences_packed_in_one_row_are_kept_apart():
    ids, _ = tokens("cpu")
    positions = torch.tensor([[*range(6), *range(5)]])
    model = build("llama", "rapt")
    with torch.no_grad():
        packed = model(ids[:1], position_ids=positions, use_cache=False).logits[0]
        apart = torch.cat([model(ids[:1, :6]).logits[0], model(ids[:1, 6:]).logits[0]])
    assert rms(packed - apart) <= 64 * UNIT[torch.float32] * rms(apart)


def test_a_model_says_what_it_cannot():
    ids, real = tokens("cpu")
    model = build("bert", "rapt")
    with pytest.raises(rapt.Unsupported, match="output_attentions is given: the weights are never computed"):
        model(ids, attention_mask=real, output_attentions=True)
    with pytest.raises(rapt.Unsupported, match=r"dropout is 0\.1: must be 0"):
        model.train()(ids, attention_mask=real)
    loss = build("llama", "rapt").train()(ids, attention_mask=real, labels=ids).loss
    with pytest.raises(RuntimeError, match="no backward"):
        loss.backward()


PROGRAM = """
import sys
{before}
import rapt, rapt.compat
{after}
"""


@pytest.mark.parametrize(
    "before, after",
    [
        ("", "assert 'transformers' not in sys.modules"),
        (
            "import transformers",
            "assert 'rapt' not in transformers.AttentionInterface().valid_keys()\n"
            "rapt.compat.transformers.register(); rapt.compat.transformers.register('other')\n"
            "from transformers.masking_utils import AttentionMaskInterface\n"
            "assert {'rapt', 'other'} <= set(transformers.AttentionInterface())\n"
            "assert {'rapt', 'other'} <= set(AttentionMaskInterface())",
        ),
        (
            "sys.modules['transformers'] = None",
            "try: rapt.compat.transformers.register()\n"
            "except rapt.EnvironmentLacking as error: assert 'needs version 5' in str(error), error\n"
            "else: raise SystemExit('was not refused')",
        ),
    ],
    ids=["imports nothing", "registers when asked", "without transformers"],
)
def test_registering(before, after):
    program = PROGRAM.format(before=before, after=after)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
