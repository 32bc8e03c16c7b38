"""One program of a judge, eager and compiled: what the comparison came to."""

from __future__ import annotations

import copy
import re
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from jitney.diagnostics.equality import Difference, differences, distance, scale_of, tensors
from jitney.diagnostics.report import Report, report
from jitney.events import log
from tests.conformance.noise import Move, errors, errors_nearby, suspects
from tests.conformance.precision import Precision, in_dtype
from tests.conformance.steps import reference_for
from tests.equal import buffers, fresh, run, take_gradients

Compile = Callable[[Any], Any]

SEARCH = 200  # steps that are looked at, each with a float64 run


class Skipped(Exception):
    """A judge has no program of this name that can run here; the text says why."""


@dataclass(frozen=True)
class Program:
    """``run(compile_, change)``: everything a user can see of it after ``compile_`` was given its
    callable and ``change`` every tensor it begins with. Each run begins anew; it is judged in
    ``precision``."""

    name: str
    run: Callable[[Compile, Move], Any]
    precision: Precision = Precision()

    def on(self, device: str) -> Program:
        """The same with every tensor that it begins with on ``device``."""

        def run_there(compile_: Compile, change: Move) -> Any:
            return self.run(compile_, lambda value: change(moved_to(device, value)))

        return self if device == "cpu" else replace(self, run=run_there)


@dataclass
class Judgement:
    """What became of one name of a judge: how many ``programs`` were compared, and how."""

    name: str
    programs: int = 0
    wrong: list[str] = field(default_factory=list)
    rounding: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    breaks: list[str] = field(default_factory=list)
    skipped: str = ""
    recompiles: int = 0
    seconds: float = 0.0

    @property
    def kind(self) -> str:
        """One of the kinds that `model_table.MEANINGS` explains."""
        for kind in ("errors", "wrong", "rounding"):
            if getattr(self, kind):
                return kind
        return "equal" if self.programs else "skipped"


def judge(name: str, programs: Iterable[Program], compile_: Compile) -> Judgement:
    """Every program of a name, in this process."""
    torch.set_num_threads(1)
    outcome = Judgement(name)
    try:
        for program in programs:
            judge_program(program, compile_, outcome)
    except Skipped as reason:
        outcome.skipped = str(reason)
    return outcome


def judge_program(program: Program, compile_: Compile, outcome: Judgement) -> None:
    """Runs one program both ways and notes what differs."""
    try:
        expected, again = seeded(program, identity, same), seeded(program, identity, same)
    except Exception as error:  # noqa: BLE001 - eager has no answer
        outcome.skipped = outcome.skipped or f"{program.name}: eager raises {summary(error)}"
        return
    if differences(again, expected):
        outcome.skipped = outcome.skipped or f"{program.name}: eager differs from itself"
        return
    outcome.programs += 1
    log.clear()
    try:
        actual = seeded(program, compile_, same)
    except Exception as error:  # noqa: BLE001 - ours to report
        outcome.errors.append(f"{program.name}: {summary(error)}")
        return
    note_report(report(log.events()), outcome)
    measure = measure_for(program, expected, actual)
    truth = measure(same)
    found = differences(actual, expected, None if truth is expected else truth)
    if not found:
        return

    def nearby(move: Move) -> tuple[Any, Any]:
        return seeded(program, identity, move), measure(move)

    judged = suspects(found, actual, truth)
    own = errors_nearby(
        nearby,
        eps=program.precision.eps if program.precision.is_short else None,
        enough=lambda own: all(one.is_noise(own) for one in judged),
    )
    noise = [one.is_noise(own) for one in judged]
    steps_show = not program.precision.is_short  # to 16 bits a step is near to every value
    if not all(noise) and steps_show and explained_by_steps(program, compile_, actual, expected):
        noise = [one.error < float("inf") for one in judged]
    said = [f"{program.name}: {one.found}" for one in judged]
    outcome.rounding += [text for text, is_noise in zip(said, noise) if is_noise][:3]
    outcome.wrong += [text for text, is_noise in zip(said, noise) if not is_noise][:3]


def explained_by_steps(program: Program, compile_: Compile, actual: Any, expected: Any) -> bool:
    """Whether the compiled program is right in float64, and its float32 results are those of a
    float64 run in which values next to a step are on the other side of it (`steps`): every tensor
    within twice the error that eager has, and the rule's share of its scale."""
    exact = reference_run(program, same)
    if exact is None or other_ways(exact, expected, program.precision, differentiated):
        return False
    try:
        wide = seeded(program, compile_, in_float64)
    except Exception:  # noqa: BLE001 - what eager runs is ours to run
        return False
    own = errors(expected, exact)
    # one rounding of float64 is so much of float32's, and what amplifies one amplifies the other
    much = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
    if not all(one.is_noise({p: 99 * much * e for p, e in own.items()})
               for one in suspects(differences(wide, exact), wide, exact)):  # fmt: skip
        return False
    every = [Difference(path, "error") for path in own]

    def enough(reference: Any) -> bool:
        return all(one.is_noise(own) for one in suspects(every, actual, reference))

    def run_in(float64: bool) -> Any:
        return reference_run(program, same) if float64 else seeded(program, identity, same)

    return enough(reference_for(actual, exact, run_in, enough, SEARCH))


def note_report(made: Report, outcome: Judgement) -> None:
    """Breaks, recompiles, and what ran eager; a bug that was caught is an error."""
    reasons = [f"{b.kind}: {b.reason} at {short_place(b.where)}" for b in made.breaks]
    bugs = [f for f in made.fallbacks if "bug" in f.what]
    reasons += [f"{f.what}: {f.reason}" for f in made.fallbacks if f not in bugs]
    outcome.breaks += [r for r in reasons if r not in outcome.breaks]
    outcome.errors += [f"{f.what}: {f.reason[:300]} at {short_place(f.where)}" for f in bugs]
    outcome.recompiles += len(made.recompiles)


def seeded(program: Program, compile_: Compile, change: Move) -> Any:
    """A run in the program's precision, with the same random numbers on every side."""
    precision = program.precision
    torch.manual_seed(1)
    return program.run(
        lambda fn: precision.called(compile_(fn)), lambda value: change(precision.given(value))
    )


def reference_run(program: Program, change: Move) -> Any:
    """The same in eager and wider, with the values of the program's precision."""
    precision = program.precision

    def run_in(widen: Move) -> Any:
        torch.manual_seed(1)
        return program.run(identity, lambda value: widen(change(precision.given(value))))

    return precision.reference(run_in)


def differentiated(tensor: torch.Tensor) -> bool:
    """Whether gradients go through a tensor: a result of the forward pass, no gradient."""
    return tensor.requires_grad


def measure_for(program: Program, expected: Any, actual: Any) -> Callable[[Move], Any]:
    """What errors at inputs that went through a move are taken against: the wider run, or eager's
    result for what that run has none of, or took another way to. In 16 bits eager may be far from
    the truth by its sums alone: there only the tensors that both sides are far off in are those."""
    precision, reference = program.precision, reference_run(program, same)
    ways = other_ways(reference, expected, precision)
    if reference is None or (ways and not precision.is_short):
        return lambda move: expected
    ways &= other_ways(reference, actual, precision)

    def measure(move: Move) -> Any:
        made = reference_run(program, move)
        there, eager = dict(tensors(made)), dict(tensors(expected))
        instead = {id(there[path]): eager[path].detach().double() for path in ways}
        return tree_map(lambda value: instead.get(id(value), value), made) if ways else made

    return measure


def other_ways(
    reference: Any,
    result: Any,
    precision: Precision,
    of: Callable[[torch.Tensor], bool] = torch.is_floating_point,
) -> set[str]:
    """Paths of tensors in which two runs differ by more than rounding, and that rounding does not
    make up."""
    theirs = dict(tensors(reference))
    pairs = {
        path: (value.detach(), theirs[path].detach())
        for path, value in tensors(result)
        if of(value) and path in theirs and theirs[path].shape == value.shape
    }
    whole = max((scale_of(truth) for _, truth in pairs.values()), default=0.0)
    least = precision.cancelled * whole
    return {
        path
        for path, (value, truth) in pairs.items()
        if distance(value, truth) > precision.far * max(scale_of(truth), least)
    }


def run_module(
    module: torch.nn.Module,
    inputs: Any,
    training: bool,
    compile_: Compile,
    change: Move,
    others: Sequence[Any] = (),
) -> Any:
    """The results of a copy of ``module`` on ``inputs`` (args, kwargs), all tensors changed; with
    ``training`` the gradients too. The module is called on ``inputs``, on each of ``others``, and
    again on ``inputs``: this call finds compiled code, and the same tensors."""
    module = copy.deepcopy(module)._apply(change)
    first, *rest = (tree_map(change, given) for given in (inputs, *others))
    compiled = compile_(module)
    seen = []
    for given in (first, *rest, first):
        args, kwargs = fresh(given)
        with torch.set_grad_enabled(training):
            result = run(lambda args, kwargs: compiled(*args, **kwargs), (args, kwargs), training)
        seen.append([result, take_gradients(module), buffers(module)])
    return seen


def identity(value: Any) -> Any:
    """The compile that leaves eager."""
    return value


def same(value: Any) -> Any:
    """The change that changes nothing."""
    return value


def moved_to(device: str, value: Any) -> Any:
    """A tensor as a leaf on ``device``; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().to(device).requires_grad_(value.requires_grad)


def in_float64(value: Any) -> Any:
    """Floats in double precision."""
    return in_dtype(torch.float64, value)


def summary(error: BaseException) -> str:
    """Type, innermost line and text of an error."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = re.sub(r"\s+", " ", str(error))[:300]
    return f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {text}"


def short_place(where: str) -> str:
    """The last two parts of a path with its line."""
    return "/".join(where.split("/")[-2:])
