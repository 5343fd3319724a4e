"""All three parties in one process, for tests, notebooks and trials, without any secrecy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from cloister.federation.transports.links import local_links
from cloister.hazmat.ring import Words
from cloister.privacy.noise import NoiseSource
from cloister.shares.mpc.dealer import Dealer, Supply
from cloister.shares.mpc.material import Sharing
from cloister.shares.mpc.server import Server, Watch
from cloister.shares.mpc.shares import expand_share, split

_Result = TypeVar("_Result")


def run_here(
    program: Callable[..., _Result],
    *secrets: Words,
    timeout: float = 60.0,
    watch: Sequence[Watch | None] = (None, None),
    noise: Sequence[NoiseSource | None] = (None, None),
    sharing: Sharing = Sharing.SUM,
) -> tuple[tuple[_Result, _Result], tuple[Server, Server]]:
    """Run `program(server, *shares)` at two servers in threads, with a dealer in a third.

    Parameters
    ----------
    secrets : ndarray of uint64
        Split here, one share for each server.
    watch, noise : pair
        Argument of each :class:`Server`.
    sharing : Sharing
        How shares combine into the secrets.

    Returns
    -------
    results, servers : pair
        Return values of the program at each server, and the servers, for their costs.
    """
    splits = [split(secret, sharing) for secret in secrets]
    shares = (
        [expand_share(key, rest.shape) for key, rest in splits],
        [rest for _, rest in splits],
    )
    peers = local_links(timeout)
    to_dealer, to_servers = zip(*(local_links(timeout) for _ in range(2)), strict=True)

    def serve(index: int) -> tuple[_Result, Server]:
        supply = Supply(index, to_dealer[index])
        server = Server(index, peers[index], supply, watch[index], noise[index])
        try:
            return program(server, *shares[index]), server
        finally:
            server.supply.close()

    with ThreadPoolExecutor(3) as pool:
        dealing = pool.submit(Dealer(to_servers).serve)
        # Not `map`: if server 0 fails immediately, it cancels a server 1 that has not started, and
        # the dealer waits for its end forever.
        (first, one), (second, two) = [w.result() for w in [pool.submit(serve, i) for i in (0, 1)]]
        dealing.result()
    return (first, second), (one, two)
