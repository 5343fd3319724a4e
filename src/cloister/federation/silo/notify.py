"""Notification of a silo's owner that a job waits for a decision, if the owner enabled it.

The notice has the fields of `cloister jobs list`: silo, job, task and epsilon.
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
from cloister.federation.silo.store import Job

_SECONDS = 20.0  # after which a command or an address is given up

_log = logging.getLogger("cloister.federation.silo")


def notice_of(silo: str, job: Job) -> dict[str, Any]:
    """Return the notice of a job for the owner."""
    plan = json.loads(job.plan)
    budget = plan["budget"]
    epsilon = budget["epsilon"] if budget else None
    return {"silo": silo, "job": job.id, "task": plan["task"]["name"], "epsilon": epsilon}


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
            "the owner could not be notified of a waiting job: %s",
            type(error).__name__,
            extra={"job": notice["job"]},
        )
