"""The public interface: what may be compiled, with which arguments, and what comes back."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import threading
import traceback
import warnings
import weakref
from pathlib import Path

import pytest
import torch

import jitney
from jitney import config
from jitney.errors import Unsupported, UserError
from jitney.events import log


@pytest.fixture
def events():
    seen = []
    stop = log.listen(seen.append)
    yield seen
    stop()


def of(events, kind):
    return [e.data for e in events if e.kind == kind]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.drop = torch.nn.Dropout(0.5)
        self.register_buffer("shift", torch.ones(2))
        self.calls = 0

    def forward(self, x, *, scale=1.0):
        self.calls += 1
        return self.drop(self.linear(x)) * scale + self.shift

    def double(self, x):
        return self(x) * 2


def test_call_and_decorator_on_functions_and_methods():
    def f(x, y=1, *rest, k=2, **more):
        """Doc."""
        return x * y + k + sum(rest) + sum(more.values())

    x = torch.ones(2)
    for compiled in (jitney.compile(f, backend="eager"), jitney.compile(backend="eager")(f)):
        assert compiled.__name__ == "f" and compiled.__doc__ == "Doc." and compiled.__wrapped__ is f
        assert torch.equal(compiled(x), f(x))
        assert torch.equal(compiled(x, 3, 4, 5, k=6, z=7), f(x, 3, 4, 5, k=6, z=7))
        assert torch.equal(compiled(y=2, x=x), f(x, 2))
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
            compiled()

    class Scaler:
        factor = 3

        @jitney.compile(backend="eager")
        def decorated(self, x):
            return x * self.factor

        def plain(self, x):
            return x + self.factor

    scaler = Scaler()
    assert torch.equal(scaler.decorated(x), x * 3)
    assert torch.equal(jitney.compile(scaler.plain, backend="eager")(x), x + 3)


def test_a_compiled_module_shares_everything_with_the_original():
    net = Net()
    compiled = jitney.compile(net, backend="eager")
    assert isinstance(compiled, Net) and compiled._orig_mod is net
    assert list(compiled.state_dict()) == list(net.state_dict())
    assert all(a is b for a, b in zip(compiled.parameters(), net.parameters()))
    compiled.eval()
    assert not net.training and not net.drop.training
    x = torch.randn(4, 3)
    assert torch.equal(compiled(x), net(x))
    assert torch.equal(compiled(x, scale=2.0), net(x, scale=2.0))
    assert net.calls == compiled.calls == 4
    compiled.to(torch.float64)
    assert net.linear.weight.dtype is torch.float64
    assert torch.equal(compiled(x.double()), net(x.double()))
    compiled.extra = 5
    assert net.extra == 5
    with torch.no_grad():
        net.linear.weight.fill_(1.0)
    assert torch.equal(compiled(x.double()), net(x.double()))
    assert torch.equal(compiled.double(x.double()), net(x.double()) * 2)


def test_hooks_run():
    net = Net().eval()
    compiled = jitney.compile(net, backend="eager")
    x = torch.randn(2, 3)
    compiled(x)
    handle = net.register_forward_hook(lambda module, args, out: out + 100)
    assert torch.equal(compiled(x), net(x)) and compiled(x).min() > 50
    handle.remove()
    assert torch.equal(compiled(x), net(x)) and compiled(x).max() < 50


def test_deepcopy_is_independent_and_compiled():
    net = Net().eval()
    compiled = jitney.compile(net, backend="eager")
    twin = copy.deepcopy(compiled)
    assert isinstance(twin, jitney.CompiledModule) and twin._orig_mod is not net
    with torch.no_grad():
        twin.linear.weight.zero_()
    x = torch.randn(2, 3)
    assert torch.equal(twin(x), twin._orig_mod(x)) and not torch.equal(twin(x), compiled(x))


def test_pickle_or_say_why_not():
    compiled = jitney.compile(torch.nn.Linear(2, 2), backend="eager")
    loaded = pickle.loads(pickle.dumps(compiled))
    x = torch.randn(1, 2)
    assert isinstance(loaded, jitney.CompiledModule) and torch.equal(loaded(x), compiled(x))
    unnamed = jitney.compile(torch.nn.Linear(2, 2), backend=lambda gm, inputs: gm.forward)
    with pytest.raises(UserError, match="cannot be pickled"):
        pickle.dumps(unnamed)


def test_in_place_and_disable():
    net = Net().eval()
    x = torch.randn(2, 3)
    expected = net(x)
    jitney.compile_in_place(net, backend="eager")
    assert torch.equal(net(x), expected) and "linear.weight" in net.state_dict()
    f = lambda x: x + 1  # noqa: E731
    assert jitney.compile(f, disable=True) is f


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(backend="nope"), "known are jitney, inductor, eager, (?!.*(TESTING|minifier))"),
        (dict(backend="inductr"), "did you mean 'inductor'"),
        (dict(backend=3), "name or a callable"),
        (dict(mode="fast"), "modes are default, reduce-overhead"),
        (dict(mode="default", options={}), "exclude each other"),
        (dict(options={"frieze": True}), "options are .*freeze"),
        (dict(options={"freeze": 1}), "takes a bool"),
        (dict(options=[1]), "takes a dict"),
        (dict(fullgraph="yes"), "True or False"),
        (dict(dynamic="auto"), "None, True or False"),
    ],
)
def test_wrong_arguments_name_the_right_ones(arguments, message):
    with pytest.raises(UserError, match=message):
        jitney.compile(lambda x: x, **arguments)


def test_what_cannot_be_compiled():
    for wrong in (3, int, "f"):
        with pytest.raises(UserError, match="takes a function"):
            jitney.compile(wrong)
    with pytest.raises(TypeError):
        jitney.compile(lambda x: x, fullgrap=True)


def test_callables_of_every_kind():
    class Callable:
        def __call__(self, x):
            return x * 7

        @jitney.compile
        @staticmethod
        def static(x):
            return x + 5

        @jitney.compile
        def method(self, x):
            return x * 3

    x = torch.randn(3)
    partial = jitney.compile(functools.partial(torch.add, torch.ones(3)), fullgraph=True)
    assert torch.equal(partial(x), x + 1)
    assert torch.equal(jitney.compile(torch.neg, fullgraph=True)(x), -x)
    assert torch.equal(jitney.compile(Callable(), fullgraph=True)(x), x * 7)
    assert torch.equal(Callable.static(x), x + 5)
    assert torch.equal(jitney.compile(Callable().method, fullgraph=True)(x), x * 3)


@pytest.mark.parametrize("compile", [jitney.compile, torch.compile])
def test_a_decorator_that_wraps_a_compiled_function_is_not_taken_for_it(compile):
    inner = compile(lambda x: x + 1, backend="eager")

    @functools.wraps(inner)
    def outer(x):
        return inner(x) * 2

    x = torch.randn(3)
    assert torch.allclose(jitney.compile(outer, fullgraph=True)(x), (x + 1) * 2)
    plus = jitney.compile(lambda x: outer(x) + 3, fullgraph=True)
    assert torch.allclose(plus(x), (x + 1) * 2 + 3)


def test_with_torch_compile_inside_and_outside():
    net, x = torch.nn.Linear(3, 3), torch.randn(2, 3)
    theirs, ours = torch.compile(net, backend="eager"), jitney.compile(net)
    assert torch.allclose(jitney.compile(theirs, fullgraph=True)(x), net(x))
    assert torch.allclose(jitney.compile(lambda x: theirs(x) + 1, fullgraph=True)(x), net(x) + 1)
    assert torch.allclose(torch.compile(ours, backend="eager")(x), net(x))
    assert torch.allclose(torch.compile(lambda x: ours(x) + 1, backend="eager")(x), net(x) + 1)
    function = jitney.compile(lambda x: x + 1)
    assert torch.allclose(torch.compile(function, backend="eager", fullgraph=True)(x), x + 1)
    assert torch.allclose(torch.compile(lambda x: function(x) * 2, backend="eager")(x), (x + 1) * 2)


def test_other_backends_get_the_public_contract():
    seen = []

    def backend(gm, example_inputs):
        seen.append((gm, example_inputs))
        assert isinstance(gm, torch.fx.GraphModule)
        return gm.forward

    x = torch.randn(3)
    assert torch.equal(jitney.compile(lambda x: x.sin() + 1, backend=backend)(x), x.sin() + 1)
    assert len(seen) == 1 and len(seen[0][1]) == 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_torch_backends(backend):
    if backend == "inductor":
        pytest.importorskip("shutil").which("g++") or pytest.skip("no C++ compiler")
    w = torch.randn(3, 3, requires_grad=True)

    def f(x):
        return (x @ w).relu().sum()

    compiled = jitney.compile(f, backend=backend)
    x = torch.randn(2, 3)
    compiled(x).backward()
    got, w.grad = w.grad, None
    f(x).backward()
    assert torch.allclose(compiled(x), f(x)) and torch.allclose(got, w.grad)


def test_fullgraph_raises_with_the_users_line_and_a_hint():
    def f(x):
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(Unsupported) as caught:
        jitney.compile(f, fullgraph=True, backend="eager")(torch.ones(2))
    assert caught.value.where.endswith(f"test_api.py:{f.__code__.co_firstlineno + 1}")
    assert caught.value.hint
    shown = "".join(traceback.format_exception(caught.value))
    assert "if x.sum() > 0:" in shown and "hint: use torch.where" in shown
    assert "jitney/" not in shown.replace(str(Path(__file__).parent.parent), "")
    assert "contextlib" not in shown


def test_sizes_recompile_and_the_limit_is_reported(events):
    compiled = jitney.compile(lambda x: x + 1, backend="eager", dynamic=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(1, 12):
            assert torch.equal(compiled(torch.ones(n)), torch.full((n,), 2.0))
    assert len(of(events, "entry")) == 8
    assert "x.size(0): expected 1, got 2" in [e["message"] for e in of(events, "recompile")]
    assert len(of(events, "recompile_limit")) == 1
    assert any("compiled 8 times" in str(w.message) for w in caught)


def test_options_and_environment():
    with config.override(recompile_limit=2):
        assert config.current().recompile_limit == 2
        compiled = jitney.compile(lambda x: x + 1, backend="eager", dynamic=False)
    assert config.current().recompile_limit == 8
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in range(1, 6):
            compiled(torch.ones(n))
    assert config.from_environment({"JITNEY_FREEZE": "1", "JITNEY_DEBUG": "3"}).debug == 3
    with pytest.raises(UserError, match="int expected"):
        config.from_environment({"JITNEY_DEBUG": "much"})
    assert ("freeze", False) in config.Config().key()


def test_stances(events):
    def f(x):
        return x + 1

    compiled = jitney.compile(f, backend="eager")
    one, two = torch.ones(1), torch.ones(2)
    with jitney.set_stance("force_eager"):
        compiled(one)
    assert not of(events, "entry")
    compiled(one)
    assert len(of(events, "entry")) == 1
    with jitney.set_stance("eager_on_recompile"):
        compiled(one), compiled(two)
    assert len(of(events, "entry")) == 1
    with jitney.set_stance("fail_on_recompile"):
        compiled(one)
        with pytest.raises(UserError, match="compiled again"):
            compiled(two)
    other = jitney.compile(lambda x: x - 1, backend="eager")
    with jitney.set_stance("eager_then_compile"):
        other(one)
        assert len(of(events, "entry")) == 1
        other(one)
        assert len(of(events, "entry")) == 2
    with pytest.raises(UserError, match="stances are default"):
        jitney.set_stance("fast")


def test_completion_offers_the_api():
    assert {"compile", "reset", "explain"} <= set(dir(jitney))


def test_our_frames_stay_out_of_tracebacks():
    def inner(x, y):
        return x @ y

    def f(x, y):
        z = x + 1
        return inner(z, y)

    compiled = jitney.compile(f, backend="eager")
    for _ in range(3):
        with pytest.raises(RuntimeError) as caught:
            compiled(torch.ones(2, 3), torch.ones(2, 3))
        names = [entry.name for entry in caught.traceback[1:]]
        assert names[-1] == "inner" and set(names) <= {"f", "inner"}
        assert all("jitney/" not in str(e.path) for e in caught.traceback[1:-1])
    assert str(caught.value) == eager_error(f)


def eager_error(f):
    with pytest.raises(RuntimeError) as caught:
        f(torch.ones(2, 3), torch.ones(2, 3))
    return str(caught.value)


def test_threads_share_a_compiled_function():
    compiled = jitney.compile(lambda x, n: (x * n).sum(), backend="eager")
    wrong = []

    def work(seed):
        for i in range(60):
            n = (seed + i) % 3
            x = torch.full((4 + i % 2,), float(seed))
            if compiled(x, n).item() != float(seed) * n * len(x):
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_a_generator_function_runs_eager():
    def gen(x):
        yield x + 1
        yield x + 2

    assert [t.item() for t in jitney.compile(gen, backend="eager")(torch.zeros(()))] == [1, 2]


def test_a_compiled_function_inside_another_is_captured_through(events):
    inner = jitney.compile(lambda x: x * 2, backend="eager")
    outer = jitney.compile(lambda x: inner(x) + 1, backend="eager")
    assert torch.equal(outer(torch.ones(2)), torch.full((2,), 3.0))
    assert not of(events, "graph_break")


def test_disabled_functions_break_the_graph_and_run_eager(events):
    compiling = []

    @jitney.disable
    def off(x):
        compiling.append(torch.compiler.is_compiling())
        return x * 2

    compiled = jitney.compile(lambda x: off(x + 1) + 1, backend="eager")
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 5.0))
    assert compiling == [False] and len(of(events, "graph_break")) == 1


def test_a_disabled_module_is_copied_with_its_own_weights():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    assert jitney.disable(model[0]) is model[0]
    copied, x = copy.deepcopy(model), torch.ones(1, 2)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert not copied(x).any() and model(x).any()
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), model(x))
    assert {broken.kind for broken in jitney.explain(model)(x).breaks} == {"disabled"}


def test_graph_break_by_request(events):
    def f(x):
        x = x + 1
        jitney.graph_break()
        return x * 2

    assert torch.equal(jitney.compile(f, backend="eager")(torch.ones(2)), torch.full((2,), 4.0))
    assert len(of(events, "graph_break")) == 1


def test_list_backends():
    names = jitney.list_backends()
    assert names[0] == "jitney" and {"eager", "inductor", "aot_eager"} <= set(names)


def test_explain_reports():
    assert "graph" in str(jitney.explain(lambda x: x + 1, backend="eager")(torch.ones(1)))


def _doubled(x):
    raise AssertionError("never called: it is substituted")


def test_substitute_in_graph() -> None:
    @jitney.substitute_in_graph(_doubled)
    def doubled(x):
        return x * 2

    compiled = jitney.compile(lambda x: _doubled(x) + 1, fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))
    with pytest.raises(UserError):
        jitney.substitute_in_graph(_doubled)(lambda x, y: x)


def test_forward_of_a_compiled_module_is_compiled() -> None:
    import inspect

    seen = []

    def backend(gm, inputs):
        return lambda *args: seen.append(1) or gm.forward(*args)

    net = torch.nn.Linear(2, 2)
    compiled = jitney.compile(net, backend=backend)
    x = torch.randn(3, 2)
    assert torch.equal(compiled.forward(x), net(x))
    assert seen == [1]
    assert inspect.signature(compiled.forward) == inspect.signature(net.forward)


def test_names_that_change_nothing() -> None:
    region = jitney.nested_compile_region(torch.sin)
    jitney.cudagraph_mark_step_begin()
    x = torch.randn(3)
    torch.testing.assert_close(jitney.compile(lambda x: region(x) + 1)(x), x.sin() + 1)


def test_guard_check_runs_the_check_alone() -> None:
    from jitney.api import guard_check

    net = torch.nn.Linear(2, 2)
    x = torch.randn(3, 2)
    with torch.no_grad():
        assert callable(guard_check(jitney.compile(net), x)())
        assert callable(guard_check(jitney.compile(lambda x: x + 1), x)())
    with pytest.raises(UserError):
        guard_check(net, x)


def test_a_compiled_function_keeps_no_input_alive() -> None:
    def f(x):
        y = x * 2
        jitney.graph_break()
        return y + 1

    compiled = jitney.compile(f)
    first = torch.ones(3)
    for _ in range(3):
        compiled(first)
    alive = weakref.ref(first)
    del first
    gc.collect()
    assert alive() is None


def test_a_module_with_a_call_of_its_own() -> None:
    class Doubled(torch.nn.Linear):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return super().__call__(x) * 2

    model, x = Doubled(3, 3), torch.randn(2, 3)
    torch.testing.assert_close(jitney.compile(model)(x), model(x))
