"""Every model of transformers, made small, with inputs that it takes."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from tests.conformance.programs import Skipped, summary
from tests.conformance.transformers_inputs import asked_for, made_up_inputs

MOST_PARAMETERS = 60e6
#: a side of an image where sizes are kept in proportion
MOST_PIXELS = 224
#: inputs tried with what an error asks for
MOST_ASKED = 30

# what a configuration is cut down to, by the names that configurations use: fewer layers and
# words, and smaller ones where the configuration's parts still fit together then
LAYERS = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_encoder_layers", "decoder_num_hidden_layers"), 2),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), 4),
    **dict.fromkeys(("chunk_size", "mamba_chunk_size"), 16),
    "num_experts_per_tok": 2,
    "num_kv_shared_layers": 0,
    "vocab_size": 128,
}
FEW = LAYERS | {"image_size": 32}
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

#: `in_proportion` divides a width by this: of heads either the width or the number
DIVISOR = 16
NO_WIDTH = r"experts|groups?$|ngroups|_pos|positions|tokens?|_id$|index|_ratio|_theta"
HEADS = re.compile(NO_WIDTH + r"|heads$|(n|num)_head$")
HEAD_WIDTH = re.compile(NO_WIDTH + r"|head_dim|rotary_dim|state_size|d_state")


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


def transformers_model(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A model with random weights, as small as its parts allow, and inputs it takes.

    Skipped, with the first reason, where no way of making it smaller gives a model that runs.
    """
    kind, _, made = name.partition("/")
    reasons = []
    for cut in CUTS:
        try:
            return model_cut_down(kind, made, cut)
        except Skipped as error:
            reasons.append(str(error))
        except Exception as error:  # noqa: BLE001 - a package, a download, sizes that do not fit
            reasons.append(f"not built: {summary(error)}")
    raise Skipped("; ".join(dict.fromkeys(reasons)))


def model_cut_down(
    kind: str, made: str, cut: Callable[[Any], Any]
) -> tuple[torch.nn.Module, dict[str, Any]]:
    """The model of a configuration after ``cut``, and the first made-up inputs that eager takes."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_class = getattr(transformers, made)
    config = CONFIG_MAPPING[kind]()
    if model_class.config_class not in (None, type(config)):
        config = model_class.config_class()  # the language model alone of one that sees
    config = cut(config) or config
    config.use_cache = False
    torch.manual_seed(0)
    model = small_enough(lambda: model_class(config)).eval()
    for parameter in model.parameters():
        if parameter.is_floating_point() and parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.05)
    return model, first_accepted(model, made_up_inputs(model))


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


def first_accepted(model: Any, candidates: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """The first inputs that eager runs with, of ``candidates`` or of these with what eager's errors
    ask for; Skipped with the first error where none does."""
    refused: list[tuple[BaseException, dict[str, Any]]] = []
    for inputs in candidates:
        error = refusal(model, inputs)
        if error is None:
            return inputs
        refused.append((error, inputs))
    seen = {summary(error) for error, _ in refused}
    waiting = list({summary(error): (error, inputs) for error, inputs in refused}.values())
    tried = 0
    while waiting and tried < MOST_ASKED:
        further = []
        for inputs in asked_for(*waiting.pop(0), model):
            tried += 1
            error = refusal(model, inputs)
            if error is None:
                return inputs
            if summary(error) not in seen:
                seen.add(summary(error))
                further.append((error, inputs))
        waiting = further + waiting
    first = summary(refused[0][0]) if refused else "takes none that are made up"
    raise Skipped(f"no inputs: {first}")


def refusal(model: Any, inputs: dict[str, Any]) -> BaseException | None:
    """The error with which eager refuses inputs; None where it takes them."""
    try:
        with torch.no_grad():
            model(**inputs)
    except Exception as error:  # noqa: BLE001 - other inputs may do
        return error
    return None


def by_name(config: Any, sizes: dict[str, int]) -> None:
    """``sizes`` for what makes a model large, in a configuration and those it holds."""
    for key, value in sizes.items():
        if type(value_of(config, key)) is int:
            assign(config, key, value)
    few_words(config)
    kinds = value_of(config, "layer_types")
    if isinstance(kinds, list):
        assign(config, "layer_types", (list(dict.fromkeys(kinds)) * 2)[:2])
    for inner in inner_configs(config):
        by_name(inner, sizes)


def in_proportion(config: Any, kept: re.Pattern[str]) -> None:
    """Every size but ``kept`` divided by one number, so that what fitted together still does; two
    layers, or one of each kind; what a checkpoint would give has a value."""
    for key, value in list(vars(config).items()):
        if key in LAYERS or key == "image_size":
            most = LAYERS.get(key, MOST_PIXELS)
            assign(config, key, min(value, most) if type(value) is int else value)
        elif not kept.search(key):
            assign(config, key, divided(value, least=1 if "heads" in key else DIVISOR))
    few_words(config)
    give_missing(config)
    kinds = value_of(config, "layer_types")
    if isinstance(kinds, list):
        found = list(dict.fromkeys(kinds))
        found = found * (2 if len(found) == 1 else 1)
        assign(config, "num_hidden_layers", len(found))
        assign(config, "layer_types", found)
    for inner in inner_configs(config):
        in_proportion(inner, kept)


def divided(value: Any, least: int) -> Any:
    """A size of at least ``least``, or a list of sizes, in proportion; anything else as it is."""
    if type(value) is int and value >= least:
        return max(value // DIVISOR, 1)
    if isinstance(value, list) and any(type(x) is int and x >= 4 * DIVISOR for x in value):
        return [max(x // DIVISOR, 1) if type(x) is int else x for x in value]
    return value


def few_words(config: Any) -> None:
    """Numbers of special words below the number of words."""
    for key, value in list(vars(config).items()):
        if re.fullmatch(r"\w+_token_(id|index)", key) and type(value) is int:
            assign(config, key, min(value, LAYERS["vocab_size"] - 1))


def give_missing(config: Any) -> None:
    """Values for what only a checkpoint's configuration says."""
    heads, hidden = value_of(config, "num_attention_heads"), value_of(config, "hidden_size")
    known = {"vocab_size": LAYERS["vocab_size"], "pad_token_id": 0, "n_routed_experts": 4}
    known |= {"prediction_length": 4, "context_length": 16}
    if type(heads) is int and type(hidden) is int:
        known |= {"num_key_value_heads": heads, "head_dim": max(hidden // heads, 2)}
    for key, value in known.items():
        if key in vars(config) and value_of(config, key) is None:
            assign(config, key, value)


def everywhere(config: Any, factor: int, width: int) -> Any:
    """Anew with few layers, words and experts, by whatever name; sides of images ``factor`` times
    smaller and widths ``width`` times; what follows from these is computed anew."""
    fields = [field.name for field in dataclasses.fields(config)] if is_made(config) else []
    values = {key: value_of(config, key) for key in fields}
    changed = few_layers(values)
    for key, value in values.items():
        if type(value).__name__.endswith("Config"):
            changed[key] = everywhere(value, factor, width)
        elif key not in changed:
            smaller = next((how for names, how in SMALLER if names.search(key)), None)
            made = smaller(value, factor, width) if smaller else value
            if made != value:
                changed[key] = made
    made = type(config)(**changed) if fields else config
    few_words(made)
    give_missing(made)
    return made


def few_layers(values: dict[str, Any]) -> dict[str, Any]:
    """Two layers, or the first of each kind where lists say what kind each is."""
    count = values.get("num_hidden_layers")
    lists = {k: v for k, v in values.items() if isinstance(v, (list, tuple)) and len(v) == count}
    kinds = {k: v for k, v in lists.items() if v and type(v[0]) is str}
    if not kinds:
        return {}
    each = list(zip(*kinds.values()))
    picked = [each.index(kind) for kind in dict.fromkeys(each)]
    picked = picked if len(picked) > 1 else [0, 1][:count]
    return {k: [v[i] for i in picked] for k, v in lists.items()} | {
        "num_hidden_layers": len(picked)
    }


def is_made(config: Any) -> bool:
    """Whether a configuration can be made of its fields."""
    return dataclasses.is_dataclass(config)


def at_most(most: int) -> Callable[[Any, int, int], Any]:
    """A number, or numbers in a list, of at most ``most``."""

    def smaller(value: Any, factor: int, width: int) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(smaller(x, factor, width) for x in value)
        return min(value, most) if type(value) is int else value

    return smaller


def by(pick: Callable[[int, int], int]) -> Callable[[Any, int, int], Any]:
    """A number, or numbers in a list, divided by one of the factors."""

    def smaller(value: Any, factor: int, width: int) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(smaller(x, factor, width) for x in value)
        divisor = pick(factor, width)
        return value // divisor if type(value) is int and value >= 4 * divisor else value

    return smaller


def inner_configs(config: Any) -> list[Any]:
    """The configurations that one holds."""
    return [inner for inner in vars(config).values() if type(inner).__name__.endswith("Config")]


def value_of(config: Any, key: str) -> Any:
    """A field, under any of its names; None where there is none, or one for each layer."""
    try:
        return getattr(config, key, None)
    except Exception:  # noqa: BLE001 - libraries raise what they like where layers differ
        return None


def assign(config: Any, key: str, value: Any) -> None:
    """Sets what the configuration lets be set: some check what belongs together at once."""
    try:
        setattr(config, key, value)
    except (ValueError, TypeError, NotImplementedError, AttributeError):
        return


#: what is made smaller by `everywhere`, by name, and how
SMALLER: tuple[tuple[re.Pattern[str], Callable[[Any, int, int], Any]], ...] = (
    (re.compile(r"vocab_size\w*$|num_embeddings$"), at_most(LAYERS["vocab_size"])),
    (re.compile(r"(^|_)layers?$|^depths?$|_depth$|blocks_per"), at_most(2)),
    (re.compile(r"(^|_)num_experts$|n_routed_experts$|num_local_experts$"), at_most(4)),
    (re.compile(r"experts_per_tok$|kv_shared_layers$"), at_most(2)),
    (re.compile(r"image_size|feature_sizes|embedding_size$"), by(lambda factor, width: factor)),
    (
        re.compile(r"hidden_size|d_model|_dim$|^dim$|hidden_channels|intermediate_size|^d_ff$"),
        by(lambda factor, width: width),
    ),
)

#: ways of making a model smaller, the first that works is taken
CUTS: tuple[Callable[[Any], Any], ...] = (
    partial(by_name, sizes=SMALL),
    partial(by_name, sizes=FEW),
    partial(in_proportion, kept=HEADS),
    partial(in_proportion, kept=HEAD_WIDTH),
    *(
        partial(everywhere, factor=factor, width=width)
        for factor, width in ((8, 8), (8, 1), (4, 1), (1, 8), (1, 1))
    ),
)
