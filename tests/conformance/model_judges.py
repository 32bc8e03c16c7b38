"""Judges that come with model libraries: every model of transformers in small, of timm one small
model a family, and torchvision's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from tests.conformance.programs import Program, Skipped, run_module, summary
from tests.conformance.transformers_models import small_enough, transformers_model

#: What else a model is called with, given how to run it and its inputs (args, kwargs).
Others = Callable[[Callable[[Any], Any], Any], list[Any]]


def transformers_programs(name: str, others: Others | None = None) -> Iterator[Program]:
    """A model with random weights and a small configuration: inference, and a training step; with
    ``others`` called on several inputs."""
    model, kwargs = transformers_model(name)
    yield from model_programs(model, ((), kwargs), others)


def timm_names() -> list[str]:
    """The first model of each family and, of large families, the last."""
    import timm

    families: dict[str, list[str]] = {}
    for name in timm.list_models():
        parts = name.split("_")
        families.setdefault("_".join(parts[: 1 + (parts[0] in ("vit", "swin"))]), []).append(name)
    return [n for names in families.values() for n in (names[:1] + names[5:][-1:])]


def timm_programs(name: str, others: Others | None = None) -> Iterator[Program]:
    """A model with random weights on a small image: inference, and a training step; with ``others``
    called on several inputs."""
    model, inputs = built(lambda: timm_model(name))
    yield from model_programs(model, (inputs, {}), others)


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


def torchvision_programs(name: str, others: Others | None = None) -> Iterator[Program]:
    """As `timm_programs`, of torchvision; detectors, which ask for targets, in inference alone."""
    model, inputs = built(lambda: torchvision_model(name))
    programs = model_programs(model, (inputs, {}), others)
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
    except Exception as error:  # a package, a download, sizes that do not fit
        raise Skipped(f"not built: {summary(error)}") from error


def model_programs(model: torch.nn.Module, inputs: Any, others: Others | None) -> Iterator[Program]:
    """Inference in evaluation mode, gradients in training mode."""
    more = others(lambda given: model(*given[0], **given[1]), inputs) if others else []
    if others and not more:
        raise Skipped("takes no other inputs")
    yield Program("inference", partial(run_module, model, inputs, False, others=more))
    yield Program("training", partial(run_module, model.train(), inputs, True, others=more))
