# SPDX-License-Identifier: Apache-2.0
"""Language models with random weights of published sizes: tokens a second, and of which bytes.

    python benchmarks/language.py [--model smollm-135m qwen-0.5b] [--threads 1] [--json FILE]
    python benchmarks/language.py --train [--rows 2] [--length 512]

decode   one text, one token after the other; beside it what the weights' bytes and the measured
         speed of reading memory allow
prefill  512 tokens at once
clients  tokens of 16 texts side by side by tokens of one
train    steps of AdamW in float32 and bfloat16, float32 parameters: tokens a second of the
         processor's time and thread, and the share of the fastest product that was measured
peers    transformers (PyTorch) and llama.cpp (packages llama-cpp-python and gguf), where installed

All measurements are in one process, in turns; each is the median of several.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODELS = {
    "smollm-135m": {
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "vocab_size": 49152, "max_position_embeddings": 2048, "tie_word_embeddings": True,
    },
    "qwen-0.5b": {
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "vocab_size": 151936, "max_position_embeddings": 2048, "tie_word_embeddings": True,
    },
    "gpt2": {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
             "vocab_size": 50257},
}  # fmt: skip
TOKENS, PREFILL, CLIENTS = 24, 512, 16


def seconds(f: Any, times: int = 5) -> float:
    f()
    found = []
    for _ in range(times):
        start = time.perf_counter()
        f()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def reading(threads: int) -> float:
    """Bytes a second that come from memory: the best of PyTorch's sum of a large array, or of
    numpy's largest integer where it is missing (numpy's sum adds more slowly than it could read).
    """
    import numpy as np

    a = np.ones(1 << 27, np.float32)
    read: Any = a.view(np.int64).max
    try:
        import torch

        torch.set_num_threads(threads)
        read = torch.from_numpy(a).sum
    except ImportError:
        pass
    return a.nbytes / min(seconds(read, 1) for _ in range(8))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--model", nargs="+", choices=MODELS, default=["smollm-135m"])
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--train", action="store_true")
    p.add_argument("--rows", type=int, default=2)
    p.add_argument("--length", type=int, default=512)
    p.add_argument("--json", type=Path)
    args = p.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    if args.train:
        size = args.rows, args.length
        rows = [row for name in args.model for row in training(name, args.threads, *size)]
    else:
        rows = [row for name in args.model for row in measure(name, args.threads)]
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


def measure(name: str, threads: int) -> list[dict[str, Any]]:
    """The rows of a model."""
    import numpy as np
    from ml_dtypes import bfloat16

    import nnl as nn
    from nnl import models
    from nnl.ext_utils import get_extension_context
    from nnl.models.generation.cached import Cached

    speed = reading(threads)
    rows: list[dict[str, Any]] = []
    prompt = np.random.default_rng(0).integers(3, 30000, PREFILL).tolist()

    def report(engine: str, kind: str, **found: Any) -> None:
        rows.append({"model": name, "engine": engine, "weights": kind, "threads": threads, **found})
        text = ", ".join(f"{k} {v:.3g}" for k, v in found.items())
        print(f"{name:12} {engine:12} {kind:9} {text}", flush=True)

    def nnl_rows(model: Any, kind: str, context: str) -> None:
        with nn.context_scope(get_extension_context("cpu", type_config=context)):
            one = Cached(model, model.config, 1, 1024, 128)
            many = Cached(model, model.config, CLIENTS, 256, 16)

            def decode(cached: Cached, texts: int) -> float:
                cached.start([prompt[i : i + 8] for i in range(texts)])
                step = [[5]] * texts
                cached.feed(step)
                start = time.perf_counter()
                for _ in range(TOKENS):
                    cached.feed(step)
                spent = time.perf_counter() - start
                for i in range(texts):
                    cached.keep(i, 0)
                return texts * TOKENS / spent

            def prefill() -> None:
                one.keep(0, 0)
                one.feed([prompt])

            alone = statistics.median(decode(one, 1) for _ in range(4))
            beside = statistics.median(decode(many, CLIENTS) for _ in range(3))
            took = seconds(prefill, 3)
            size = sum(
                v.data.read("host").nbytes
                for k, v in model.parameters().items()
                if not (k == "tokens/W" and "tokens/codes" in model.parameters())
            )
            report(
                "nnl", kind, decode=alone, of_reading=alone * size / speed, MB=size / 1e6,
                prefill=PREFILL / took, clients=beside / alone,
            )  # fmt: skip

    with tempfile.TemporaryDirectory() as folder, nn.parameter_scope(name):
        model = models.from_config(MODELS[name])
        model.to_huggingface(folder)
        nnl_rows(model, "float32", "float")
        for bits, group in ((8, 32), (4, 32)):
            with nn.parameter_scope(f"q{bits}"):
                small = models.from_huggingface(folder)
                small.quantize(bits, group)
                nnl_rows(small, f"{bits} bits", "float")
        for v in model.parameters().values():
            v.data.cast(bfloat16)
        nnl_rows(model, "bfloat16", "bfloat16")
        for kind in ("float32", "bfloat16"):
            found = of_transformers(folder, prompt, threads, kind)
            if found:
                report("transformers", kind, **found)
        for kind in ("F32", "Q8_0", "Q4_0", "BF16"):
            found = of_llama_cpp(folder, name, prompt, threads, kind)
            if found:
                report("llama.cpp", kind, **found)
    return rows


def training(name: str, threads: int, rows: int, length: int) -> list[dict[str, Any]]:
    """The rows of training a model, float32 and bfloat16, ours and transformers' in turns."""
    import numpy as np
    import torch
    import transformers

    import nnl as nn
    import nnl.functions as F
    import nnl.solvers as S
    from nnl import models
    from nnl.ext_utils import get_extension_context

    torch.set_num_threads(threads)
    sizes = {k: v for k, v in MODELS[name].items() if k != "model_type"}
    config = transformers.AutoConfig.for_model(
        MODELS[name]["model_type"], **sizes, embd_pdrop=0, attn_pdrop=0, resid_pdrop=0
    )
    tokens = np.random.default_rng(0).integers(3, 30000, (rows, length + 1))
    found = []

    def ours(kind: str) -> tuple[Any, Any, int]:
        nn.clear_parameters()
        context = get_extension_context("cpu", type_config=kind)
        with nn.context_scope(context):
            model = models.from_config(MODELS[name])
            solver = S.AdamW(1e-4)
            solver.set_parameters(model.parameters())
            a, b = (nn.Variable.from_numpy_array(tokens[:, i : length + i]) for i in (0, 1))

            @nn.compile
            def step(a: Any, b: Any) -> Any:
                loss = model.loss(a, b)
                solver.zero_grad()
                loss.backward()
                solver.update()
                return loss

            product = nn.Variable((1, 2048, 2048))
            product.d = 1
            square = F.batch_matmul(product, product)
        count = sum(v.size for v in model.parameters().values() if v.ndim == 2)

        def run() -> float:
            with nn.context_scope(context):
                return float(step(a, b).d)

        return run, square.forward, count

    def theirs(kind: str) -> tuple[Any, Any]:
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
        solver = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
        ids = torch.tensor(tokens)
        dtype = getattr(torch, kind)
        square = torch.ones((2048, 2048), dtype=dtype)

        def run() -> float:
            with torch.autocast("cpu", dtype, enabled=kind != "float32"):
                scores = model(ids[:, :-1]).logits
                loss = torch.nn.functional.cross_entropy(
                    scores.flatten(0, 1).float(), ids[:, 1:].flatten()
                )
            solver.zero_grad()
            loss.backward()
            solver.step()
            return float(loss)

        return run, lambda: square @ square

    for kind, context in (("float32", "float"), ("bfloat16", "bfloat16")):
        ours_run, ours_square, count = ours(context)
        theirs_run, theirs_square = theirs(kind)
        runs = (ours_run, theirs_run, ours_square, theirs_square)
        for f in runs * 2:
            f()
        spent: list[list[float]] = [[], [], [], []]
        for _ in range(5):
            for f, times in zip(runs, spent, strict=True):
                start = time.process_time()
                f()
                times.append(time.process_time() - start)
        peak = 2 * 2048**3 / min(spent[2] + spent[3])
        for engine, times in zip(("nnl", "transformers"), spent, strict=False):
            speed = rows * length / statistics.median(times)
            # two operations a weight forward, four backward; attention beside it
            width, layers = sizes.get("n_embd", sizes.get("hidden_size")), config.num_hidden_layers
            each = 6 * count + 6 * layers * width * length
            found.append({
                "model": name, "engine": engine, "train": kind, "threads": threads,
                "tokens": speed, "of_peak": each * speed / peak, "peak_GF": peak / 1e9,
            })  # fmt: skip
            print(
                f"{name:12} {engine:12} train {kind:9} {speed:.0f} tokens/s, "
                f"{each * speed / peak:.2f} of {peak / 1e9:.0f} GF/s",
                flush=True,
            )
    return found


def of_transformers(folder: str, prompt: Any, threads: int, kind: str) -> dict[str, float]:
    """The same of transformers; nothing where it is not installed."""
    try:
        import torch
        import transformers
    except ImportError:
        return {}
    torch.set_num_threads(threads)
    dtype = getattr(torch, kind)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()

    def written(texts: int) -> float:
        ids = torch.tensor([prompt[i : i + 8] for i in range(texts)])
        with torch.no_grad():
            y = model(ids, use_cache=True)
            cache, last = y.past_key_values, torch.full((texts, 1), 5)
            cache = model(last, past_key_values=cache, use_cache=True).past_key_values
            start = time.perf_counter()
            for _ in range(TOKENS):
                cache = model(last, past_key_values=cache, use_cache=True).past_key_values
        return texts * TOKENS / (time.perf_counter() - start)

    def read() -> None:
        with torch.no_grad():
            model(torch.tensor([prompt]), use_cache=True, logits_to_keep=1)

    alone = statistics.median(written(1) for _ in range(3))
    beside = statistics.median(written(CLIENTS) for _ in range(2))
    took = seconds(read, 3)
    return {"decode": alone, "prefill": PREFILL / took, "clients": beside / alone}


GGUF_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def write_gguf(folder: str, name: str, kind: str) -> Path:
    """A file of llama.cpp with the weights of a folder; its vocabulary has no words."""
    import gguf
    from safetensors.numpy import load_file

    config, path = MODELS[name], Path(folder) / f"{kind}.gguf"
    writer = gguf.GGUFWriter(path, config["model_type"])
    writer.add_context_length(1024)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    dtype = gguf.GGMLQuantizationType[kind]
    for key, value in load_file(Path(folder) / "model.safetensors").items():
        *layer, part, end = key.removeprefix("model.").split(".")
        if layer:
            new = f"blk.{layer[1]}.{GGUF_NAMES['.'.join([*layer[2:], part])]}.{end}"
        else:
            new = {"embed_tokens": "token_embd", "norm": "output_norm"}[part] + f".{end}"
        if value.ndim == 2:
            writer.add_tensor(new, gguf.quants.quantize(value, dtype), raw_dtype=dtype)
        else:
            writer.add_tensor(new, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def of_llama_cpp(folder: str, name: str, prompt: Any, threads: int, kind: str) -> dict[str, float]:
    """Decode and prefill of llama.cpp; nothing where it is not installed."""
    try:
        import llama_cpp
    except ImportError:
        return {}
    path = write_gguf(folder, name, kind)
    model = llama_cpp.Llama(
        str(path), n_ctx=1024, n_batch=PREFILL, n_ubatch=PREFILL, n_threads=threads,
        n_threads_batch=threads, verbose=False,
    )  # fmt: skip

    def written() -> float:
        model.reset()
        model.eval(prompt[:8])
        model.eval([5])
        start = time.perf_counter()
        for _ in range(TOKENS):
            model.eval([5])
        return TOKENS / (time.perf_counter() - start)

    def read() -> None:
        model.reset()
        model.eval(prompt)

    alone = statistics.median(written() for _ in range(4))
    took = seconds(read, 3)
    model.close()
    path.unlink()
    return {"decode": alone, "prefill": PREFILL / took}


if __name__ == "__main__":
    sys.exit(main())
