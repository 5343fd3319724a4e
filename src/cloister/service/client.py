"""The REST interfaces of a coordinator and of a scorer, as others call them."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import httpx

from cloister.errors import BudgetExceeded, CloisterError, PlanError, TransportError

TIMEOUT = 30.0  # seconds for any one answer


def probe(
    url: str,
    context: ssl.SSLContext,
    proxy: str | None,
    timeout: float,
    trace: Callable[[str, Mapping[str, Any]], None],
) -> tuple[int, str]:
    """Ask a coordinator whether it is there; return the HTTP status and the date it sends.

    Each step of the connection is given to `trace`, as httpx names it. A TransportError was caused
    by the error of the step that failed.
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


_ERRORS: Mapping[int, type[CloisterError]] = {
    **dict.fromkeys((403, 404, 409, 413, 422), PlanError),
    429: BudgetExceeded,
}
"""What a refusal is raised as, by its HTTP status; any other is a TransportError."""


class _Connection:
    """A connection to a party that listens, over mutual TLS.

    Parameters
    ----------
    url : str
        Such as "https://coordinator.example:8443".
    context : ssl.SSLContext
        With the caller's certificate, trusting the federation's authority only.
    proxy : str, optional
        Such as "http://proxy.example:3128"; variables of the environment are not looked at.

    Raises
    ------
    PlanError
        If what was sent is not acceptable, or an action not allowed.
    BudgetExceeded
        If the party has nothing left for this caller.
    TransportError
        If the party cannot be reached, or cannot answer.
    """

    _party: ClassVar[str]
    _hint: ClassVar[str]

    def __init__(self, url: str, context: ssl.SSLContext, proxy: str | None = None) -> None:
        self._url = url
        self._http = httpx.Client(
            base_url=url, verify=context, proxy=proxy, timeout=TIMEOUT, trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._http.close()

    def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            cause = str(error) or type(error).__name__
            raise TransportError(
                f"{self._party} {self._url!r} cannot be reached: {cause}; {self._hint}."
            ) from error
        if answer.is_success:
            return answer
        try:
            reason = str(answer.json()["error"])
        except (ValueError, KeyError, TypeError):
            reason = f"{self._party} {self._url!r} answered HTTP {answer.status_code}."
        raise _ERRORS.get(answer.status_code, TransportError)(reason)


class Rest(_Connection):
    """A connection to a coordinator."""

    _party, _hint = "coordinator", "try cloister doctor"

    def submit(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Propose a job; return how the coordinator shows it."""
        return self._call("POST", "/v1/jobs", json=document)

    def jobs(self, limit: int = 100) -> list[dict[str, Any]]:
        """Return the newest jobs, newest first."""
        found: list[dict[str, Any]] = self._call("GET", "/v1/jobs", params={"limit": limit})["jobs"]
        return found

    def job(self, job: str) -> dict[str, Any]:
        """Return everything that is shown of a job."""
        return self._call("GET", f"/v1/jobs/{job}")

    def cancel(self, job: str) -> dict[str, Any]:
        """End a job for good."""
        return self._call("POST", f"/v1/jobs/{job}/cancel")

    def result(self, job: str) -> dict[str, Any]:
        """Return the noised sums of a job whose plan publishes them."""
        return self._call("GET", f"/v1/jobs/{job}/result")

    def silos(self) -> list[dict[str, Any]]:
        """Return the silos that ever connected."""
        found: list[dict[str, Any]] = self._call("GET", "/v1/silos")["silos"]
        return found

    def find(self, beginning: str) -> str:
        """Return the id of the one job whose id begins so."""
        if len(beginning) == 32:
            return beginning
        found = [job["id"] for job in self.jobs(1000) if job["id"].startswith(beginning)]
        if len(found) != 1:
            raise PlanError(
                f"job {beginning!r} must be the beginning of one id, got {len(found)} jobs; see "
                "cloister jobs list."
            )
        return str(found[0])

    def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        answer = self._ask(method, path, **options)
        try:
            document: dict[str, Any] = dict(answer.json())
        except (ValueError, TypeError) as error:
            raise TransportError(
                f"{self._url!r} does not answer as a coordinator does (HTTP {answer.status_code}); "
                "check the address."
            ) from error
        return document


class Scoring(_Connection):
    """A connection to a scorer; see :mod:`cloister.service.scoring`."""

    _party, _hint = "scorer", "check address and certificates"

    def model(self) -> dict[str, Any]:
        """Return the scorer's offer, and the rows that are left to this caller."""
        found: dict[str, Any] = self._ask("GET", "/v1/model").json()
        return found

    def admit(self, public_key: bytes) -> None:
        """Send the public key under which requests will come."""
        self._ask("PUT", "/v1/key", content=public_key)

    def score(self, request: bytes) -> bytes:
        """Return the reply to a request."""
        return self._ask("POST", "/v1/score", content=request).content
