"""One configuration file per party: TOML in, frozen values out.

Unknown keys are refused. Paths are relative to the file. What may hold a password (the URL of a
database or of a proxy) can also come from a file of its own, named by `database_file`, `url_file`
or `proxy_file`, or from the environment: `CLOISTER_DATABASE`, `CLOISTER_DATA_URL`,
`CLOISTER_PROXY`. It is never shown.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from cloister.data import Baskets, SqlQuery
from cloister.errors import PlanError
from cloister.privacy.budget import Budget
from cloister.privacy.filter import Split
from cloister.protocol.plan import study_name
from cloister.schema import FILL_IN
from cloister.task import Profile
from cloister.tasks import TASKS, installed

_FINGERPRINT = re.compile("ed25519:[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SQLITE = "sqlite:///"


def _beside(value: Any, info: ValidationInfo) -> Any:
    """Make a path absolute, from the folder of the configuration file."""
    folder = (info.context or {}).get("folder", Path())
    return folder / value if isinstance(value, str | Path) else value


def _task_beside(place: Any, info: ValidationInfo) -> Any:
    """Make the path in ``FILE.py:CLASS`` absolute, likewise."""
    return str(_beside(place, info)) if isinstance(place, str) else place


def _database_beside(url: Any, info: ValidationInfo) -> Any:
    """Make the path in a SQLite URL absolute, likewise."""
    if not isinstance(url, str) or not url.startswith(_SQLITE):
        return url
    file = url.removeprefix(_SQLITE)
    if not file or file.startswith((":memory:", "file:")):
        return url
    return f"{_SQLITE}{_beside(file, info)}"


_File = Annotated[Path, BeforeValidator(_beside)]
_TaskFile = Annotated[str, BeforeValidator(_task_beside)]
_Url = Annotated[str, Field(min_length=1, repr=False), BeforeValidator(_database_beside)]
_SecretUrl = Annotated[SecretStr, Field(min_length=1), BeforeValidator(_database_beside)]
_Epsilon = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_LogLevel = Literal["debug", "info", "warning", "error"]


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        validate_default=True,
        hide_input_in_errors=True,
    )


class DataSettings(_Section):
    """Where a silo's records are: a file, or a database and a query.

    Parameters
    ----------
    file : Path or None
        Text table or Parquet, or a folder of Parquet files.
    url, query : str or None
        A SQLAlchemy URL, and the SELECT that gives one row per record.
    url_file : Path or None
        Holds the URL, in place of `url`.
    baskets : str or None
        Where the records are market baskets: ``lines``, ``lines:DELIMITER`` or
        ``long:BASKET,ITEM``, as :class:`cloister.data.Baskets` has it.
    """

    file: _File | None = None
    url: _SecretUrl | None = None
    url_file: _File | None = None
    query: str | None = Field(default=None, min_length=1)
    baskets: str | None = None

    @field_validator("baskets")
    @classmethod
    def _described(cls, words: str | None) -> str | None:
        try:
            if words is not None:
                Baskets.parse(None, words)
        except PlanError as error:
            raise ValueError(f"must describe baskets: {str(error).removesuffix('.')}") from None
        return words

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.file is None) == (self.url is None):
            raise ValueError("must have a file, or a url and a query, and not both")
        if (self.url is None) != (self.query is None):
            raise ValueError("must have a query where it has a url, and only there")
        if self.url is not None and (self.baskets or "").startswith("lines"):
            raise ValueError("must have baskets as long:BASKET,ITEM where it has a query")
        return self

    def source(self) -> Path | SqlQuery | Baskets:
        """Return what :func:`cloister.data.read_source` reads."""
        source = self.file or self._query()
        return source if self.baskets is None else Baskets.parse(source, self.baskets)

    def _query(self) -> SqlQuery:
        assert self.url is not None
        return SqlQuery(self.url.get_secret_value(), self.query or "")


class PolicySettings(_Section):
    """What a silo takes part in; by default in nothing.

    Parameters
    ----------
    tasks : tuple of str
        By name; of a pipeline it and each of its steps.
    max_epsilon_per_job, max_epsilon_per_study, max_epsilon_per_year : float or None
        None leaves it to the lifetime cap of the ledger, except for a job, where None allows none.
        What earlier jobs of a study or year cost is known to the ledger, which adds it up.
    studies : tuple of str or None
        A job may be of these; :func:`~cloister.protocol.plan.study_name` says which spellings are
        one study. None for any; where `max_epsilon_per_study` is given for "default" alone, since
        an analyst who may name a new study has no cap for it.
    max_delta : float
        Largest delta of a plan: an epsilon says nothing without one.
    min_other_silos : int
        In every sum that is released.
    columns : tuple of str or None
        A job may use these; None for all of the schema.
    profiles : tuple of {"pairwise", "group"}
        "group" must be named: it rests on the aggregator really adding the noise.
    allow_publish : bool
        Whether the result may be for others than the silos.
    allow_breakdown : bool
        Whether a result may tell about this silo's records alone, with noise of its own.
    standing : bool
        Approve by itself what fits; otherwise a person approves each job.
    """

    tasks: tuple[str, ...] = Field(default=(), strict=False)
    max_epsilon_per_job: _Epsilon | None = None
    max_epsilon_per_study: _Epsilon | None = None
    max_epsilon_per_year: _Epsilon | None = None
    studies: tuple[str, ...] | None = Field(default=None, strict=False)
    max_delta: float = Field(default=1e-6, ge=0, lt=1)
    min_other_silos: int = Field(default=2, ge=1)
    columns: tuple[str, ...] | None = Field(default=None, strict=False)
    profiles: tuple[Profile, ...] = Field(default=("pairwise",), strict=False)
    allow_publish: bool = False
    allow_breakdown: bool = False
    standing: bool = False

    @field_validator("studies")
    @classmethod
    def _named(cls, studies: tuple[str, ...] | None) -> tuple[str, ...] | None:
        try:
            for name in studies or ():
                study_name(name)
        except PlanError as error:
            raise ValueError(f"must hold names of studies: {error}") from None
        return studies


class QuotaSettings(_Section):
    """How much of the coordinator one proposer may take.

    Parameters
    ----------
    open_jobs : int
        Proposed or running at once.
    proposals_per_hour : int
    kept_jobs, kept_mib : int
        With more of them, or longer plans together, the oldest that ended are forgotten.
    kept_days : float
        After so many days everybody's ended jobs are forgotten.
    """

    open_jobs: int = Field(default=100, ge=1)
    proposals_per_hour: int = Field(default=600, ge=1)
    kept_jobs: int = Field(default=1000, ge=1)
    kept_mib: int = Field(default=100, ge=1)
    kept_days: float = Field(default=365.0, gt=0, allow_inf_nan=False)


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
    database_file : Path or None
        Holds the URL, in place of `database`.
    round_timeout, grace, approval_timeout : float, seconds
        How long a connected silo may be silent, an absent one may take to come back, and silos
        may take to decide.
    max_message_bytes : int
    audit_log : Path
    log_level : {"debug", "info", "warning", "error"}
    quotas : QuotaSettings
    """

    secrets: ClassVar[Mapping[str, str]] = {"database": "CLOISTER_DATABASE"}

    role: Literal["coordinator"] = "coordinator"
    listen: str = "127.0.0.1:8443"
    keys: _File = Path("keys")
    database: _Url = "sqlite:///coordinator.db"
    database_file: _File | None = None
    round_timeout: float = Field(default=300.0, gt=0, le=86400)
    grace: float = Field(default=60.0, ge=0, le=86400)
    approval_timeout: float = Field(default=604800.0, gt=0, allow_inf_nan=False)
    max_message_bytes: int = Field(default=64 * 2**20, ge=4096, le=2**31 - 1)
    audit_log: _File = Path("audit.jsonl")
    log_level: _LogLevel = "info"
    quotas: QuotaSettings = QuotaSettings()

    @field_validator("listen")
    @classmethod
    def _address(cls, listen: str) -> str:
        host, _, port = listen.rpartition(":")
        if not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
            raise ValueError(f"must be HOST:PORT, got {listen!r}")
        return listen


class _Dialling(_Section):
    """What a party that dials out needs."""

    name: str
    coordinator: str
    proxy: str | None = Field(default=None, min_length=1, repr=False)
    proxy_file: _File | None = None
    keys: _File = Path("keys")

    @field_validator("name")
    @classmethod
    def _named(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"must be 1 to 64 of letters, digits, '.', '_' and '-', got {name!r}")
        return name

    @field_validator("coordinator")
    @classmethod
    def _https(cls, url: str) -> str:
        rest = _address_of(url, ("https",), "https://HOST:PORT")
        if rest:
            raise ValueError("must be https://HOST:PORT with nothing after it")
        return url.rstrip("/")

    @field_validator("proxy")
    @classmethod
    def _proxy(cls, url: str | None) -> str | None:
        if url is not None and _address_of(url, ("http", "https"), "http://HOST:PORT", user=True):
            raise ValueError("must be http://HOST:PORT with nothing after it")
        return url


def _address_of(url: str, schemes: tuple[str, ...], form: str, *, user: bool = False) -> str:
    """Check a URL, which may hold a password and is not repeated; return what is after the port."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in schemes and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound or re.search(r"\s", url):
        raise ValueError(f"must be {form}")
    if parts.username is not None and not user:
        raise ValueError(f"must be {form} without a user's name; certificates say who dials")
    return parts.path.strip("/") + parts.query + parts.fragment


class SiloSettings(_Dialling):
    """A silo's file.

    Parameters
    ----------
    name, coordinator, proxy, proxy_file, keys
        Who this is and where it dials.
    schema_file : Path
        The agreed data contract.
    data : DataSettings
    ledger : Path
        Its own, on a local disk.
    cap_epsilon, cap_delta : float
        Lifetime cap of the data set; mandatory.
    pure_share, failure_share : float or None
        How the cap is cut into limits when the ledger is made, see
        :class:`cloister.privacy.filter.Split`; None leaves all of it to Gaussian noise.
    results : Path
        Folder of released results.
    audit_log : Path
    log_level : {"debug", "info", "warning", "error"}
    max_message_bytes : int
        The coordinator's limit must be as large.
    kept_jobs : int
        Ended jobs that can be listed, and as many declined ones; the ledger forgets none.
    tasks : mapping of name to ``FILE.py:CLASS``
        Tasks of the owner's own, beside those that ship and those of installed packages; which of
        all these jobs may name, the policy says.
    policy : PolicySettings
    peers, analysts : mapping of name to fingerprint
        Whom this silo knows, compared out of band. Its own name may stand among the peers, so that
        all silos can share one table.
    """

    secrets: ClassVar[Mapping[str, str]] = {
        "data.url": "CLOISTER_DATA_URL",
        "proxy": "CLOISTER_PROXY",
    }

    role: Literal["silo"] = "silo"
    schema_file: _File = Path("schema.toml")
    data: DataSettings
    ledger: _File = Path("ledger.db")
    cap_epsilon: _Epsilon
    cap_delta: float = Field(default=1e-6, ge=0, lt=1)
    pure_share: float | None = Field(default=None, ge=0, le=1)
    failure_share: float | None = Field(default=None, ge=0, le=1)
    results: _File = Path("results")
    audit_log: _File = Path("audit.jsonl")
    log_level: _LogLevel = "info"
    max_message_bytes: int = Field(default=64 * 2**20, ge=4096, le=2**31 - 1)
    kept_jobs: int = Field(default=1000, ge=1)
    tasks: dict[str, _TaskFile] = {}
    policy: PolicySettings = PolicySettings()
    peers: dict[str, str] = {}
    analysts: dict[str, str] = {}
    _file: Path | None = PrivateAttr(default=None)

    def pins(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Return `peers` and `analysts` as the file has them now: a removed pin counts at once.

        Raises
        ------
        PlanError
            If the file can no longer be read.
        """
        now = self if self._file is None else load_role(self._file, SiloSettings)
        return now.peers, now.analysts

    @field_validator("tasks")
    @classmethod
    def _of_files(cls, files: dict[str, str]) -> dict[str, str]:
        for name, place in files.items():
            if name in TASKS:
                raise ValueError(f"must not give {name!r}, which ships, another file")
            if not place.rpartition(":")[0].endswith(".py"):
                raise ValueError(f"must give FILE.py:CLASS for {name!r}, got {place!r}")
        return files

    @field_validator("policy")
    @classmethod
    def _known_tasks(cls, policy: PolicySettings, info: ValidationInfo) -> PolicySettings:
        known = {*info.data.get("tasks", ()), *installed()}
        if unknown := [name for name in policy.tasks if name not in known]:
            raise ValueError(f"must name tasks among {sorted(known)}, got {unknown[0]!r}")
        return policy

    @field_validator("failure_share")
    @classmethod
    def _of_both(cls, share: float | None, info: ValidationInfo) -> float | None:
        if share and not info.data.get("pure_share"):
            raise ValueError("must be 0 where pure_share is, since a whole job takes of both")
        return share

    @property
    def cap(self) -> Budget:
        """The lifetime cap."""
        return Budget(self.cap_epsilon, self.cap_delta)

    @property
    def split(self) -> Split | None:
        """How the cap is cut into limits, or None if that is left to the ledger."""
        return Split.given(self.cap, self.pure_share, self.failure_share)

    @field_validator("peers", "analysts")
    @classmethod
    def _pinned(cls, pins: dict[str, str]) -> dict[str, str]:
        for name, pin in pins.items():
            if not _NAME.fullmatch(name):
                raise ValueError(f"must name parties as their certificates do, got {name!r}")
            if not _FINGERPRINT.fullmatch(pin):
                raise ValueError(
                    f"must give 'ed25519:' and 64 hexadecimal digits for {name!r}, got {pin!r}"
                )
        if twice := [name for name, pin in pins.items() if list(pins.values()).count(pin) > 1]:
            raise ValueError(f"must not give one fingerprint two names, {twice[0]!r} shares its")
        return pins


class AnalystSettings(_Dialling):
    """An analyst's file: who proposes jobs, and where.

    Parameters
    ----------
    name, coordinator, proxy, proxy_file, keys
        Who this is and where it dials.
    """

    secrets: ClassVar[Mapping[str, str]] = {"proxy": "CLOISTER_PROXY"}

    role: Literal["analyst"] = "analyst"


Settings = CoordinatorSettings | SiloSettings | AnalystSettings
_Kind = TypeVar("_Kind", CoordinatorSettings, SiloSettings, AnalystSettings)
ROLES: dict[str, type[Settings]] = {
    "coordinator": CoordinatorSettings,
    "silo": SiloSettings,
    "analyst": AnalystSettings,
}


def load_role(path: str | os.PathLike[str], kind: type[_Kind]) -> _Kind:
    """Read the configuration file of a party of one role, or raise a PlanError."""
    settings = load_settings(path)
    if not isinstance(settings, kind):
        role = next(name for name, known in ROLES.items() if known is kind)
        raise PlanError(
            f"configuration {os.fspath(path)!r}: role must be {role!r}, got {settings.role!r}."
        )
    return settings


def load_settings(path: str | os.PathLike[str]) -> Settings:
    """Read a configuration file.

    Raises
    ------
    PlanError
        If it cannot be read, has an unknown key or a value that breaks its rule.
    """
    file = Path(path)
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise PlanError(f"configuration {str(file)!r} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise PlanError(f"configuration {str(file)!r} is not text in UTF-8.") from None
    except tomllib.TOMLDecodeError as error:  # which tells a place, and at most a key
        raise PlanError(f"configuration {str(file)!r} is not TOML: {error}.") from None
    folder = file.resolve().parent
    role = document.get("role")
    try:
        if not isinstance(role, str) or role not in ROLES:
            raise PlanError(f"'role' must be one of {sorted(ROLES)}, got {role!r}.")
        model = ROLES[role]
        _refuse_placeholders(document)
        values = _with_secrets(document, model.secrets, folder)
        settings = model.model_validate(values, context={"folder": folder})
    except ValidationError as error:
        raise PlanError(f"configuration {str(file)!r}: {_sentence(error)}") from None
    except PlanError as error:
        raise PlanError(f"configuration {str(file)!r}: {error}") from None
    if isinstance(settings, SiloSettings):
        settings._file = file.resolve()
    return settings


def _refuse_placeholders(document: Mapping[str, Any], prefix: str = "") -> None:
    for key, value in document.items():
        if isinstance(value, str) and value.startswith(FILL_IN):
            raise PlanError(f"{prefix + key!r} still holds a placeholder; write your own value.")
        if isinstance(value, Mapping):
            _refuse_placeholders(value, f"{prefix}{key}.")


def _with_secrets(
    document: Mapping[str, Any], secrets: Mapping[str, str], folder: Path
) -> dict[str, Any]:
    """Put in what a file or the environment says in place of a secret; the environment wins."""
    values = dict(document)
    for dotted, variable in secrets.items():
        section, _, key = dotted.rpartition(".")
        inner = values.get(section, {}) if section else values
        if not isinstance(inner, dict):
            continue  # validation says so
        inner = dict(inner)
        named = inner.get(f"{key}_file")
        if named is not None and key in inner:
            raise PlanError(f"'{dotted}' and '{dotted}_file' exclude each other; give one.")
        if variable in os.environ:
            inner[key] = os.environ[variable]
        elif isinstance(named, str):
            inner[key] = _secret_of(folder / named, f"{dotted}_file")
        if section and inner:
            values[section] = inner
        elif not section:
            values = inner
    return values


def _secret_of(file: Path, key: str) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise PlanError(f"{key!r} {str(file)!r} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise PlanError(f"{key!r} {str(file)!r} is not text in UTF-8.") from None


_SHOWN = str | int | float | None
_MAY_HOLD_A_PASSWORD = {"url", "database", "proxy", "query"}


def _sentence(error: ValidationError) -> str:
    """Tell the first mistake in one sentence, without the value where that may be secret."""
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"]]
    where = ".".join(path)
    if first["type"] == "extra_forbidden":
        return f"{where!r} is not a key for this role; see cloister config init."
    if first["type"] == "missing":
        return f"{where!r} must be given; see cloister config init."
    rule = re.sub(r"^(Value error, |\w+ should )", "", first["msg"])
    rule = rule if rule.startswith("must ") else f"must {rule}"
    value = first["input"]
    hidden = bool(_MAY_HOLD_A_PASSWORD & set(path)) or first["type"] == "value_error"
    shown = "" if hidden or not isinstance(value, _SHOWN) else f", got {value!r}"
    return f"{where!r} {rule}{shown}."
