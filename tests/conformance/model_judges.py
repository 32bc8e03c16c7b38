"""Judges that come with model libraries: every model of transformers in small, of timm one small
model a family, and torchvision's."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from tests.conformance.other_shapes import in_other_shapes
from tests.conformance.programs import Program, Skipped, run_module, summary

MOST_PARAMETERS = 60e6
SEQUENCE = (2, 9)

# what a configuration is cut down to, by the names that configurations use: fewer layers and
# words, and smaller ones where the configuration's parts still fit together then
FEW = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_encoder_layers", "decoder_num_hidden_layers"), 2),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), 4),
    **dict.fromkeys(("chunk_size", "mamba_chunk_size"), 16),
    "num_experts_per_tok": 2,
    "vocab_size": 128,
    "image_size": 32,
}
SMALL = FEW | {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "embedding_size"), 32),
    **dict.fromkeys(("decoder_hidden_size", "encoder_hidden_size", "moe_intermediate_size"), 32),
    "num_key_value_heads": 2,
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "hidden_dim"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 64),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("head_dim", "d_kv", "patch_size"), 8),
}


def transformers_names() -> list[str]:
    """As in "llama/LlamaForCausalLM": every model type's base class and its language model."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from transformers.models.auto import modeling_auto as auto

    found = []
    for mapping in (auto.MODEL_MAPPING_NAMES, auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        for kind, made in mapping.items():
            found.append(f"{kind}/{made if isinstance(made, str) else made[0]}")
    return list(dict.fromkeys(found))


def transformers_programs(name: str, shapes: bool = False) -> Iterator[Program]:
    """A model with random weights and a small configuration: inference, and a training step; with
    ``shapes`` at several shapes."""
    kind, _, made = name.partition("/")
    try:
        model, kwargs = built(lambda: transformers_model(kind, made, SMALL))
    except Skipped:
        model, kwargs = built(lambda: transformers_model(kind, made, FEW))
    yield from model_programs(model, ((), kwargs), shapes)


def transformers_model(
    kind: str, made: str, sizes: dict[str, int]
) -> tuple[torch.nn.Module, dict[str, Any]]:
    """The model cut down to ``sizes``, and the first made-up inputs that eager takes."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[kind]()
    cut_down(config, sizes)
    config.use_cache = False
    torch.manual_seed(0)
    model = small_enough(lambda: getattr(transformers, made)(config)).eval()
    for parameter in model.parameters():
        if parameter.is_floating_point() and parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.05)
    return model, first_accepted(model, made_up_inputs(model))


def cut_down(config: Any, sizes: dict[str, int]) -> None:
    """``sizes`` for what makes a model large, in a configuration and those it holds."""
    for key, value in sizes.items():
        if type(getattr(config, key, None)) is int:
            assign(config, key, value)
    for key in vars(config):
        if re.fullmatch(r"\w+_token_(id|index)", key) and type(getattr(config, key)) is int:
            assign(config, key, min(getattr(config, key), sizes["vocab_size"] - 1))
    kinds = getattr(config, "layer_types", None)
    if isinstance(kinds, list):
        assign(config, "layer_types", (list(dict.fromkeys(kinds)) * 2)[:2])
    for inner in list(vars(config).values()):
        if type(inner).__name__.endswith("Config"):
            cut_down(inner, sizes)


def assign(config: Any, key: str, value: Any) -> None:
    """Sets what the configuration lets be set: some check what belongs together at once."""
    try:
        setattr(config, key, value)
    except (ValueError, TypeError, NotImplementedError, AttributeError):
        return


def made_up_inputs(model: Any) -> Iterator[dict[str, Any]]:
    """Sets of inputs that a model may take, those that fit its main input first."""
    torch.manual_seed(1)
    ids = torch.randint(3, 100, SEQUENCE)
    main = next(iter(inspect.signature(model.forward).parameters))
    if main == "pixel_values":
        for shape in ((2, 3, 64, 64), (2, 3, 32, 32), (2, 3, 224, 224), (1, 4, 3, 32, 32)):
            yield {main: torch.randn(shape)}
        yield {main: torch.randn(2, 3, 32, 32), "input_ids": ids}
    elif main == "input_values":
        yield {main: torch.randn(1, 4000)}
    elif main == "input_features":
        yield {main: torch.randn(1, 80, 128)}
        yield {main: torch.randn(1, 128, 80)}
    elif main == "hidden_states":
        config = model.config
        patch = config.patch_size**2 * getattr(config, "temporal_patch_size", 1)
        grid = torch.tensor([[1, 4, 4], [1, 4, 8]])
        yield {main: torch.randn(48, getattr(config, "in_channels", 3) * patch), "grid_thw": grid}
    yield {"input_ids": ids}
    yield {"input_ids": ids, "decoder_input_ids": ids}
    yield {"input_ids": ids, "pixel_values": torch.randn(2, 3, 32, 32)}


def first_accepted(model: Any, candidates: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """The first inputs that eager runs with; Skipped with the first error where none does."""
    accepted = inspect.signature(model.forward).parameters
    refused: list[str] = []
    for inputs in candidates:
        if not set(inputs) <= set(accepted):
            continue
        try:
            with torch.no_grad():
                model(**inputs)
        except Exception as error:  # noqa: BLE001 - other inputs may do
            refused.append(summary(error))
        else:
            return inputs
    raise Skipped(f"no inputs: {refused[0] if refused else 'takes ' + ', '.join(accepted)}")


def timm_names() -> list[str]:
    """The first model of each family and, of large families, the last."""
    import timm

    families: dict[str, list[str]] = {}
    for name in timm.list_models():
        parts = name.split("_")
        families.setdefault("_".join(parts[: 1 + (parts[0] in ("vit", "swin"))]), []).append(name)
    return [n for names in families.values() for n in (names[:1] + names[5:][-1:])]


def timm_programs(name: str, shapes: bool = False) -> Iterator[Program]:
    """A model with random weights on a small image: inference, and a training step; with ``shapes``
    at several shapes."""
    model, inputs = built(lambda: timm_model(name))
    yield from model_programs(model, (inputs, {}), shapes)


def timm_model(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """The model and the smallest image that it takes."""
    import timm

    torch.manual_seed(0)
    model = small_enough(lambda: timm.create_model(name, pretrained=False)).eval()
    channels, *full = model.default_cfg.get("input_size", (3, 224, 224))
    images = [
        torch.randn(2, channels, *(min(a, b) for a, b in zip(size, full)))
        for size in ([96, 96], [min(side, 224) for side in full], full)
    ]
    return model, first_taken(model, [(image,) for image in images])


def torchvision_names() -> list[str]:
    """Every model but the quantized ones."""
    from torchvision import models

    return [name for name in models.list_models() if not name.startswith("quantized")]


def torchvision_programs(name: str, shapes: bool = False) -> Iterator[Program]:
    """As `timm_programs`, of torchvision; detectors, which ask for targets, in inference alone."""
    model, inputs = built(lambda: torchvision_model(name))
    programs = model_programs(model, (inputs, {}), shapes)
    yield next(programs)
    if not isinstance(inputs[0], list):
        yield from programs


def torchvision_model(name: str) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    """The model and the first made-up inputs it takes: images, a list of them, two, a video."""
    from torchvision import models

    torch.manual_seed(0)
    accepted = inspect.signature(models.get_model_builder(name)).parameters
    options = {"weights_backbone": None} if "weights_backbone" in accepted else {}
    model = small_enough(lambda: models.get_model(name, weights=None, **options)).eval()
    candidates: list[tuple[Any, ...]] = [
        (torch.randn(2, 3, 96, 96),),
        ([torch.rand(3, 96, 96), torch.rand(3, 80, 112)],),
        (torch.randn(1, 3, 128, 128), torch.randn(1, 3, 128, 128)),
        (torch.randn(2, 3, 224, 224),),
        (torch.randn(1, 3, 16, 64, 64),),
        (torch.randn(1, 3, 16, 224, 224),),
        (torch.randn(2, 3, 299, 299),),
    ]
    return model, first_taken(model, candidates)


def first_taken(model: torch.nn.Module, candidates: list[tuple[Any, ...]]) -> Any:
    """The first inputs that eager runs with; Skipped where none does."""
    for inputs in candidates:
        try:
            with torch.no_grad():
                model(*inputs)
        except Exception as error:  # noqa: BLE001 - others may do
            refused = summary(error)
        else:
            return inputs
    raise Skipped(f"no inputs: {refused}")


def built(make: Callable[[], Any]) -> Any:
    """What ``make`` gives; Skipped where the library cannot make it here."""
    try:
        return make()
    except Skipped:
        raise
    except Exception as error:  # noqa: BLE001 - a package, a download, sizes that do not fit
        raise Skipped(f"not built: {summary(error)}") from error


def small_enough(make: Callable[[], torch.nn.Module]) -> Any:
    """The model; Skipped where it is large, found out before memory is taken."""
    try:
        with torch.device("meta"):
            count = sum(p.numel() for p in make().parameters())
    except Exception:  # noqa: BLE001 - some read values while they are built
        count = 0
    if count > MOST_PARAMETERS:
        raise Skipped(f"{count / 1e6:.0f} million parameters")
    return make()


def model_programs(model: torch.nn.Module, inputs: Any, shapes: bool) -> Iterator[Program]:
    """Inference in evaluation mode, gradients in training mode."""
    others = in_other_shapes(lambda given: model(*given[0], **given[1]), inputs) if shapes else []
    if shapes and not others:
        raise Skipped("takes one shape")
    yield Program("inference", partial(run_module, model, inputs, False, others=others))
    yield Program("training", partial(run_module, model.train(), inputs, True, others=others))
