"""The autograd node: gradients, saved tensors, hooks, what must raise."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.graph.regions import compiled, trace


def mlp(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.gelu(F.linear(x, w, b)), (8,)).softmax(-1)


def leaves() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(5, 8), torch.randn(8, 8, requires_grad=True),
            torch.randn(8, requires_grad=True)]  # fmt: skip


def test_gradients_equal_eager() -> None:
    mine, theirs = leaves(), leaves()
    compiled(mlp, *mine)(*mine).square().sum().backward()
    mlp(*theirs).square().sum().backward()
    for m, t in zip(mine[1:], theirs[1:]):
        torch.testing.assert_close(m.grad, t.grad, rtol=1e-5, atol=1e-6)


def test_saved_tensor_written_to_raises() -> None:
    x, w = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    out = compiled(lambda x, w: (x * w).sin(), x, w)(x, w)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_backward_twice_raises_as_eager_does() -> None:
    x = torch.randn(4, requires_grad=True)
    out = compiled(lambda x: x.sin(), x)(x).sum()
    out.backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_retain_graph() -> None:
    x = torch.randn(4, requires_grad=True)
    out = compiled(lambda x: x.sin(), x)(x).sum()
    (first,) = torch.autograd.grad(out, x, retain_graph=True)
    (second,) = torch.autograd.grad(out, x)
    torch.testing.assert_close(first, second)


def test_gradients_are_differentiated_again() -> None:
    x = torch.randn(4, requires_grad=True)
    out = compiled(lambda x: x.sin().exp(), x)(x).sum()
    (grad,) = torch.autograd.grad(out, x, create_graph=True)
    torch.testing.assert_close(grad, x.cos() * x.sin().exp())
    (second,) = torch.autograd.grad(grad.sum(), x)
    torch.testing.assert_close(second, (x.cos().square() - x.sin()) * x.sin().exp())


def test_saved_tensor_hooks_see_what_is_saved() -> None:
    x = torch.randn(4, requires_grad=True)
    call = compiled(lambda x: x.sin(), x)
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (packed.append(t), t)[1], lambda t: t):
        out = call(x)
    out.sum().backward()
    assert packed
    torch.testing.assert_close(x.grad, x.cos())


def test_unused_result_has_zero_gradient() -> None:
    x = torch.randn(4, requires_grad=True)
    a, b = compiled(lambda x: (x.sin(), x.cos()), x)(x)
    b.sum().backward()
    torch.testing.assert_close(x.grad, -x.sin())


def test_expanded_gradient_is_made_dense() -> None:
    x = torch.randn(4, 5, requires_grad=True)
    compiled(lambda x: x.t() * 2, x)(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((4, 5), 2.0))


def test_equal_gradients_do_not_share_memory() -> None:
    a, b = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    compiled(lambda a, b: a + b, a, b)(a, b).sum().backward()
    assert a.grad.data_ptr() != b.grad.data_ptr()


def test_dropout_draws_eager_numbers() -> None:
    x = torch.randn(64, 64, requires_grad=True)
    call = compiled(lambda x: F.dropout(x, 0.3, True) + torch.rand_like(x), x)
    torch.manual_seed(1)
    mine = call(x)
    after = torch.rand(1)
    torch.manual_seed(1)
    theirs = F.dropout(x, 0.3, True) + torch.rand_like(x)
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(after, torch.rand(1))


def test_unread_random_op_still_draws() -> None:
    x = torch.randn(8)
    call = compiled(lambda x: (torch.rand_like(x), x * 2)[1], x)
    torch.manual_seed(1)
    call(x)
    after = torch.rand(1)
    torch.manual_seed(1)
    torch.rand(8)
    torch.testing.assert_close(after, torch.rand(1))


def test_batch_norm_updates_its_statistics() -> None:
    def normed(x, mean, var, w, b):  # type: ignore[no-untyped-def]
        return F.batch_norm(x, mean, var, w, b, True, 0.1)

    def inputs() -> list[torch.Tensor]:
        torch.manual_seed(0)
        return [torch.randn(4, 3, 5, 5, requires_grad=True), torch.zeros(3), torch.ones(3),
                torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)]  # fmt: skip

    mine, theirs = inputs(), inputs()
    out, expected = compiled(normed, *mine)(*mine), normed(*theirs)
    weight = torch.randn_like(out)
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    for m, t in zip(mine, theirs):
        torch.testing.assert_close(m, t)
        if t.grad is not None:
            torch.testing.assert_close(m.grad, t.grad, rtol=1e-4, atol=1e-5)


def test_autocast_casts_forward_and_backward() -> None:
    def cast(x, w):  # type: ignore[no-untyped-def]
        return F.linear(x, w).float().sum()

    x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        call = compiled(cast, x, w)
        out, expected = call(x, w), cast(x, w)
    assert out.dtype == expected.dtype
    torch.testing.assert_close(out, expected)
    (grad,) = torch.autograd.grad(out, w)
    (want,) = torch.autograd.grad(expected, w)
    torch.testing.assert_close(grad, want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm_saves_the_norm_that_its_backward_takes(dtype: torch.dtype, dim: int) -> None:
    torch.manual_seed(0)
    shape = [1, 1, 1]
    shape[dim] = 3
    v, g = torch.randn(3, 4, 3).to(dtype).requires_grad_(), torch.rand(shape).to(dtype)
    g.requires_grad_()
    call = compiled(lambda v, g: torch._weight_norm(v, g, dim), v, g)
    out, expected = call(v, g), torch._weight_norm(v, g, dim)
    torch.testing.assert_close(out, expected)
    grads, wanted = (torch.autograd.grad(o.float().square().sum(), (v, g)) for o in (out, expected))
    torch.testing.assert_close(grads, wanted)


def test_random_ops_run_once() -> None:
    region = trace(lambda x: F.dropout(x, 0.5, True) * x.sin(), torch.randn(8, requires_grad=True))
    assert region.backward is not None
    names = [str(node.target) for node in region.backward.graph.nodes]
    assert not any("bernoulli" in name or "rand" in name for name in names)


def test_a_result_without_gradient_still_requires_grad() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    out = compiled(lambda x: torch.linalg.vector_norm(x, ord=0), x)(x)
    assert out.requires_grad
    out.backward()
    assert x.grad is None


def detached(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (h.detach().exp() * w).sum()


def test_inputs_without_a_gradient_have_no_part_in_a_backward_pass() -> None:
    """What ``h`` was computed from has been differentiated and freed."""
    x, w = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    h = x.exp()
    h.retain_grad()
    h.sum().backward()
    kept = h.grad.clone()
    compiled(detached, h, w)(h, w).backward()
    torch.testing.assert_close(w.grad, h.detach().exp())
    torch.testing.assert_close(h.grad, kept)
