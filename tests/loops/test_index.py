"""The index algebra against brute force: every simplification must keep every value."""

from __future__ import annotations

import itertools
import pickle

from hypothesis import given, settings
from hypothesis import strategies as st

from jitney.loops.index import Axis, Dim, FloorDiv, Index, Mod, index
from jitney.loops.index_division import counted, greatest, least

I, J, K = (Axis(n, index(e)) for n, e in (("i", 3), ("j", 4), ("k", 6)))
D = Dim("s", low=2, high=5)
R = Axis("r", index(D))
CASES = [
    dict(zip((I, J, K, D, R), values, strict=True))
    for values in itertools.product(range(3), range(4), range(6), (2, 3, 5), range(5))
    if values[4] < values[3]
]

atoms = st.sampled_from([I, J, K, D, R])
sizes = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24])


@st.composite
def polynomials(draw: st.DrawFn) -> tuple[Index, object]:
    """An index with a Python function that computes the same without any simplification."""
    kinds = ["atom", "const", "add", "mul", "div", "mod", "divd", "modd", "divs", "mods"]
    kind = draw(st.sampled_from(kinds))
    if kind == "const":
        c = draw(st.integers(-5, 30))
        return index(c), lambda v: c
    if kind == "atom":
        atom, c = draw(atoms), draw(st.sampled_from([1, 1, 2, 4, 6, 12, 13, 21, -1]))
        return index(atom) * c, lambda v: v[atom] * c
    a, fa = draw(polynomials())
    if kind in ("add", "mul"):
        b, fb = draw(polynomials())
        if kind == "add":
            return a + b, lambda v: fa(v) + fb(v)
        return a * b, lambda v: fa(v) * fb(v)
    n = draw(sizes)
    if kind == "div":
        return a // n, lambda v: fa(v) // n
    if kind == "mod":
        return a % n, lambda v: fa(v) % n
    if kind == "divs":
        return a // (index(D) + n), lambda v: fa(v) // (v[D] + n)
    if kind == "mods":
        return a % (index(D) + n), lambda v: fa(v) % (v[D] + n)
    if kind == "divd":
        return a // (index(D) * n), lambda v: fa(v) // (v[D] * n)
    return a % (index(D) * n), lambda v: fa(v) % (v[D] * n)


@settings(max_examples=150, deadline=None)
@given(polynomials(), st.integers(0, 10_000))
def test_simplified_equals_plain(pair, seed):
    simplified, plain = pair
    low, high = simplified.bounds()
    end = greatest(simplified)
    for case in CASES[seed % 7 :: 7]:
        value = plain(case)
        assert simplified.evaluate(case) == value
        assert low is None or low <= value
        assert high is None or value <= high
        assert end is None or value <= end.evaluate(case)


# sizes with no upper bound, axes over their products
M, N = Dim("m", low=1), Dim("n", low=2)
WIDE = [Axis("a", index(M)), Axis("b", M * index(N)), Axis("c", index(M) * M), Axis("d", index(N))]
WIDE_CASES = [
    {M: m, N: n} | dict(zip(WIDE, values, strict=True))
    for m, n in itertools.product((1, 2, 3), (2, 3, 5))
    for values in itertools.product(*(sorted({0, 1, e - 1}) for e in (m, m * n, m * m, n)))
    if all(v < e for v, e in zip(values, (m, m * n, m * m, n), strict=True))
]
WIDE_SIZES = [index(M), index(N), M * index(N), index(M) * M, M * index(N) * N, index(N) + 1]
WIDE_SIZES += [index(N) - 1, (index(N) - 1) * (index(N) - 1)]
WIDE_PARTS = [index(x) for x in (*WIDE, M, N)] + [x * (index(N) - 1) for x in WIDE]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(WIDE_PARTS), st.sampled_from([-1, 1, 2])), max_size=3),
    st.sampled_from(WIDE_SIZES),
    st.sampled_from(WIDE_SIZES),
    st.sampled_from([-1, 0, 1]),
)
def test_parts_of_sizes_without_bounds(terms, size, other, factor):
    """Terms by products of sizes, as parts of rows are, divided by another product."""
    value = sum((x * c for x, c in terms), index(0)) + other * factor
    quotient, rest = value // size, value % size
    low, at_least, end = value.bounds()[0], least(value, counted(value)), greatest(value)
    for case in WIDE_CASES:
        plain, by = value.evaluate(case), size.evaluate(case)
        assert end is None or plain <= end.evaluate(case)
        assert quotient.evaluate(case) == plain // by
        assert rest.evaluate(case) == plain % by
        assert at_least is None or (low or at_least) <= at_least <= plain


@st.composite
def parts(draw: st.DrawFn) -> tuple[Index, object]:
    """A part of a sum that others of its kind join: ``x``, ``x % n`` or ``n * (x // n)``."""
    x = draw(st.sampled_from([index(K), index(K) * 4 + J, index(R)]))
    n = draw(st.sampled_from([index(4), index(D)]))
    c, kind = draw(st.sampled_from([-2, -1, 1, 2])), draw(st.sampled_from(["x", "mod", "div"]))
    part = x if kind == "x" else x % n if kind == "mod" else x // n * n

    def plain(v: object) -> int:
        value, size = x.evaluate(v), n.evaluate(v)
        rest = value % size
        return c * (value if kind == "x" else rest if kind == "mod" else value - rest)

    return part * c, plain


@settings(max_examples=100, deadline=None)
@given(st.lists(parts(), min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_a_sum_has_one_value_in_any_order(drawn, random):
    """Not always one form: quotients and remainders are put together as they meet."""
    shuffled = random.sample(drawn, len(drawn))
    first, second = (sum((part for part, _ in s), index(0)) for s in (drawn, shuffled))
    for case in CASES[:: len(CASES) // 24]:
        value = sum(plain(case) for _, plain in drawn)
        assert first.evaluate(case) == second.evaluate(case) == value
        for low, high in (first.bounds(), second.bounds()):
            assert low is None or low <= value
            assert high is None or value <= high


@settings(max_examples=80, deadline=None)
@given(polynomials(), polynomials(), atoms, st.integers(0, 10_000))
def test_substitute_and_coefficient(pair, other, atom, seed):
    (a, fa), (b, fb) = pair, other
    substituted = a.substitute({atom: b})
    stride = a.coefficient(atom) if isinstance(atom, Axis) else None
    for case in CASES[seed % 23 :: 23]:
        inside = {**case, atom: fb(case)}
        # Simplifying relied on the atom's range: only values in range must agree.
        if isinstance(atom, Axis) and 0 <= inside[atom] < atom.extent.evaluate(case):
            assert substituted.evaluate(case) == fa(inside)
        up = {**case, atom: case[atom] + 1}
        if stride is not None and up[atom] < atom.extent.evaluate(case):
            assert a.evaluate(up) - a.evaluate(case) == stride.evaluate(case)


def test_flatten_and_unflatten_cancel():
    b, s, h, d = (Axis(n, index(e)) for n, e in (("b", 2), ("s", 128), ("h", 12), ("d", 64)))
    linear = index(b) * 98304 + index(s) * 768 + index(h) * 64 + index(d)
    assert linear // 98304 == index(b)
    assert linear % 98304 // 768 == index(s)
    assert linear % 768 // 64 == index(h)
    assert linear % 64 == index(d)
    assert linear // 768 == index(b) * 128 + index(s)
    x = Axis("x", index(768))
    assert index(x) // 64 * 64 + index(x) % 64 == index(x)
    assert index(x) // 64 // 3 * 3 + index(x) // 64 % 3 == index(x) // 64
    digits = index(x) // 64 * 8192 + index(x) % 64
    assert digits // 8192 * 64 + digits % 8192 == index(x)


def test_symbolic_flatten_and_unflatten_cancel():
    batch, length = Dim("s0"), Dim("s1")
    b, s, d = Axis("b", index(batch)), Axis("s", index(length)), Axis("d", index(64))
    linear = (index(b) * length + s) * 64 + d
    assert linear % 64 == index(d)
    assert linear // 64 == index(b) * length + s
    assert linear // 64 // length == index(b)
    assert linear // 64 % length == index(s)
    assert linear // (index(length) * 64) == index(b)
    flat = Axis("f", index(batch) * length)
    assert index(flat) // length * length + index(flat) % length == index(flat)


def test_rows_of_a_padded_tensor_are_split():
    """A sum as the width: its multiples are taken out whole, a column inside it drops out."""
    width = index(D) + 4
    linear = I * width + J
    assert linear // width == index(I)
    assert linear % width == index(J)
    assert (linear + K * (width * 2)) // width == index(I) + index(K) * 2
    assert (linear + width * 3) // width == index(I) + 3
    assert (linear - width) % width == index(J)
    assert (D + index(K)) // width == index(FloorDiv(D + index(K), width))


def test_a_part_of_a_square_is_within_it():
    """As the first, or last, column of a grid of patches within all of them."""
    side = index(Dim("s", low=8)) // 8
    part = index(Axis("p", side))
    assert part // (side * side) == (part + side * side - side) // (side * side) == index(0)
    assert (part - side) % (side * side) == part + side * side - side
    assert (part + side * side) // (side * side) == index(1)
    assert (part + side * side - 1) // (side * side) != index(1)


def test_a_polynomial_is_bounded_from_the_least_of_its_sizes():
    """A convolution of 3 leaves ``s - 2`` of a side: its image has ``s * s - 4 * s + 4`` points."""
    side = index(Dim("s", low=4)) - 2
    channel, row = Axis("c", index(8)), Axis("y", side)
    assert least(side * side - side * 2) == 0
    assert least(side * side - side * 3) is None or least(side * side - side * 3) < 0
    at = channel * (side * side) + row * side + Axis("x", side)
    assert greatest(at) == side * side * 8 - 1
    assert at // (side * side) == index(channel)
    assert greatest(row * (side - 3)) is None


def test_sizes_rounded_up_divide_again():
    """Rows padded to whole blocks, as libraries write it, and the rows of a block."""
    size = index(D)
    for padded in (size + (64 - size % 64) % 64, size + (-size) % 64):
        assert padded == (size + 63) // 64 * 64
        assert padded // (padded // 64) == index(64)
        assert padded.bounds() == (64, 64)


def test_equal_polynomials_are_equal_values_and_survive_pickle():
    a = (index(I) + J) * (index(I) - J)
    b = index(I) * I - index(J) * J
    assert a == b and hash(a) == hash(b)
    again = pickle.loads(pickle.dumps(a))
    assert again == a and hash(again) == hash(a)
    assert isinstance(next(iter((index(K) // 4).atoms() - {K})), FloorDiv)
    assert isinstance(next(iter((index(K) % 4).atoms() - {K})), Mod)


def test_a_remainder_of_a_remainder_drops_what_divides() -> None:
    v, i = Axis("v", index(64)), Axis("i", index(9))
    assert ((index(v) + index(i) * 8) % 16) % 8 == (index(v) + index(i) * 8) % 8 == index(v) % 8


def test_parts_of_rows_whose_number_is_rounded_up() -> None:
    """Of a padded row, one part is read backwards where all were written."""
    from jitney.loops.invert_index import same_iteration

    parts = (index(Dim("s0")) + 63) // index(64)
    row, head = Axis("row", index(2)), Axis("head", index(2))
    part, place, back = Axis("part", parts), Axis("place", index(64)), Axis("back", index(64))
    start = (index(row) * 2 + index(head)) * parts * 64
    written = start + index(part) * 64 + index(place)
    read = start - index(back) + 63
    shared = (row, head)
    assert same_iteration(written, (*shared, part, place), read, shared)
    assert not same_iteration(written, (*shared, part, place), read + parts * 64, shared)


def test_a_part_of_a_remainder_is_a_remainder_within_bounds() -> None:
    size, at = Dim("s"), Axis("at", index(1 << 40))
    plane = index(size) * index(size)
    channel = index(at) % (3 * plane) // plane
    assert channel == index(at) // plane % 3
    for n, x in itertools.product((1, 2, 5), range(90)):
        assert channel.evaluate({size: n, at: x}) == x % (3 * n * n) // (n * n)


def test_steps_larger_than_a_row_are_whole_rows_and_a_step_within() -> None:
    i = index(Axis("i", index(3)))
    assert (i * 21) // 20 == i and (i * 21) % 20 == i
    assert (i * 25 + 2) // 10 != i * 2  # may reach the next row


def test_symbols_of_one_name_and_other_hints_are_kept_apart() -> None:
    """What is computed of one program's symbol is not given to the next one's."""
    for hint in (64, 4, 3000, 64):
        size = index(Dim("of two programs", hint=hint))
        assert (size * size * size).hint() == hint**3
        assert (size * 8 + 5).hint() == 8 * hint + 5
        assert ((size * size) // 3).hint() == hint**2 // 3
