"""One GPU workload in one mode, in a process of its own; prints one JSON line.

    python -m benchmarks.gpu_case CASE MODE

MODE: ``eager``; ``default``, ``reduce-overhead``, ``max-autotune`` (torch.compile); ``jitney``,
``jitney:reduce-overhead``. Times are medians of CUDA events in ms; ``first_s`` is the first call.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

DEVICE = "cuda"
Step = Callable[[Callable[..., Any]], torch.Tensor]


class Workload:
    """``step(model)`` is one measured call; ``reset()`` puts caches back before a run."""

    def __init__(self, model: Any, step: Step, train: bool = False) -> None:
        self.model, self.step, self.train = model, step, train
        self.reset: Callable[[], None] = lambda: None


def llama(transformers: Any, big: bool) -> tuple[Any, Any]:
    """The shape of Llama-3-8B or Llama-3.2-1B with random weights, and its config."""
    sizes = {"vocab_size": 128256, "max_position_embeddings": 8192, "num_attention_heads": 32}
    sizes |= {"num_key_value_heads": 8, "hidden_size": 4096 if big else 2048}
    sizes |= {"intermediate_size": 14336 if big else 8192, "num_hidden_layers": 32 if big else 16}
    config = transformers.LlamaConfig(**sizes, **({} if big else {"head_dim": 64}))
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        model = transformers.LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.02)
    return model.eval().requires_grad_(False), config


def decode(transformers: Any, big: bool) -> Workload:
    """One token at position 64 of a StaticCache of 512."""
    model, config = llama(transformers, big)
    cache = transformers.StaticCache(config=config, max_cache_len=512)
    prompt = torch.randint(0, 1000, (1, 64), device=DEVICE)
    with torch.no_grad():
        model(input_ids=prompt, past_key_values=cache, use_cache=True)
    token = torch.randint(0, 1000, (1, 1), device=DEVICE)
    position = torch.tensor([[64]], device=DEVICE)

    def step(call: Callable[..., Any]) -> torch.Tensor:
        given = {"past_key_values": cache, "position_ids": position, "use_cache": True}
        return call(input_ids=token, **given).logits

    work = Workload(model, step)
    work.reset = lambda: [layer.cumulative_length.fill_(64) for layer in cache.layers] and None
    return work


def prefill(transformers: Any) -> Workload:
    """512 tokens of the 8B shape."""
    model, _ = llama(transformers, True)
    tokens = torch.randint(0, 1000, (1, 512), device=DEVICE)
    return Workload(model, lambda call: call(input_ids=tokens, use_cache=False).logits)


def bert(transformers: Any, batch: int) -> Workload:
    """BERT-base on 128 tokens."""
    model = transformers.BertModel(transformers.BertConfig()).eval().to(DEVICE, torch.bfloat16)
    tokens = torch.randint(0, 1000, (batch, 128), device=DEVICE)
    return Workload(model, lambda call: call(input_ids=tokens).last_hidden_state)


def vit() -> Workload:
    """timm's ViT-B/16 on 32 images."""
    import timm

    model = timm.create_model("vit_base_patch16_224").eval().to(DEVICE, torch.bfloat16)
    images = torch.randn(32, 3, 224, 224, device=DEVICE, dtype=torch.bfloat16)
    return Workload(model, lambda call: call(images))


def gpt2_train(
    transformers: Any, dropout: bool = False, shape: tuple[int, int] = (16, 1024)
) -> Workload:
    """A training step of GPT-2 124M on ``shape`` (rows, tokens), autocast; where that is small,
    with its optimizer."""
    names = () if dropout else ("attn_pdrop", "embd_pdrop", "resid_pdrop")
    config = transformers.GPT2Config(**dict.fromkeys(names, 0), vocab_size=50304)
    model = transformers.GPT2LMHeadModel(config).to(DEVICE).train()
    tokens = torch.randint(0, 50000, shape, device=DEVICE)
    given = {"input_ids": tokens, "labels": tokens, "use_cache": False}
    return _loss_of(model, given, steps=shape[0] < 16)


def bert_train(transformers: Any, attention_dropout: float = 0.1, rows: int = 64) -> Workload:
    """A training step of BERT-base with dropout, ``rows`` x 128 tokens, two classes, autocast;
    where there are few rows, with its optimizer."""
    config = transformers.BertConfig(attention_probs_dropout_prob=attention_dropout)
    model = transformers.BertForSequenceClassification(config).to(DEVICE).train()
    tokens = torch.randint(0, 30000, (rows, 128), device=DEVICE)
    labels = torch.randint(0, 2, (rows,), device=DEVICE)
    return _loss_of(model, {"input_ids": tokens, "labels": labels}, steps=rows < 16)


def _loss_of(model: Any, given: dict[str, Any], steps: bool) -> Workload:
    """A training step under autocast of a model that computes its loss; ``steps``: the optimizer
    makes one, too."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True) if steps else None

    def step(call: Callable[..., Any]) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss = call(**given).loss
        return _backward(model, loss, optimizer)

    return Workload(model, step, train=True)


def resnet50_train() -> Workload:
    """A training step of ResNet-50, 256 images, channels last, autocast."""
    import torchvision

    model = torchvision.models.resnet50().to(DEVICE, memory_format=torch.channels_last).train()
    images = torch.randn(256, 3, 224, 224, device=DEVICE).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (256,), device=DEVICE)

    def step(call: Callable[..., Any]) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(call(images), labels)
        return _backward(model, loss)

    return Workload(model, step, train=True)


def _backward(model: Any, loss: torch.Tensor, optimizer: Any = None) -> torch.Tensor:
    loss.backward()
    if optimizer is not None:
        optimizer.step()
    model.zero_grad(set_to_none=True)
    return loss


def build(case: str) -> Workload:
    """The workload of that name; KeyError for another."""
    import transformers

    cases: dict[str, Callable[[], Workload]] = {
        "llama1b_decode": lambda: decode(transformers, False),
        "llama8b_decode": lambda: decode(transformers, True),
        "llama8b_prefill": lambda: prefill(transformers),
        "bert_b1": lambda: bert(transformers, 1),
        "bert_b64": lambda: bert(transformers, 64),
        "vit_b32": vit,
        "gpt2_train": lambda: gpt2_train(transformers),
        "gpt2_train_dropout": lambda: gpt2_train(transformers, dropout=True),
        "gpt2_train_small": lambda: gpt2_train(transformers, shape=(2, 128)),
        "bert_train_small": lambda: bert_train(transformers, attention_dropout=0, rows=8),
        "bert_train_dropout": lambda: bert_train(transformers),
        "resnet50_train": resnet50_train,
    }
    return cases[case]()


def compiled(model: Any, mode: str) -> Any:
    """``model`` under the mode's compiler."""
    if mode == "eager":
        return model
    if not mode.startswith("jitney"):
        return torch.compile(model) if mode == "default" else torch.compile(model, mode=mode)
    import jitney

    chosen = mode.partition(":")[2]
    return jitney.compile(model, mode=chosen) if chosen else jitney.compile(model)


def measure(work: Workload, call: Any, seconds: float = 4.0) -> dict[str, float]:
    """Medians over as many steps as fit into ``seconds`` (10 to 200), after warm-up."""
    start = time.perf_counter()
    work.step(call)
    torch.cuda.synchronize()
    count = max(10, min(200, int(seconds / max(time.perf_counter() - start, 1e-5))))
    for _ in range(3):
        work.step(call)
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    torch.cuda.synchronize()
    for before, after in events:
        before.record()
        work.step(call)
        after.record()
        torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in events]
    start = time.perf_counter()
    for _ in range(5):
        work.step(call)
    issue = (time.perf_counter() - start) / 5
    torch.cuda.synchronize()
    return {"ms": statistics.median(times), "issue_ms": issue * 1e3, "runs": count}


def main(case: str, mode: str) -> None:
    """Builds, checks against eager (inference), measures, prints."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    work = build(case)
    result: dict[str, Any] = {"case": case, "mode": mode}
    with torch.enable_grad() if work.train else torch.no_grad():
        work.reset()
        want = None if work.train else work.step(work.model).float()
        work.reset()
        torch.cuda.reset_peak_memory_stats()
        call = compiled(work.model, mode)
        start = time.perf_counter()
        got = work.step(call).detach().float()
        torch.cuda.synchronize()
        result["first_s"] = time.perf_counter() - start
        if want is not None:
            result["error"] = ((got - want).norm() / want.norm()).item()
        work.step(call)
        work.reset()
        result |= measure(work, call)
    result["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    print(
        "RESULT "
        + json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in result.items()})
    )


if __name__ == "__main__":
    main(*sys.argv[1:3])
