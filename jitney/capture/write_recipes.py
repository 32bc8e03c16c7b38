"""Python text that builds recipes and replays effects, for the glue."""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodType
from typing import Any

from jitney import torch_api
from jitney.capture import construct
from jitney.capture import recipe as r
from jitney.capture.build_resume import Point, generator_code, make_generator
from jitney.capture.edit_code import list_code
from jitney.capture.emit_fetch import Writer
from jitney.errors import CompilerBug


class RecipeWriter:
    """Writes the construction of recipes, each once."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self._names: dict[int, str] = {}
        self._keep: list[r.Recipe] = []

    def expression(self, recipe: r.Recipe) -> str:
        """A name or literal for the object the recipe makes."""
        name = self._names.get(id(recipe))
        if name is None:
            name = self._build(recipe)
            if not isinstance(recipe, r.Constant | r.Given | r.GraphOutput):
                made, name = name, self.writer.fresh()
                self.writer.lines.append(f"{name} = {made}")
            self._names[id(recipe)] = name
            self._keep.append(recipe)
        return name

    def optional(self, recipe: r.Recipe | None, absent: Any = None) -> str:
        """As `expression`; the constant ``absent`` for no recipe."""
        return self.writer.constant(absent) if recipe is None else self.expression(recipe)

    def _sequence(self, items: Iterable[r.Recipe]) -> str:
        return "".join(f"{self.expression(i)}, " for i in items)

    def _call(self, function: Any, *arguments: str) -> str:
        return f"{self.writer.constant(function)}({', '.join(arguments)})"

    def _pairs(self, items: Iterable[tuple[str, r.Recipe]]) -> str:
        return "(" + "".join(f"({n!r}, {self.expression(v)}), " for n, v in items) + ")"

    def _build(self, recipe: r.Recipe) -> str:
        match recipe:
            case r.Given(source=source):
                return self.writer.fetch(source)
            case r.GraphOutput(index=index):
                return f"results[{index}]"
            case r.Constant(value=value):
                return self.writer.constant(value)
            case r.MakeTuple(items=items):
                return f"({self._sequence(items)})"
            case r.MakeList(items=items):
                return f"[{self._sequence(items)}]"
            case r.MakeDict(items=pairs):
                inside = (f"{self.expression(k)}: {self.expression(v)}, " for k, v in pairs)
                return "{" + "".join(inside) + "}"
            case r.MakeSet(items=items, frozen=frozen):
                return self._call(frozenset if frozen else set, f"({self._sequence(items)})")
            case r.MakeSlice(start=start, stop=stop, step=step):
                return self._call(slice, *map(self.expression, (start, stop, step)))
            case r.MakeIterator(items=items):
                return self._call(iter, f"[{self._sequence(items)}]")
            case r.MakeCell(contents=contents):
                return self._call(construct.make_cell, self.optional(contents, construct.EMPTY))
            case r.MakeMethod(function=function, self=owner):
                return self._call(MethodType, self.expression(function), self.expression(owner))
        return self._build_call(recipe)

    def _build_call(self, recipe: r.Recipe) -> str:
        match recipe:
            case r.MakeFunction():
                return self._call(
                    construct.make_function,
                    self.writer.constant(recipe.code),
                    self.expression(recipe.globals),
                    repr(recipe.name),
                    repr(recipe.qualname),
                    self.optional(recipe.defaults),
                    self.optional(recipe.kwdefaults),
                    f"({self._sequence(recipe.closure)})",
                    self.optional(recipe.state),
                    self.optional(recipe.annotations),
                    self.optional(recipe.annotate),
                )
            case r.MakeObject():
                return self._call(
                    construct.make_object,
                    self.writer.constant(recipe.cls),
                    f"({self._sequence(recipe.new_args)})",
                    self.optional(recipe.base, construct.EMPTY),
                    self._pairs(recipe.state),
                    self._pairs(recipe.slots),
                )
            case r.MakeGenerator():
                return self._build_generator(recipe)
            case r.Apply(function=function, args=args, kwargs=kwargs):
                named = [f"{name}={self.expression(value)}" for name, value in kwargs]
                return self._call(function, *map(self.expression, args), *named)
        raise CompilerBug(f"no code builds a {type(recipe).__name__}")

    def _build_generator(self, recipe: r.MakeGenerator) -> str:
        values = dict(recipe.locals)
        cells = dict(zip(recipe.code.co_freevars, recipe.closure))
        cells.update({n: values.pop(n) for n in recipe.code.co_cellvars if n in values})
        nulls = tuple(isinstance(slot, r.Null) for slot in recipe.stack)
        index = list_code(recipe.code).index_at(recipe.offset)
        point = Point(recipe.code, index, nulls, tuple(sorted(values)))
        empty = r.MakeCell(None)
        stack = [slot for slot in recipe.stack if not isinstance(slot, r.Null)]
        return self._call(
            make_generator,
            self.writer.constant(generator_code(point)),
            self.expression(recipe.globals),
            f"({self._sequence(cells.get(name, empty) for name in point.cells)})",
            f"({self._sequence([*stack, *(values[name] for name in point.names)])})",
            repr(recipe.started),
            *map(self.expression, recipe.names),
        )


class EffectWriter:
    """Writes one statement per effect; what it needs is built before."""

    def __init__(self, writer: Writer, recipes: RecipeWriter) -> None:
        self.writer, self.build = writer, recipes.expression
        self.optional = recipes.optional

    def statement(self, effect: r.Effect) -> str:
        """The statement that replays the effect."""
        constant, build = self.writer.constant, self.build
        match effect:
            case r.StoreItem(target=target, key=key, value=value):
                store = constant(construct.store_item)
                return f"{store}({build(target)}, {build(key)}, {build(value)})"
            case r.DeleteItem(target=target, key=key):
                return f"{constant(construct.delete_item)}({build(target)}, {build(key)})"
            case r.ReplaceContents(target=target, items=items):
                return f"{constant(construct.replace_contents)}({build(target)}, {build(items)})"
            case r.ExtendList(target=target, items=items):
                return f"{constant(list.extend)}({build(target)}, {build(items)})"
            case r.StoreAttr(target=target, name=name, value=value):
                store = constant(construct.store_attribute)
                return f"{store}({build(target)}, {name!r}, {build(value)})"
            case r.StoreCell(target=target, value=value):
                contents = self.optional(value, construct.EMPTY)
                return f"{constant(construct.store_cell)}({build(target)}, {contents})"
            case r.SetState(name=name, value=value):
                return f"{constant(torch_api.set_state)}({name!r}, {constant(value)})"
            case r.DeferredCall(function=function, args=args, kwargs=kwargs):
                named = [f"{key}={build(value)}" for key, value in kwargs]
                return f"{build(function)}({', '.join([*map(build, args), *named])})"
        raise CompilerBug(f"no code replays a {type(effect).__name__}")
