"""One configuration file per party: TOML in, frozen values out.

Unknown keys are refused. Paths are relative to the file. What is secret (a database's URL) may come
from a file of its own (`database_file`, `url_file`) or from the environment (`CLOISTER_DATABASE`,
`CLOISTER_DATA_URL`), and is never shown.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from cloister.errors import PlanError
from cloister.silo.policy import Policy
from cloister.tasks import TASKS
from cloister.tasks.base import Profile

_FINGERPRINT = re.compile("ed25519:[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DataSettings(_Section):
    """Where a silo's records are: a file, or a database and a query.

    Parameters
    ----------
    file : Path or None
        CSV, Parquet or Feather.
    url, query : str or None
        A SQLAlchemy URL and the SELECT that gives one row per record.
    """

    file: Path | None = None
    url: SecretStr | None = None
    url_file: Path | None = None
    query: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        database = self.url is not None or self.url_file is not None
        if (self.file is not None) == database:
            raise ValueError("data needs either a file, or a url and a query.")
        if database != (self.query is not None):
            raise ValueError("query goes with url; give both or a file.")
        return self

    def secret_url(self) -> str | None:
        """Return the database's URL with its password."""
        return None if self.url is None else self.url.get_secret_value()


class PolicySettings(_Section):
    """The policy of a silo as written in its file; see :class:`cloister.silo.policy.Policy`."""

    tasks: tuple[str, ...] = ()
    max_epsilon_per_job: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_epsilon_per_study: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_epsilon_per_year: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    min_other_silos: int = Field(default=2, ge=1)
    columns: tuple[str, ...] | None = None
    profiles: tuple[Profile, ...] = ("pairwise",)
    allow_publish: bool = False
    standing: bool = False

    @field_validator("tasks")
    @classmethod
    def _known(cls, tasks: tuple[str, ...]) -> tuple[str, ...]:
        for name in tasks:
            if name not in TASKS:
                raise ValueError(f"tasks must be among {sorted(TASKS)}, got {name!r}.")
        return tasks

    def to_policy(self) -> Policy:
        """Return the policy as the value that the agent asks."""
        return Policy(**self.model_dump())


class CoordinatorSettings(_Section):
    """The coordinator's file.

    Parameters
    ----------
    listen : str
        Address and port of the one TLS port.
    keys : Path
        Folder of its certificate.
    database : str
        SQLAlchemy URL of jobs and rounds.
    round_timeout, grace, approval_timeout : float, seconds
        How long a connected silo may be silent, an absent one may take to come back, and silos
        may take to decide.
    max_message_bytes : int
    audit_log : Path
    log_level : str
    """

    secrets: ClassVar[Mapping[str, str]] = {"database": "CLOISTER_DATABASE"}

    role: Literal["coordinator"] = "coordinator"
    listen: str = "127.0.0.1:8443"
    keys: Path = Path("keys")
    database: str = Field(default="sqlite:///coordinator.db", repr=False)
    database_file: Path | None = None
    round_timeout: float = Field(default=300.0, gt=0, le=86400)
    grace: float = Field(default=60.0, ge=0, le=86400)
    approval_timeout: float = Field(default=604800.0, gt=0)
    max_message_bytes: int = Field(default=64 * 2**20, ge=4096, le=2**31 - 1)
    audit_log: Path = Path("audit.jsonl")
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("listen")
    @classmethod
    def _address(cls, listen: str) -> str:
        host, _, port = listen.rpartition(":")
        if not host or not port.isdigit() or not 0 <= int(port) <= 65535:
            raise ValueError(f"listen must be HOST:PORT, got {listen!r}.")
        return listen


class _Dialling(_Section):
    """What a party that dials out needs."""

    name: str
    coordinator: str
    proxy: str | None = None
    keys: Path = Path("keys")

    @field_validator("name")
    @classmethod
    def _named(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"name must be 1 to 64 of letters, digits, '.', '_' and '-', got {name!r}."
            )
        return name

    @field_validator("coordinator")
    @classmethod
    def _https(cls, url: str) -> str:
        if not re.fullmatch(r"https://[^/\s]+(:\d+)?/?", url):
            raise ValueError(f"coordinator must be https://HOST:PORT, got {url!r}.")
        return url.rstrip("/")


class SiloSettings(_Dialling):
    """A silo's file.

    Parameters
    ----------
    name, coordinator, proxy, keys
        Who this is and where it dials.
    schema_file : Path
        The agreed data contract.
    data : DataSettings
    ledger : Path
        Its own, on a local disk.
    cap_epsilon, cap_delta : float
        Lifetime cap of the data set; mandatory.
    results : Path
        Folder of released results.
    audit_log : Path
    policy : PolicySettings
    peers, analysts : mapping of name to fingerprint
        Whom this silo knows, compared out of band.
    """

    secrets: ClassVar[Mapping[str, str]] = {"data.url": "CLOISTER_DATA_URL"}

    role: Literal["silo"] = "silo"
    schema_file: Path = Path("schema.toml")
    data: DataSettings
    ledger: Path = Path("ledger.db")
    cap_epsilon: float = Field(gt=0, allow_inf_nan=False)
    cap_delta: float = Field(default=1e-6, ge=0, lt=1)
    results: Path = Path("results")
    audit_log: Path = Path("audit.jsonl")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    policy: PolicySettings = PolicySettings()
    peers: dict[str, str] = {}
    analysts: dict[str, str] = {}

    @field_validator("peers", "analysts")
    @classmethod
    def _pinned(cls, pins: dict[str, str]) -> dict[str, str]:
        for name, pin in pins.items():
            if not _FINGERPRINT.fullmatch(pin):
                raise ValueError(
                    f"the fingerprint of {name!r} must be 'ed25519:' and 64 hexadecimal digits."
                )
        if len(set(pins.values())) != len(pins):
            raise ValueError("two names have the same fingerprint.")
        return pins


class AnalystSettings(_Dialling):
    """An analyst's file: who proposes jobs, and where."""

    secrets: ClassVar[Mapping[str, str]] = {}

    role: Literal["analyst"] = "analyst"


Settings = CoordinatorSettings | SiloSettings | AnalystSettings
_ROLES: dict[str, type[Settings]] = {
    "coordinator": CoordinatorSettings,
    "silo": SiloSettings,
    "analyst": AnalystSettings,
}
_PATHS = {
    "keys",
    "schema_file",
    "file",
    "url_file",
    "database_file",
    "ledger",
    "results",
    "audit_log",
}


def load_settings(path: str | os.PathLike[str]) -> Settings:
    """Read a configuration file.

    Raises
    ------
    PlanError
        If it cannot be read, has an unknown key or a value that breaks its rule.
    """
    file = Path(path)
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"configuration {str(file)!r} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"configuration {str(file)!r} is not TOML: {error}.") from None
    role = document.get("role")
    if role not in _ROLES:
        raise PlanError(f"role in {str(file)!r} must be one of {sorted(_ROLES)}, got {role!r}.")
    model, folder = _ROLES[role], file.resolve().parent
    defaults = {
        name: str(field.default)
        for name, field in model.model_fields.items()
        if isinstance(field.default, Path) or name == "database"
    }
    values = _with_secrets(_absolute({**defaults, **document}, folder), model.secrets)
    try:
        return model(**values)
    except ValidationError as error:
        raise PlanError(f"configuration {str(file)!r}: {_sentence(error)}") from None


def _absolute(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Make the paths in a document absolute, also that of a SQLite file."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        if key in ("policy", "peers", "analysts"):
            result[key] = value
        elif isinstance(value, Mapping):
            result[key] = _absolute(value, folder)
        elif key in _PATHS and isinstance(value, str):
            result[key] = folder / value
        elif key == "database" and isinstance(value, str):
            result[key] = _database(value, folder)
        else:
            result[key] = value
    return result


def _database(url: str, folder: Path) -> str:
    prefix = "sqlite:///"
    if url.startswith(prefix) and not url.startswith(prefix + "/"):
        return f"{prefix}{folder / url.removeprefix(prefix)}"
    return url


def _with_secrets(values: dict[str, Any], secrets: Mapping[str, str]) -> dict[str, Any]:
    """Put in what a file or the environment says in place of a secret; the environment wins."""
    for dotted, variable in secrets.items():
        section = values
        *outer, key = dotted.split(".")
        for name in outer:
            section = section.get(name, {})
        if not isinstance(section, dict):
            continue
        named = section.get(f"{key}_file")
        if isinstance(named, Path):
            try:
                section[key] = named.read_text(encoding="utf-8").strip()
            except OSError as error:
                raise PlanError(f"{key}_file {str(named)!r}: {error.strerror}.") from None
        if variable in os.environ:
            section[key] = os.environ[variable]
    return values


def _sentence(error: ValidationError) -> str:
    """Say the first mistake in one sentence, without the value if that is secret."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    if first["type"] == "extra_forbidden":
        return f"{where!r} is not a key of this role; see 'cloister config init'."
    if first["type"] == "missing":
        return f"{where!r} must be given."
    return f"{where}: {message}." if where else f"{message}."
