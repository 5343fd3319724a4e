"""Settings from one configuration file per party: TOML in, frozen values out.

The template of each role, ``cli/templates/ROLE.toml``, explains its keys; ``cloister config init``
writes it. Unknown keys are refused. Paths are relative to the file. The URL of a database or of a
proxy may hold a password. It can also come from a separate file, named by `database_file`,
`url_file` or `proxy_file`, or from the environment: `CLOISTER_DATABASE`, `CLOISTER_DATA_URL`,
`CLOISTER_PROXY`. It is never shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
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

from cloister.core.errors import PlanError
from cloister.core.files import toml_of
from cloister.data import Baskets, SqlQuery
from cloister.data.dask import checked_address
from cloister.data.schema import FILL_IN, read_text
from cloister.privacy.budget import Budget
from cloister.privacy.filter import Split
from cloister.protocol.plan import study_name
from cloister.protocol.task import Profile
from cloister.tasks import TASKS, installed

_FINGERPRINT = re.compile("ed25519:[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SQLITE = "sqlite:///"


def _beside(value: Any, info: ValidationInfo) -> Any:
    """Make a path absolute, relative to the folder of the configuration file."""
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
# Not shown in representations, which logs and tracebacks print.
_Url = Annotated[str, Field(min_length=1, repr=False), BeforeValidator(_database_beside)]
_SecretUrl = Annotated[SecretStr, Field(min_length=1), BeforeValidator(_database_beside)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_LogLevel = Literal["debug", "info", "warning", "error"]
_MessageBytes = Annotated[int, Field(ge=4096, le=2**31 - 1)]
_Count = Annotated[int, Field(ge=1)]
_Studies = tuple[str, ...] | dict[str, Annotated[tuple[str, ...], Field(strict=False)]] | None
_Delta = Annotated[float, Field(ge=0, lt=1)]
_Share = Annotated[float, Field(ge=0, le=1)]


# Strict, so that "1" is not a number, and without inputs in errors, which may hold a password.
class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        validate_default=True,
        hide_input_in_errors=True,
    )


class DataSettings(_Section):
    """The source of a silo's records: a file, or a database and a query."""

    file: _File | None = None
    url: _SecretUrl | None = None
    url_file: _File | None = None
    query: str | None = Field(default=None, min_length=1)
    baskets: str | None = None
    cache_dir: _File | None = None
    workers: str | None = None
    accept_loss: _Share | None = None
    reading: _File | None = None

    @field_validator("workers")
    @classmethod
    def _encrypted(cls, address: str | None) -> str | None:
        return None if address is None else checked_address(address)

    @field_validator("baskets")
    @classmethod
    def _parsed(cls, layout: str | None) -> str | None:
        if layout is not None:
            Baskets.parse(None, layout)
        return layout

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.file is None) == (self.url is None):
            raise ValueError("must have a file, or a url and a query, and not both")
        if (self.url is None) != (self.query is None):
            raise ValueError("must have a query if it has a url, and no query otherwise")
        if self.reading is not None and self.file is None:
            raise ValueError("must have a file if it has reading, whose settings are by file")
        if self.url is not None and (self.baskets or "").startswith("lines"):
            raise ValueError("must have baskets as long:BASKET,ITEM if it has a query")
        # Workers read partitions of files; a query or a list of baskets has none.
        if self.workers and (self.file is None or self.baskets or self.cache_dir):
            raise ValueError(
                "must have a folder of Parquet files, and no baskets or cache_dir, for workers"
            )
        return self

    def source(self) -> Path | SqlQuery | Baskets:
        """Return the source for :func:`cloister.data.read_source`."""
        source = self.file or self._query()
        return source if self.baskets is None else Baskets.parse(source, self.baskets)

    def _query(self) -> SqlQuery:
        assert self.url is not None
        return SqlQuery(self.url.get_secret_value(), self.query or "")


class NotifySettings(_Section):
    """The notification of a silo's owner: a command or an address that gets one JSON document."""

    command: tuple[str, ...] = Field(default=(), strict=False)
    webhook: SecretStr | None = Field(default=None, min_length=1)
    webhook_file: _File | None = None

    @field_validator("webhook")
    @classmethod
    def _an_address(cls, webhook: SecretStr | None) -> SecretStr | None:
        if webhook and not webhook.get_secret_value().startswith(("https://", "http://")):
            raise ValueError("must be an address that begins with https://")
        return webhook


class PolicySettings(_Section):
    """The jobs that a silo takes part in; by default none.

    The ledger sums the costs of earlier jobs of a study or year. If studies have a cap and
    `studies` is None, only "default" is allowed, since a new study's name would evade the cap. If
    `studies_of` is given, an analyst may charge the studies listed there only.
    """

    tasks: tuple[str, ...] = Field(default=(), strict=False)
    max_epsilon_per_job: _Positive | None = None
    max_epsilon_per_study: _Positive | None = None
    max_epsilon_per_year: _Positive | None = None
    studies: tuple[str, ...] | None = Field(default=None, strict=False)
    studies_of: dict[str, Annotated[tuple[str, ...], Field(strict=False)]] | None = None
    max_delta: _Delta = 1e-6
    min_other_silos: _Count = 2
    columns: tuple[str, ...] | None = Field(default=None, strict=False)
    profiles: tuple[Profile, ...] = Field(default=("pairwise",), strict=False)
    allow_publish: bool = False
    allow_breakdown: bool = False
    standing: bool = False
    standing_tasks: tuple[str, ...] | None = Field(default=None, strict=False)
    standing_epsilon_per_job: _Positive | None = None
    secure_programs: tuple[str, ...] = Field(default=(), strict=False)
    link_keys: tuple[str, ...] = Field(default=(), strict=False)
    link_with: tuple[str, ...] = Field(default=(), strict=False)
    link_columns: tuple[str, ...] = Field(default=(), strict=False)
    allow_exact_opening: bool = False
    max_labels_per_receiver: _Count = 1000

    @field_validator("studies", "studies_of")
    @classmethod
    def _named(cls, studies: _Studies) -> _Studies:
        for names in studies.values() if isinstance(studies, dict) else (studies or (),):
            for name in names:
                study_name(name)
        return studies

    def standing_limits(self, cap_epsilon: float) -> str:
        """Return a sentence on jobs that a silo's agent approves without its owner, or ""."""
        if not self.standing:
            return ""
        per_study, per_year = (
            "no limit" if most is None else f"at most {most:g}"
            for most in (self.max_epsilon_per_study, self.max_epsilon_per_year)
        )
        studies = [] if self.studies is None else [*self.studies]
        for named in (self.studies_of or {}).values():
            studies += [study for study in named if study not in studies]
        if not studies:
            studies = ["all" if self.max_epsilon_per_study is None else "default"]
        tasks = [name for name in self.tasks if self._is_standing_task(name)]
        most = self.max_epsilon_per_job or 0.0
        most = min(most, self.standing_epsilon_per_job or most)
        return (
            "The agent approves without you every job within the policy and these limits: tasks "
            f"{', '.join(tasks) or 'none'}; columns {', '.join(self.columns or ['all'])}; "
            f"studies {', '.join(studies)}; epsilon at most {most:g} a "
            f"job, {per_study} a study, {per_year} a year, and {cap_epsilon:g} in all. It has no "
            "end date: set standing = false to end it."
        )

    def _is_standing_task(self, name: str) -> bool:
        return self.standing_tasks is None or name in self.standing_tasks

    def outside_standing(self, tasks: Iterable[str], epsilon: float) -> str | None:
        """Return why a job that the policy allows waits for the owner all the same, or None."""
        if others := [name for name in tasks if not self._is_standing_task(name)]:
            return f"the standing rule does not cover task {others[0]!r}; decide on this job."
        most = self.standing_epsilon_per_job
        if most is not None and epsilon > most:
            return (
                f"the standing rule covers an epsilon of at most {most:g} a job, got {epsilon:g}; "
                "decide on this job."
            )
        return None


class QuotaSettings(_Section):
    """The quotas of one proposer at the coordinator."""

    open_jobs: _Count = 100
    proposals_per_hour: _Count = 600
    kept_jobs: _Count = 1000
    kept_mib: _Count = 100
    kept_days: _Positive = 365.0


def _host_and_port(listen: str) -> str:
    host, _, port = listen.rpartition(":")
    if not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError(f"must be HOST:PORT, got {listen!r}")
    return listen


def _pinned(pins: dict[str, str]) -> dict[str, str]:
    for name, pin in pins.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"must name parties as their certificates do, got {name!r}")
        if not _FINGERPRINT.fullmatch(pin):
            raise ValueError(
                f"must give 'ed25519:' and 64 hexadecimal digits for {name!r}, got {pin!r}"
            )
    # One party under two names would count as two silos of a sum.
    if twice := [name for name, pin in pins.items() if list(pins.values()).count(pin) > 1]:
        raise ValueError(f"must not give one fingerprint two names, {twice[0]!r} shares its")
    return pins


_Listen = Annotated[str, AfterValidator(_host_and_port)]
_Pins = Annotated[dict[str, str], AfterValidator(_pinned)]


class CoordinatorSettings(_Section):
    """The coordinator's file."""

    secrets: ClassVar[Mapping[str, str]] = {"database": "CLOISTER_DATABASE"}

    role: Literal["coordinator"] = "coordinator"
    listen: _Listen = "127.0.0.1:8443"
    keys: _File = Path("keys")
    database: _Url = "sqlite:///coordinator.db"
    database_file: _File | None = None
    round_timeout: float = Field(default=300.0, gt=0, le=86400)
    grace: float = Field(default=60.0, ge=0, le=86400)
    approval_timeout: _Positive = 604800.0
    max_message_bytes: _MessageBytes = 64 * 2**20
    audit_log: _File = Path("audit.jsonl")
    log_level: _LogLevel = "info"
    quotas: QuotaSettings = QuotaSettings()


class _Dialling(_Section):
    """The settings of a party that dials out."""

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
        # A proxy may need a user and a password; the coordinator identifies by certificate.
        if url is not None and _address_of(url, ("http", "https"), "http://HOST:PORT", user=True):
            raise ValueError("must be http://HOST:PORT with nothing after it")
        return url


def _address_of(url: str, schemes: tuple[str, ...], form: str, *, user: bool = False) -> str:
    """Check a URL and return its part after the port; messages do not repeat it."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in schemes and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound or re.search(r"\s", url):
        raise ValueError(f"must be {form}")
    if parts.username is not None and not user:
        raise ValueError(f"must be {form} without a user's name; certificates identify the party")
    return parts.path.strip("/") + parts.query + parts.fragment


class SiloSettings(_Dialling):
    """A silo's file."""

    secrets: ClassVar[Mapping[str, str]] = {
        "data.url": "CLOISTER_DATA_URL",
        "notify.webhook": "CLOISTER_NOTIFY_WEBHOOK",
        "proxy": "CLOISTER_PROXY",
    }

    role: Literal["silo"] = "silo"
    schema_file: _File = Path("schema.toml")
    data: DataSettings
    ledger: _File = Path("ledger.db")
    cap_epsilon: _Positive
    cap_delta: _Delta = 1e-6
    pure_share: _Share | None = None
    failure_share: _Share | None = None
    results: _File = Path("results")
    labels: _File = Path("labels.db")
    audit_log: _File = Path("audit.jsonl")
    log_level: _LogLevel = "info"
    max_message_bytes: _MessageBytes = 64 * 2**20
    kept_jobs: _Count = 1000
    ordered_records: bool = False
    tasks: dict[str, _TaskFile] = {}
    notify: NotifySettings = NotifySettings()
    policy: PolicySettings = PolicySettings()
    peers: _Pins = {}
    analysts: _Pins = {}
    _file: Path | None = PrivateAttr(default=None)

    def pins(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Return the current `peers` and `analysts` of the file; changes take effect immediately.

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
            # A plan names a task by this word, which must mean the same at all silos.
            if name in TASKS:
                raise ValueError(f"must not give another file for {name!r}, a task of the package")
            if not place.rpartition(":")[0].endswith(".py"):
                raise ValueError(f"must give FILE.py:CLASS for {name!r}, got {place!r}")
        return files

    @field_validator("policy")
    @classmethod
    def _known_tasks(cls, policy: PolicySettings, info: ValidationInfo) -> PolicySettings:
        # A misspelt name would refuse every job of the task.
        known = {*info.data.get("tasks", ()), *installed()}
        if unknown := [name for name in policy.tasks if name not in known]:
            raise ValueError(
                f"must name tasks among {sorted(known)}, got {unknown[0]!r}; name one of these, or "
                "name the file of your own task under [tasks]"
            )
        return policy

    @field_validator("failure_share")
    @classmethod
    def _of_both(cls, share: float | None, info: ValidationInfo) -> float | None:
        if share and not info.data.get("pure_share"):
            raise ValueError("must be 0 if pure_share is 0, since a whole job uses both")
        return share

    @property
    def cap(self) -> Budget:
        """The lifetime cap."""
        return Budget(self.cap_epsilon, self.cap_delta)

    @property
    def split(self) -> Split | None:
        """The split of the cap into limits; None to use the ledger's."""
        return Split.given(self.cap, self.pure_share, self.failure_share)


class AnalystSettings(_Dialling):
    """An analyst's file: name and coordinator of a proposer of jobs."""

    secrets: ClassVar[Mapping[str, str]] = {"proxy": "CLOISTER_PROXY"}

    role: Literal["analyst"] = "analyst"


class ScorerSettings(_Section):
    """The file of a scorer, a model's owner that answers encrypted queries."""

    secrets: ClassVar[Mapping[str, str]] = {}

    role: Literal["scorer"] = "scorer"
    listen: _Listen = "127.0.0.1:8444"
    keys: _File = Path("keys")
    model: _File
    callers: _Pins = {}
    max_rows_per_caller: _Count
    rows: int = Field(default=1024, ge=1, le=4096)
    queries: _File = Path("queries.db")
    audit_log: _File = Path("audit.jsonl")
    log_level: _LogLevel = "info"


Settings = CoordinatorSettings | SiloSettings | AnalystSettings | ScorerSettings
_Kind = TypeVar("_Kind", bound=Settings)
ROLES: dict[str, type[Settings]] = {
    "coordinator": CoordinatorSettings,
    "silo": SiloSettings,
    "analyst": AnalystSettings,
    "scorer": ScorerSettings,
}


def load_role(path: str | os.PathLike[str], kind: type[_Kind]) -> _Kind:
    """Read the configuration file of a party of one role; raise PlanError for another role."""
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
    label = f"configuration {str(file)!r}"
    text = read_text(file, label)
    # `from None` below: the causes quote values, which may be secret.
    try:
        content = toml_of(text)
    except ValueError as error:  # which names a place, and at most a key
        raise PlanError(f"{label} is not TOML: {error}.") from None
    try:
        settings = _parsed(content, file.resolve().parent)
    except (ValidationError, PlanError) as error:
        why = _sentence(error) if isinstance(error, ValidationError) else error
        raise PlanError(f"{label}: {why}") from None
    # For `pins`, which reads the file again.
    if isinstance(settings, SiloSettings):
        settings._file = file.resolve()
    return settings


def _parsed(document: Mapping[str, Any], folder: Path) -> Settings:
    role = document.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise PlanError(f"'role' must be one of {sorted(ROLES)}, got {role!r}.")
    # Before validation, whose sentence on a placeholder would be about its form.
    _refuse_placeholders(document)
    values = _with_secrets(document, ROLES[role].secrets, folder)
    return ROLES[role].model_validate(values, context={"folder": folder})


def _refuse_placeholders(document: Mapping[str, Any], prefix: str = "") -> None:
    for key, value in document.items():
        if isinstance(value, str) and value.startswith(FILL_IN):
            raise PlanError(f"{prefix + key!r} still has a placeholder; replace it by a value.")
        if isinstance(value, Mapping):
            _refuse_placeholders(value, f"{prefix}{key}.")


def _with_secrets(
    document: Mapping[str, Any], secrets: Mapping[str, str], folder: Path
) -> dict[str, Any]:
    """Insert secrets from files or the environment; the environment takes precedence."""
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
            file = folder / named
            inner[key] = read_text(file, f"'{dotted}_file' {str(file)!r}").strip()
        if section and inner:
            values[section] = inner
        elif not section:
            values = inner
    return values


_SHOWN = str | int | float | None
_MAY_HOLD_A_PASSWORD = {"url", "database", "proxy", "query"}


def _sentence(error: ValidationError) -> str:
    """Return the first error as one sentence, without the value if it may be secret."""
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"]]
    where = ".".join(path)
    if first["type"] == "extra_forbidden":
        return f"{where!r} is not a setting of this role; see cloister config init."
    if first["type"] == "missing":
        return f"{where!r} must be given; see cloister config init."
    if isinstance(said := first.get("ctx", {}).get("error"), PlanError):  # of what it is made
        return f"{where!r}: {said}"
    rule = re.sub(r"^(Value error, |\w+ should )", "", first["msg"])
    rule = rule if rule.startswith("must ") else f"must {rule}"
    value = first["input"]
    # Sentences of cloister's own validators name the value themselves where it is harmless.
    hidden = bool(_MAY_HOLD_A_PASSWORD & set(path)) or first["type"] == "value_error"
    shown = "" if hidden or not isinstance(value, _SHOWN) else f", got {value!r}"
    return f"{where!r} {rule}{shown}."
