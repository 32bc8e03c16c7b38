"""Floor division and remainder of indices, simplified by what is known of ranges.

`jitney.loops.index`, whose operators call it, comes first.
"""

from __future__ import annotations

import math
from functools import lru_cache

from jitney.loops.index import (
    Atom,
    Axis,
    Dim,
    FloorDiv,
    Index,
    Mod,
    Monomial,
    Value,
    atom_text,
    bare_atom,
    from_terms,
    index,
    without,
)


@lru_cache(maxsize=65536)
def floor_div(a: Index, b: Index) -> Index:
    """``a // b``, with what divides evenly, and what is known to be a remainder, taken out."""
    if b.is_const and b.const == 1:
        return a
    if a.is_const and b.is_const and b.const != 0:
        return index(a.const // b.const)
    whole, rest = split_multiple(a, b)
    if whole is not None and (whole.terms or whole.const):
        return whole + floor_div(rest, b)
    if in_range(a, b):
        return index(0)
    known = _known_quotient(a, b)
    if known is not None:
        return index(known)
    digits = _digits(a, b)
    if digits is not None:
        return digits[0]
    if b.is_const and b.const > 0 and all(c < 0 for _, c in a.terms):
        return -floor_div(b.const - 1 - a, b)  # rounded up: whose bounds are known
    shared = _common_factor(a, b)
    if shared > 1:
        return floor_div(_divided(a, shared), _divided(b, shared))
    step = _step_below(a, b)
    if step is not None:
        return floor_div(split_multiple(a, step)[0] or a, _exact(b, step))
    inner = bare_atom(a)
    if isinstance(inner, FloorDiv) and b.is_const and inner.denominator.is_const:
        return floor_div(inner.numerator, inner.denominator * b)
    if isinstance(inner, Mod) and not b.is_const:  # the bounds of a remainder are known
        times, over = split_multiple(inner.denominator, b)
        if times is not None and over == index(0):
            return modulo(floor_div(inner.numerator, b), times)
    return index(FloorDiv(a, b))


@lru_cache(maxsize=65536)
def modulo(a: Index, b: Index) -> Index:
    """``a % b`` with multiples of ``b`` dropped."""
    if a.is_const and b.is_const and b.const != 0:
        return index(a.const % b.const)
    _, rest = split_multiple(a, b)
    if rest != a:
        return modulo(rest, b)
    if in_range(a, b):
        return a
    known = _known_quotient(a, b)
    if known is not None:
        return a - b * known
    digits = _digits(a, b)
    if digits is not None:
        return digits[1]
    plain = _without_remainders(a, b)
    if plain != a:
        return modulo(plain, b)
    shared = _common_factor(a, b)
    if shared > 1:
        return modulo(_divided(a, shared), _divided(b, shared)) * shared
    step = _step_below(a, b)
    if step is not None:
        whole, low = split_multiple(a, step)
        return modulo(whole or a, _exact(b, step)) * step + low
    return index(Mod(a, b))


def _digits(a: Index, b: Index) -> tuple[Index, Index] | None:
    """``a // b`` and ``a % b`` of steps larger than ``b``, if those left over stay below it:
    ``21 * i = 20 * i + i``, the place of a diagonal's elements in rows of 20."""
    if not b.is_const or b.const <= 0 or all(0 <= c < b.const for _, c in a.terms):
        return None
    rest = from_terms({m: c % b.const for m, c in a.terms if c % b.const}, a.const % b.const)
    if not in_range(rest, b):
        return None
    return from_terms({m: c // b.const for m, c in a.terms}, a.const // b.const), rest


def _without_remainders(a: Index, b: Index) -> Index:
    """``a`` with ``x`` in the place of ``x % (n * b)``, which ``% b`` does not tell apart."""
    for monomial, c in a.terms:
        atom = monomial[0]
        if len(monomial) == 1 and isinstance(atom, Mod):
            whole, rest = split_multiple(atom.denominator, b)
            if whole is not None and rest == Index():
                others = Index(tuple(term for term in a.terms if term != (monomial, c)), a.const)
                return _without_remainders(others + atom.numerator * c, b)
    return a


def split_multiple(a: Index, b: Index) -> tuple[Index | None, Index]:
    """``a`` as ``whole * b + rest`` with the terms of ``a`` that are multiples of ``b``."""
    if b.is_const:
        if b.const <= 0:
            return None, a
        whole = {m: c // b.const for m, c in a.terms if c % b.const == 0}
        rest = {m: c for m, c in a.terms if c % b.const}
        return (from_terms(whole, a.const // b.const), from_terms(rest, a.const % b.const))
    if len(b.terms) != 1 or b.const:
        return _split_multiple_of_sum(a, b)
    (divisor, factor), whole, rest = b.terms[0], {}, {}
    for monomial, c in a.terms:
        left = without(monomial, divisor)
        if left is None or c % factor:
            rest[monomial] = c
        else:
            whole[left] = whole.get(left, 0) + c // factor
    const = whole.pop((), 0)
    return from_terms(whole, const), from_terms(rest, a.const)


def _split_multiple_of_sum(a: Index, b: Index) -> tuple[Index | None, Index]:
    """The same for a ``b`` such as ``s0 + 4``: a row's start in a padded tensor is a multiple, and
    so is ``2 * s0 + 8``, where its last row starts."""
    divisor, factor = b.terms[0]
    whole, rest = Index(), a
    for monomial, c in a.terms:
        left = without(monomial, divisor)
        if left is not None and c % factor == 0:
            times = from_terms({left: c // factor}, 0) if left else index(c // factor)
            taken = times * b
            inside = left or min(a.const, 0) <= taken.const <= max(a.const, 0)
            if inside and set(taken.terms) <= set(rest.terms):
                whole, rest = whole + times, rest - taken
    return (whole, rest) if whole.terms or whole.const else (None, a)


def _step_below(a: Index, b: Index) -> Index | None:
    """A divisor ``g > 1`` of ``b`` such that ``a`` is a multiple of ``g`` plus ``0 <= rest < g``.

    Then ``a // b == (a // g) // (b // g)``: the low digits of a mixed-radix number drop out.
    """
    steps: dict[Index, None] = {}
    for monomial, c in a.terms:
        if b.is_const:
            steps[index(math.gcd(c, b.const))] = None
        elif len(b.terms) == 1 and not b.const:
            divisor, factor = b.terms[0]
            common = [x for x in dict.fromkeys(divisor) if x in monomial and isinstance(x, Dim)]
            steps[math.prod(map(index, common), start=index(math.gcd(c, factor)))] = None
    for step in sorted(steps, key=Index.hint, reverse=True):
        if step == b or (step.is_const and step.const <= 1):
            continue
        whole, rest = split_multiple(a, step)
        if whole is not None and whole.terms and rest != a and in_range(rest, step):
            return step
    return None


def _exact(b: Index, step: Index) -> Index:
    """``b // step`` where it divides evenly."""
    whole, _ = split_multiple(b, step)
    assert whole is not None
    return whole


def in_range(a: Index, b: Index) -> bool:
    """Whether ``0 <= a < b`` for certain."""
    low = least(a, counted(a))
    if low is None or low < 0:
        return False
    gap_low, _ = (b - a).bounds()
    if gap_low is not None and gap_low > 0:
        return True
    return _axis_below_extent(a, b)


def _known_quotient(a: Index, b: Index) -> int | None:
    """``a // b`` where bounds allow but one, and -1 for the last part of a row: ``part - row``."""
    if b.is_const:
        low, high = a.bounds()
        if b.const <= 0 or low is None or high is None:
            return None
        return low // b.const if low // b.const == high // b.const else None
    falls = a.const < 0 or any(c < 0 for _, c in a.terms)
    return -1 if falls and in_range(a + b, b) else None


def _axis_below_extent(a: Index, b: Index) -> bool:
    """``sum(stride * axis) < b`` for axes whose extents multiply up to ``b`` symbolically."""
    top = greatest(a)
    if top is None:
        return False
    gap_low = least(b - top, counted(a))
    return gap_low is not None and gap_low > 0


def counted(*indices: Index) -> frozenset[Atom]:
    """Atoms that are at least 1 wherever the axes of ``indices`` have values at all: those that
    multiply up to an axis's extent."""
    found: set[Atom] = set()
    for axis in {x for a in indices for x in a.atoms() if isinstance(x, Axis)}:
        terms = axis.extent.terms
        if len(terms) == 1 and not axis.extent.const and all(map(_is_natural, terms[0][0])):
            found.update(terms[0][0])
    return frozenset(found)


def least(a: Index, positive: frozenset[Atom] = frozenset()) -> int | None:
    """What ``a`` is at least where each of the atoms ``positive`` is at least 1; None if unknown.

    More than its bounds: ``s * s - s`` is ``s`` times something, and so at least 0. Of a polynomial
    such as ``s * s - 2 * s + 1`` the signs show it once ``s`` is counted from its least value.
    """
    low = a.bounds()[0]
    if (low is not None and low > 0) or all(c > 0 for _, c in a.terms):
        return low
    found = (low, _least_covered(a, positive), _least_covered(_from_least(a, positive)))
    return max((x for x in found if x is not None), default=None)


def _least_covered(a: Index, positive: frozenset[Atom] = frozenset()) -> int | None:
    """The same, by the terms of ``a`` as they stand."""
    left = dict(a.terms)
    for monomial, c in a.terms:
        if c < 0 and from_terms({monomial: c}, 0).bounds()[0] is None:
            del left[monomial]
            if not _covered(monomial, -c, left, positive):
                return None
    return from_terms(left, a.const).bounds()[0]


@lru_cache(maxsize=16384)
def _from_least(a: Index, positive: frozenset[Atom]) -> Index:
    """``a`` with sizes counted from the least value they have: ``s`` is that and 0 or more."""
    shifted: dict[Atom, Index] = {}
    for atom in {x for monomial, _ in a.terms for x in monomial}:
        low, high = index(atom).bounds()
        low = max(low or 0, int(atom in positive))
        if low > 0:
            over = index(atom) - low + 1 if high is None else index(high - low + 1)
            shifted[atom] = index(Axis(f"{atom_text(atom)} past {low}", over)) + low
    total = index(a.const)
    for monomial, c in a.terms:
        total = total + math.prod((shifted.get(x, index(x)) for x in monomial), start=index(c))
    return total


def _covered(
    monomial: Monomial, times: int, left: dict[Monomial, int], positive: frozenset[Atom]
) -> bool:
    """Whether multiples of ``monomial`` in ``left``, which are taken out of it, make up for
    ``times`` of it."""
    if not all(map(_is_natural, monomial)):
        return False
    for other, c in left.items():
        rest = without(other, monomial) if c > 0 else None
        if not rest or not all(map(_is_natural, rest)):
            continue
        each = math.prod(max(index(x).bounds()[0] or 0, int(x in positive)) for x in rest)
        taken = min(c, -(-times // each)) if each else 0
        left[other] -= taken
        times -= taken * each
        if times <= 0:
            return True
    return False


def greatest(a: Index) -> Index | None:
    """``a`` where each of its axes is at its end, which is its greatest value; None where it does
    not grow with its axes, or divides what holds one."""
    steps: dict[tuple[Axis, ...], Index] = {}
    for monomial, c in a.terms:
        axes = tuple(x for x in monomial if isinstance(x, Axis))
        others = tuple(x for x in monomial if not isinstance(x, Axis))
        if any(isinstance(x, Axis | Value) for other in others for x in index(other).atoms()):
            return None
        if axes:
            step = from_terms({others: c}, 0) if others else index(c)
            steps[axes] = steps.get(axes, Index()) + step
    positive = counted(a)
    lows = [least(step, positive) for step in steps.values()]
    if any(low is None or low < 0 for low in lows):
        return None
    return a.substitute({axis: axis.extent - 1 for axes in steps for axis in axes})


def _is_natural(atom: Atom) -> bool:
    low = index(atom).bounds()[0]
    return low is not None and low >= 0


def _common_factor(a: Index, b: Index) -> int:
    return math.gcd(*[c for _, c in a.terms], a.const, *[c for _, c in b.terms], b.const)


def _divided(a: Index, by: int) -> Index:
    return Index(tuple((m, c // by) for m, c in a.terms), a.const // by)
