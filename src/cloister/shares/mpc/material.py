"""What the dealer deals: random values, and others that depend on them, both shared.

Each kind names the shapes that are drawn at random and the function that derives one more array.
Drawn values cost no traffic: each server expands its share from its own key. Of the derived array,
server 0 expands its share as well, and server 1 gets the difference from the dealer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Literal, Protocol

import numpy as np

from cloister.core.errors import PlanError
from cloister.hazmat.ring import Words

VALUE_BITS = 62
"""Before a truncation every value must be below 2^62 in size, fraction bits included."""

Shape = tuple[int, ...]


class Sharing(Enum):
    """How two shares make a value: their sum modulo 2^64, or bit by bit their XOR."""

    SUM = "sum"
    XOR = "xor"

    def join(self, share0: Words, share1: Words) -> Words:
        """Return the value of two shares."""
        return share0 + share1 if self is Sharing.SUM else share0 ^ share1

    def rest(self, value: Words, share0: Words) -> Words:
        """Return the share that makes the value together with `share0`."""
        return value - share0 if self is Sharing.SUM else value ^ share0


class Material(Protocol):
    """One kind of correlated randomness; its fields are what a server asks the dealer for."""

    @property
    def sharing(self) -> tuple[Sharing, Sharing]:
        """Of what is drawn, and of what is derived."""

    def drawn(self) -> tuple[Shape, ...]:
        """Return the shapes of what is drawn at random."""

    def derived(self) -> Shape:
        """Return the shape of what depends on it."""

    @property
    def derive(self) -> Callable[..., Words]:
        """What makes it of the drawn values."""


@dataclass(frozen=True)
class _One:
    """One array is drawn, and what is derived has its shape."""

    shape: Shape

    def drawn(self) -> tuple[Shape, ...]:
        return (self.shape,)

    def derived(self) -> Shape:
        return self.shape


@dataclass(frozen=True)
class Product:
    """Two random arrays and their product under a bilinear map (Beaver 1991).

    Parameters
    ----------
    map : {"multiply", "matmul", "convolve", "and"}
        "multiply" and "and" broadcast as NumPy does; "and" is of bits, 64 a word, shared by XOR.
    left, right : tuple of int
    options : tuple of int
        Stride and padding of "convolve".
    """

    map: Literal["multiply", "matmul", "convolve", "and"]
    left: Shape
    right: Shape
    options: tuple[int, ...] = ()

    @property
    def sharing(self) -> tuple[Sharing, Sharing]:
        """Of the factors, and of their product."""
        return (Sharing.XOR, Sharing.XOR) if self.map == "and" else (Sharing.SUM, Sharing.SUM)

    def apply(self, x: Words, y: Words) -> Words:
        """Return the product of two arrays of these shapes, modulo 2^64 or bit by bit."""
        match self.map:
            case "multiply":
                return x * y
            case "matmul":
                return x @ y
            case "convolve":
                return _convolve(x, y, *self.options)
            case "and":
                return x & y

    derive = apply

    def drawn(self) -> tuple[Shape, ...]:
        """Return the shapes of the factors."""
        return self.left, self.right

    def derived(self) -> Shape:
        """Return the shape of the product.

        Raises
        ------
        PlanError
            If the map cannot take factors of these shapes.
        """
        left, right = self.left, self.right
        match self.map, self.options:
            case (("multiply" | "and"), ()):
                with suppress(ValueError):
                    return np.broadcast_shapes(left, right)
            case "matmul", () if len(left) >= 2 and len(right) == 2 and left[-1] == right[0]:
                return (*left[:-1], right[1])
            case "convolve", (stride, padding) if (
                len(left) == len(right) == 4
                and left[1] == right[1]
                and min(stride - 1, padding) >= 0
            ):
                room = [x + 2 * padding - k for x, k in zip(left[2:], right[2:], strict=True)]
                if min(room) >= 0:
                    return (left[0], right[0], *(r // stride + 1 for r in room))
        raise PlanError(
            f"{self.map} cannot take shapes {left} and {right} with options {self.options}; see "
            "the shapes in the docstrings of cloister.shares.mpc."
        )


def _convolve(x: Words, kernel: Words, stride: int, padding: int) -> Words:
    """Correlate images (n, c, h, w) with kernels (out, c, kh, kw), as networks do."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    out, _, height, width = kernel.shape
    windows = np.lib.stride_tricks.sliding_window_view(x, (height, width), axis=(2, 3))
    windows = windows[:, :, ::stride, ::stride]
    n, c, high, wide = windows.shape[:4]
    rows = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * high * wide, c * height * width)
    sums = rows @ kernel.reshape(out, -1).T
    return sums.reshape(n, high, wide, out).transpose(0, 3, 1, 2)


class Square(_One):
    """A random array and its squares: one opening in place of a product's two."""

    sharing: ClassVar = (Sharing.SUM, Sharing.SUM)

    def derive(self, root: Words) -> Words:
        """Return the squares."""
        return root * root


@dataclass(frozen=True)
class Truncation(_One):
    """Random r; r >> `bits` and the top bit of r, one behind the other."""

    bits: int
    sharing: ClassVar = (Sharing.SUM, Sharing.SUM)

    def __post_init__(self) -> None:
        if not 0 < self.bits < VALUE_BITS:
            raise PlanError(f"bits must be in [1, {VALUE_BITS - 1}], got {self.bits}.")

    def derived(self) -> Shape:
        """Return the shape of both."""
        return 2, *self.shape

    def derive(self, r: Words) -> Words:
        """Return both."""
        return np.stack([r >> np.uint64(self.bits), r >> np.uint64(63)])


class Bits(_One):
    """Random r, shared modulo 2^64 and bit by bit, its bits in the order of :func:`fold_order`."""

    sharing: ClassVar = (Sharing.SUM, Sharing.XOR)

    def derive(self, r: Words) -> Words:
        """Return the bits of r."""
        return fold_order(r)


class BitAsWord(_One):
    """A random bit an element, shared by XOR and again modulo 2^64; only the lowest bit counts."""

    sharing: ClassVar = (Sharing.XOR, Sharing.SUM)

    def derive(self, r: Words) -> Words:
        """Return the bits as words."""
        return r & np.uint64(1)


# Index bits i < j of a position are exchanged by moving what lies at the positions with bit i set
# and bit j clear by 2^j - 2^i; together the three exchanges reverse the six bits of the index.
_EXCHANGES = tuple(
    (
        np.uint64((1 << j) - (1 << i)),
        np.uint64(sum(1 << p for p in range(64) if p >> i & 1 and not p >> j & 1)),
    )
    for i, j in ((0, 5), (1, 4), (2, 3))
)


def fold_order(words: Words) -> Words:
    """Put the bit of position p at the position with the bits of p reversed; its own inverse.

    In this order the neighbours 2p and 2p + 1 lie half a word apart, and so again in each half: a
    tree over neighbours works on halves of words.
    """
    for shift, mask in _EXCHANGES:
        moved = ((words >> shift) ^ words) & mask
        words = words ^ moved ^ (moved << shift)
    return words
