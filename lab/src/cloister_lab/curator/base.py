"""What a curator's method is: public numbers, a cost, and one release."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from cloister.privacy.events import Event
from cloister.privacy.noise import NoiseSource
from cloister.protocol.task import Floats, Records


@runtime_checkable
class CuratorMethod(Protocol):
    """A frozen value of public numbers that turns all records into centres.

    Attributes
    ----------
    name : str
    private : bool
        Whether what it releases satisfies its stated guarantee.
    """

    name: ClassVar[str]
    private: ClassVar[bool]

    @classmethod
    def design(cls, *args: Any, **public: Any) -> Self:
        """Choose every public number.

        Called with the keywords `n_clusters`, `n_features`, `nominal_n`, `budget`, `frac_bits`,
        `public_seed`, and options of the method's own.
        """
        ...

    def describe(self) -> str:
        """Say in plain words what is released."""
        ...

    def events(self) -> Event:
        """Return what a release does to the records; of no meaning if it is not private."""
        ...

    def release(self, records: Records, noise: NoiseSource) -> Floats:
        """Return centres in ``[-1, 1]^d``, shape (n_clusters, n_features).

        Parameters
        ----------
        records : ndarray of shape (n_samples, n_features), int32, grid steps
        noise : NoiseSource
            All randomness that privacy needs.
        """
        ...
