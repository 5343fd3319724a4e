"""Partitions at the workers of a Dask cluster of the silo's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from cloister.core.errors import DataError, PlanError
from cloister.core.randomness import new_nonce
from cloister.data.partitions import Failure, Held, Read, T


class DaskWorkers:
    """Workers of a Dask cluster; a partition stays at the worker that read it.

    Parameters
    ----------
    address : str
        Of the scheduler: ``tls://HOST:PORT``, with the certificates that Dask's own configuration
        names; on this machine also ``tcp://localhost:PORT``.

    Raises
    ------
    PlanError
        If the address is another one.

    Notes
    -----
    Whoever reaches the scheduler or a worker reads the records and runs code as their owner: all
    of the cluster belongs to the silo.
    """

    def __init__(self, address: str) -> None:
        self._address = checked_address(address)
        self._client: Any = None
        self._held: WeakKeyDictionary[Read, Any] = WeakKeyDictionary()  # while its job goes on

    def __repr__(self) -> str:
        return f"DaskWorkers({self._address!r})"

    def answers(
        self, label: str, reads: Mapping[str, Read], function: Callable[[Held | Failure], T]
    ) -> Iterator[tuple[str, T]]:
        """Yield what the function gives for each partition beside its id, as it comes."""
        client = self._connected()
        from distributed import as_completed

        for name, read in reads.items():
            if read not in self._held:
                self._held[read] = client.submit(read, key=f"cloister-read-{name}-{new_nonce()}")
        run = new_nonce()
        asked = {
            client.submit(function, self._held[read], key=f"cloister-{label}-{name}-{run}"): name
            for name, read in reads.items()
        }
        try:
            for future in as_completed(list(asked), loop=client.loop):  # type: ignore[no-untyped-call]
                yield asked[future], future.result()
        except Exception as error:  # of the cluster; functions of ours do not raise
            self._held.clear()
            raise DataError(
                f"the workers of {self._address} gave no answer ({type(error).__name__}); look at "
                "the scheduler's log."
            ) from None

    def _connected(self) -> Any:
        if self._client is not None and self._client.status == "running":
            return self._client
        try:
            from distributed import Client, Security
        except ImportError:
            raise PlanError("workers need Dask: pip install 'cloister[dask]'.") from None
        self._held.clear()
        secure = self._address.startswith("tls:")
        try:
            self._client = Client(  # type: ignore[no-untyped-call]
                self._address,
                security=Security(require_encryption=secure),  # type: ignore[no-untyped-call]
                set_as_default=False,
            )
        except (OSError, TypeError, ValueError) as error:
            raise DataError(
                f"no connection to the scheduler at {self._address} ({type(error).__name__}); "
                "check that it runs, and Dask's certificates."
            ) from None
        return self._client


def checked_address(address: str) -> str:
    """Return the address of a scheduler, or refuse one to which records would go unencrypted."""
    host, named, scheme, here = "", False, "", False
    with suppress(ValueError):  # of a port that is none, or a host with a name
        parts = urlsplit(address)
        scheme, host = parts.scheme, parts.hostname or ""
        named = bool(parts.port)
        here = host == "localhost" or ip_address(host).is_loopback
    if not (named and host and (scheme == "tls" or (scheme == "tcp" and here))):
        raise PlanError(
            f"workers must be tls://HOST:PORT, or tcp://localhost:PORT on this machine, got "
            f"{address!r}; records never leave a machine unencrypted."
        )
    return address
