"""Eager's random numbers (`loops.philox` says what they are) for Triton kernels.

Seed, offset and threads are tiles of one element, elements a tile of int64.
"""

# Triton compiles these bodies; the annotations a Python reader expects mean nothing to it.
# mypy: disable-error-code="no-untyped-def, no-any-return"

import triton
import triton.language as tl


@triton.jit
def words(seed, offset, thread, step):
    """The four of a thread's ``step``-th step from ``offset``, which counts words."""
    counter = (offset >> 2) + step
    low, high = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    thread = thread.to(tl.uint32)
    return tl.philox(seed, low, high, thread, thread * 0)


@triton.jit
def words_of(seed, offset, threads, together, element):
    """The words, and the number of the one that is the element's own."""
    group, within = element // together, element % together
    thread, turn = group % threads, group // threads
    own = tl.where(together == 1, turn, within) % 4
    steps = tl.where(together == 8, turn * 2 + within // 4, turn)
    step = tl.where(together == 1, turn // 4, steps)
    x, y, z, w = words(seed, offset, thread, step)
    return x, y, z, w, own


@triton.jit
def word(seed, offset, threads, together, element):
    """The one of `words_of` that is the element's own, uint32."""
    x, y, z, w, own = words_of(seed, offset, threads, together, element)
    return tl.where(own < 2, tl.where(own == 0, x, y), tl.where(own == 2, z, w))


@triton.jit
def bits(seed, offset, threads, together, element):
    """The word as int64."""
    return word(seed, offset, threads, together, element).to(tl.int64)


@triton.jit
def to_uniform(x):
    """float32 in (0, 1]: factors 2^-32 and 2^-33. The product is exact."""
    return x.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10


@triton.jit
def uniform(seed, offset, threads, together, element):
    """`to_uniform` of the element's word."""
    return to_uniform(word(seed, offset, threads, together, element))


@triton.jit
def uniform_of_4(seed, offset, threads, together: tl.constexpr, elements):
    """The elements' last two dimensions, 2 and 2, hold four neighbours, from a multiple of 4 on;
    the result has them, too. One step serves the four. ``together``: 4 or 8."""
    evens, _ = tl.split(elements)
    first, _ = tl.split(evens)
    group = first // together
    step = group // threads * (together // 4) + first % together // 4
    x, y, z, w = words(seed, offset, group % threads, step)
    left = tl.join(to_uniform(x), to_uniform(z))
    return tl.join(left, tl.join(to_uniform(y), to_uniform(w)))


@triton.jit
def normal_parts(seed, offset, threads, together, element):
    """Box and Muller's two uniform numbers, the second as angle; whether the cosine is wanted."""
    x, y, z, w, own = words_of(seed, offset, threads, together, element)
    radius = to_uniform(tl.where(own < 2, x, z))
    angle = tl.where(own < 2, y, w).to(tl.float32)
    return radius, tl.fma(angle, 1.46291807e-09, 7.31459037e-10), own % 2 == 1
