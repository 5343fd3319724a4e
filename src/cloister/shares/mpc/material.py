"""The dealer's material: random arrays, and an array derived from them, all shared.

Each kind defines the shapes of the random arrays and the function that derives one more array.
Drawn arrays cost no traffic: each server expands its share from its own key. Server 0 expands its
share of the derived array as well, and server 1 receives the difference from the dealer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from cloister.core.errors import PlanError
from cloister.hazmat.ring import Words

VALUE_BITS = 62
"""Values before a truncation must be below 2^62 in absolute value, fraction bits included."""

Shape = tuple[int, ...]


class Sharing(Enum):
    """The combination of two shares into a value: sum modulo 2^64, or bitwise XOR.

    Drawn arrays may also stay apart: what each server draws is its secret, and no share. Their
    value is both draws, one after the other.
    """

    SUM = "sum"
    XOR = "xor"
    APART = "apart"

    def join(self, share0: Words, share1: Words) -> Words:
        """Return the value of two shares."""
        if self is Sharing.APART:
            return np.stack([share0, share1])
        return share0 + share1 if self is Sharing.SUM else share0 ^ share1

    def rest(self, value: Words, share0: Words) -> Words:
        """Return the share that combines with `share0` into the value."""
        return value - share0 if self is Sharing.SUM else value ^ share0


class Material(Protocol):
    """One kind of correlated randomness; its fields are a server's request to the dealer."""

    @property
    def sharing(self) -> tuple[Sharing, Sharing]:
        """Sharing of the drawn arrays, and of the derived array."""

    def drawn(self) -> tuple[Shape, ...]:
        """Return the shapes of the random arrays."""

    def derived(self) -> Shape:
        """Return the shape of the derived array."""

    @property
    def derive(self) -> Callable[..., Words]:
        """The function from the random arrays to the derived one."""


class Bilinear(Material, Protocol):
    """Material of two factors and their product."""

    def apply(self, x: Words, y: Words, /) -> Words:
        """Return the product of two arrays."""


@dataclass(frozen=True)
class _One:
    """Material of one random array, with a derived array of the same shape."""

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
        "multiply" and "and" broadcast like NumPy; "and" works on bits, 64 per word, shared by XOR.
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
        """Sharing of the factors, and of their product."""
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
            If the map does not accept factors of these shapes.
        """
        left, right = self.left, self.right
        match self.map, self.options:
            # NumPy raises ValueError for shapes that do not broadcast.
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
    """Correlate images (n, c, h, w) with kernels (out, c, kh, kw), as in neural networks."""
    # As one matrix product, since NumPy has no convolution of integers.
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
    """Random r, and as one array r >> `bits` and the top bit of r."""

    bits: int
    sharing: ClassVar = (Sharing.SUM, Sharing.SUM)

    def __post_init__(self) -> None:
        if not 0 < self.bits < VALUE_BITS:
            raise PlanError(f"bits must be in [1, {VALUE_BITS - 1}], got {self.bits}.")

    def derived(self) -> Shape:
        """Return the shape of both arrays."""
        return 2, *self.shape

    def derive(self, r: Words) -> Words:
        """Return both arrays."""
        # Both in one item, which saves a message.
        return np.stack([r >> np.uint64(self.bits), r >> np.uint64(63)])


class Bits(_One):
    """Random r, shared modulo 2^64 and bit by bit, its bits in the order of :func:`fold_order`."""

    sharing: ClassVar = (Sharing.SUM, Sharing.XOR)

    def derive(self, r: Words) -> Words:
        """Return the bits of r."""
        return fold_order(r)


class BitAsWord(_One):
    """One random bit per element, shared by XOR and modulo 2^64; only the lowest bit counts."""

    sharing: ClassVar = (Sharing.XOR, Sharing.SUM)

    def derive(self, r: Words) -> Words:
        """Return the bits as words."""
        return r & np.uint64(1)


@dataclass(frozen=True)
class Pick:
    """Random bits, 64 a word, and rows: zeros in place of each row whose bit is 0.

    Parameters
    ----------
    n, width : int
        Number of rows, and of words of each.
    """

    n: int
    width: int
    sharing: ClassVar = (Sharing.XOR, Sharing.XOR)

    def apply(self, bits: Words, rows: Words) -> Words:
        """Return the rows whose bit is set, zeros for the others."""
        chosen = np.unpackbits(bits.view(np.uint8), count=self.n).astype(np.uint64)
        return (np.uint64(0) - chosen)[:, np.newaxis] & rows

    derive = apply

    def drawn(self) -> tuple[Shape, ...]:
        """Return the shapes of bits and rows."""
        return (-(-self.n // 64),), (self.n, self.width)

    def derived(self) -> Shape:
        """Return the shape of the rows."""
        return self.n, self.width


@dataclass(frozen=True)
class Shuffle:
    """An order that one server draws, and the other server's masks in that order.

    Parameters
    ----------
    holder : {0, 1}
        The server that knows the order; so does the dealer.
    n, width : int
        Number of rows, and of words of each.
    """

    holder: int
    n: int
    width: int
    sharing: ClassVar = (Sharing.APART, Sharing.XOR)

    def __post_init__(self) -> None:
        # A request of the other server names it, so it may be any value.
        if type(self.holder) is not int or self.holder not in (0, 1):
            raise PlanError(f"holder must be 0 or 1, got {self.holder!r}.")

    def drawn(self) -> tuple[Shape, ...]:
        """Return the shapes of sorting keys and masks."""
        return (2, self.n), (self.n, self.width)

    def derived(self) -> Shape:
        """Return the shape of the masks."""
        return self.n, self.width

    def derive(self, keys: Words, masks: Words) -> Words:
        """Return the masks in the order."""
        return np.asarray(masks[1 - self.holder][order_of(keys[self.holder])])


def order_of(keys: Words) -> NDArray[np.intp]:
    """Return a random order from two random words a row."""
    # 128 bits: with 64, two of a million rows would have equal keys in one run of 2^25.
    return np.lexsort(keys)


# Index bits i < j of a position are exchanged by moving the bits at positions with bit i set and
# bit j clear by 2^j - 2^i. Together the three exchanges reverse the six bits of the index.
_EXCHANGES = tuple(
    (
        np.uint64((1 << j) - (1 << i)),
        np.uint64(sum(1 << p for p in range(64) if p >> i & 1 and not p >> j & 1)),
    )
    for i, j in ((0, 5), (1, 4), (2, 3))
)


def fold_order(words: Words) -> Words:
    """Move the bit of position p to the position with the bits of p reversed; self-inverse.

    In this order the neighbours 2p and 2p + 1 are half a word apart, and likewise in each half. So
    a tree over neighbours works on halves of words.
    """
    for shift, mask in _EXCHANGES:
        moved = ((words >> shift) ^ words) & mask
        words = words ^ moved ^ (moved << shift)
    return words
