"""What programs whose world changes find in their module: state of every kind that Python and torch
keep. `OTHER` is a second module, which the first knows as ``other``."""

from __future__ import annotations

OTHER = """
import torch
H1, H2, HT, HL = 1, "h", torch.tensor([1.0, 2.0, 0.0]), [1, 2]

def far(v=1):
    return H1 if v else H2
"""

WORLD = '''
import array, builtins, collections, contextvars, dataclasses, decimal, enum, fractions, functools
import gc, itertools, math, operator, os, sys, threading, types, weakref
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
import numpy as np
import torch
from torch import nn
import jitney

class Meta(type):
    flavor = 1
    @property
    def computed(cls):
        return cls.flavor, cls.k
    def named(cls):
        return cls.flavor
    def __len__(cls):
        return 3

class Gate(type):
    open = True
    def __instancecheck__(cls, found):
        return cls.open and hasattr(found, "a")
    def __contains__(cls, found):
        return found == cls.k

class Gated(metaclass=Gate):
    k = 1

class Root(metaclass=Meta):
    k, r = 1, 5
    def __init__(self, a=1, child=None):
        self.a, self.child = a, child
    def m(self, v=1):
        return ("root", self.k, v)
    @classmethod
    def cm(cls):
        return cls.k
    @staticmethod
    def sm(v=2):
        return v

class Left(Root):
    r = 6
    def m(self, v=1):
        return ("left", super().m(v))

class Right(Root):
    k, r = 2, 7
    def m(self, v=1):
        return ("right", super().m(v))

class Bottom(Left, Right):
    pass

class Other(metaclass=Meta):
    k, r, p = 8, 9, "other"
    def m(self, v=1):
        return ("other", v)

class Getter(Root):
    table = {"b": 4}
    def __getattr__(self, name):
        try:
            return self.table[name]
        except KeyError:
            raise AttributeError(name) from None

class Seen(Root):
    seen = 0
    def __getattribute__(self, name):
        if name == "b":
            return 7
        return super().__getattribute__(name)

class Data:
    def __init__(self, by):
        self.by = by
    def __get__(self, thing, owner=None):
        return self.by if thing is None else (self.by, thing.__dict__.get("b", 0))
    def __set__(self, thing, value):
        thing.__dict__["b"] = value

class Plain:
    """Not a data descriptor."""
    def __init__(self, by):
        self.by = by
    def __get__(self, thing, owner=None):
        return self.by

class Desc(Root):
    b = Data(3)
    c = Plain(4)
    half = functools.partialmethod(Root.m, 9)
    @property
    def p(self):
        return self.a, self.k
    @functools.cached_property
    def cp(self):
        return self.a, self.k

class Ops(Root):
    size = 2
    def __len__(self): return self.size
    def __bool__(self): return self.a == 1
    def __eq__(self, o): return getattr(o, "a", None) == self.a
    def __hash__(self): return 5
    def __contains__(self, v): return v == self.a
    def __iter__(self): return iter((self.a, self.k))
    def __getitem__(self, i): return (self.a, i) if i in (0, 1) else [][i]
    def __call__(self, v=1): return (self.a, v)
    def __add__(self, v): return ("add", self.a)
    def __radd__(self, v): return ("radd", self.a)
    def __lt__(self, o): return self.k < getattr(o, "k", 0)

class Slotted:
    __slots__ = ("a", "b", "child")
    k = 3
    def __init__(self, a=1, child=None):
        self.a, self.child = a, child
    def m(self, v=1):
        return ("slotted", self.k, v)

class SlottedToo:
    __slots__ = ("a", "b", "child")
    k = 4
    def m(self, v=1):
        return ("slotted too", v)

class SlottedMore(Slotted):
    """Slots, and a dict."""

@dataclasses.dataclass
class Record:
    a: object = 1
    child: object = None
    k: object = 2
    def m(self, v=1): return ("record", self.a)

@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: object = 1
    child: object = None
    k: object = 2
    def m(self, v=1): return ("frozen", self.a)

class Pair(collections.namedtuple("Pair", "a child")):
    k = 6
    def m(self, v=1): return ("pair", self.a)

class Color(enum.Enum):
    RED = 1
    BLUE = 2
    k = enum.nonmember(3) if hasattr(enum, "nonmember") else 3

class Mark(enum.Flag):
    A = 1
    B = 2

class Level(enum.IntEnum):
    ONE = 1
    TWO = 2

class MyInt(int):
    k = 1
    def __add__(self, o): return 50
class MyFloat(float): k = 1
class MyStr(str): k = 1
class MyTuple(tuple): k = 1
class MyList(list):
    k = 1
    def __len__(self): return list.__len__(self) + 1
class MyDict(dict):
    k = 1
    def __missing__(self, key): return ("missing", self.k)
class MySet(set): k = 1

class Layer(nn.Module):
    scale = 2
    def __init__(self, by=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([by, 1.0, -1.0]))
        self.register_buffer("seen", torch.zeros(3))
        self.by, self.child = by, None
    def forward(self, t, more=1):
        if self.training:
            t = t + 1
        return t * self.weight * self.scale + self.seen + more

class Tying(nn.Module):
    def forward(self, w):
        return w * 2

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Layer(1.0), Layer(2.0)
        self.stack = nn.ModuleList([Layer(3.0), nn.Identity()])
        self.named = nn.ModuleDict({"p": Layer(4.0), "q": nn.ReLU()})
        self.chain = nn.Sequential(nn.ReLU(), Layer(5.0))
        self.held = nn.ParameterList([torch.ones(3), torch.zeros(3)])
        self.loose = nn.Parameter(torch.tensor([0.0, 1.0, 2.0]))
    def forward(self, t):
        for part in self.stack:
            t = part(t)
        return self.chain(self.first(t)) + self.loose

def plain(v=1, *, also=2):
    return (v, also, G1)
plain.attr = 3

def plainer(v=4, *, also=5):
    return ("plainer", v, also)
plainer.attr = 6

def tensors(t, by=2.0, *, plus=1.0):
    return t * by + plus

def closing(kept, shared):
    def inner(v=1):
        return (kept, shared[0], v)
    return inner

def sharing(n):
    def get(v=0):
        return n
    def put(v):
        nonlocal n
        n = v
    return [get, put]

@functools.lru_cache(maxsize=None)
def cached(v=1):
    return (v, G1, len(L1))

def deeper(v=0):
    return nested_global(v)

def nested_global(v):
    return (G2, obj.a, v)

def counting(n=9):
    k = 0
    while k < n:
        k += 1
        got = yield (k, G1)
        if got:
            k = got

def is_num(v):
    return isinstance(v, (int, float)) and v == v and -99 < v < 99

def num(v):
    """A number that tells much of a value."""
    if v is None:
        return 11.0
    if isinstance(v, bool):
        return 12.0 + v
    if is_num(v):
        return float(v) + (0.5 if type(v) is float else 0.0)
    if isinstance(v, (str, bytes, list, tuple, dict, set)):
        return 20.0 + len(v)
    return 30.0

def here(change):
    change()

def at_break(change):
    jitney.graph_break()
    change()

@jitney.disable
def unseen(change):
    change()

def in_thread(change):
    thread = threading.Thread(target=caught, args=(change,))
    thread.start()
    thread.join()

def caught(change):
    try:
        change()
    except Exception as error:
        return type(error).__name__

G1, G2, G3, GN = 1, "a", 2.0, None
NP, NA = np.float64(1.0), np.array([1.0, 2.0])
obj, obj2 = Bottom(), Desc(2)
obj3 = Ops(1, obj)
obj4, obj5 = Slotted(1, obj2), Getter(1)
obj6 = Record(1, obj)
obj.child = obj3
L1, L2 = [1, 2, 3], [obj, obj2]
L3 = [L1, [4]]
D1, D2 = {"p": 1, "q": 2}, {"o": obj, "l": L1}
E1, E2 = {1, 2}, frozenset({3})
Q1 = deque([1, 2], maxlen=5)
O1, W1, C1 = OrderedDict(p=1, q=2), defaultdict(int, p=1), Counter(p=1)
CH, U1, UL = ChainMap({"p": 1}, D1), UserDict(p=1), UserList([1, 2])
VIEW = types.MappingProxyType(D1)
T1, T2 = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 1.0, 0.0])
T3 = nn.Parameter(torch.tensor([2.0, 0.0, 1.0]))
TL = [T1, T3]
net = Net()
bound, half = obj.m, functools.partial(plain, 5)
FS = [plain, obj.m, half, Bottom.cm]
closed, GP = closing(1, [2]), [sharing(1)[0], sharing(1)[1]]
I1, I2, I3 = iter([1, 2, 3] * 30), counting(), itertools.count()
I4, I5 = zip(L1 * 9, itertools.count()), enumerate(map(num, L1 * 9))
VAR, LOCAL = contextvars.ContextVar("VAR", default=1), threading.local()
LOCAL.a = 1
REF = weakref.ref(obj)
WD = weakref.WeakKeyDictionary({obj: 1})
DEEP = {"a": [{"b": (1, [obj])}]}
os.environ["WORLD_X"] = "1"
log = []
array_, F_, G_, helper_num = array.array, nn.functional.relu, Color, num

def weak(v):
    return weakref.ref(v)() is v

def from_import():
    from math import pi
    return pi

'''
