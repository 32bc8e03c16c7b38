"""Inputs that a model of transformers may take, made up from the names of its parameters."""

from __future__ import annotations

import inspect
import itertools
import re
import traceback
from collections.abc import Iterator
from typing import Any

import torch

from tests.conformance.config_sizes import size
from tests.conformance.transformers_sets import SEQUENCE, sets, sides

#: combinations tried beyond a model's usual inputs
MOST_TRIED = 40


def made_up_inputs(model: Any) -> Iterator[dict[str, Any]]:
    """Sets of inputs that a model may take, those that fit its main input first."""
    parameters = inspect.signature(model.forward).parameters
    yield from sets(model.config, parameters)
    for inputs in usual_inputs(model, next(iter(parameters))):
        if set(inputs) <= set(parameters):
            yield inputs
    yield from itertools.islice(by_parameters(model.config, parameters), MOST_TRIED)


def asked_for(error: BaseException, inputs: dict[str, Any], model: Any) -> Iterator[dict[str, Any]]:
    """``inputs`` with one more that the text of an error or a line that raised it names; where it
    says that there is None, then with any other that can be made up."""
    parameters = inspect.signature(model.forward).parameters
    frames = traceback.extract_tb(error.__traceback__)[::-1]
    texts = [str(error), *(frame.line or "" for frame in frames if "torch/" not in frame.filename)]
    words = [word for text in texts for word in re.findall(r"\w+", text.lower())]
    for name in dict.fromkeys([*words, *(parameters if "None" in str(error) else ())]):
        if name in parameters and name not in inputs:
            for value in itertools.islice(made_up(name, model.config), 2):
                yield inputs | {name: value}


def usual_inputs(model: Any, main: str) -> Iterator[dict[str, Any]]:
    """What most models take, by the name of the first parameter."""
    torch.manual_seed(1)
    ids = torch.randint(3, 100, SEQUENCE)
    if main == "pixel_values":
        # its own size first: some keep the size of the first image that they see
        for high, wide in sides(model.config):
            if max(high, wide) > 64:
                yield {main: torch.randn(2, 3, high, wide)}
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


def by_parameters(config: Any, parameters: Any) -> Iterator[dict[str, Any]]:
    """A value for each parameter that has no default, and for the first few that do."""
    plain = [
        name
        for name, parameter in parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    needed = [name for name in plain if parameters[name].default is inspect.Parameter.empty]
    offered = {name: list(made_up(name, config)) for name in plain}
    usual = [name for name in plain[:4] if name not in needed and offered[name]]
    if not all(offered[name] for name in needed):
        return
    for count in range(len(usual) + 1):
        for more in itertools.combinations(usual, count):
            names = [*needed, *more]
            for values in itertools.product(*(offered[name] for name in names)):
                yield dict(zip(names, values))


def made_up(name: str, config: Any) -> Iterator[Any]:
    """Tensors that a parameter of this name may take, the likeliest first."""
    torch.manual_seed(1)
    batch, length = SEQUENCE
    if name.endswith("input_ids") or name in ("task_inputs", "text_inputs"):
        yield torch.randint(3, 100, SEQUENCE)
        yield torch.randint(3, 100, (1, length))
    elif name in ("attention_mask", "tasks_attention_mask"):
        yield torch.ones(SEQUENCE, dtype=torch.int64)
    elif name == "lang_ids":
        yield torch.zeros(SEQUENCE, dtype=torch.int64)
    elif name == "visual_feats":
        yield torch.randn(batch, 5, size(config, "visual_feat_dim", 2048))
    elif name == "visual_pos":
        yield torch.rand(batch, 5, size(config, "visual_pos_dim", 4))
    elif name in ("inputs", "action_embeds", "noise_embeds", "context_hidden_states"):
        yield torch.randn(batch, 6, size(config, "hidden_size", size(config, "d_model", 32)))
    elif name in ("hidden_states", "decoder_input_values"):
        yield torch.randn(1, 12, size(config, "hidden_size", 32))
        yield torch.randn(1, size(config, "hidden_size", 32), 12)
        yield torch.randn(1, size(config, "channels", 1), 4000)
    elif name in ("audio_mel", "audio_mel_mask"):
        bands = size(config, "input_feat_size", 80)
        yield torch.randn(1, 64, bands) if name == "audio_mel" else torch.zeros(1, 64).bool()
    elif name == "bbox":
        yield torch.randint(0, 10, (batch, length, 4))
        yield torch.rand(batch, length, 8)
    elif name in ("pixel_values", "input", "pixel_values_videos", "frame"):
        yield from images(config)
    elif name == "input_features":
        yield from spectra(config)
    elif name in ("input_features_mask", "feature_lens"):
        yield torch.ones(1, 2 * size(config, "max_source_positions", 64), dtype=torch.int64)
        yield torch.ones(1, 128, dtype=torch.int64)
    elif name == "input_values":
        yield torch.randn(1, 1, 4000)
        yield torch.randn(1, 4000)
        yield torch.randn(1, 12, size(config, "hidden_size", 32))
        yield torch.randn(1, size(config, "max_length", 64), size(config, "num_mel_bins", 16))
        yield torch.randint(3, 20, SEQUENCE)
    elif name in ("past_values", "past_time_features", "past_observed_mask"):
        past = size(config, "context_length", 8) + max(size(config, "lags_sequence", 0), 0)
        channels = size(config, "num_input_channels", 1)
        yield torch.randn((batch, past, channels) if channels > 1 else (batch, past)).abs()
        yield torch.randn(batch, past, size(config, "num_time_features", 1)).abs()
    elif name == "query_embeds":
        yield torch.randn(batch, 8, size(config, "hidden_size", 32))
    elif name == "encoder_hidden_states":
        yield torch.randn(batch, 6, size(config, "encoder_hidden_size", 32))


def images(config: Any) -> Iterator[torch.Tensor]:
    """Images, pairs of them and films, of the size that the configuration says and others."""
    channels = size(config, "num_channels", size(config, "in_channels", 3))
    usual = (64, 224, size(config, "crop_size", 128))
    for high, wide in dict.fromkeys((*sides(config), *((side, side) for side in usual))):
        yield torch.randn(2, channels, high, wide)
        yield torch.randn(1, size(config, "num_frames", 4), channels, high, wide)
        yield torch.randn(1, 2, channels, high, wide)


def spectra(config: Any) -> Iterator[torch.Tensor]:
    """Spectra with as many bands and as much time as the configuration says."""
    times = 2 * size(config, "max_source_positions", 64)
    for name in (
        "num_mel_bins",
        "feature_projection_input_dim",
        "input_dim",
        "input_channels",
        "model_in_channels",
        "input_feat_per_channel",
    ):
        bands = size(config, name, 0)
        if bands:
            yield torch.randn(1, bands, times)
            yield torch.randn(1, times, bands)
            yield torch.randn(2, 1, 4 * bands, bands)
