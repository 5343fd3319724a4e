"""Time exchanges of 10 KiB over MPI, for the table of carriers.

    mpirun -np 3 python -m mpi4py benchmarks/mpi_rounds.py

prints one line: silos, and the median time of two legs with 10 KiB up and down.
"""

from __future__ import annotations

import time
from statistics import median

from cloister.federation.transports.mpi import MpiTransport, serve, world

ROUNDS, SIZE = 200, 10 * 1024

comm = world()
if comm.rank:
    serve(comm, lambda frame: bytes(int.from_bytes(frame[:4], "big")))
else:
    silos = [f"silo-{i}" for i in range(comm.size - 1)]
    transport, times = MpiTransport(comm, silos), []
    small, large = 200, SIZE
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        transport.exchange(dict.fromkeys(silos, large.to_bytes(4, "big") + bytes(small - 4)))
        transport.exchange(dict.fromkeys(silos, small.to_bytes(4, "big") + bytes(large - 4)))
        times.append(time.perf_counter() - begun)
    transport.close()
    print(f"{len(silos)} silos: {1e3 * median(times[5:]):.2f} ms a round of two legs")
