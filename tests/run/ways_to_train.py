"""Ways to train a model that differ in what is held, in what order, on which thread and stream.

`WAYS` says of each how many programs at least are replayed from CUDA graphs in `STEPS` steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

STEPS = 8

Call = Callable[[Tensor], Tensor]
#: Inputs of so many rows.
Inputs = Callable[[int, torch.Generator], Tensor]


class Training:
    """One side of a comparison: ``model``, which is called as ``call``, and its optimizer.

    ``seen`` is what is compared: copies of losses and gradients where a step goes on to change
    them, and what a way to train keeps as the program was given it.
    """

    def __init__(self, model: nn.Module, call: Call, inputs: Inputs, device: str = "cpu") -> None:
        self.model, self.call, self.inputs, self.device = model, call, inputs, device
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        self.weights = list(model.parameters())
        self.seen: list[Tensor] = []
        torch.manual_seed(7)  # of dropout

    def data(self, number: int, rows: int = 5) -> Tensor:
        made = torch.Generator().manual_seed(number)
        return self.inputs(rows, made).to(self.device)

    def loss_of(self, result: Tensor, number: int) -> Tensor:
        """Cross entropy of labels that ``number`` determines."""
        made = torch.Generator().manual_seed(1000 + number)
        labels = torch.randint(result.shape[-1], result.shape[:-1], generator=made)
        return F.cross_entropy(result.float().flatten(0, -2), labels.flatten().to(self.device))

    def loss(self, number: int, rows: int = 5) -> Tensor:
        return self.loss_of(self.call(self.data(number, rows)), number)

    def backward(self, loss: Tensor, retain: bool = False) -> None:
        loss.backward(retain_graph=retain)
        self.note(loss)

    def note(self, loss: Tensor) -> None:
        gradients = (p.grad for p in self.weights)
        self.seen += [loss.detach().clone(), *[g.clone() for g in gradients if g is not None]]

    def step(self, none: bool = True) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(none)


Way = Callable[[Training], None]


def plain(t: Training) -> None:
    """Nothing is held longer than needed."""
    for i in range(STEPS):
        t.backward(t.loss(i))
        t.step()


def kept_zeros(t: Training) -> None:
    """Gradients keep their memory and are added to."""
    for i in range(STEPS):
        t.backward(t.loss(i))
        t.step(none=False)


def accumulated(t: Training) -> None:
    """The first gradient is held while others are added to it."""
    for i in range(STEPS):
        for part in range(3):
            t.backward(t.loss(3 * i + part))
        t.step()


def two_summed(t: Training) -> None:
    """Both backward graphs run in one backward pass."""
    for i in range(STEPS):
        t.backward(t.loss(2 * i) + t.loss(2 * i + 1))
        t.step()


def two_before_backward(t: Training) -> None:
    """What is saved twice is read in the same order, or the other way round."""
    for i in range(STEPS):
        first, second = t.loss(2 * i), t.loss(2 * i + 1)
        for loss in (second, first) if i % 2 else (first, second):
            t.backward(loss)
        t.step()


def five_before_backward(t: Training) -> None:
    """More is saved than recordings are kept for."""
    for i in range(STEPS):
        losses = [t.loss(5 * i + part) for part in range(5)]
        for loss in losses[::2] + losses[1::2]:
            t.backward(loss)
        t.step()


def retained(t: Training) -> None:
    """What is saved is read twice."""
    for i in range(STEPS):
        loss = t.loss(i)
        t.backward(loss, retain=True)
        t.backward(loss)
        t.step()


def gradients_kept(t: Training) -> None:
    """No gradient is ever dropped."""
    for i in range(STEPS):
        gradients = torch.autograd.grad(t.loss(i), t.weights)
        t.seen += gradients
        with torch.no_grad():
            for p, gradient in zip(t.weights, gradients, strict=True):
                p.sub_(gradient, alpha=0.1)


def some_gradients_kept(t: Training) -> None:
    """Every third step's are."""
    for i in range(STEPS):
        t.backward(t.loss(i))
        if i % 3 == 2:
            t.seen += [p.grad for p in t.weights if p.grad is not None]
        t.step()


def results_kept(t: Training) -> None:
    """What the model returned is held, and with it what was saved."""
    for i in range(STEPS):
        result = t.call(t.data(i))
        t.seen.append(result)
        t.backward(t.loss_of(result, i), retain=i % 4 == 0)
        t.step()


def results_written(t: Training) -> None:
    """The model's result is changed in place."""
    for i in range(STEPS):
        t.backward(t.loss_of(t.call(t.data(i)).mul_(0.5), i))
        t.step()


def no_backward_at_times(t: Training) -> None:
    """What was saved is dropped unread."""
    for i in range(STEPS):
        loss = t.loss(i)
        if i % 3 != 1:
            t.backward(loss)
            t.step()


def raised_in_backward(t: Training) -> None:
    """A hook ends every third backward pass."""
    fails = False

    def hook(gradient: Tensor) -> None:
        if fails:
            raise ValueError("as wanted")

    t.weights[2].register_hook(hook)
    for i in range(STEPS):
        fails = i % 3 == 1
        try:
            t.backward(t.loss(i))
            t.step()
        except ValueError:
            t.optimizer.zero_grad()


def hooks(t: Training) -> None:
    """Hooks change gradients, and update parameters before the backward pass has ended."""

    found: dict[Tensor, Tensor] = {}

    def update(p: Tensor) -> None:
        assert p.grad is not None
        found[p] = p.grad.clone()
        with torch.no_grad():
            p.sub_(p.grad, alpha=0.1)
        p.grad = None

    t.weights[1].register_hook(lambda gradient: gradient * 0.5)
    for p in t.weights:
        p.register_post_accumulate_grad_hook(update)
    for i in range(STEPS):
        t.loss(i).backward()
        t.seen += [found[p] for p in t.weights]


def inference_between(t: Training) -> None:
    """The model also runs without gradients, between a forward pass and its backward pass."""
    for i in range(STEPS):
        loss = t.loss(i)
        t.model.eval()
        with torch.no_grad():
            t.seen.append(t.loss(50 + i))
        t.model.train()
        t.backward(loss)
        t.step()


def moved_weights(t: Training) -> None:
    """Parameters lie elsewhere from a step on."""
    for i in range(STEPS):
        if i == 5:
            for p in t.weights:
                p.data = p.data.clone()
        t.backward(t.loss(i))
        t.step()


def ever_moving_weights(t: Training) -> None:
    """Parameters lie elsewhere in every step."""
    held = []
    for i in range(STEPS):
        t.backward(t.loss(i))
        t.step()
        held.append([p.data for p in t.weights])
        for p in t.weights:
            p.data = p.data.clone()


def saved_elsewhere(t: Training) -> None:
    """Hooks put what is saved elsewhere."""
    for i in range(STEPS):
        with torch.autograd.graph.saved_tensors_hooks(Tensor.clone, Tensor.clone):
            loss = t.loss(i)
        t.backward(loss)
        t.step()


def saved_on_the_cpu_at_times(t: Training) -> None:
    """Every other step's is put into the CPU's memory."""
    for i in range(STEPS):
        if i % 2:
            loss = t.loss(i)
        else:
            with torch.autograd.graph.save_on_cpu():
                loss = t.loss(i)
        t.backward(loss)
        t.step()


def checkpointed(t: Training) -> None:
    """The forward graph runs again in the backward pass."""
    for i in range(STEPS):
        result = checkpoint(t.call, t.data(i), use_reentrant=False)
        other = checkpoint(t.call, t.data(i + 30), use_reentrant=False)
        t.backward(t.loss_of(result + other, i))
        t.step()


def twice_through(t: Training) -> None:
    """One loss hangs on two results, of which one hangs on the other."""
    for i in range(STEPS):
        result = t.call(t.data(i))
        scale = result.mean().sigmoid()
        t.backward(t.loss_of(result + scale * t.call(t.data(i + 40)), i))
        t.step()


def other_rows(t: Training) -> None:
    """Three batch sizes by turns."""
    for i in range(3 * STEPS):
        t.backward(t.loss(i, rows=(4, 5, 7)[i % 3]))
        t.step()


def differentiated_again(t: Training) -> None:
    """Gradients of gradients."""
    for i in range(STEPS):
        loss = t.loss(i)
        found = torch.autograd.grad(loss, t.weights, create_graph=True)
        t.backward(loss + sum(g.square().sum() for g in found))
        t.step()


def gradients_of_inputs(t: Training) -> None:
    """The gradient of a batch is held."""
    for i in range(STEPS):
        x = t.data(i).requires_grad_()
        t.backward(t.loss_of(t.call(x), i))
        assert x.grad is not None
        t.seen.append(x.grad)
        t.step()


def backward_in_a_thread(t: Training) -> None:
    """The backward pass is begun by another thread."""
    for i in range(STEPS):
        _in_a_thread(t.backward, t.loss(i))
        t.step()


def forward_in_a_thread(t: Training) -> None:
    """The forward pass runs in another thread."""
    for i in range(STEPS):
        t.backward(_in_a_thread(t.loss, i))
        t.step()


def _in_a_thread(work: Callable[[Any], Any], given: Any) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work(given)))
    thread.start()
    thread.join()
    return results[0]


def scaled(t: Training) -> None:
    """Mixed precision with a gradient scaler and clipped gradients."""
    scaler = torch.amp.GradScaler(t.device, init_scale=256.0)
    for i in range(STEPS):
        with torch.autocast(t.device, torch.float16):
            loss = t.loss(i)
        scaler.scale(loss).backward()
        scaler.unscale_(t.optimizer)
        torch.nn.utils.clip_grad_norm_(t.weights, 1.0)
        t.note(loss)
        scaler.step(t.optimizer)
        scaler.update()
        t.optimizer.zero_grad()


def on_a_stream(t: Training) -> None:
    """Everything runs on a stream of its own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        plain(t)
    torch.cuda.current_stream().wait_stream(stream)


def on_streams_by_turns(t: Training) -> None:
    """Every other step runs on a stream of its own."""
    streams = torch.cuda.Stream(), torch.cuda.current_stream()
    for i in range(STEPS):
        here, other = streams[i % 2], streams[1 - i % 2]
        here.wait_stream(other)
        with torch.cuda.stream(here):
            t.backward(t.loss(i))
            t.step()
        other.wait_stream(here)


def reduced_on_a_stream(t: Training) -> None:
    """Hooks move gradients into one buffer on another stream, as data-parallel training does."""
    stream = torch.cuda.Stream()
    sizes = [p.numel() for p in t.weights]
    flat = torch.zeros(sum(sizes), device=t.device)
    views = {p: v.view_as(p) for p, v in zip(t.weights, flat.split(sizes), strict=True)}

    def reduce(p: Tensor) -> None:
        assert p.grad is not None
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            views[p].copy_(p.grad).mul_(0.5)
        p.grad.record_stream(stream)
        p.grad = views[p]

    for p in t.weights:
        p.register_post_accumulate_grad_hook(reduce)
    for i in range(STEPS):
        loss = t.loss(i)
        loss.backward()
        torch.cuda.current_stream().wait_stream(stream)
        t.note(loss)
        t.step()


#: With the fewest replays. Those `ON_A_GPU` need streams, or eager's rounding of float16.
WAYS: dict[Way, int] = {
    plain: 14,
    kept_zeros: 14,
    accumulated: 45,
    two_summed: 27,
    two_before_backward: 28,
    five_before_backward: 30,
    retained: 20,
    gradients_kept: 10,
    some_gradients_kept: 12,
    results_kept: 10,
    results_written: 14,
    no_backward_at_times: 8,
    raised_in_backward: 12,
    hooks: 14,
    inference_between: 21,
    moved_weights: 13,
    ever_moving_weights: 10,
    saved_elsewhere: 6,
    saved_on_the_cpu_at_times: 8,
    checkpointed: 40,
    twice_through: 27,
    other_rows: 36,
    differentiated_again: 14,
    gradients_of_inputs: 10,
    backward_in_a_thread: 14,
    forward_in_a_thread: 14,
}
ON_A_GPU: dict[Way, int] = {
    scaled: 14,
    on_a_stream: 14,
    on_streams_by_turns: 10,
    reduced_on_a_stream: 14,
}
