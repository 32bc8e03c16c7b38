"""The graph being built: every torch call on fakes becomes a node.

A `TorchFunctionMode` sees torch calls wherever they are made from, Python or C. What returns a
tensor or has an effect is recorded; queries (`size`, `dtype`) are answered from the fakes.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from jitney import torch_api
from jitney.capture import leaves
from jitney.capture.asked_writes import written_if_asked
from jitney.capture.frame import BreakCapture, Frame, Restart
from jitney.capture.inside_handlers import is_error_handled
from jitney.capture.memory_given import memory_given, refuse_lost, refuse_relaid, refuse_resized
from jitney.capture.program_lines import call_from, lines_of
from jitney.capture.redefined import refuse_redefined, refuse_redefined_views
from jitney.capture.remember_fakes import RememberedFakes
from jitney.capture.result import GraphInput
from jitney.capture.source import Source
from jitney.capture.symbols import Symbols
from jitney.capture.uncounted_writes import note_uncounted
from jitney.capture.written_places import refuse_places

_QUIET = (int, float, bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class Recorder:
    """Builds one torch-level FX graph; owns the fake mode."""

    def __init__(self) -> None:
        self.fake_mode, self.shape_env = torch_api.new_capture_mode()
        self._remembered = RememberedFakes(self.fake_mode)
        self.graph = self.main = torch.fx.Graph()
        self.lifted: dict[int, tuple[Any, torch.fx.Node]] = {}  # what a graph `aside` uses
        self.in_transform = False  # recording a function that functorch will call
        self.gathers = False  # an index of tensors alone is no number, whatever their shape
        self.nodes: dict[int, tuple[Any, torch.fx.Node]] = {}  # by id(fake)
        self.functions: dict[int, torch.fx.Node] = {}  # that a call made, by id
        self.inputs: dict[torch.fx.Node, GraphInput] = {}
        self.mutated: set[int] = set()  # ids of fakes written to in place
        self.made_at: dict[torch.fx.Node, int] = {}  # the frame's step then
        self.uncounted: set[int] = set()  # memory of which ``.data`` was taken
        self.redefined_views: set[int] = set()  # memory of views that were given another shape
        self.overwritten: list[torch.fx.Node] = []  # readers of what is written so, with gradients
        self.written_memory: set[int] = set()
        #: Writes to inputs by others than authors' ops, which the graph does before the next op of
        #: an author's that writes, or at its end; and those that it does at its end alone.
        self.writes_are_due = self.writes_stay_due = False
        self.calls_authors = self.calls_written_ops = False  # their ops; those that write
        #: What wrote, and to what, as autograd sees it: not under no_grad, not through detach().
        self.seen_writes: list[tuple[torch.fx.Node, torch.Tensor]] = []
        self._reached: set[int] = set()  # memory of which as_strided was taken by a part
        self.sealed: set[int] = set()  # memory of inference tensors, to be read alone
        self._without_grad: set[torch.fx.Node] = set()  # inputs that begin so
        self.frames: list[Frame] = []
        self.checkpoint = self.checkpoints = 0  # which one is open; how many there were
        self.strides_asked = False
        self.places_asked = False  # what is counted from where an input's storage begins
        self.error_is_handled = False  # by the frame, of a library's call
        self.gpu_asked = False  # which one ``"cuda"`` means
        self.mode = _Mode(self)
        self._versions: dict[int, int | None] = {}
        self.symbols = Symbols(self)
        self._first: torch.fx.Node | None = None
        self._unsupported = torch_api.unsupported_by_fakes()

    # ------------------------------------------------------------ nodes

    def placeholder(self, fake: Any, source: Source, static: bool) -> torch.fx.Node:
        """A new input of the graph; placeholders come first, in order of reading."""
        name = "".join(c if c.isalnum() else "_" for c in str(source)).strip("_") or "input"
        if name[0].isdigit() or name == "self":  # which is the module, in FX's code
            name = f"p_{name}"
        if self._first is None:
            node = self.main.placeholder(name)
        else:
            with self.main.inserting_before(self._first):
                node = self.main.placeholder(name)
        node.target = node.name  # which no other has: sources may read alike (a.b_c and a_b.c)
        node.meta["example_value"] = fake
        node.meta["static"] = static
        self.inputs[node] = GraphInput(node.name, source, fake, static)
        self.nodes[id(fake)] = (fake, node)
        if isinstance(fake, torch.Tensor):
            self._versions[id(fake)] = self.version_of(fake)
            if not fake.requires_grad:
                self._without_grad.add(node)
            if self._versions[id(fake)] is None and not torch.is_inference_mode_enabled():
                self.sealed.add(torch_api.memory_of(fake))
        return node

    def node(
        self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any
    ) -> torch.fx.Node:
        """A new node, with its value and where the user wrote it."""
        node = self.graph.create_node(op, target, args, kwargs)
        self.note_first(node)
        node.meta["step"] = self.made_at[node] = self.frames[-1].step if self.frames else 0
        node.meta["example_value"] = value
        node.meta["stack_trace"] = self._trace()
        node.meta["lines"] = lines_of(self.frames)
        if self.checkpoint:
            node.meta["checkpoint"] = self.checkpoint
        path = {f.module_path[0]: f.module_path for f in self.frames if f.module_path is not None}
        if path:
            node.meta["nn_module_stack"] = path
        return node

    def note_first(self, node: torch.fx.Node) -> None:
        """Notes the first node that computes something: placeholders go before it."""
        if self._first is None and node.graph is self.main:
            self._first = next(n for n in self.main.nodes if n.op != "placeholder")

    def _trace(self) -> str:
        return "".join(
            [
                _trace_row(frame.code.co_filename, frame.current.line, frame.function_name)
                for frame in self.frames
            ]
        )

    def node_of(self, fake: Any) -> torch.fx.Node | None:
        """The node that made a fake."""
        found = self.nodes.get(id(fake))
        return found[1] if found is not None else None

    def argument(self, value: Any) -> Any:
        """A call's argument as FX wants it: fakes replaced by their nodes."""
        if isinstance(value, torch.Tensor):
            node = self.node_of(value)
            if node is None:
                raise BreakCapture(
                    "unknown-tensor",
                    "a tensor that the capture did not see being made is used",
                    "pass it as an argument or keep it on a module",
                )
            return node if node.graph is self.graph else self._lift(value, id(value))
        cls = type(value)
        if value is None or value is Ellipsis or cls in _QUIET:
            return leaves.long_argument(value) if cls is int else value
        if cls is torch.SymBool:
            return bool(value)
        if cls in (torch.SymInt, torch.SymFloat):
            node = self.symbols.node_of(value)
            if self.graph is not self.main and isinstance(node, torch.fx.Node):
                if not self.in_transform:
                    reason = "a size is used in a Function's backward"
                    raise BreakCapture("symbolic-backward", reason)
                return self._lift(value, id(node))
            return self.argument(node) if type(node) is int else node
        if cls is tuple or cls is list or cls is torch.Size:
            items = [self.argument(item) for item in value]
            return items if cls is list else tuple(items)
        if cls is dict:
            return {key: self.argument(item) for key, item in value.items()}
        if cls is slice:
            return slice(*map(self.argument, (value.start, value.stop, value.step)))
        if isinstance(value, tuple):  # namedtuples and torch.return_types
            return tuple(self.argument(item) for item in value)
        if cls is complex:
            return value if leaves.is_code(value) else self._complex(value)
        if cls is range:
            return list(value)
        made = self.functions.get(id(value)) if cls is FunctionType else None
        return made if made and made.graph is self.graph else leaves.other_argument(value)

    def _complex(self, value: complex) -> torch.fx.Node:
        return self.node("call_function", complex, (value.real, value.imag), {}, value)

    @contextmanager
    def aside(self, given: list[Any], transform: bool = False) -> Iterator[torch.fx.Graph]:
        """Records into a graph of its own meanwhile: its placeholders are the tensors, and of a
        ``transform`` the numbers, of the frame that it uses (`lifted`), then ``given``. What it
        computes is forgotten at the end."""
        outer = self.graph, self.lifted, self.in_transform
        graph = self.graph = torch.fx.Graph()
        self.lifted, self.in_transform = {}, transform
        for i, fake in enumerate(given):
            node = graph.placeholder(f"given_{i}")
            node.meta["example_value"] = fake
            self.nodes[id(fake)] = (fake, node)
        try:
            yield graph
        finally:
            closed = self.lifted
            self.graph, self.lifted, self.in_transform = outer
            if self.graph is self.main:
                self.lifted = closed  # for who asks afterwards
            self.nodes = {
                i: known for i, known in self.nodes.items() if known[1].graph is not graph
            }

    def _lift(self, value: Any, key: int) -> torch.fx.Node:
        found = self.lifted.get(key)
        if found is None:
            first_given = next(n for n in self.graph.nodes if n.name.startswith("given_"))
            with self.graph.inserting_before(first_given):
                node = self.graph.placeholder(f"used_{len(self.lifted)}")
            node.meta["example_value"] = value
            found = self.lifted[key] = (value, node)
        return found[1]

    def value_node(self, value: Any) -> Any:
        """What stands for a tensor or a symbol in the graph: its node; a number for a symbol that
        is one; None if it is unknown."""
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        return self.symbols.node_of(value)

    def is_input(self, fake: Any) -> bool:
        """Whether a tensor is an input of the graph."""
        return any(given.example is fake for given in self.inputs.values())

    def is_mutated(self, fake: Any) -> bool:
        """Whether an input was written to in place."""
        if not isinstance(fake, torch.Tensor):
            return False
        return id(fake) in self.mutated or self.version_of(fake) != self._versions.get(id(fake))

    def is_result(self, node: torch.fx.Node) -> bool:
        """Whether an input now has a gradient to propagate, because of what was written to it."""
        value = node.meta["example_value"]
        return self.is_mutated(value) and value.requires_grad and not value.is_leaf

    def is_written(self, node: torch.fx.Node) -> bool:
        """Whether a tensor that a node of the graph made has been written to."""
        value = node.meta.get("example_value")
        if not isinstance(value, torch.Tensor):
            return False
        return id(value) in self.mutated or self.version_of(value) != 0

    def show_as_given(self, node: torch.fx.Node) -> None:
        """Makes the example of an input that requires grad only because of what was written to it
        look as when the frame began: who takes the graph reads this off the examples."""
        fake = node.meta["example_value"]
        if node in self._without_grad and fake.requires_grad:
            with torch_api.without_function_modes():
                given = fake.detach()
                if isinstance(fake, torch.nn.Parameter):
                    given = torch.nn.Parameter(given, requires_grad=False)
            node.meta["example_value"] = given

    @staticmethod
    def version_of(fake: Any) -> int | None:
        """How often a tensor has been written to; None for a tensor that does not count its
        writes."""
        with torch_api.without_function_modes():
            return None if fake.is_inference() else torch_api.version_of(fake)

    def versions(self) -> dict[int, int | None]:
        """The versions of all tensors known by now, by id."""
        fakes = [fake for fake, _ in self.nodes.values() if isinstance(fake, torch.Tensor)]
        return {id(fake): self.version_of(fake) for fake in fakes}

    def has_written(self, before: dict[int, int | None]) -> bool:
        """Whether a tensor known when `versions` gave ``before``, or any input of the graph, has
        been written to since."""
        old = {**self._versions, **before}
        return any(i in old and old[i] != version for i, version in self.versions().items())

    # ------------------------------------------------------------ calls

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a torch function on fakes and records it if it made or changed a tensor."""
        if (query := leaves.query(func)) is not None:
            return query(self, func, args, kwargs)
        if (given := leaves.contiguous_already(self, func, args, kwargs)) is not None:
            return given
        func = leaves.kept_whole(func, args, self.in_transform)
        kwargs = torch_api.without_default_generator(func, kwargs)
        op, target, write = leaves.target_of(func)
        self._note_errors(func, args, kwargs)
        node_args = tuple([self.argument(a) for a in args])
        if func is torch.Tensor.new:
            node_args = tuple(map(self._kept_size, args, node_args))
        refuse_redefined(self, func, args, node_args)
        leaves.refuse_numpy_types(func, *args, *kwargs.values())
        leaves.refuse_booleans(func, args, kwargs)
        leaves.refuse_new_leaves(func, args, kwargs)
        leaves.refuse_masked_values(func, args, kwargs)
        node_kwargs = {k: self.argument(v) for k, v in kwargs.items()}
        changed = (leaves.written if write else written_if_asked)(func, args, kwargs)
        written = [*changed, *(given := memory_given(kwargs))]
        self._refuse_places(func, written)
        if given:
            self._refuse_memory(func, args, kwargs)
        self._note_writes(func, written)
        with self.fake_mode, self._remembered, self._composites(func):
            try:
                value = self._called_on_fakes(func, args, kwargs)
                self._refuse_reach(func, args[0] if args else kwargs.get("input"), value)
            except (BreakCapture, Restart):
                raise
            except self._unsupported as error:
                raise BreakCapture(
                    "data-dependent",
                    f"{leaves.name_of(func)} depends on the values of a tensor",
                    leaves.hint_of(func),
                ) from error
            except Exception as error:
                raise _failed(func, error) from error
        self.gpu_asked |= self._remembered.named_gpu
        if not write and not leaves.holds_tensor(value):
            if value is not None:
                return value
            if not torch_api.is_assertion(func):
                raise BreakCapture("torch-call", f"{leaves.name_of(func)} is not captured")
        leaves.refuse_results(func, (*args, *kwargs.values()), value)
        node = self.node(op, target, node_args, node_kwargs, value)
        self._remember_writes(func, written, node)
        self.bind(value, node)
        return value

    def _note_errors(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes what decides whether eager may run the frame again for an error of the graph."""
        self.calls_authors |= leaves.is_authors(func)
        self.error_is_handled |= is_error_handled(func, args, kwargs, self.frames)

    def _remember_writes(
        self, func: Any, written: Sequence[torch.Tensor], node: torch.fx.Node
    ) -> None:
        memory = set(map(torch_api.memory_of, written))
        self.written_memory |= memory
        if leaves.writes_unseen(func):
            self.calls_written_ops, self.writes_are_due = True, self.writes_stay_due
            torch_api.bump_versions(tuple(written))  # not all say that they write
        elif written:
            inputs = (x.example for x in self.inputs.values())
            tensors = (x for x in inputs if isinstance(x, torch.Tensor))
            if any(torch_api.memory_of(x) in memory for x in tensors):
                self.writes_are_due = True
                self.writes_stay_due |= any(x.requires_grad for x in written)
        if torch.is_grad_enabled():
            self.seen_writes += [(node, t) for t in written if t.requires_grad]

    def _called_on_fakes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Warnings of torch's name the program's line."""
        return call_from(self.frames, torch_api.called_on_fakes(func), args, kwargs)

    def _kept_size(self, given: Any, argument: Any) -> Any:
        """The argument of `Tensor.new`: a tuple is its values, a `torch.Size` its shape. FX keeps
        only tuples."""
        if type(given) is not torch.Size:
            return argument
        return self.node("call_function", torch.Size, (argument,), {}, given)

    def _refuse_memory(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Breaks before a call whose result would not fit the memory given for it (``out``)."""
        refuse_lost(func, args, kwargs)
        with self.fake_mode:
            refuse_resized(func, args, kwargs)
            refuse_relaid(func, args, kwargs, (i.example for i in self.inputs.values()))

    def _refuse_places(self, func: Callable[..., Any], written: Sequence[torch.Tensor]) -> None:
        """Breaks before a write to tensors whose layout in memory makes a graph write otherwise."""
        leaves.refuse_overlap(func, written)
        for tensor in written:
            refuse_places(func, self.node_of(tensor), torch_api.memory_of(tensor))

    def _refuse_reach(self, func: Callable[..., Any], part: Any, view: Any) -> None:
        """Breaks where ``view``, by `as_strided` of ``part``, reaches past the elements of an
        input, within what that is part of. Notes where a write makes the view another one: by
        autograd it is one of the whole tensor from then on."""
        if "as_strided" not in leaves.name_of(func) or not isinstance(view, torch.Tensor):
            return
        self.places_asked = True
        memory = torch_api.memory_of(view)
        if torch.is_grad_enabled() or view.requires_grad:
            if leaves.has_gaps(part) or _reaches_past(view, part):
                self._reached.add(memory)
        name = leaves.name_of(func)
        for graph_input in self.inputs.values():
            whole = graph_input.example
            if isinstance(whole, torch.Tensor) and torch_api.memory_of(whole) == memory:
                if _reaches_past(view, whole):
                    reason = f"{name} reaches past the elements of an input"
                    if view.requires_grad:  # behind a break it might be written to
                        raise self._left_whole(reason)
                    raise BreakCapture("as-strided", reason, "take it of the whole tensor")
                if whole.storage_offset() != 0 or leaves.has_gaps(whole):
                    self._reached.add(memory)  # a copy that is written to lies elsewhere
        if memory in self._reached and memory in self.written_memory:
            raise self._left_whole(f"{name} of a part of a tensor that was written to")

    @staticmethod
    def _left_whole(reason: str) -> Restart:
        """Leaves the frame to eager. A break would not do: behind it, nothing may know the whole
        tensor."""
        cause = BreakCapture("as-strided", reason, "take it of the whole tensor")
        return Restart(0, cause)

    def _note_writes(self, func: Callable[..., Any], written: list[torch.Tensor]) -> None:
        """Notes what a call writes to. Breaks before a write that inference tensors refuse, and
        before one that autograd does not count (`note_uncounted`)."""
        memory = set(map(torch_api.memory_of, written))
        if memory & self.sealed:
            name = leaves.name_of(func)
            raise BreakCapture("inference-write", f"{name} of an inference tensor", "clone() it")
        if memory & self._reached:
            name = leaves.name_of(func)
            raise self._left_whole(f"{name} of what as_strided was taken of a part of")
        self.mutated.update(map(id, written))
        refuse_redefined_views(self, func, memory)
        note_uncounted(self, func, written)

    def _composites(self, func: Any) -> Any:
        """With a symbolic size, calls composite ops by torch's Python kernels: the C++ ones may ask
        for the number, or look at values."""
        in_python = torch_api.has_symbols(self.shape_env) or func is torch.istft
        return torch_api.python_dispatcher() if in_python else nullcontext()

    def bind(self, value: Any, node: torch.fx.Node) -> None:
        """Registers the tensors in a result; each of several is taken out by a getitem node."""
        if isinstance(value, torch.Tensor):
            if id(value) not in self.nodes:
                self.nodes[id(value)] = (value, node)
        elif isinstance(value, FunctionType):
            self.functions[id(value)] = node
        elif isinstance(value, tuple | list):
            for i, item in enumerate(value):
                if leaves.holds_tensor(item) or type(item) is FunctionType:
                    if id(item) in self.nodes:
                        continue
                    child = self.node("call_function", leaves.getitem, (node, i), {}, item)
                    child.meta["part"] = True
                    self.bind(item, child)
        elif isinstance(value, dict):
            for key, item in value.items():
                if leaves.holds_tensor(item):
                    child = self.node("call_function", leaves.getitem, (node, key), {}, item)
                    self.bind(item, child)


def _reaches_past(view: torch.Tensor, whole: torch.Tensor) -> bool:
    start = view.storage_offset() - whole.storage_offset()
    return bool(start < 0 or start + leaves.reach_of(view) > leaves.reach_of(whole))


def _failed(func: Callable[..., Any], error: Exception) -> BreakCapture | Restart:
    """What a call that fails with fakes does: a break, behind which eager's fails, too. But behind
    one it would not for one of several views (`unbind`), which a graph's result is not."""
    cause = BreakCapture("torch-call-failed", f"{leaves.name_of(func)}: {error}")
    return Restart(0, cause) if "is a view and is being modified inplace" in str(error) else cause


@lru_cache(maxsize=4096)
def _trace_row(file: str, line: int, name: str) -> str:
    text = linecache.getline(file, line).strip()
    return f'  File "{file}", line {line}, in {name}\n    {text}\n'


def has_convolution(graph: torch.fx.Graph) -> bool:
    """Whether a graph calls a convolution, which may take its memory format from any strides."""
    return any("conv" in str(node.target) for node in graph.nodes)


class _Mode(TorchFunctionMode):
    """Hands every torch call to the recorder, once: scopes of it can nest, where C code advances a
    generator of ours."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._depth = 0

    def __enter__(self) -> Any:
        self._depth += 1
        return super().__enter__() if self._depth == 1 else self

    def __exit__(self, *error: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            super().__exit__(*error)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self._recorder.call(func, args, kwargs or {})
