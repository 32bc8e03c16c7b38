"""Every language model of transformers generates text through a compiled ``forward``.

As users do it: ``model.forward = compile(model.forward)``, then ``model.generate``. The prompt's
call and each token's have other shapes, and a cache that grows or one of fixed size.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch.utils._pytree import tree_map

from tests.conformance.noise import Move
from tests.conformance.programs import Compile, Program, Skipped, summary
from tests.conformance.transformers_models import transformers_model, transformers_names

TOKENS = 5
CACHES = (None, "static")


def generation_names() -> list[str]:
    """The language models among `transformers_names`."""
    return [name for name in transformers_names() if name.endswith(("ForCausalLM", "LMHeadModel"))]


def generation_programs(name: str) -> Iterator[Program]:
    """Greedy generation with the model's own cache, and with one of fixed size where eager can."""
    model, inputs = transformers_model(name)
    model.config.use_cache = model.generation_config.use_cache = True
    refused = []
    for cache in CACHES:
        run = partial(generate, model, inputs, cache)
        try:
            run(lambda forward: forward, lambda value: value)
        except Exception as error:  # noqa: BLE001 - not every model has every cache
            refused.append(summary(error))
            continue
        yield Program(f"{cache or 'dynamic'} cache", run)
    if len(refused) == len(CACHES):
        raise Skipped(f"does not generate: {refused[0]}")


def generate(
    model: Any, inputs: dict[str, Any], cache: str | None, compile_: Compile, change: Move
) -> Any:
    """Tokens and logits of two generations by a copy of ``model``, all tensors changed."""
    model, inputs = copy.deepcopy(model)._apply(change), tree_map(change, inputs)
    model.forward = compile_(model.forward)
    seen = []
    for _ in range(2):
        made = model.generate(
            **inputs,
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=False,
            num_beams=1,
            cache_implementation=cache,
            disable_compile=True,  # or transformers compiles with torch.compile
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        seen.append([made.sequences, [logits.detach() for logits in made.logits]])
    return seen
