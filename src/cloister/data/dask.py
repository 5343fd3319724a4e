"""Partitions at the workers of a silo's private Dask cluster."""

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
        Address of the scheduler: ``tls://HOST:PORT``, with the certificates in Dask's
        configuration. On this machine also ``tcp://localhost:PORT``.

    Raises
    ------
    PlanError
        If the address has another form.

    Notes
    -----
    A program that reaches the scheduler or a worker can read the records and run code as their
    owner. The whole cluster must therefore belong to the silo.
    """

    def __init__(self, address: str) -> None:
        self._address = checked_address(address)
        self._client: Any = None
        # Weak, so that the workers free a partition when its job ends.
        self._held: WeakKeyDictionary[Read, Any] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"DaskWorkers({self._address!r})"

    def answers(
        self, label: str, reads: Mapping[str, Read], function: Callable[[Held | Failure], T]
    ) -> Iterator[tuple[str, T]]:
        """Yield the id of each partition and the function's result for it, as workers finish."""
        client = self._connected()
        from distributed import as_completed

        for name, read in reads.items():
            if read not in self._held:
                self._held[read] = client.submit(read, key=f"cloister-read-{name}-{new_nonce()}")
        run = new_nonce()  # Dask would answer a repeated key from an earlier call
        futures = {
            client.submit(function, self._held[read], key=f"cloister-{label}-{name}-{run}"): name
            for name, read in reads.items()
        }
        try:
            for future in as_completed(list(futures), loop=client.loop):  # type: ignore[no-untyped-call]
                yield futures[future], future.result()
        except Exception as error:  # from the cluster: functions of this package return Failure
            self._held.clear()
            raise DataError(
                f"the workers of {self._address} gave no answer ({type(error).__name__}); read the "
                "scheduler's log."
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
                f"cannot connect to the scheduler at {self._address} ({type(error).__name__}); "
                "check that it runs, and check Dask's certificates."
            ) from None
        return self._client


def checked_address(address: str) -> str:
    """Return the address of a scheduler; raise if records would travel unencrypted to it."""
    host, has_port, scheme, is_local = "", False, "", False
    with suppress(ValueError):  # an invalid port, or a host name in place of an IP address
        parts = urlsplit(address)
        scheme, host = parts.scheme, parts.hostname or ""
        has_port = bool(parts.port)
        is_local = host == "localhost" or ip_address(host).is_loopback
    if not (has_port and host and (scheme == "tls" or (scheme == "tcp" and is_local))):
        raise PlanError(
            f"workers must be tls://HOST:PORT, or tcp://localhost:PORT on this machine, got "
            f"{address!r}; records never leave a machine unencrypted."
        )
    return address
