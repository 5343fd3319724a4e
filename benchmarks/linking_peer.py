"""Private set intersection in SecretFlow's SPU; a script for its environment.

It is run by another Python, which has SPU and not this package::

    python -P linking_peer.py PROTOCOL ROWS COMMON

Both parties are processes over loopback. Each has ROWS keys, COMMON of which are those of both. One
line of JSON says the seconds from the first message to the end, the CPU seconds of the busier
party, and the number of common keys that the receiver learns.
"""

from __future__ import annotations

import json
import resource
import socket
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any


def party(rank: int, ports: list[int], protocol: str, folder: str, answers: Any) -> None:
    """Run one party and send what it took."""
    from spu import libspu, psi  # type: ignore[import-not-found]  # of another environment

    about = libspu.link.Desc()
    for i, port in enumerate(ports):
        about.add_party(str(i), f"127.0.0.1:{port}")
    link = libspu.link.create_brpc(about, rank)
    config = psi.PsiExecuteConfig(
        protocol_conf=psi.PsiProtocolConfig(
            protocol=psi.parse_protocol(protocol),
            receiver_rank=0,
            ecdh_params=psi.EcdhParams(curve=psi.EllipticCurveType.CURVE_25519),
        ),
        input_params=psi.InputParams(
            path=str(Path(folder) / f"{rank}.csv"), selected_keys=["id"], keys_unique=True
        ),
        output_params=psi.OutputParams(path=str(Path(folder) / f"{rank}.out.csv")),
    )
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = time.perf_counter()
    report = psi.psi_execute(config, link)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    answers.put((rank, seconds, cpu, report.intersection_count))
    link.stop_link()


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def main() -> None:
    """Write the files of both parties, run them, and print a line of JSON."""
    protocol, rows, common = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        for rank, first in enumerate((0, rows - common)):
            ids = "\n".join(f"{i:012d}" for i in range(first, first + rows))
            (Path(folder) / f"{rank}.csv").write_text(f"id\n{ids}\n", encoding="utf-8")
        context = get_context("spawn")
        answers, ports = context.Queue(), free_ports(2)
        parties = [
            context.Process(target=party, args=(rank, ports, protocol, folder, answers))
            for rank in range(2)
        ]
        for each in parties:
            each.start()
        found = sorted(answers.get(timeout=1800) for _ in parties)
        for each in parties:
            each.join()
    document = {
        "wall": max(row[1] for row in found),
        "cpu": max(row[2] for row in found),
        "common": found[0][3],
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
