"""``python -P -m cloister.app.worker``: run the request on standard input, and write events.

A job runs in a separate process, so that it finishes even if its page is closed: its budget is
reserved. Events are lines of JSON on standard output:

===========  ============================================
``plan``     ``run``, the identifier of the job in the ledger
``warning``  ``text``
``round``    ``done`` and ``of``
``done``     ``result``, the first sentence of the report
``failed``   ``text``
===========  ============================================
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

ANSWER = "answer.json"
"""File of the first screen of the report, a :class:`~cloister.app.answer.Answer`."""


def main() -> int:
    """Run the request; return 0, or 1 after the event ``failed``."""
    try:  # around the imports too, since a page may stop the job during them
        from cloister.core.errors import CloisterError

        try:
            _run(sys.stdin.buffer.read())
        except CloisterError as error:
            return _failed(str(error))
    except KeyboardInterrupt:
        return _failed("interrupted; what left a silo stays charged.")
    except Exception as error:
        # The message may quote a record, and events are kept in a file.
        return _failed(f"unexpected {type(error).__name__}; run the command in a terminal.")
    return 0


def _run(text: bytes) -> None:
    from cloister.app.answer import answer_of
    from cloister.app.files import SiloFiles, write_release
    from cloister.app.forecast import plan_warnings
    from cloister.app.payment import Payment
    from cloister.app.present import present
    from cloister.app.progress import warnings_to
    from cloister.app.report.page import write_report
    from cloister.app.request import Request

    request = Request.model_validate_json(text)
    job = request.job()
    _write("plan", run=job.plan.run_id)
    before = plan_warnings(job.plan, job.schema)
    for warning in before:
        _write("warning", text=warning)
    files = SiloFiles(paths=request.files, reading=request.reading, baskets=request.baskets)
    records = files.read(job.schema, job.columns)
    payment = Payment(ledger=request.ledger, cap_epsilon=request.cap_epsilon)
    # Raises before a ledger is opened. The page has shown the notices, and no file may keep them.
    job.loss_notices(records)
    charge = payment.open(job.schema, job.plan)
    with warnings_to(lambda text: _write("warning", text=text)):
        release = job.run(
            records,
            account=charge.account if charge else None,
            on_round=lambda done: _write("round", done=done.round + 1, of=done.rounds),
        )
    write_release(release, request.out, job.schema)
    shown = present(release)
    for warning in (*shown.warnings, *shown.remarks):
        if warning not in before:
            _write("warning", text=warning)
    write_report(
        release,
        request.out / "report.html",
        shown=shown,
        budget_lines=charge.lines() if charge else (),
        share=charge.share if charge else None,
        schema=job.schema,
    )
    answer_of(shown).save(request.out / ANSWER)
    if charge:
        charge.close()
    _write("done", result=shown.result)


def _failed(text: str) -> int:
    _write("failed", text=text)
    return 1


def _write(kind: str, **values: Any) -> None:
    sys.stdout.write(json.dumps({"event": kind, **values}, allow_nan=False) + "\n")
    sys.stdout.flush()  # the page shows each round when it ends


def events_in(text: str) -> list[Mapping[str, Any]]:
    """Return the events in the output of a worker; an incomplete last line is omitted."""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


if __name__ == "__main__":
    sys.exit(main())
