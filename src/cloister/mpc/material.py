"""What the dealer deals: random values, and others that depend on them, both shared.

Each kind names the shapes that are drawn at random and the function that gives the rest. Drawn
values cost no traffic: each server expands its share from its own key. Of what depends on them,
server 0 expands its share as well, and server 1 gets the difference from the dealer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Literal, Protocol

import numpy as np

from cloister.errors import PlanError
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
    """One kind of correlated randomness."""

    sharing: ClassVar[tuple[Sharing, Sharing]]
    """Of what is drawn, and of what is derived."""

    def drawn(self) -> tuple[Shape, ...]:
        """Shapes of what is drawn at random."""
        ...

    def derived(self) -> tuple[Shape, ...]:
        """Shapes of what depends on it."""
        ...

    def derive(self, drawn: Sequence[Words]) -> tuple[Words, ...]:
        """Return what depends on the drawn values."""
        ...


# Bilinear maps ----------------------------------------------------------------------------------


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


def _shape_of_multiply(left: Shape, right: Shape) -> Shape | None:
    try:
        return np.broadcast_shapes(left, right)
    except ValueError:
        return None


def _shape_of_matmul(left: Shape, right: Shape) -> Shape | None:
    fits = len(left) >= 2 and len(right) == 2 and left[-1] == right[0]
    return (*left[:-1], right[1]) if fits else None


def _shape_of_convolve(left: Shape, right: Shape, stride: int, padding: int) -> Shape | None:
    if len(left) != 4 or len(right) != 4 or left[1] != right[1] or stride < 1 or padding < 0:
        return None
    room = [size + 2 * padding - kernel for size, kernel in zip(left[2:], right[2:], strict=True)]
    return (left[0], right[0], *(r // stride + 1 for r in room)) if min(room) >= 0 else None


_SHAPES: dict[str, Callable[..., Shape | None]] = {
    "multiply": _shape_of_multiply,
    "matmul": _shape_of_matmul,
    "convolve": _shape_of_convolve,
}


@dataclass(frozen=True)
class Product:
    """Two random arrays and their product under a bilinear map (Beaver 1991).

    Parameters
    ----------
    map : {"multiply", "matmul", "convolve"}
        "multiply" broadcasts as NumPy does.
    left, right : tuple of int
    options : tuple of int
        Stride and padding of "convolve".
    """

    map: Literal["multiply", "matmul", "convolve"]
    left: Shape
    right: Shape
    options: tuple[int, ...] = ()
    sharing: ClassVar = (Sharing.SUM, Sharing.SUM)

    def apply(self, x: Words, y: Words) -> Words:
        """Return the product of two arrays of these shapes, modulo 2^64."""
        if self.map == "multiply":
            return x * y
        if self.map == "matmul":
            return x @ y
        return _convolve(x, y, *self.options)

    def drawn(self) -> tuple[Shape, ...]:
        """Shapes of the factors."""
        return self.left, self.right

    def derived(self) -> tuple[Shape, ...]:
        """Shape of the product.

        Raises
        ------
        PlanError
            If the map cannot take factors of these shapes.
        """
        shape = _SHAPES[self.map](self.left, self.right, *self.options)
        if shape is None or min((*self.left, *self.right, *shape)) < 0:
            raise PlanError(
                f"{self.map} cannot take shapes {self.left} and {self.right} with options "
                f"{self.options}; see the shapes in the docstrings of cloister.mpc."
            )
        return (shape,)

    def derive(self, drawn: Sequence[Words]) -> tuple[Words, ...]:
        """Return the product."""
        return (self.apply(*drawn),)


@dataclass(frozen=True)
class Square:
    """A random array and its squares: one opening in place of a product's two."""

    shape: Shape
    sharing: ClassVar = (Sharing.SUM, Sharing.SUM)

    def drawn(self) -> tuple[Shape, ...]:
        """Shape of the root."""
        return (self.shape,)

    def derived(self) -> tuple[Shape, ...]:
        """Return the shape of the drawn value."""
        return self.drawn()

    def derive(self, drawn: Sequence[Words]) -> tuple[Words, ...]:
        """Return the squares."""
        return (drawn[0] * drawn[0],)


@dataclass(frozen=True)
class And:
    """Two random arrays of bits, 64 a word, and their AND; broadcasts as NumPy does."""

    left: Shape
    right: Shape
    sharing: ClassVar = (Sharing.XOR, Sharing.XOR)

    def drawn(self) -> tuple[Shape, ...]:
        """Shapes of the factors."""
        return self.left, self.right

    def derived(self) -> tuple[Shape, ...]:
        """Shape of the AND."""
        return (np.broadcast_shapes(self.left, self.right),)

    def derive(self, drawn: Sequence[Words]) -> tuple[Words, ...]:
        """Return the AND."""
        return (drawn[0] & drawn[1],)


@dataclass(frozen=True)
class Truncation:
    """Random r, r >> `bits` and the top bit of r."""

    shape: Shape
    bits: int
    sharing: ClassVar = (Sharing.SUM, Sharing.SUM)

    def __post_init__(self) -> None:
        if not 0 < self.bits < VALUE_BITS:
            raise PlanError(f"bits must be in [1, {VALUE_BITS - 1}], got {self.bits}.")

    def drawn(self) -> tuple[Shape, ...]:
        """Shape of r."""
        return (self.shape,)

    def derived(self) -> tuple[Shape, ...]:
        """Shapes of the shifted r and of its top bit."""
        return self.shape, self.shape

    def derive(self, drawn: Sequence[Words]) -> tuple[Words, ...]:
        """Return both."""
        return drawn[0] >> np.uint64(self.bits), drawn[0] >> np.uint64(63)


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


@dataclass(frozen=True)
class Bits:
    """Random r, shared modulo 2^64 and bit by bit, its bits in the order of :func:`fold_order`."""

    shape: Shape
    sharing: ClassVar = (Sharing.SUM, Sharing.XOR)

    def drawn(self) -> tuple[Shape, ...]:
        """Shape of r."""
        return (self.shape,)

    def derived(self) -> tuple[Shape, ...]:
        """Return the shape of the drawn value."""
        return self.drawn()

    def derive(self, drawn: Sequence[Words]) -> tuple[Words, ...]:
        """Return the bits of r."""
        return (fold_order(drawn[0]),)


@dataclass(frozen=True)
class BitAsWord:
    """A random bit an element, shared by XOR and again modulo 2^64."""

    shape: Shape
    sharing: ClassVar = (Sharing.XOR, Sharing.SUM)

    def drawn(self) -> tuple[Shape, ...]:
        """Shape of the bits; of each word drawn only the lowest bit counts."""
        return (self.shape,)

    def derived(self) -> tuple[Shape, ...]:
        """Return the shape of the drawn value."""
        return self.drawn()

    def derive(self, drawn: Sequence[Words]) -> tuple[Words, ...]:
        """Return the bits as words."""
        return (drawn[0] & np.uint64(1),)
