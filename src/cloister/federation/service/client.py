"""Connections to a party that listens: to a coordinator, also while parties join."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import httpx

from cloister.core.errors import BudgetExceeded, CloisterError, PlanError, TransportError

if TYPE_CHECKING:
    from cloister.federation.joining import Invitation

JOIN = "/v1/join"  # what parties post to while they join
TIMEOUT = 30.0  # seconds for any one answer
MOST_ANSWER = 1 << 28  # bytes; what another party sends must not fill this one's memory


def probe(
    url: str,
    context: ssl.SSLContext,
    proxy: str | None,
    timeout: float,
    trace: Callable[[str, Mapping[str, Any]], None],
) -> tuple[int, str]:
    """Request the health of a coordinator; return the HTTP status and the date of its answer.

    `trace` receives each step of the connection, under its name in httpx. The cause of a
    TransportError is the error of the failed step.
    """
    try:
        with httpx.Client(verify=context, proxy=proxy, timeout=timeout, trust_env=False) as client:
            answer = client.get(f"{url}/healthz", extensions={"trace": trace})
    except httpx.ProxyError as error:
        refusal = f"the proxy answered {str(error).split(' ')[0]}"
        raise TransportError(refusal) from ConnectionError(refusal)
    except httpx.HTTPError as error:
        raise TransportError(str(error) or type(error).__name__) from error
    return answer.status_code, answer.headers.get("Date", "")


class Connection:
    """A connection over mutual TLS to a party that listens.

    Parameters
    ----------
    url : str
        Such as "https://coordinator.example:8443".
    context : ssl.SSLContext
        Has the caller's certificate and trusts the federation's authority only.
    proxy : str, optional
        Such as "http://proxy.example:3128"; environment variables are ignored.

    Raises
    ------
    PlanError
        If the request is invalid or not allowed.
    BudgetExceeded
        If it exceeds the quota of this caller.
    TransportError
        If the other party cannot be reached, or cannot answer.
    """

    _whom: ClassVar[str]

    def __init__(self, url: str, context: ssl.SSLContext, proxy: str | None = None) -> None:
        self._other = f"{self._whom} {url!r}"
        self._http = httpx.Client(
            base_url=url, verify=context, proxy=proxy, timeout=TIMEOUT, trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """Return the JSON of an answer."""
        document = _json(self._answer(method, path, **options))
        if document is None:
            raise self._strange()
        return document

    def _strange(self) -> TransportError:
        return TransportError(f"{self._other} gave an unexpected answer; check the address.")

    def _answer(self, method: str, path: str, **options: Any) -> bytes:
        # Streamed, so that the limit applies before an answer fills the memory.
        body = bytearray()
        try:
            with self._http.stream(method, path, **options) as answer:
                for part in answer.iter_bytes():
                    body += part
                    if len(body) > MOST_ANSWER:
                        raise self._strange()
        except httpx.HTTPError as error:
            cause = str(error) or type(error).__name__
            raise TransportError(
                f"{self._other} cannot be reached: {cause}; try cloister doctor."
            ) from error
        if answer.is_success:
            return bytes(body)
        reason = (_json(body) or {}).get("error")
        # The same exceptions as in one process, so that commands need one handler.
        kind = _KINDS.get(answer.status_code, TransportError)
        raise kind(reason or f"{self._other} answered HTTP {answer.status_code}.")


class NotThere(PlanError):
    """Raised if the other party has nothing of that name for this one."""


_KINDS: Mapping[int, type[CloisterError]] = {
    **dict.fromkeys((403, 409, 413, 422), PlanError),
    404: NotThere,
    429: BudgetExceeded,
}


def _json(body: bytes | bytearray) -> dict[str, Any] | None:
    """Return an answer's JSON object, if it is one."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


class Rest(Connection):
    """A connection to a coordinator."""

    _whom = "coordinator"

    def submit(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Propose a job; return the coordinator's view of it."""
        return self._call("POST", "/v1/jobs", json=document)

    def jobs(self, limit: int = 100) -> list[dict[str, Any]]:
        """Return the newest jobs, newest first."""
        found: list[dict[str, Any]] = self._call("GET", "/v1/jobs", params={"limit": limit})["jobs"]
        return found

    def job(self, job: str) -> dict[str, Any]:
        """Return all details of a job."""
        return self._call("GET", f"/v1/jobs/{job}")

    def cancel(self, job: str) -> dict[str, Any]:
        """Cancel a job permanently."""
        return self._call("POST", f"/v1/jobs/{job}/cancel")

    def box(self, job: str, place: int) -> bytes | None:
        """Return the box for this party of the silo at a place of the plan, or None."""
        try:
            return self._answer("GET", f"/v1/jobs/{job}/result/{place}")
        except NotThere:
            return None

    def silos(self) -> list[dict[str, Any]]:
        """Return the silos that ever connected."""
        found: list[dict[str, Any]] = self._call("GET", "/v1/silos")["silos"]
        return found

    def find(self, beginning: str) -> str:
        """Return the id of the one job whose id begins with `beginning`."""
        if len(beginning) == 32:
            return beginning
        found = [job["id"] for job in self.jobs(1000) if job["id"].startswith(beginning)]
        if len(found) != 1:
            raise PlanError(
                f"job {beginning!r} must be the beginning of one id, got {len(found)} jobs; see "
                "cloister jobs list."
            )
        return str(found[0])


class Joining(Connection):
    """A party's connection to the coordinator while it joins.

    Parameters
    ----------
    invitation : Invitation
        Its authority is the only one that is trusted.
    """

    _whom = "coordinator"

    def __init__(self, invitation: Invitation, proxy: str | None = None) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_verify_locations(cadata=invitation.federation.ca)
        except (ssl.SSLError, ValueError):
            raise PlanError(
                "invitation has no certificate of an authority; request it again."
            ) from None
        super().__init__(invitation.federation.coordinator, context, proxy)
        self._sender = {"name": invitation.name, "token": invitation.token}

    def post(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message of this party; return the board."""
        return self._call("POST", JOIN, json={**self._sender, **message})
