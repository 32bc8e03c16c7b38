"""Changes of the world between two calls are seen by armed entries, whatever they change."""

from __future__ import annotations

import ctypes
import types

import pytest
import torch

import jitney
from jitney import torch_api
from jitney.capture.native_check import make_pick
from jitney.capture.native_program import ANY, Op, Program, tensor_words
from jitney.capture.native_sets import object_words
from jitney.run.arms import is_supported
from jitney.torch_api import native

pytestmark = pytest.mark.skipif(not is_supported(), reason="layouts differ on this interpreter")

SCALE = 2.0
helpers = types.ModuleType("helpers_of_test")
helpers.offset = 1.0


class Part:
    __slots__ = ("weight",)

    def __init__(self):
        self.weight = 1.0


class Settings:
    depth = 2

    def __init__(self):
        self.width = 3
        self.names = ["a", "b"]
        self.table = {"k": 1.0}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(4, 4)
        self.settings = Settings()
        self.part = Part()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))

    def scale(self, x):
        return x * SCALE

    def forward(self, x, extra=None, **options):
        x = self.scale(self.inner(x)) + self.settings.width + self.settings.depth
        for layer in self.layers:
            x = layer(x)
        if "a" in self.settings.names:
            x = x + len(self.settings.names)
        x = x * self.settings.table["k"] * self.part.weight + helpers.offset
        if extra is not None:
            x = x + extra
        return x + options.get("bias", 0.0)


def other_scale(self, x):
    return x - 5


def set_global(name, value):
    globals()[name] = value


CHANGES = {
    "instance attribute": lambda m: setattr(m.settings, "width", 7),
    "new attribute shadows a class's": lambda m: setattr(m.settings, "depth", 9),
    "class attribute": lambda m: setattr(Settings, "depth", 5),
    "list append": lambda m: m.settings.names.append("c"),
    "list item": lambda m: m.settings.names.__setitem__(0, "z"),
    "dict value": lambda m: m.settings.table.update(k=4.0),
    "slot": lambda m: setattr(m.part, "weight", 6.0),
    "replaced object": lambda m: setattr(m, "settings", replaced()),
    "replaced __dict__": lambda m: setattr(m.settings, "__dict__", vars(replaced())),
    "global": lambda m: set_global("SCALE", 3.0),
    "module attribute": lambda m: setattr(helpers, "offset", 2.0),
    "method of the class": lambda m: setattr(Model, "scale", other_scale),
    "method on the instance": lambda m: setattr(m, "scale", lambda x: x),
    "submodule": lambda m: setattr(m, "inner", torch.nn.Linear(4, 4)),
    "list of modules": lambda m: m.layers.append(torch.nn.Linear(4, 4)),
    "parameter": lambda m: setattr(m.inner, "weight", torch.nn.Parameter(torch.ones(4, 4))),
    "parameter data": lambda m: setattr(m.inner.weight, "data", torch.full((4, 4), 2.0)),
    "bias removed": lambda m: setattr(m.inner, "bias", None),
    "requires_grad": lambda m: m.inner.weight.requires_grad_(False),
    "dtype in place": lambda m: m.inner.bias.data.add_(1),
    "hook": lambda m: m.inner.register_forward_hook(lambda mod, args, out: out * 3),
    "class of an object": lambda m: setattr(m.inner, "__class__", Doubling),
}


def replaced():
    settings = Settings()
    settings.width = 11
    return settings


class Doubling(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


@pytest.fixture
def world():
    saved = (SCALE, helpers.offset, Settings.depth, Model.scale)
    yield
    set_global("SCALE", saved[0])
    helpers.offset, Settings.depth, Model.scale = saved[1:]


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name, world):
    model = Model()
    compiled = jitney.compile(model, backend="eager")
    x = torch.randn(2, 4)
    for _ in range(4):
        assert torch.equal(compiled(x), model(x))
    before = model(x)
    CHANGES[name](model)
    for _ in range(3):
        assert torch.equal(compiled(x), model(x))
        assert compiled(x).requires_grad == model(x).requires_grad
    if name not in ("requires_grad",):
        assert not torch.equal(model(x), before)


def test_arguments_of_every_kind_are_checked_on_each_call(world):
    model = Model()
    compiled = jitney.compile(model, backend="eager")
    x = torch.randn(2, 4)
    calls = [
        ((x,), {}),
        ((x, 1.5), {}),
        ((x, 2.5), {}),
        ((x,), {"extra": x}),
        ((x,), {"bias": 1.0}),
        ((x,), {"bias": 2.0}),
        ((x,), {"bias": x}),
        ((x.double().float().expand(2, 4),), {}),
        ((torch.randn(3, 4),), {}),
    ]
    for _ in range(4):
        for args, kwargs in calls:
            assert torch.equal(compiled(*args, **kwargs), model(*args, **kwargs))


def test_states_are_checked_on_each_call():
    compiled = jitney.compile(lambda x, w: x @ w, backend="eager")
    x, w = torch.randn(2, 2), torch.randn(2, 2, requires_grad=True)
    for _ in range(4):
        assert compiled(x, w).requires_grad
        with torch.no_grad():
            assert not compiled(x, w).requires_grad
        with torch.autocast("cpu"):
            assert compiled(x, w).dtype is torch.bfloat16
        with torch.inference_mode():
            assert compiled(x, w).is_inference()


def test_a_warm_call_is_picked_natively():
    compiled = jitney.compile(Model(), backend="eager")
    for _ in range(3):
        compiled(torch.ones(2, 4))
    (code,) = [c for _, _, c in compiled._session._codes.values()]
    missed = []
    code.miss = code.arms._miss = lambda *values: missed.append(values)
    code.refresh()
    compiled(torch.ones(2, 4))
    assert not missed


def test_a_dict_that_changes_all_the_time_is_not_watched():
    class Counter:
        pass

    counter = Counter()
    counter.scale = 2.0

    def f(x):
        return x * counter.scale

    compiled = jitney.compile(f, backend="eager")
    x = torch.ones(3)
    armings = []
    for i in range(12):
        counter.calls = i
        assert torch.equal(compiled(x), f(x))
        (code,) = _codes_of(compiled)
        armings.append(code.entries[0].armings)
    assert armings[-1] == armings[-4]
    counter.scale = 3.0
    assert torch.equal(compiled(x), f(x))


def _codes_of(compiled):
    from jitney.run import stance

    return [c for c in stance.everything if c.namespace is compiled.__globals__]


def test_instances_in_turn_share_one_entry_and_stay_armed():
    class Scaled:
        def __init__(self, tensor):
            self.tensor = tensor

    compiled = jitney.compile(lambda s, x: s.tensor * x, backend="eager")
    scaled = [Scaled(torch.full((3,), float(i))) for i in range(5)]
    x = torch.ones(3)
    for _ in range(6):
        for s in scaled:
            assert torch.equal(compiled(s, x), s.tensor * x)
    (code,) = _codes_of(compiled)
    assert len(code.entries) == 1 and code.entries[0].armings <= 7


def test_objects_made_anew_for_every_call_are_not_kept():
    import gc
    import weakref

    class Box:
        def __init__(self, tensor):
            self.tensor = tensor

    compiled = jitney.compile(lambda b: b.tensor + 1, backend="eager")
    seen = []
    for i in range(60):
        box = Box(torch.full((3,), float(i)))
        seen.append(weakref.ref(box))
        assert compiled(box)[0] == i + 1
    del box
    gc.collect()
    assert sum(ref() is not None for ref in seen) <= 20
    (code,) = _codes_of(compiled)
    assert code.entries[0].armings < 30


def test_what_goes_on_behind_a_break_is_armed_once():
    """Its function is made anew in every call where it closes over something."""

    def f(x):
        scale = 2.0
        total = x.sum().item()
        parts = [scale * x for _ in range(2)]
        return (lambda: parts[0] + scale)(), total

    compiled = jitney.compile(f, backend="eager")
    code = jitney.run.stance.everything
    before = set(code)
    for i in range(12):
        x = torch.full((3,), i + 0.5)
        assert torch.equal(compiled(x)[0], f(x)[0])
    resumed = [c for c in code if c not in before and c.is_resume and c.code.co_freevars]
    assert resumed and all(entry.armings <= 2 for c in resumed for entry in c.entries)


# ---------------------------------------------------------------- the native program itself


def program(*instructions, words=()):
    made = Program(words=list(words))
    for instruction in instructions:
        made.add(*instruction)
    made.add(Op.END)
    return made


def picks(made, *values):
    return make_pick([(made, "hit")], "miss")(None, *values) == "hit"


def test_tensor_instruction():
    x = torch.ones(2, 3)
    exact = program((Op.TENSOR, 1, 0), words=tensor_words(x, (2, 3), (3, 1)))
    assert picks(exact, torch.zeros(2, 3))
    for other in (
        torch.ones(3, 2), torch.ones(3, 2).t(), torch.ones(2, 3).double(), torch.ones(6),
        torch.ones(2, 3, requires_grad=True), x.to_sparse(), torch.ones(2, 3, device="meta"),
        torch.nn.Parameter(x, requires_grad=False), None, 3,
    ):  # fmt: skip
        assert not picks(exact, other)
    loose = program((Op.TENSOR, 1, 0), words=tensor_words(x, (None, 3), None))
    assert ANY < 0 and picks(loose, torch.ones(9, 3)) and picks(loose, torch.ones(3, 9).t())
    assert not picks(loose, torch.ones(9, 4))


def test_value_and_dict_instructions():
    key, text = "k", "".join(["te", "xt"])
    big = 10**20
    for expected, good, bad in (
        (big, [10**20], [10**20 + 1, 1.0e20, None]),
        (text, ["text"], ["texts", b"text"]),
        (2.5, [5 / 2], [2.0, 2, None]),
        (True, [True], [1]),
    ):
        made = program((Op.EQUAL, 1, id(expected)))
        assert all(picks(made, v) for v in good) and not any(picks(made, v) for v in bad)
    made = program(
        (Op.FIELD, 1, 8, id(dict)), (Op.DICT_ITEM, 1, id(key), 2), (Op.EQUAL, 2, id(text)),
        (Op.ABSENT, 1, id(text)),
    )  # fmt: skip
    assert picks(made, {"k": "text", "x": 1})
    assert not picks(made, {"k": "other"}) and not picks(made, {}) and not picks(made, [])
    assert not picks(made, {"k": "text", "text": 1})
    keys = program((Op.DICT_KEYS, 1, 0), words=[2, id(key), id(text)])
    assert picks(keys, {key: 0, text: 1})
    assert not picks(keys, {text: 0, key: 1}) and not picks(keys, {key: 0})
    assert not picks(keys, {key: 0, text: 1, "more": 2})


def test_identity_instructions():
    one, other = [], []
    none = program((Op.NONE_OF, 1, 0), words=object_words([id(one), id(other)]))
    assert picks(none, []) and not picks(none, one) and not picks(none, other)
    differ = program((Op.DIFFER, 1, 2))
    assert picks(differ, one, other) and not picks(differ, one, one)


def address_and_words(values):
    where = (ctypes.c_int64 * len(values))(*values)
    return where, [[ctypes.addressof(where) + 8 * n, v] for n, v in enumerate(values)]


def test_words_are_compared_in_order():
    where, pairs = address_and_words([5, -6, 7])
    made = program((Op.WORDS, 0), words=[3, *sum(pairs, [])])
    assert picks(made)
    for n in range(3):
        where[n] += 1
        assert not picks(made)
        where[n] -= 1
    stop = program((Op.WORDS, 0), words=[2, pairs[0][0], 6, 8, 0])  # nobody may read address 8
    assert not picks(stop)


def test_quiet_words_are_compared_after_a_change_only():
    where, pairs = address_and_words([5, 6])
    state, ((count, _), (noted, _)) = address_and_words([0, -1])
    made = program((Op.QUIET, 0), words=[count, noted, 2, *sum(pairs, [])])
    assert picks(made) and state[1] == 0
    where[1] = 9
    assert picks(made)  # nothing has told of it
    state[0] = 1
    assert not picks(made) and not picks(made) and state[1] == 0
    where[1] = 6
    assert picks(made) and state[1] == 1


def test_a_change_of_an_unrelated_watched_dict_leaves_the_arm():
    compiled = [jitney.compile(Model(), backend="eager") for _ in range(2)]
    x = torch.ones(2, 4)
    for call in compiled * 3:
        call(x)
    (code,) = [c for _, _, c in compiled[0]._session._codes.values()]
    armings = code.entries[0].armings
    for value in (2.0, 3.0):
        compiled[1]._orig_mod.settings.width = value
        want = compiled[0]._orig_mod(x)
        assert torch.equal(compiled[0](x), want) and code.entries[0].armings == armings
    for model in compiled:
        model._orig_mod.inner.register_forward_hook(lambda *_: torch.zeros(2, 4))
        assert torch.equal(model(x), model._orig_mod(x))


class Keeper(torch.nn.Module):
    """Writes its argument into a buffer, of which it returns twice the beginning."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(12))
        self.scale = torch.nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x):
        self.kept[:4].copy_(x * self.scale)
        return self.kept[:8] * 2


@torch.no_grad()
def test_memory_that_begins_to_overlap_is_seen():
    ours, eager = Keeper(), Keeper()
    compiled = jitney.compile(ours)
    for _ in range(4):
        assert torch.equal(compiled(torch.ones(4)), eager(torch.ones(4)))
    for start in (2, 5):
        views = [model.kept[start : start + 4] for model in (ours, eager)]
        assert torch.equal(compiled(views[0]), eager(views[1]))
        assert torch.equal(compiled(torch.ones(4)), eager(torch.ones(4)))
    for model in (ours, eager):
        model.scale.data = model.kept[1:5]
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(4)), eager(torch.ones(4)))


@torch.no_grad()
@pytest.mark.parametrize(
    "change",
    [
        lambda p: setattr(p, "data", torch.full((4, 4), 2.0)),
        lambda p: setattr(p, "data", p.data.double()),
        lambda p: setattr(p, "data", p.data.t()),
        lambda p: setattr(p, "data", torch.ones(4, 4).as_strided((4, 4), (1, 4))),
        lambda p: p.set_(torch.full((4, 4), 3.0)),
        lambda p: p.requires_grad_(False),
        lambda p: p.mul_(2),
    ],
)
def test_what_becomes_of_a_parameter_is_seen(change):
    model, x = Model(), torch.randn(3, 4)
    compiled = jitney.compile(model, backend="eager")
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            for _ in range(3):
                compiled(x)
    change(model.inner.weight)
    try:
        model(x)
    except RuntimeError:  # eager cannot multiply what came of it
        with pytest.raises(RuntimeError):
            compiled(x)
        return
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            for _ in range(3):
                got, want = compiled(x), model(x)
                assert torch.equal(got, want) and got.requires_grad is want.requires_grad


def test_words_tell_every_fact_of_a_tensor():
    def hold(words):
        return all(ctypes.c_uint64.from_address(address).value == word for address, word in words)

    changes = (
        lambda p: p.requires_grad_(True), lambda p: setattr(p, "data", torch.ones(3, 2)),
        lambda p: setattr(p, "data", torch.ones(2, 3).double()),
        lambda p: setattr(p, "data", torch.ones(3, 2).t()), lambda p: p.resize_(6),
    )  # fmt: skip
    for change in changes:
        tensor = torch.ones(2, 3)
        words = torch_api.fact_words(tensor, (2, 3), (3, 1))
        assert words is not None and hold(words)
        tensor.data = torch.zeros(2, 3)
        assert hold(words)
        memory = torch_api.memory_words(tensor)
        assert hold(memory)
        held = tensor.data  # what comes later cannot lie at its place
        change(tensor)
        assert not hold(words)
        tensor.data = torch.zeros(2, 3)
        assert not hold(memory)
        del held


def test_aliases_among_arguments_are_seen():
    def f(a, b):
        a.append(1)
        return torch.ones(1) * len(b)

    compiled = jitney.compile(f, backend="eager")
    for _ in range(4):
        same = [0]
        assert compiled([0], [0]).item() == 1 and compiled(same, same).item() == 2


def test_the_first_arm_that_holds_is_picked():
    made = [(program((Op.EQUAL, 1, id(n))), str(n)) for n in (1, 2, 3)]
    pick = make_pick(made, "miss")
    assert [pick(None, n) for n in (3, 1, 2, 4)] == ["3", "1", "2", "miss"]


def test_state_that_c_cannot_read_is_checked_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    known = native.c_symbol

    def c_symbol(name: str) -> int:
        if "GradMode" in name:
            raise LookupError(name)
        return known(name)

    def differentiable(x):
        return (x * 2).requires_grad

    monkeypatch.setattr(native, "c_symbol", c_symbol)
    compiled = jitney.compile(differentiable)
    x = torch.ones(2, requires_grad=True)
    for _ in range(3):
        assert compiled(x) is True
        with torch.no_grad():
            assert compiled(x) is False
