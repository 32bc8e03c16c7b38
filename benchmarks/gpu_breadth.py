"""Models that are not in the GPU table: is Jitney slower than torch.compile or eager on any?

    python -m benchmarks.gpu_breadth [--gpus N] [--only NAME …] [--seconds S]

Shapes are of published models with few layers, weights random. Inference is bfloat16 under CUDA
graphs on both sides, training is autocast in default mode. One process a GPU takes cases one after
the other, all sides of a case in turn; times are medians of CUDA events, ms. Ratio: the better of
eager and torch.compile over Jitney. ``error``: of the outputs (the loss) relative to eager's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch
import torch.nn.functional as F

Step = Callable[[Callable[..., Any]], torch.Tensor]
Case = Callable[[], tuple[Any, Step]]

BIG = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32}
BIG |= {"num_key_value_heads": 8, "num_hidden_layers": 4, "vocab_size": 32000}
SMALL = {**BIG, "hidden_size": 2048, "intermediate_size": 8192}
#: Language models by class prefix and sizes.
LANGUAGE: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", {**BIG, "head_dim": 128}),
    "qwen2": ("Qwen2", SMALL),
    "gemma2": ("Gemma2", {**SMALL, "head_dim": 256, "num_attention_heads": 8}),
    "gemma3": ("Gemma3", {**SMALL, "head_dim": 256, "num_attention_heads": 8}),
    "phi3": ("Phi3", {**SMALL, "pad_token_id": 0}),
    "mistral": ("Mistral", BIG),
    "olmo2": ("Olmo2", SMALL),
    "granite": ("Granite", SMALL),
    "opt": ("OPT", {**SMALL, "ffn_dim": 8192, "word_embed_proj_dim": 2048}),
    "neox": ("GPTNeoX", {**SMALL, "num_key_value_heads": 32}),
    "bloom": ("Bloom", {"hidden_size": 2048, "n_layer": 4, "n_head": 16, "vocab_size": 32000}),
    "mixtral": ("Mixtral", {**SMALL, "intermediate_size": 4096, "num_local_experts": 8}),
    "qwen3moe": ("Qwen3Moe", {**SMALL, "num_experts": 32, "moe_intermediate_size": 768}),
}
ENCODER = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
ENCODER |= {"num_hidden_layers": 4}
#: Encoders of text by class prefix, sizes, rows and tokens.
ENCODERS: dict[str, tuple[str, dict[str, Any], tuple[int, int]]] = {
    "roberta-large b16 s256": (
        "Roberta",
        {**ENCODER, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16},
        (16, 256),
    ),
    "distilbert b32 s128": ("DistilBert", {}, (32, 128)),
    "deberta b8 s128": ("DebertaV2", {**ENCODER, "relative_attention": True}, (8, 128)),
    "albert b8 s256": ("Albert", {"num_hidden_layers": 4}, (8, 256)),
    "modernbert b8 s512": ("ModernBert", {"num_hidden_layers": 6}, (8, 512)),
    "t5 encoder b8 s256": ("T5Encoder", {"d_model": 768, "d_ff": 3072, "num_heads": 12}, (8, 256)),
}
#: timm's image models, with rows.
IMAGES = {
    "resnet50": 64,
    "convnext_tiny": 32,
    "efficientnet_b0": 64,
    "mobilenetv3_large_100": 64,
    "regnety_016": 64,
    "swin_tiny_patch4_window7_224": 32,
    "deit_small_patch16_224": 64,
    "eva02_small_patch14_224": 32,
    "mixer_b16_224": 32,
    "densenet121": 32,
    "maxvit_tiny_tf_224": 16,
    "vit_base_patch16_224": 1,
    "resnet18": 1,
}


def on_gpu(make: Callable[[], Any]) -> Any:
    """The model that ``make`` gives, made in bfloat16 on the GPU, for inference."""
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = make()
    torch.set_default_dtype(torch.float32)
    return model.to("cuda", torch.bfloat16).eval().requires_grad_(False)


def causal(name: str) -> tuple[Any, Any]:
    """A language model and its config."""
    import transformers

    prefix, sizes = LANGUAGE[name]
    text = "Text" if prefix == "Gemma3" else ""
    config = getattr(transformers, f"{prefix}{text}Config")(**sizes)
    return on_gpu(lambda: getattr(transformers, f"{prefix}ForCausalLM")(config)), config


def decode(name: str, rows: int) -> Case:
    """A token each for ``rows`` sequences at position 64 of a StaticCache of 512."""

    def case() -> tuple[Any, Step]:
        import transformers

        model, config = causal(name)
        cache = transformers.StaticCache(config=config, max_cache_len=512)
        prompt = torch.randint(0, 1000, (rows, 64), device="cuda")
        with torch.no_grad():
            model(input_ids=prompt, past_key_values=cache, use_cache=True)
        token = torch.randint(0, 1000, (rows, 1), device="cuda")
        position = torch.full((rows, 1), 64, device="cuda")
        given = {"past_key_values": cache, "use_cache": True}
        if name not in ("opt", "bloom"):
            given["position_ids"] = position

        def step(call: Callable[..., Any]) -> torch.Tensor:
            for layer in cache.layers:
                if hasattr(layer, "cumulative_length"):
                    layer.cumulative_length.fill_(64)
            return call(input_ids=token, **given).logits

        return model, step

    return case


def prefill(name: str, tokens: int) -> Case:
    """``tokens`` tokens at once."""

    def case() -> tuple[Any, Step]:
        model, _ = causal(name)
        prompt = torch.randint(0, 1000, (1, tokens), device="cuda")
        return model, lambda call: call(input_ids=prompt, use_cache=False).logits

    return case


def encoder(name: str) -> Case:
    """An encoder of text."""

    def case() -> tuple[Any, Step]:
        import transformers

        prefix, sizes, shape = ENCODERS[name]
        config = getattr(transformers, f"{prefix.removesuffix('Encoder')}Config")(**sizes)
        model = on_gpu(lambda: getattr(transformers, f"{prefix}Model")(config))
        tokens = torch.randint(5, 1000, shape, device="cuda")
        return model, lambda call: call(input_ids=tokens).last_hidden_state

    return case


def image(name: str) -> Case:
    """An image model, channels last where it convolves."""

    def case() -> tuple[Any, Step]:
        import timm

        model = on_gpu(lambda: timm.create_model(name)).to(memory_format=torch.channels_last)
        images = torch.randn(IMAGES[name], 3, 224, 224, device="cuda", dtype=torch.bfloat16)
        images = images.to(memory_format=torch.channels_last)
        return model, lambda call: call(images)

    return case


def train_image(name: str, rows: int) -> Case:
    """A training step of an image model without its optimizer."""

    def case() -> tuple[Any, Step]:
        import timm

        model = timm.create_model(name).cuda().to(memory_format=torch.channels_last).train()
        images = torch.randn(rows, 3, 224, 224, device="cuda")
        images = images.to(memory_format=torch.channels_last)
        labels = torch.randint(0, 1000, (rows,), device="cuda")

        def step(call: Callable[..., Any]) -> torch.Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.cross_entropy(call(images), labels)
            loss.backward()
            model.zero_grad(set_to_none=True)
            return loss.detach()

        return model, step

    return case


def train_text(prefix: str, sizes: dict[str, Any], shape: tuple[int, int]) -> Case:
    """A training step of a language model without its optimizer, dropout off."""

    def case() -> tuple[Any, Step]:
        import transformers

        config = getattr(transformers, f"{prefix}Config")(**sizes)
        model = getattr(transformers, f"{prefix}ForCausalLM")(config).cuda().eval()
        tokens = torch.randint(0, 1000, shape, device="cuda")

        def step(call: Callable[..., Any]) -> torch.Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                loss = call(input_ids=tokens, labels=tokens, use_cache=False).loss
            loss.backward()
            model.zero_grad(set_to_none=True)
            return loss.detach()

        return model, step

    return case


CASES: dict[str, Case] = {
    **{f"{name} decode b1": decode(name, 1) for name in LANGUAGE},
    **{f"{name} decode b8": decode(name, 8) for name in ("qwen3", "qwen2", "mixtral")},
    **{f"{name} prefill 512": prefill(name, 512) for name in ("qwen2", "gemma2", "mixtral")},
    "qwen2 prefill 2048": prefill("qwen2", 2048),
    **{name: encoder(name) for name in ENCODERS},
    **{f"{name} b{rows}": image(name) for name, rows in IMAGES.items()},
    "train llama 4x1024": train_text("Llama", {**SMALL, "num_key_value_heads": 32}, (4, 1024)),
    "train qwen3 4x1024": train_text("Qwen3", {**SMALL, "head_dim": 128}, (4, 1024)),
    "train vit_small b64": train_image("vit_small_patch16_224", 64),
    "train convnext_tiny b32": train_image("convnext_tiny", 32),
    "train efficientnet_b0 b64": train_image("efficientnet_b0", 64),
    "train swin_tiny b32": train_image("swin_tiny_patch4_window7_224", 32),
}


def median(run: Callable[[], object]) -> float:
    """Milliseconds of a call, over at most a second of calls."""
    for _ in range(5):
        run()
    torch.cuda.synchronize()
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < 50 and time.perf_counter() - begun < 1:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def sides(name: str) -> dict[str, Callable[[Any], Any]]:
    """What compiles a model, by the name of the side."""
    import jitney

    mode = "default" if name.startswith("train") else "reduce-overhead"
    return {
        "eager": lambda model: model,
        "jitney": lambda model: jitney.compile(model, mode=mode),
        "torch.compile": lambda model: torch.compile(model, mode=mode),
    }


def measure(name: str) -> dict[str, Any]:
    """A case on every side: ms, seconds of the first call, and the error against eager."""
    torch.manual_seed(0)
    model, step = CASES[name]()
    grads = torch.enable_grad() if name.startswith("train") else torch.no_grad()
    found: dict[str, Any] = {"case": name}
    expected: torch.Tensor | None = None
    for side, compile_with in sides(name).items():
        try:
            with grads:
                call = compile_with(model)
                begun = time.perf_counter()
                made = step(call).float().clone()
                torch.cuda.synchronize()
                first = time.perf_counter() - begun
                expected = made if expected is None else expected
                error = ((made - expected).norm() / expected.norm()).item()
                found[side] = (median(partial(step, call)), first, error)
        except Exception as error:  # noqa: BLE001 - a side that fails is a row that says so
            traceback.print_exc()
            found[side] = str(error).partition("\n")[0][:80]
    return found


def worker() -> None:
    """Measures the cases whose names come on standard input."""
    for line in sys.stdin:
        try:
            found = measure(line.strip())
        except Exception as error:  # noqa: BLE001 - a model this transformers cannot make
            traceback.print_exc()
            found = {"case": line.strip(), "eager": str(error).partition("\n")[0][:80]}
        print("FOUND " + json.dumps(found), flush=True)
        torch._dynamo.reset()
        torch.cuda.empty_cache()


def row(found: dict[str, Any]) -> str:
    """A line of the table."""
    times = [found.get(side) for side in ("eager", "torch.compile", "jitney")]
    cells = [f"{t[0]:.3f}" if isinstance(t, list) else str(t) for t in times]
    cells = [found["case"], " / ".join(cells)]
    peers = [t[0] for t in times[:2] if isinstance(t, list)]
    if isinstance(times[2], list) and peers:
        cells.append(f"{min(peers) / times[2][0]:.2f}")
        cells.append(" / ".join(f"{t[1]:.1f}" for t in times[1:] if isinstance(t, list)))
        cells.append(" / ".join(f"{t[2]:.4f}" for t in times[1:] if isinstance(t, list)))
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Shares the cases out among GPUs until time is over; prints the table, the worst row first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--worker", action="store_true")
    options = parser.parse_args()
    if options.worker:
        return worker()
    queue: SimpleQueue[str] = SimpleQueue()
    names = [n for n in CASES if not options.only or any(o in n for o in options.only)]
    for name in names:
        queue.put(name)
    until = time.time() + options.seconds
    rows: list[dict[str, Any]] = []

    def serve(gpu: int) -> None:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)}
        command = [sys.executable, "-m", "benchmarks.gpu_breadth", "--worker"]
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin and process.stdout
        while not queue.empty() and time.time() < until:
            process.stdin.write(queue.get() + "\n")
            process.stdin.flush()
            for line in process.stdout:
                if line.startswith("FOUND "):
                    rows.append(json.loads(line.removeprefix("FOUND ")))
                    print(row(rows[-1]), flush=True)
                    break
        process.stdin.close()
        process.wait()

    with ThreadPoolExecutor(options.gpus) as pool:
        list(pool.map(serve, range(options.gpus)))
    print(f"\n{len(rows)} of {len(names)} cases. eager / torch.compile / jitney, ms; first calls;")
    print("errors of torch.compile / jitney\n")


if __name__ == "__main__":
    main()
