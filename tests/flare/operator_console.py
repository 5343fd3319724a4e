"""FLARE's operator, as a process of its own: submits jobs and waits for their end.

Reads one JSON request a line, answers with one JSON line.
"""

import json
import os
import sys
import time

from nvflare.fuel.flare_api.flare_api import new_secure_session


def connect(kit, username, clients, seconds=590.0):
    due = time.monotonic() + seconds
    while True:
        try:
            session = new_secure_session(username, kit, timeout=30.0)
            if len(session.get_system_info().client_info) >= clients:
                return session
            session.close()
        except Exception as error:
            if time.monotonic() > due:
                raise SystemExit(f"no federation: {error}") from error
        time.sleep(0.3)


def main():
    kit, username, clients = sys.argv[1:]
    answers, sys.stdout = sys.stdout, sys.stderr
    session = connect(kit, username, int(clients))
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            job = session.submit_job(request["job"])
            due = time.monotonic() + request["seconds"]
            while time.monotonic() < due:
                meta = session.get_job_meta(job)
                if str(meta.get("status", "")).startswith("FINISHED"):
                    break
                if request["until"] and all(map(os.path.exists, request["until"])):
                    session.abort_job(job)
                    break
                time.sleep(0.2)
            else:
                session.abort_job(job)
            answer = {"job": job, "status": meta.get("status"), "meta": meta}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer, default=str), file=answers, flush=True)


main()
