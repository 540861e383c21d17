"""A selection of model classes of transformers with attn_implementation="rapt": each is correct, or refused with a
sentence.

Run by pytest; needs PyTorch and transformers. transformers_models.py does the same for all classes.
"""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")

import transformers_models as models  # noqa: E402

import rapt  # noqa: E402
from rapt.compat import _transformers_models as support  # noqa: E402

RIGHT = """
    BartForConditionalGeneration BertModel CLIPModel DeepseekV3ForCausalLM DistilBertForMaskedLM
    GPT2LMHeadModel Gemma2ForCausalLM Gemma4ForCausalLM GptOssForCausalLM JambaForCausalLM LlamaForCausalLM
    LlavaForConditionalGeneration MistralForCausalLM ModernBertModel Qwen2VLForConditionalGeneration
    Qwen3MoeForCausalLM RobertaModel T5ForConditionalGeneration ViTModel Wav2Vec2Model
    WhisperForConditionalGeneration
""".split()
REFUSED = {
    "BloomForCausalLM": "computes its attention scores itself",
    "MPNetModel": "computes its attention scores itself",
    "RoFormerModel": "computes its attention scores itself",
    "BlipTextModel": "computes its attention scores itself",
    "XLNetModel": "computes its attention scores itself",
    "FalconForCausalLM": "chooses its attention from its own table",
    "SamModel": "chooses its attention from its own table",
    "SplinterModel": "does not declare that its attention can be replaced",
}


@pytest.fixture(autouse=True, scope="module")
def registered():
    rapt.compat.transformers.register()


def model_class(name):
    return getattr(transformers, name)


@pytest.mark.parametrize("name", RIGHT)
def test_a_model_is_right(name):
    assert models.judge_within(model_class(name), 60) == {"outcome": "right", "reason": ""}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_have_it_says_so(name):
    made = models.judge_within(model_class(name), 60)
    assert made["outcome"] == "refused", made
    assert REFUSED[name] in made["reason"] and "use attn_implementation='eager'" in made["reason"]


def bloom():
    config = transformers.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=50)
    return transformers.BloomForCausalLM._from_config(config, attn_implementation="eager").eval()


def test_an_implementation_written_into_a_configuration_is_refused_at_the_mask():
    model = bloom()
    model.config._attn_implementation = "rapt"
    with pytest.raises(rapt.Unsupported, match="the model of BloomConfig computes its attention scores itself"):
        model(torch.ones(1, 5, dtype=torch.long))


class OwnBloom(transformers.BloomForCausalLM):
    """A class that a user defined: its module does not mention attention, but the module of its base class does."""


def test_classes_made_of_refused_ones_are_refused_and_others_are_not():
    assert support.refusal(OwnBloom) == "computes its attention scores itself"
    assert support.refusal(type("OwnLlama", (transformers.LlamaForCausalLM,), {})) is None


def test_setting_it_later_leaves_a_model_that_cannot_have_it_as_it_was():
    model = bloom()
    try:
        model.set_attn_implementation("rapt")
    except rapt.Unsupported:
        pass
    assert model.config._attn_implementation == "eager"
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": 1}))
    llama.set_attn_implementation("rapt")
    assert llama.config._attn_implementation == "rapt"


SMALL = dict(vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=4, num_attention_heads=4)


def test_layers_that_see_only_the_last_queries_keep_their_mask():
    """If a mask has the visible keys, gemma4 drops queries before its shared layers. It tests only for "sdpa"."""
    config = transformers.Gemma4TextConfig(
        **SMALL,
        num_key_value_heads=2,
        head_dim=16,
        global_head_dim=16,
        num_kv_shared_layers=2,
        sliding_window=4,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=50,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )
    logits = {}
    for implementation in ("eager", "rapt"):
        torch.manual_seed(3)
        model = transformers.Gemma4ForCausalLM._from_config(config, attn_implementation=implementation).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape) * 0.2)
            logits[implementation] = model(torch.arange(9)[None] + 4, logits_to_keep=3).logits
    assert torch.allclose(logits["rapt"], logits["eager"], atol=1e-4)
