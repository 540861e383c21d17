"""Every model class of the installed transformers with attn_implementation="rapt", compared with its own "eager" path.

    python3 tests/python/transformers_models.py -o docs/transformers-models.md     # all classes: about an hour
    python3 tests/python/transformers_models.py BertModel LlamaForCausalLM         # these classes, to the terminal

Each class gets a tiny configuration and random weights, the same for both, and float32 inputs: without padding, padded
right, padded left, and with another last token, which must not change earlier outputs if it does not with "eager". The
outcome is right, refused (a rapt.Error, whose sentence is kept), wrong, or untried with the reason.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import warnings
from collections import defaultdict

BATCH, TOKENS, DECODED, VOCABULARY = 2, 11, 7, 128
HIDDEN, HEADS, HEAD_DIM = 64, 4, 16
LIMIT_S = 30  # the longest time for a class, in seconds
LARGEST = 60_000_000  # the largest number of parameters of a model
TOLERANCE = 2e-4  # the largest allowed difference, relative to the largest output

# Patterns of fields in configurations, and their tiny values. The first matching pattern applies. None: the field is
# kept.
SIZES = [
    (
        r"^(type_vocab_size|num_labels|num_channels|in_channels|num_mel_bins|num_feat_extract_layers|num_attn_module)$",
        None,
    ),
    (r"^(conv_|pad_|num_conv_pos)|_layerdrop$", None),
    (r"vocab_size|^n_tokens$|^char_vocab|num_embeddings$", VOCABULARY),
    (r"(key_value|kv)_heads$", 2),
    (r"(heads|n_head)$", HEADS),
    (r"^(head_dim|d_kv)$|_head_dim$", HEAD_DIM),
    (r"lora_rank$", 16),
    (r"experts_per_tok(en)?$|^moe_topk$|^moe_k$|^top_k_experts$", 2),
    (r"experts$", 4),
    (r"^(n_group|topk_group|first_k_dense_replace|moe_layer_freq|decoder_sparse_step)$", 1),
    (r"^(num_hidden_layers|n_layers?|num_layers)$", 4),
    (r"layers$|^depth$|_depth$|num_blocks$", 2),
    (r"(intermediate_size|ffn_dim|d_ff|n_inner|mlp_dim|ffn_hidden_size|intermediate_dim|ffn_embed_dim)$", 96),
    (r"(hidden_size|hidden_dim|d_model|n_embd|embed_dim|embedding_size|emb_dim|projection_dim|embedding_dim)$", HIDDEN),
    (r"_proj_dim$|^(dim|channels|lru_width|output_dim)$", HIDDEN),
    (r"^(max_position_embeddings|n_positions|n_ctx|max_seq_len|max_sequence_length)$", 128),
    (r"^(max_source_positions|max_target_positions)$", 64),
    (r"^rotary_dim$", 8),
    (r"^attn_layer_(period|offset)$", 2),
    (r"^image_size$", 32),
    (r"^patch_size$", 8),
    (r"^(sliding_window|attention_window_size|local_attention|attention_chunk_size)$", 4),
    (r"^(num_queries|num_denoising)$", 10),
]
KEPT_AS_LISTS = ("num_heads", "num_attention_heads", "hidden_sizes", "embed_dims", "encoder_hidden_sizes")
FIXED = {"use_timm_backbone": False, "use_pretrained_backbone": False, "attn_layer_offset": 1}
WHERE_NONE = {"vocab_size": VOCABULARY, "attn_layer_indices": [1], "num_experts_per_tok": 2}
BACKBONE = {
    "model_type": "resnet",
    "embedding_size": 16,
    "hidden_sizes": [16, 16, 32, 32],
    "depths": [1, 1, 1, 1],
    "out_features": ["stage2", "stage3", "stage4"],
}
INDEXES = ("deepstack_visual_indexes", "fullatt_block_indexes", "global_attn_indexes", "full_attn_idxs")


def tiny_fields(default, level: int, source: str = "") -> dict:
    """Smaller values for a default configuration's fields, including its sub-configurations."""
    fields, ids = {}, iter(range(90, VOCABULARY))
    own = {name: value for name, value in vars(default).items() if not name.startswith("_")}
    listed = any(isinstance(own.get(name), (list, tuple)) for name in KEPT_AS_LISTS)
    for name, value in own.items():
        if name == "backbone_config" and (value is None or "timm" in getattr(value, "model_type", "timm")):
            fields[name] = BACKBONE
        elif hasattr(value, "to_dict") and hasattr(value, "sub_configs"):
            fields[name] = {**tiny_fields(value, level, source), "model_type": value.model_type}
        elif name in FIXED:
            fields[name] = FIXED[name]
        elif name == "pad_token_id" and (value is None or value >= VOCABULARY - 40 or value < 0):
            fields[name] = 0
        elif name == "rope_parameters" and "mrope_section" in source:
            rotated = (value or {}).get("partial_rotary_factor", own.get("partial_rotary_factor") or 1.0)
            section = [2, 3, 3] if rotated == 1.0 else [1, 1, 2]
            rope = value or {"rope_type": "default", "rope_theta": 10000.0}
            fields[name] = {**rope, "mrope_section": section}
        elif value is None and name in WHERE_NONE:
            fields[name] = WHERE_NONE[name]
        elif isinstance(value, (bool, float)) or value is None:
            continue
        elif isinstance(value, int) and re.search(r"token_(id|index)$", name):
            if value >= VOCABULARY - 40:
                fields[name] = next(ids)
        elif isinstance(value, int):
            size = tiny_size(name)
            if size is not None and size < value and not (listed and size == HIDDEN) and not (level and size > 4):
                fields[name] = size
        elif isinstance(value, (list, tuple)) and name in INDEXES:
            fields[name] = type(value)([0, 1])
        elif isinstance(value, (list, tuple)) and name == "depths":
            fields[name] = type(value)([1] * len(value))
    heads, shared = fields.get("num_attention_heads"), own.get("num_key_value_heads")
    if heads and shared == own.get("num_attention_heads") and "num_key_value_heads" in fields:
        fields["num_key_value_heads"] = heads
    return fields


def tiny_size(name: str):
    return next((size for pattern, size in SIZES if re.search(pattern, name)), None)


def tiny_configurations(model_class):
    """Candidates for a configuration, the smallest first: ("made", configuration) or ("configuration", the error)."""
    config_class = model_class.config_class
    for level in (0, 1):
        try:
            source = inspect.getsource(sys.modules[model_class.__module__])
            yield "made", config_class(**tiny_fields(config_class(), level, source))
        except Exception as error:  # the values do not fit together: try the next one
            yield "configuration", error


class Untried(Exception):
    def __init__(self, step, error):
        text = str(error).strip().splitlines()
        super().__init__(f"{step}: {type(error).__name__}: {text[0][:160] if text else ''}")


def build(model_class, configuration, implementation):
    import torch

    configuration = copy.deepcopy(configuration)
    configuration._attn_implementation = implementation
    torch.manual_seed(5)
    model = model_class(configuration).eval()
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point() or "A_log" in name or "dt_bias" in name:
                continue
            drawn = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:  # these values make attention depend on the keys, and keep the size of values
                parameter.copy_(drawn * (1.5 / max(1, parameter[0].numel()) ** 0.5))
            elif "sink" in name:
                parameter.copy_(drawn)
            else:
                parameter.add_(0.1 * drawn)
    return model


def too_large(model_class, configuration) -> bool:
    import torch

    try:
        with torch.device("meta"):
            made = model_class(copy.deepcopy(configuration))
        return sum(parameter.numel() for parameter in made.parameters()) > LARGEST
    except Exception:
        return False  # many cannot be built without values


def search(configuration, *names, default=None):
    """The first of these fields that is in a configuration. If none is, searches its sub-configurations."""
    for name in names:
        value = getattr(configuration, name, None)
        if value is not None and not callable(value):
            return value
    for name in getattr(configuration, "sub_configs", {}):
        inner = getattr(configuration, name, None)
        found = None if inner is None else search(inner, *names)
        if found is not None:
            return found
    return default


def attempts(model_class, configuration):
    """Sets of inputs that the class could accept, chosen by the parameters of its forward(). The first that works is
    used.
    """
    import torch

    names = set(inspect.signature(model_class.forward).parameters)
    generator = torch.Generator().manual_seed(1)

    most = search(configuration, "vocab_size", default=VOCABULARY)
    most = VOCABULARY if most < 8 else most

    def numbers(*shape):
        return torch.randn(*shape, generator=generator)

    def tokens(*shape):
        return torch.randint(4, min(80, most), shape, generator=generator)

    text = {}
    if "input_ids" in names:
        text["input_ids"] = tokens(BATCH, TOKENS)
    if "decoder_input_ids" in names:
        text["decoder_input_ids"] = tokens(BATCH, DECODED)
    if "bbox" in names:
        text["bbox"] = torch.randint(0, 20, (BATCH, TOKENS, 4), generator=generator).sort(-1)[0]
    if "entity_ids" in names and "Luke" in model_class.__name__:
        text["entity_ids"] = tokens(BATCH, 3)
    size = search(configuration, "image_size", default=32)
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:] if len(size) > 1 else (size[0],) * 2
    channels = search(configuration, "num_channels", "in_channels", default=3)
    channels = channels if isinstance(channels, int) else 3
    pixels, frames = numbers(BATCH, channels, height, width), search(configuration, "num_frames", default=4)
    mel = search(configuration, "num_mel_bins", "feature_size", "input_feat_per_channel", default=80)
    length = 2 * search(configuration, "max_source_positions", default=32)
    hidden = search(configuration, "hidden_size", "d_model", default=HIDDEN)
    dense = {
        "pixel_values": [pixels, numbers(BATCH, frames if isinstance(frames, int) else 4, channels, height, width)],
        "pixel_values_videos": [numbers(BATCH, frames if isinstance(frames, int) else 4, channels, height, width)],
        "input_values": [
            numbers(BATCH, 4000),
            numbers(BATCH, 1024, 128),
            numbers(BATCH, 1, 4000),
            numbers(BATCH, 24, mel),
        ],
        "input_features": [numbers(BATCH, mel, length), numbers(BATCH, length, mel), numbers(BATCH, 1, 1001, 64)],
        "inputs_embeds": [numbers(BATCH, TOKENS, hidden)] if "input_ids" not in names else [],
        "hidden_states": [numbers(BATCH, TOKENS, hidden)],
        "past_values": [numbers(BATCH, search(configuration, "context_length", default=32), 1)],
    }
    if text:
        yield text
        yield {name: value for name, value in text.items() if name != "decoder_input_ids"}
        choice = {name: torch.stack([value, value.flip(1)], 1) for name, value in text.items()}
        yield choice
    if "grid_thw" in names:  # patches of two images in one row
        patch, time = search(configuration, "patch_size"), search(configuration, "temporal_patch_size", default=1)
        rows = numbers(32, channels * time * patch * patch)
        grid = torch.tensor([[1, 4, 4], [1, 2, 8]])
        yield {"hidden_states" if "hidden_states" in names else "pixel_values": rows, "grid_thw": grid}
    for name, values in dense.items():
        for value in values if name in names else ():
            yield {name: value}
            if "decoder_input_ids" in names:
                yield {name: value, "decoder_input_ids": tokens(BATCH, DECODED)}
            if text:
                yield {**text, name: value}


def padded(inputs, side, pad_token):
    """The same inputs with padding: the first sequence has 11 tokens, the second 7."""
    import torch

    real = torch.ones(BATCH, TOKENS, dtype=torch.long)
    if side == "right":
        real[1, 7:] = 0
    else:
        real[1, : TOKENS - 7] = 0
    ids = inputs["input_ids"]
    mask = real.unsqueeze(1).expand(ids.shape).contiguous() if ids.ndim == 3 else real
    if isinstance(pad_token, int) and 0 <= pad_token < VOCABULARY:
        ids = ids.masked_fill(mask == 0, pad_token)
    return {**inputs, "input_ids": ids, "attention_mask": mask}, real


def with_other_padding(inputs):
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    return {**inputs, "input_ids": ids.where(mask != 0, ids + 1)}


def with_another_last_token(inputs):
    name = "decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"
    changed = inputs[name].clone()
    changed[..., -1] = changed[..., 0] + (changed[..., 0] == changed[..., -1]).long()
    return {**inputs, name: changed}


def run(model, inputs) -> dict:
    """The floating-point outputs as {name: tensor}."""
    import torch

    torch.manual_seed(2)
    with torch.no_grad():
        out = model(**copy.deepcopy(inputs))
    found = {}

    def gather(name, value):
        if isinstance(value, torch.Tensor):
            if value.is_floating_point():
                found[name] = value.float()
        elif isinstance(value, dict):
            for key, one in value.items():
                gather(f"{name}.{key}", one)
        elif isinstance(value, (tuple, list)):
            for at, one in enumerate(value):
                gather(f"{name}.{at}", one)

    gather("out", dict(out) if hasattr(out, "items") else out)
    if not found:
        raise ValueError("no floating output")
    return found


def difference(ours, theirs, real=None, tokens_only=False) -> float:
    """The largest difference over all outputs, relative to their largest value. In outputs by token only real tokens
    count.
    """
    worst = 0.0
    for name, expected in theirs.items():
        got = ours.get(name)
        if got is None or got.shape != expected.shape:
            return float("inf")
        if real is not None and expected.ndim >= 2 and tuple(expected.shape[:2]) == tuple(real.shape):
            got, expected = got[real.bool()], expected[real.bool()]
        elif tokens_only:
            continue
        finite = expected.isfinite() & (expected.abs() < 1e30)
        if not bool((got.isfinite() & (got.abs() < 1e30) == finite).all()):
            return float("inf")
        if finite.any():
            got, expected = got[finite], expected[finite]
            worst = max(worst, float((got - expected).abs().max() / expected.abs().max().clamp(min=1e-6)))
    return worst


def earlier(outputs, length):
    return {
        name: value[:, : length - 1] for name, value in outputs.items() if value.ndim >= 3 and value.shape[1] == length
    }


def cases_of(inputs, pad_token):
    """Returns (name, inputs, which tokens are real) for each case."""
    yield "plain", inputs, None
    if "input_ids" not in inputs:
        return
    for side in ("right", "left"):
        yield (side, *padded(inputs, side, pad_token))


def find_inputs(model, model_class):
    reasons = []
    for inputs in attempts(model_class, model.config):
        try:
            outputs = run(model, inputs)
        except Exception as error:
            reasons.append(error)
            continue
        if all(bool(value.isfinite().any()) for value in outputs.values() if value.numel()):
            return inputs
        reasons.append(ValueError("outputs that are not finite"))
    raise Untried("inputs", reasons[0] if reasons else ValueError("none that the script knows"))


def compare(eager, ours, inputs) -> str | None:
    """A sentence about the fault; None if there is none."""
    plain = None
    for name, given, real in cases_of(inputs, search(eager.config, "pad_token_id")):
        try:
            theirs = run(eager, given)
        except Exception:
            continue  # this model has no such padding
        if real is not None and difference(run(eager, with_other_padding(given)), theirs, real, True) > 1e-6:
            continue  # in this model padding affects other tokens, for example by recurrence or convolution
        got = run(ours, given)
        error = difference(got, theirs, real, tokens_only=name == "left")
        if not error <= TOLERANCE:
            return f"{name}: differs by {error:.1e} of the largest output"
        if name == "plain":
            plain = theirs, got
    last = "decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"
    if last in inputs:
        length, changed = inputs[last].shape[-1], with_another_last_token(inputs)
        moved = difference(earlier(run(eager, changed), length), earlier(plain[0], length))
        if moved == 0:
            moved = difference(earlier(run(ours, changed), length), earlier(plain[1], length))
            if moved > 1e-6:
                return f"not causal: an earlier output moves by {moved:.1e}"
    return None


def judge(model_class) -> dict:
    """One row of the table."""
    import rapt

    try:
        eager, ours, inputs = construct(model_class)
        calls, wrong = counted(lambda: compare(eager, ours, inputs))
        if wrong is not None:
            return dict(outcome="wrong", reason=wrong)
        return dict(outcome="right" if calls else "right, without a call", reason="")
    except rapt.Error as error:
        return dict(outcome="refused", reason=str(error))
    except Untried as error:
        return dict(outcome="untried", reason=str(error))
    except TimeoutError:
        raise
    except Exception as error:
        return dict(outcome="wrong", reason=f"{type(error).__name__}: {str(error)[:200]}")


def construct(model_class):
    """Returns the model with "eager", the same model with "rapt", and valid inputs. Raises Untried, or the error of
    "rapt".
    """
    import rapt

    reasons = []
    for step, made in tiny_configurations(model_class):
        if step == "configuration":
            reasons.append(Untried(step, made))
            continue
        try:
            if too_large(model_class, made):
                raise Untried("model", ValueError("too large"))
            build(model_class, made, "rapt")
        except (rapt.Error, TimeoutError):
            raise
        except Untried as error:
            reasons.append(error)
            continue
        except Exception as error:
            failure = error
        else:
            failure = None
        try:
            eager = build(model_class, made, "eager")
        except TimeoutError:
            raise
        except Exception as error:
            reasons.append(Untried("model", error))
            continue
        if failure is not None:
            raise failure
        try:
            inputs = find_inputs(eager, model_class)
        except Untried as error:
            reasons.append(error)
            continue
        ours = build(model_class, made, "rapt")
        ours.load_state_dict(eager.state_dict(), strict=False)
        return eager, ours, inputs
    raise reasons[0]


def counted(work):
    """Runs `work`. Returns the number of calls of rapt's attention, and the result of `work`."""
    from rapt.compat import transformers as compat

    calls, original = [], compat.attention

    def attention(*arguments, **options):
        calls.append(1)
        return original(*arguments, **options)

    compat.attention = attention
    try:
        result = work()
    finally:
        compat.attention = original
    return len(calls), result


def all_classes() -> dict[str, type]:
    """The public model classes as {name: class}."""
    import transformers
    import transformers.models
    from transformers import PreTrainedModel

    root = os.path.dirname(transformers.models.__file__)
    for folder in sorted(os.listdir(root)):
        for file in sorted(os.listdir(f"{root}/{folder}")) if os.path.isdir(f"{root}/{folder}") else ():
            if file.startswith("modeling_") and file.endswith(".py"):
                try:
                    importlib.import_module(f"transformers.models.{folder}.{file[:-3]}")
                except ImportError:
                    pass  # this class needs a package that is not installed
    found, below = {}, [PreTrainedModel]
    while below:
        one = below.pop()
        below += one.__subclasses__()
        public = one.__name__ in getattr(sys.modules[one.__module__], "__all__", ())
        if one.__module__.startswith("transformers.models") and public and "PreTrainedModel" not in one.__name__:
            if "forward" in dir(one) and one.forward is not getattr(PreTrainedModel, "forward", None):
                found[one.__name__] = one
    return dict(sorted(found.items(), key=lambda item: (item[1].__module__, item[0])))


def prepare():
    import logging

    import torch
    import transformers

    import rapt.compat

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(logging.CRITICAL)
    torch.set_num_threads(1)
    rapt.compat.transformers.register()


def judge_within(model_class, limit_s: int) -> dict:
    def late(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.alarm(limit_s)
    try:
        return judge(model_class)
    except TimeoutError:
        return dict(outcome="untried", reason=f"more than {limit_s} s")
    finally:
        signal.alarm(0)


def worker(names):
    """Prints one JSON line for each class to stdout."""
    prepare()
    classes = all_classes() if not names or ":" not in names[0] else {}
    for name in names:
        if ":" in name:
            module, name = name.split(":")
            classes[name] = getattr(importlib.import_module(module), name)
        row = judge_within(classes[name], LIMIT_S)
        print("ROW " + json.dumps(dict(name=name, **row)), flush=True)


def walk(names, follow=None, size=100):
    """Returns the rows of all classes. Runs one process for each chunk of classes. A class that ends its process counts
    as untried.
    """
    rows, left = {}, list(names)
    while left:
        chunk = left[:size]
        ran = subprocess.run(
            [sys.executable, __file__, "--worker", *chunk], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        done = [json.loads(line[4:]) for line in ran.stdout.splitlines() if line.startswith("ROW ")]
        for row in done:
            rows[row["name"]] = row
        if follow:
            with open(follow, "a") as file:
                file.writelines(json.dumps(row) + "\n" for row in done)
        if len(done) < len(chunk):
            name = chunk[len(done)].split(":")[-1]
            rows[name] = dict(name=name, outcome="untried", reason=f"its process ended with {ran.returncode}")
            done.append(None)
        left = left[len(done) :]
        print(f"{len(rows)} of {len(rows) + len(left)}", file=sys.stderr, flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("-o", "--out")
    parser.add_argument("--rows", help="a file to which rows are added as JSON lines; read where --page is given")
    parser.add_argument("--page", action="store_true", help="only write the page again, from --rows")
    parser.add_argument("--worker", action="store_true")
    given = parser.parse_args()
    if given.worker:
        return worker(given.names)
    if given.page:
        with open(given.rows) as file:
            rows = {row["name"]: row for row in map(json.loads, file) if row}
    else:
        classes = all_classes()
        names = [f"{classes[name].__module__}:{name}" for name in given.names or classes]
        rows = walk(names, given.rows)
    if given.out:
        with open(given.out, "w") as file:
            file.write(page(rows))
    else:
        for row in rows.values():
            print(f"{row['name']}: {row['outcome']} {row['reason']}")
    return any(row["outcome"] == "wrong" for row in rows.values())


PAGE = """# Model classes of transformers with attn_implementation="rapt"

*For: users of Hugging Face transformers who ask whether a model class works with rapt ([python.md](python.md)).*

`tests/python/transformers_models.py` wrote this page with transformers {transformers} and PyTorch {torch}, on the CPU
in float32. It gives each public model class a tiny configuration and random weights, and compares "rapt" with "eager"
on four inputs: without padding, padded on the right, padded on the left, and with another last token. The last
input differs from the first only in its last token. If the outputs of earlier tokens stay the same with "eager", they
must stay the same with "rapt". "Right" means equal within the tolerance. "Refused" means that rapt raises an error.

| outcome | classes |
|---|---|
{counts}
"""
HEADINGS = {
    "right": "Right: the largest difference is at most {tolerance} times the largest output",
    "right, without a call": "Right, but the model does not call rapt (it has no attention, or its own)",
    "refused": "Refused: rapt raises an error with this message",
    "wrong": "Wrong",
    "untried": "Untried: the script cannot build the model, or does not know its inputs",
}


def page(rows) -> str:
    import torch
    import transformers

    groups = defaultdict(lambda: defaultdict(list))  # outcome -> reason -> names
    for name, row in rows.items():
        reason = re.sub(r"attn_implementation is 'rapt': \w+ (.*); use .*", r"\1", row["reason"], flags=re.DOTALL)
        groups[row["outcome"]][reason].append(name)
    counts = {outcome: sum(map(len, groups[outcome].values())) for outcome in HEADINGS}
    text = PAGE.format(
        transformers=transformers.__version__,
        torch=torch.__version__.partition("+")[0],
        counts="\n".join(f"| {outcome} | {count} |" for outcome, count in counts.items()),
    )
    for outcome, heading in HEADINGS.items():
        if counts[outcome]:
            text += f"\n## {heading.format(tolerance=TOLERANCE)}\n"
        for reason, names in sorted(groups[outcome].items(), key=lambda item: (-len(item[1]), item[0])):
            before = f"`{reason.replace('`', '').splitlines()[0]}`: " if reason else ""
            text += "\n" + textwrap.fill(before + ", ".join(sorted(names)), 124, break_long_words=False) + "\n"
    return text


if __name__ == "__main__":
    sys.exit(main())
