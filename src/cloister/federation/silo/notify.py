"""Notification of a silo's owner that a job waits for a decision, if the owner enabled it.

The notice has the fields of `cloister jobs list`: silo, job, task and epsilon. Its `text`, which
chat services show, tells the owner what to do.
"""

from __future__ import annotations

import json
import logging
import subprocess
import threading
import urllib.request
from collections.abc import Mapping
from typing import Any

from cloister.federation.settings import NotifySettings
from cloister.federation.silo.decisions import asker
from cloister.federation.silo.store import Job

_SECONDS = 20.0  # after which a command or an address is given up

_log = logging.getLogger("cloister.federation.silo")


def notice_of(silo: str, job: Job) -> dict[str, Any]:
    """Return the notice of a job for the owner."""
    plan = json.loads(job.plan)
    budget = plan["budget"]
    epsilon = budget["epsilon"] if budget else None
    task, short = plan["task"]["name"], job.id[:12]
    price = "without privacy" if epsilon is None else f"at epsilon {epsilon:g}"
    # Only names that the owner pinned or allowed, since a chat service may read signs in others.
    text = (
        f"Job {short} waits for your decision at silo {silo}: {asker(job)} asks for task {task} "
        f"{price}. On the silo's machine, read it with 'cloister jobs show {short}', then run "
        f"'cloister jobs approve {short}' or 'cloister jobs deny {short}'; or open 'cloister "
        "console'. Without a decision the job starts without this silo, or not at all."
    )
    if job.reason:
        text += f" Why it waits: {job.reason}"
    return {"silo": silo, "job": job.id, "task": task, "epsilon": epsilon, "text": text}


def tell(settings: NotifySettings, notice: Mapping[str, Any]) -> None:
    """Notify the owner in a separate thread, so that no mail server delays the agent."""
    if settings.command or settings.webhook:
        threading.Thread(target=_tell, args=(settings, notice), daemon=True).start()


def _tell(settings: NotifySettings, notice: Mapping[str, Any]) -> None:
    body = json.dumps(notice, allow_nan=False).encode()
    try:
        if settings.command:  # no shell: what a coordinator sends is never part of a command
            subprocess.run(
                settings.command, input=body, check=True, timeout=_SECONDS, capture_output=True
            )
        if settings.webhook:
            request = urllib.request.Request(
                settings.webhook.get_secret_value(),
                data=body,
                headers={"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=_SECONDS):
                pass
    except Exception as error:
        # A job waits for its owner's decision even if the notification fails.
        _log.warning(
            "the owner could not be notified of a waiting job: %s; correct [notify] in the silo's "
            "file, and see 'cloister jobs list'",
            type(error).__name__,
            extra={"job": notice["job"]},
        )
