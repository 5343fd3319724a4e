"""Three ranks: a dealer and two servers multiply shares over sealed links; rank 1 says if right."""

from __future__ import annotations

import numpy as np

from cloister.federation.transports.mpi import MpiLink, world
from cloister.hazmat.signing import Identity
from cloister.shares.mpc import Dealer, Server, Supply, combine, decode, encode, expand_share, times
from cloister.shares.mpc.sealed import seal

NAMES = ("dealer", "north", "south")
KEYS = [Identity(bytes([rank]) * 32) for rank in range(3)]  # keys of a test
comm = world()
RAW = {rank: MpiLink(comm, rank) for rank in range(3) if rank != comm.rank}
links = {
    rank: seal(
        RAW[rank], KEYS[comm.rank], NAMES[comm.rank], NAMES[rank], KEYS[rank].fingerprint, ""
    )
    for rank in sorted(RAW, key=lambda rank: (rank + comm.rank) % 3)  # no ring of waiting ranks
}
if comm.rank == 0:
    Dealer((links[1], links[2])).serve()
else:
    values = encode(np.linspace(-3, 3, 300_000))  # megabytes both ways at once
    pad = expand_share(bytes(32), values.shape)
    server = Server(comm.rank - 1, links[3 - comm.rank], Supply(comm.rank - 1, links[0]))
    share = pad if comm.rank == 1 else values - pad
    result = server.refresh(times(server, share, share))
    server.supply.close()
    links[3 - comm.rank].send(result.tobytes())
    other = np.frombuffer(links[3 - comm.rank].receive(), np.uint64)
    right = np.abs(decode(combine(result, other)) - decode(values) ** 2).max() < 1e-3
    print("right" if right and comm.rank == 1 else "")
for link in RAW.values():
    link.close()
