"""convert.py as a command, on a file larger than its memory limit."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors import safe_open

GPTJ = Path(__file__).parents[2] / "reference_models" / "gptj"
V, D, LAYERS, F32 = 4096, 1024, 10, 4
MEASURED = """
import re, runpy, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:  # not getrusage: that begins with what pytest had when it forked
    print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1], file=sys.stderr)
"""
BASE_BYTES = 130 << 20  # an interpreter that has traced a model


def shapes():
    found = {"transformer.wte.weight": [V, D], "lm_head.weight": [V, D], "lm_head.bias": [V]}
    found |= {f"transformer.ln_f.{end}": [D] for end in ("weight", "bias")}
    for n in range(LAYERS):
        start = f"transformer.h.{n}"
        found |= {f"{start}.ln_1.{end}": [D] for end in ("weight", "bias")}
        found |= {f"{start}.attn.{x}_proj.weight": [D, D] for x in ("q", "k", "v", "out")}
        found |= {f"{start}.mlp.fc_in.weight": [4 * D, D], f"{start}.mlp.fc_in.bias": [4 * D]}
        found |= {f"{start}.mlp.fc_out.weight": [D, 4 * D], f"{start}.mlp.fc_out.bias": [D]}
    return found


def sparse_model(folder):
    """A saved GPT-J as a sparse file with a hole for each tensor; its size in bytes."""
    folder.mkdir()
    config = {"model_type": "gptj", "vocab_size": V, "n_embd": D, "n_layer": LAYERS, "n_head": 8}
    config |= {"rotary_dim": 32, "resid_pdrop": 0.0, "attn_pdrop": 0.0, "n_positions": 64}
    (folder / "config.json").write_text(json.dumps(config))
    head, offset = {}, 0
    for name, shape in shapes().items():
        nbytes = int(np.prod(shape)) * F32
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    text = json.dumps(head).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.seek(8 + len(text) + 4 * 7)
        file.write(np.float32(1.5).tobytes())  # of wte, row 0, column 7
        file.truncate(8 + len(text) + offset)
    return offset


def converted(*arguments):
    """Run convert.py; return its output and its peak memory in bytes."""
    command = [sys.executable, "-c", MEASURED, str(GPTJ / "convert.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *said, peak_kb = done.stderr.splitlines()
    return said, int(peak_kb) << 10


@pytest.mark.slow
def test_memory_is_that_of_a_tensor_not_of_the_file(tmp_path):
    size, largest = sparse_model(tmp_path / "theirs"), V * D * F32
    assert size > 500 << 20
    said, peak = converted("from_huggingface", tmp_path / "theirs", "-o", tmp_path / "ours")
    assert "tensors of" in said[-1]
    assert peak < BASE_BYTES + 3 * largest < size / 2
    params = tmp_path / "ours" / "params.yaml"
    assert yaml.safe_load(params.read_text())["model"]["hidden_size"] == D
    back = tmp_path / "back"
    said, peak = converted("to_huggingface", back, "-p", params, "--max_shard_size", "100MB")
    assert peak < BASE_BYTES + 3 * largest
    files = sorted(back.glob("*.safetensors"))
    assert len(files) > size / 10**8
    assert max(file.stat().st_size for file in files) < 10**8 + 10**4
    with safe_open(files[0], framework="numpy") as file:
        table = file.get_tensor("transformer.wte.weight")
    assert (table[0, 7], np.count_nonzero(table)) == (1.5, 1)
    for file in (*files, tmp_path / "ours" / "model-ckpt-0.safetensors"):
        file.unlink()


def test_a_mistake_is_one_line(tmp_path):
    command = [sys.executable, str(GPTJ / "convert.py"), "from_huggingface", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {tmp_path / 'none'}: no config.json; a transformers model has config.json and "
        "model.safetensors or model.safetensors.index.json\n"
    )
