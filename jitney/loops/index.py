"""The index algebra: integer polynomials over loop axes, symbolic sizes and loaded integers.

An `Index` is a sum of integer multiples of products of atoms, kept in one canonical order, so
that two equal polynomials of atoms are equal Python values. Atoms carry their own ranges, so
simplifying ``(64 * i + j) // 64`` to ``i`` needs no context. Quotients and remainders are atoms,
put together where a sum meets both (`_joined`): the value is the same whatever the order, but the
form is not always: ``(i % 4 - i) + i`` is ``i - 4 * (i // 4)``, not ``i % 4``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any


class _Atom:
    """Atoms are compared and hashed all the time: hash and sort key are computed once."""

    def __hash__(self) -> int:
        found = self.__dict__.get("_hash")
        if found is None:
            fields = tuple(v for k, v in self.__dict__.items() if k != "_key")
            found = hash((type(self).__name__, *fields))
            object.__setattr__(self, "_hash", found)
        return int(found)

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_hash", "_key")}

    def sort_key(self) -> tuple[str, str]:
        """Where it stands in a monomial."""
        found: tuple[str, str] | None = self.__dict__.get("_key")
        if found is None:
            found = (type(self).__name__, atom_text(self))  # type: ignore[arg-type]
            object.__setattr__(self, "_key", found)
        return found


@dataclass(frozen=True)
class Axis(_Atom):
    """A loop counter: takes every integer in ``0 <= axis < extent``."""

    name: str
    extent: Index

    __hash__ = _Atom.__hash__

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Axis) and self.name == other.name and self.extent == other.extent


@dataclass(frozen=True)
class Dim(_Atom):
    """A size unknown at compile time, one symbol of torch's ShapeEnv; ``low <= dim <= high``.

    ``hint``, a likely value, tells sizes apart too: symbols of another program may have the same
    name, and what is kept of one (`lru_cache`) must not be taken for the other's.
    """

    name: str
    low: int = 2
    high: int | None = None
    hint: int = 64

    __hash__ = _Atom.__hash__


@dataclass(frozen=True)
class Value(_Atom):
    """The integer a `Let`, a `Reduce` or a loop before it bound to ``name`` (gathers use it)."""

    name: str

    __hash__ = _Atom.__hash__


@dataclass(frozen=True)
class FloorDiv(_Atom):
    """``numerator // denominator`` where it could not be simplified away."""

    numerator: Index
    denominator: Index

    __hash__ = _Atom.__hash__


@dataclass(frozen=True)
class Mod(_Atom):
    """``numerator % denominator`` (result has the denominator's sign) where it stays."""

    numerator: Index
    denominator: Index

    __hash__ = _Atom.__hash__


Atom = Axis | Dim | Value | FloorDiv | Mod
Monomial = tuple[Atom, ...]


@dataclass(frozen=True)
class Index:
    """``const + sum(coefficient * product(monomial))``, canonical; build with `index`."""

    terms: tuple[tuple[Monomial, int], ...] = ()
    const: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.terms, self.const)))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Index)
            and self._hash == other._hash  # type: ignore[attr-defined]
            and self.const == other.const
            and self.terms == other.terms
        )

    def __reduce__(self) -> tuple[type[Index], tuple[object, int]]:
        return Index, (self.terms, self.const)  # the kept hash is this process's own

    def __add__(self, other: IndexLike) -> Index:
        other = index(other)
        if not other.terms:
            return Index(self.terms, self.const + other.const) if other.const else self
        if not self.terms:
            return Index(other.terms, self.const + other.const) if self.const else other
        return _sum(self, other)

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: IndexLike) -> Index:
        return self + index(other) * -1

    def __mul__(self, other: IndexLike) -> Index:
        return _product(self, index(other))

    def __floordiv__(self, other: IndexLike) -> Index:
        return floor_div(self, index(other))

    def __mod__(self, other: IndexLike) -> Index:
        return modulo(self, index(other))

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: IndexLike) -> Index:
        return index(other) - self

    @property
    def is_const(self) -> bool:
        """Whether it names no axis or size, so that ``int()`` takes it."""
        return not self.terms

    def __int__(self) -> int:
        if self.terms:
            raise ValueError(f"{self} is not a constant")
        return self.const

    def __str__(self) -> str:
        parts = [_term_text(m, c) for m, c in self.terms]
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts).replace("+ -", "- ")

    def atoms(self) -> frozenset[Atom]:
        """Every atom in it, those inside floor-divisions and remainders included."""
        found: set[Atom] = set()
        for monomial, _ in self.terms:
            for atom in monomial:
                found.add(atom)
                if isinstance(atom, FloorDiv | Mod):
                    found |= atom.numerator.atoms() | atom.denominator.atoms()
        return frozenset(found)

    def coefficient(self, axis: Axis | Value) -> Index | None:
        """The stride along ``axis``: how much the index grows when it grows by one.

        None when it does not enter linearly (inside `//` or `%`, or squared).
        """
        total: dict[Monomial, int] = {}
        const = 0
        for monomial, factor in self.terms:
            if axis in monomial:
                rest = tuple(a for a in monomial if a != axis)
                if len(rest) != len(monomial) - 1 or _mentions(rest, axis):
                    return None
                if rest:
                    total[rest] = total.get(rest, 0) + factor
                else:
                    const += factor
            elif _mentions(monomial, axis):
                return None
        return from_terms(total, const)

    def substitute(self, mapping: Mapping[Any, IndexLike]) -> Index:
        """Each atom replaced by an expression; divisions are simplified anew."""
        if not self.terms or not mapping:
            return self
        result = index(self.const)
        for monomial, factor in self.terms:
            product = index(factor)
            for atom in monomial:
                product = product * _substituted(atom, mapping)
            result = result + product
        return result

    def bounds(self) -> tuple[int | None, int | None]:
        """Inclusive least and greatest value; None where no bound is known."""
        return _bounds(self)

    def length(self) -> int:
        """How many atoms it is written with, those inside divisions included."""
        return _length(self)

    def evaluate(self, values: Callable[[Atom], int] | Mapping[Atom, int]) -> int:
        """The integer it is once every axis, dim and value has one."""
        look = values.__getitem__ if isinstance(values, Mapping) else values
        total = self.const
        for monomial, factor in self.terms:
            for atom in monomial:
                if isinstance(atom, FloorDiv):
                    factor *= atom.numerator.evaluate(look) // atom.denominator.evaluate(look)
                elif isinstance(atom, Mod):
                    factor *= atom.numerator.evaluate(look) % atom.denominator.evaluate(look)
                else:
                    factor *= look(atom)
            total += factor
        return total

    def hint(self) -> int:
        """A likely value of a size expression: every dim at its hint, used only to choose."""
        return self.evaluate(lambda atom: atom.hint if isinstance(atom, Dim) else 0)


IndexLike = Index | Axis | Dim | Value | FloorDiv | Mod | int


def index(value: IndexLike) -> Index:
    """An integer or an atom as an `Index`."""
    if isinstance(value, Index):
        return value
    if isinstance(value, int):
        return Index((), int(value))
    return Index((((value,), 1),), 0)


def is_empty(shape: Iterable[Index]) -> bool:
    """Whether a tensor of this shape is known to have no elements."""
    return any(size.is_const and size.const == 0 for size in shape)


def bare_atom(value: Index) -> Atom | None:
    """The atom that ``value`` is, if it is nothing but one."""
    if value.const or len(value.terms) != 1:
        return None
    monomial, factor = value.terms[0]
    return monomial[0] if factor == 1 and len(monomial) == 1 else None


def bare_axis(value: Index) -> Axis | None:
    """The axis that ``value`` is, if it is nothing but one."""
    atom = bare_atom(value)
    return atom if isinstance(atom, Axis) else None


def bare_dim(size: Index) -> Dim | None:
    """The symbol that ``size`` is, if it is nothing but one."""
    atom = bare_atom(size)
    return atom if isinstance(atom, Dim) else None


@lru_cache(maxsize=65536)
def _sum(a: Index, b: Index) -> Index:
    total = dict(a.terms)
    for monomial, factor in b.terms:
        total[monomial] = total.get(monomial, 0) + factor
    return from_terms(total, a.const + b.const)


@lru_cache(maxsize=65536)
def _product(a: Index, b: Index) -> Index:
    if not b.terms:
        if b.const == 1:
            return a
        scaled = {m: c * b.const for m, c in a.terms}
        return from_terms(scaled, a.const * b.const)
    if not a.terms:
        return _product(b, a)
    total: dict[Monomial, int] = {}
    for ma, ca in (*a.terms, ((), a.const)):
        for mb, cb in (*b.terms, ((), b.const)):
            key = tuple(sorted((*ma, *mb), key=_Atom.sort_key)) if ma and mb else ma or mb
            total[key] = total.get(key, 0) + ca * cb
    return from_terms(total, total.pop((), 0))


def from_terms(terms: Mapping[Monomial, int], const: int) -> Index:
    """The canonical sum: terms of 0 dropped, quotients and remainders put together, sorted."""
    kept = [(m, c) for m, c in terms.items() if c]
    if len(kept) > 1:
        if any(type(a) is Mod for m, _ in kept for a in m):
            joined = _joined(kept, const)
            if joined is not None:
                return joined
        kept.sort(key=_term_key)
    return Index(tuple(kept), const)


def _joined(terms: list[tuple[Monomial, int]], const: int) -> Index | None:
    """``b * (x // b) + x % b`` put back together as ``x``, and ``x % b - x`` as what is left of it,
    ``-b * (x // b)``; None where there is no such pair."""
    for monomial, c in terms:
        for atom in monomial:
            if not isinstance(atom, Mod):
                continue
            quotient = atom.numerator // atom.denominator
            rest = Index(((without(monomial, (atom,)) or (), c),), 0)
            rest = rest if rest.terms[0][0] else index(c)
            negated = (atom.numerator * rest * -1).terms
            if negated and not atom.numerator.const and set(negated) <= set(terms):
                left = [t for t in terms if t != (monomial, c) and t not in negated]
                return from_terms(dict(left), const) - quotient * atom.denominator * rest
            partner = quotient * atom.denominator * rest
            if len(partner.terms) != 1 or partner.const or partner.terms[0] not in terms:
                continue
            left = [t for t in terms if t != (monomial, c) and t != partner.terms[0]]
            return Index(tuple(left), const) + atom.numerator * rest
    return None


def without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """The factors left when ``divisor`` is divided out; None if it does not divide ``monomial``."""
    rest = list(monomial)
    for atom in divisor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def _term_key(term: tuple[Monomial, int]) -> tuple[tuple[str, str], ...]:
    return tuple([a.sort_key() for a in term[0]])


def _mentions(monomial: Monomial, axis: Atom) -> bool:
    return any(
        isinstance(a, FloorDiv | Mod)
        and (axis in a.numerator.atoms() or axis in a.denominator.atoms())
        for a in monomial
    )


def _substituted(atom: Atom, mapping: Mapping[Any, IndexLike]) -> Index:
    if atom in mapping:
        return index(mapping[atom])
    if isinstance(atom, FloorDiv):
        return atom.numerator.substitute(mapping) // atom.denominator.substitute(mapping)
    if isinstance(atom, Mod):
        return atom.numerator.substitute(mapping) % atom.denominator.substitute(mapping)
    return index(atom)


Bounds = tuple[int | None, int | None]


@lru_cache(maxsize=65536)
def _bounds(a: Index) -> Bounds:
    low: int | None = a.const
    high: int | None = a.const
    for monomial, factor in a.terms:
        part: Bounds = (factor, factor)
        for atom in monomial:
            part = _times(part, _atom_bounds(atom))
        low = None if low is None or part[0] is None else low + part[0]
        high = None if high is None or part[1] is None else high + part[1]
    return low, high


@lru_cache(maxsize=65536)
def _length(a: Index) -> int:
    inside = [
        atom.numerator.length() + atom.denominator.length()
        for monomial, _ in a.terms
        for atom in monomial
        if isinstance(atom, FloorDiv | Mod)
    ]
    return sum(len(monomial) for monomial, _ in a.terms) + sum(inside)


def is_unsigned(atom: FloorDiv | Mod) -> bool:
    """Whether bounds show that nothing in it is negative: a machine's own division, which may
    truncate, then gives the same."""
    low, _ = atom.numerator.bounds()
    return low is not None and low >= 0 and _positive(atom.denominator.bounds())


def _times(a: Bounds, b: Bounds) -> Bounds:
    if None not in a and None not in b:
        products = [x * y for x in a for y in b]  # type: ignore[operator]
        return min(products), max(products)
    nonnegative = all(x[0] is not None and x[0] >= 0 for x in (a, b))
    if nonnegative:
        return a[0] * b[0], None  # type: ignore[operator]
    if a[0] is not None and a[1] is not None and a[1] <= 0 and b[0] is not None and b[0] >= 0:
        return None, a[1] * b[0]
    return None, None


def _atom_bounds(atom: Atom) -> Bounds:
    if isinstance(atom, Axis):
        high = atom.extent.bounds()[1]
        return 0, None if high is None else max(high - 1, 0)
    if isinstance(atom, Dim):
        return atom.low, atom.high
    if isinstance(atom, Mod):
        top = atom.denominator.bounds()
        return (0, None if top[1] is None else top[1] - 1) if _positive(top) else (None, None)
    if isinstance(atom, FloorDiv):
        below, above = atom.numerator.bounds()
        least = atom.denominator.bounds()[0]
        if below is None or below < 0 or least is None or least < 1:
            return None, None
        top_den = atom.denominator.bounds()[1]
        return (
            0 if top_den is None else below // top_den,
            None if above is None else above // least,
        )
    return None, None


def _positive(bounds: Bounds) -> bool:
    return bounds[0] is not None and bounds[0] > 0


def _term_text(monomial: Monomial, factor: int) -> str:
    product = "*".join(atom_text(a) for a in monomial)
    return product if factor == 1 else f"{factor}*{product}"


def atom_text(atom: Atom) -> str:
    """An atom as it prints inside an index."""
    if isinstance(atom, FloorDiv):
        return f"(({atom.numerator}) // ({atom.denominator}))"
    if isinstance(atom, Mod):
        return f"(({atom.numerator}) % ({atom.denominator}))"
    return atom.name


# Division needs `Index` and `Index` divides: one of the two comes last.
from jitney.loops.index_division import floor_div, modulo  # noqa: E402
