"""What was assumed of symbolic sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from jitney import torch_api


def test_a_size_that_became_a_number_is_in_no_assumption(monkeypatch: pytest.MonkeyPatch) -> None:
    mode, shape_env = torch_api.new_capture_mode()
    marked = torch.ones(3, 2)
    torch._dynamo.mark_dynamic(marked, 0)
    size: Any = mode.from_tensor(marked, static_shapes=False).shape[0]
    name = torch_api.symbol_name(size)
    assert size == 3  # from now on it is
    assert torch_api.shape_assumptions(shape_env, {name}, 1e38) == []
    monkeypatch.setattr(shape_env, "simplify", lambda expression: expression)  # as if stale
    assert torch_api.shape_assumptions(shape_env, {name}, 1e38) == []
