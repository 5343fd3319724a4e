"""The noise of a release: exact and discrete, from the operating system, without a seed."""

from __future__ import annotations

from typing import Literal, Protocol

from cloister.core.errors import PlanError
from cloister.core.randomness import ByteSource, SecretStream
from cloister.hazmat.discrete import discrete_gaussian, discrete_laplace
from cloister.hazmat.prg import stream
from cloister.hazmat.ring import Integers

NoiseKind = Literal["gaussian", "laplace"]
_SAMPLERS = {"gaussian": discrete_gaussian, "laplace": discrete_laplace}


AGGREGATOR_NOISE = "the aggregator's, not checkable by a silo"
"""Label of the noise at a silo in a networked job with a group mask."""


SILOS_NOISE = "a share from each silo"
"""Label of the noise in a result under pairwise masks that silos seal to a reader."""


class NoiseSource(Protocol):
    """Source of noise for an aggregator: integers of a named distribution and scale."""

    @property
    def label(self) -> str:
        """The source of the noise; every result has it."""

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        """Return `size` integers of the discrete distribution `kind` with integer `scale`."""


class DiscreteNoise:
    """Exact discrete Gaussian and Laplace noise on a ChaCha20 stream keyed by the system.

    Notes
    -----
    Discrete Gaussian noise with parameter sigma of at least `scale` on the integer lattice
    satisfies the same zCDP bound as the continuous one. [CKS20]_ Theorem 4.

    References
    ----------
    .. [CKS20] Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy",
       arXiv:2004.00010.
    """

    label = "operating system"

    def __init__(self) -> None:
        self._stream: ByteSource = SecretStream()

    def draw(self, kind: NoiseKind, scale: int, size: int) -> Integers:
        """Return `size` exact samples; `scale` is sigma (Gaussian) or the Laplace scale, >= 1."""
        if kind not in _SAMPLERS:  # never another distribution than the accounted one
            raise PlanError(f"kind of noise must be one of {sorted(_SAMPLERS)}, got {kind!r}.")
        return _SAMPLERS[kind](scale, size, self._stream)

    def __repr__(self) -> str:
        return "DiscreteNoise(operating system)"


class ShareNoise(DiscreteNoise):
    """A silo's share of the noise of one round, from a key of that round.

    The key comes from a secret that the operating system made for the job. So a silo that was
    restored from a copy of its disk sends the same bytes again. It never sends two vectors under
    one mask with different noise.

    Parameters
    ----------
    key : bytes of length 32
        Key of this round, without another use.
    """

    def __init__(self, key: bytes) -> None:
        # Without the stream of the base class, whose key cannot be made again.
        self._stream = stream(key)

    def __repr__(self) -> str:
        return "ShareNoise(secret of the job)"
