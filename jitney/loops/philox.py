"""Eager's random numbers on CUDA: which words of the Philox stream an element gets.

Every thread of eager's kernel has a sequence of its own of Philox4x32-10 (Salmon et al., "Parallel
random numbers: as easy as 1, 2, 3", 2011), in which one step gives four words. The functions here
are the reference: words are int64 tensors of values below 2**32.
"""

from __future__ import annotations

import math

import torch

Tensor = torch.Tensor

#: Threads of a block, numbers of one step, and bytes that a thread loads at once, in all of
#: eager's kernels.
BLOCK, WORDS, LOADED = 256, 4, 16
_LOW = 0xFFFFFFFF
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85


def thread_count(numel: int, multiprocessors: int, threads_each: int) -> int:
    """Threads that draw for ``numel`` elements: no more than the device runs at once."""
    return BLOCK * min(-(-numel // BLOCK), multiprocessors * (threads_each // BLOCK))


def neighbours(numel: int, most: int) -> int:
    """How many neighbours a thread of a dropout draws for at once, of ``most`` (a power of two)
    that begin where it could load them at once."""
    while numel % most:
        most //= 2
    return most


def offset_step(numel: int, threads: int) -> int:
    """How far the generator's offset moves when ``threads`` draw for ``numel`` elements."""
    return ((numel - 1) // (threads * WORDS) + 1) * WORDS


def philox(seed: Tensor, counter: Tensor, thread: Tensor) -> tuple[Tensor, ...]:
    """The four words of a thread's sequence at ``counter`` (steps from its beginning)."""
    keys = [seed & _LOW, seed >> 32 & _LOW]
    x, y, z, w = counter & _LOW, counter >> 32 & _LOW, thread & _LOW, thread >> 32 & _LOW
    for _ in range(10):
        x, y, z, w = (
            _high(z, _MULTIPLIERS[1]) ^ y ^ keys[0],
            z * _MULTIPLIERS[1] & _LOW,
            _high(x, _MULTIPLIERS[0]) ^ w ^ keys[1],
            x * _MULTIPLIERS[0] & _LOW,
        )
        keys = [key + step & _LOW for key, step in zip(keys, _KEY_STEPS, strict=True)]
    return x, y, z, w


def _high(a: Tensor, b: int) -> Tensor:
    """The upper 32 bits of a product of 32-bit numbers."""
    low, high = a * (b & 0xFFFF), a * (b >> 16)
    return (high + (low >> 16)) >> 16


def words_of(
    seed: Tensor, offset: Tensor, threads: Tensor, together: Tensor, element: Tensor
) -> tuple[tuple[Tensor, ...], Tensor]:
    """The words drawn for an element, and which of them is its own.

    ``together`` 1: a thread takes elements that lie ``threads`` apart, four for each step; else it
    takes that many neighbours, with as many steps as they need (two of them need a whole one).
    """
    group, within = element // together, element % together
    thread, turn = group % threads, group // threads
    strided = together == 1
    own = torch.where(strided, turn, within) % WORDS
    steps = turn * (together // WORDS).clamp(min=1) + within // WORDS
    step = torch.where(strided, turn // WORDS, steps)
    return philox(seed, offset // WORDS + step, thread), own


def _pick(words: tuple[Tensor, ...], own: Tensor) -> Tensor:
    x, y, z, w = words
    return torch.where(own < 2, torch.where(own == 0, x, y), torch.where(own == 2, z, w))


def bits(*draw: Tensor) -> Tensor:
    """One word, int64. Arguments as of `words_of`."""
    return _pick(*words_of(*draw))


def uniform(*draw: Tensor) -> Tensor:
    """float32 in (0, 1], as curand_uniform4 gives it."""
    return bits(*draw).float() * 2.0**-32 + 2.0**-33


def normal(*draw: Tensor) -> Tensor:
    """float32 of the standard normal distribution, two from two words (Box and Muller, 1958), as
    curand_normal4 pairs them; its own sine is less exact."""
    (x, y, z, w), own = words_of(*draw)
    first = own < 2
    radius, turn = torch.where(first, x, z), torch.where(first, y, w)
    length = torch.sqrt(-2 * torch.log(radius.float() * 2.0**-32 + 2.0**-33))
    step = math.tau * 2.0**-32
    angle = turn.float() * step + step / 2
    return length * torch.where(own % 2 == 0, angle.sin(), angle.cos())
