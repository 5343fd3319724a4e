"""One configuration file per party: strict, relative to itself, and silent about secrets."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from cloister.cli.config import template
from cloister.core.errors import PlanError
from cloister.data import Baskets, SqlQuery
from cloister.data.schema import FILL_IN
from cloister.federation.settings import (
    ROLES,
    AnalystSettings,
    CoordinatorSettings,
    SiloSettings,
    load_settings,
)

PIN = "ed25519:" + "0" * 64
SECRET = "hunter2"
URL = f"postgresql+psycopg://u:{SECRET}@db/ward"
SILO = """
role = "silo"
name = "hospital-a"
coordinator = "https://c.example.org:8443"
cap_epsilon = 3
data.file = "ward.csv"
"""
SQL = SILO.replace('data.file = "ward.csv"', 'data.query = "SELECT 1"')
COORDINATOR = 'role = "coordinator"\n'
ANALYST = 'role = "analyst"\nname = "ann"\ncoordinator = "https://c:8443"\n'


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE", "DATA_URL", "PROXY"):
        monkeypatch.delenv(f"CLOISTER_{name}", raising=False)


@pytest.fixture
def write(tmp_path: Path):
    def to_file(text: str) -> Path:
        file = tmp_path / "party" / "cloister.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    return to_file


def silo(path: Path) -> SiloSettings:
    settings = load_settings(path)
    assert isinstance(settings, SiloSettings)
    return settings


def coordinator(path: Path) -> CoordinatorSettings:
    settings = load_settings(path)
    assert isinstance(settings, CoordinatorSettings)
    return settings


def test_paths_are_relative_to_the_file_wherever_the_process_runs(
    write, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(SILO + 'ledger = "/var/lib/ledger.db"\nschema_file = "../s.toml"\n')
    monkeypatch.chdir(file.parent.parent)
    settings = silo(Path("party/cloister.toml"))
    assert settings.data.file == file.parent / "ward.csv"
    assert settings.keys == file.parent / "keys"
    assert settings.results == file.parent / "results"
    assert settings.schema_file == file.parent / "../s.toml"
    assert settings.ledger == Path("/var/lib/ledger.db")
    assert settings.data.source() == settings.data.file


def test_the_file_of_a_sqlite_database_is_relative_too(write, monkeypatch) -> None:
    folder = write(COORDINATOR).parent
    assert coordinator(write(COORDINATOR)).database == f"sqlite:///{folder}/coordinator.db"
    absolute = write(COORDINATOR + 'database = "sqlite:////var/x.db"\n')
    assert coordinator(absolute).database == "sqlite:////var/x.db"
    monkeypatch.setenv("CLOISTER_DATABASE", "sqlite:///y.db")
    assert coordinator(write(COORDINATOR)).database == f"sqlite:///{folder}/y.db"
    monkeypatch.setenv("CLOISTER_DATA_URL", "sqlite:///z.db")
    assert silo(write(SQL)).data.source() == SqlQuery(f"sqlite:///{folder}/z.db", "SELECT 1")


def test_what_nobody_set_denies(write) -> None:
    policy = silo(write(SILO)).policy
    assert (policy.tasks, policy.max_epsilon_per_job, policy.profiles) == ((), None, ("pairwise",))
    assert (policy.min_other_silos, policy.allow_publish, policy.standing) == (2, False, False)
    assert (silo(write(SILO)).peers, silo(write(SILO)).analysts) == ({}, {})


def test_settings_cannot_be_changed(write) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        silo(write(SILO)).cap_epsilon = 100.0  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        silo(write(SILO)).policy.standing = True  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'role' must be one of ['analyst', 'coordinator', 'scorer', 'silo'], got None."),
        ('role = ["silo"]', "'role' must be one of"),
        ("role = 'silo'\nname = 'a'", "'coordinator' must be given; see cloister config init."),
        (SILO + "rounds = 3", "'rounds' is not a setting of this role; see cloister config init."),
        (SILO + "[policy]\nepsilon = 3", "'policy.epsilon' is not a setting of this role"),
        (SILO + "[data]\nfile = 'y'", "is not TOML"),
        (COORDINATOR + "keys = ", "is not TOML"),
        ("a = " + 100_000 * "[", "is not TOML: it is nested too deeply."),
        (COORDINATOR + "name = 'c'", "'name' is not a setting of this role"),
        (COORDINATOR + "listen = '8443'", "'listen' must be HOST:PORT, got '8443'."),
        (COORDINATOR + "listen = 'h:99999'", "'listen' must be HOST:PORT"),
        (COORDINATOR + "round_timeout = 0", "'round_timeout' must be greater than 0, got 0."),
        (COORDINATOR + "round_timeout = '60'", "'round_timeout' must be a valid number, got '60'"),
        (COORDINATOR + "grace = true", "'grace' must be a valid number, got True."),
        (COORDINATOR + "approval_timeout = inf", "'approval_timeout' must be a finite number"),
        (COORDINATOR + "max_message_bytes = 1.5e6", "'max_message_bytes' must be a valid integer"),
        (COORDINATOR + "keys = 3", "'keys' must be"),
        (COORDINATOR + "log_level = 'loud'", "'log_level' must be 'debug', 'info', 'warning' or"),
        (COORDINATOR + "database = ''", "'database' must have at least 1 character."),
        (SILO.replace("= 3", "= 0"), "'cap_epsilon' must be greater than 0, got 0."),
        (SILO.replace("= 3", "= nan"), "'cap_epsilon' must be"),
        (SILO + "cap_delta = 1", "'cap_delta' must be less than 1, got 1."),
        (SILO + "pure_share = 1.5", "'pure_share' must be less than or equal to 1, got 1.5."),
        (SILO + "failure_share = 0.5", "'failure_share' must be 0 if pure_share is 0"),
        (SILO + "[policy]\ntasks = ['kmean']", "'policy' must name tasks among ['apriori', 'auto'"),
        (SILO + "[policy]\ntasks = ['own']", "or name the file of your own task under [tasks]."),
        (SILO + "[policy]\ntasks = 'count'", "'policy.tasks' must be a valid tuple"),
        (SILO + "[policy]\nprofiles = ['any']", "'policy.profiles.0' must be 'local', 'group' or"),
        (SILO + "[policy]\nmin_other_silos = 0", "'policy.min_other_silos' must be greater than"),
        (SILO + "[policy]\nstanding = 1", "'policy.standing' must be a valid boolean, got 1."),
        (SILO + "policy = 1", "'policy' must be"),
        (SILO + f"[peers]\nb = '{PIN[:-1]}'", "'peers' must give 'ed25519:' and 64 hexadecimal"),
        (SILO + f"[peers]\nb = '{PIN}'\nc = '{PIN}'", "must not give one fingerprint two names"),
        (SILO + f"[analysts]\n'a b' = '{PIN}'", "'analysts' must name parties as their"),
        (SILO + "data.query = 'SELECT 1'", "'data' must have a query if it has a url"),
        (SQL, "'data' must have a file, or a url and a query, and not both."),
        (SQL + "data.url = 'sqlite://'\ndata.file = 'x'", "'data' must have a file, or a url"),
        (SQL.replace("data.query", "data"), "'data' must be"),
        (ANALYST.replace("ann", "a b"), "'name' must be 1 to 64 of letters"),
        (ANALYST.replace("ann", f"{FILL_IN}: x"), "'name' still has a placeholder"),
        (ANALYST.replace("https", "http"), "'coordinator' must be https://HOST:PORT."),
        (ANALYST.replace("c:8443", "c:x"), "'coordinator' must be https://HOST:PORT."),
        (ANALYST.replace("8443", "8443/v1"), "'coordinator' must be https://HOST:PORT with"),
        (ANALYST.replace("c:", "u:p@c:"), "'coordinator' must be https://HOST:PORT without"),
        (ANALYST + "proxy = 'socks://h:1'", "'proxy' must be http://HOST:PORT."),
    ],
)
def test_a_mistake_is_told_in_one_sentence(write, text: str, said: str) -> None:
    with pytest.raises(PlanError) as caught:
        load_settings(write(text))
    sentence = str(caught.value)
    assert said in sentence
    assert sentence.startswith("configuration ")
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert "Value error" not in sentence


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot be read: No such file"):
        load_settings(tmp_path / "none.toml")
    with pytest.raises(PlanError, match="cannot be read: Is a directory"):
        load_settings(tmp_path)
    (tmp_path / "x").write_bytes(b"role = '\xff'")
    with pytest.raises(PlanError, match="is not text in UTF-8"):
        load_settings(tmp_path / "x")


# Secrets ------------------------------------------------------------------------------------------

PROXY = f"http://u:{SECRET}@proxy:3128"
SECRETS = [
    (COORDINATOR, "database", "database_file", "CLOISTER_DATABASE", URL),
    (SQL, "data.url", "data.url_file", "CLOISTER_DATA_URL", URL),
    (SILO, "proxy", "proxy_file", "CLOISTER_PROXY", PROXY),
    (ANALYST, "proxy", "proxy_file", "CLOISTER_PROXY", PROXY),
]


def found(settings: object, key: str) -> str:
    for name in key.split("."):
        settings = getattr(settings, name)
    return settings.get_secret_value() if hasattr(settings, "get_secret_value") else str(settings)


@pytest.mark.parametrize(("base", "key", "by_file", "variable", "secret"), SECRETS)
def test_a_secret_comes_from_the_file_a_file_of_its_own_or_the_environment(
    write, monkeypatch, base: str, key: str, by_file: str, variable: str, secret: str
) -> None:
    other = secret.replace(SECRET, "other")
    assert found(load_settings(write(base + f'{key} = "{secret}"\n')), key) == secret
    (write("").parent / "secret").write_text(secret + "\n")
    file = write(base + f'{by_file} = "secret"\n')
    assert found(load_settings(file), key) == secret
    monkeypatch.setenv(variable, other)
    assert found(load_settings(file), key) == other
    assert found(load_settings(write(base)), key) == other


@pytest.mark.parametrize(("base", "key", "by_file", "variable", "secret"), SECRETS)
def test_a_secret_is_never_shown(
    write, monkeypatch, base: str, key: str, by_file: str, variable: str, secret: str
) -> None:
    settings = load_settings(write(base + f'{key} = "{secret}"\n'))
    assert SECRET not in repr(settings) + str(settings)
    assert SECRET not in repr(getattr(getattr(settings, "data", None), "source", str)())
    for wrong in (f"{key} = ['{secret}']", f"{key} = {{ x = '{secret}' }}"):
        with pytest.raises(PlanError) as caught:
            load_settings(write(f"{base}{wrong}\n"))
        assert SECRET not in str(caught.value)
    monkeypatch.setenv(variable, secret)
    assert SECRET not in repr(load_settings(write(base)))


@pytest.mark.parametrize(("base", "variable"), [(SILO, "PROXY"), (ANALYST, "PROXY")])
def test_a_secret_that_breaks_its_rule_is_not_repeated(
    write, monkeypatch, base: str, variable: str
) -> None:
    monkeypatch.setenv(f"CLOISTER_{variable}", f"{SECRET} \n")
    with pytest.raises(PlanError, match="'proxy' must be http://HOST:PORT") as caught:
        load_settings(write(base))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(("base", "key", "by_file", "variable", "secret"), SECRETS)
def test_a_secret_in_two_places_of_one_file_is_refused(
    write, base: str, key: str, by_file: str, variable: str, secret: str
) -> None:
    with pytest.raises(PlanError, match="exclude each other") as caught:
        load_settings(write(f'{base}{key} = "{secret}"\n{by_file} = "secret"\n'))
    assert SECRET not in str(caught.value)
    with pytest.raises(PlanError, match=f"'{by_file}' .* cannot be read: No such file"):
        load_settings(write(f'{base}{by_file} = "secret"\n'))


# Templates ----------------------------------------------------------------------------------------

FILLED = {
    "model": '"model.json"',
    "name": '"hospital-a"',
    "coordinator": '"https://c.example.org:8443"',
    "cap_epsilon": "3.0",
    "file": '"ward.csv"',
}


def completed(role: str) -> str:
    lines = []
    for line in template(role).splitlines():
        key = line.partition(" = ")[0]
        lines.append(f"{key} = {FILLED[key]}" if FILL_IN in line else line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("role", ROLES)
def test_a_template_loads_once_its_placeholders_are_filled(write, role: str) -> None:
    if FILL_IN in template(role):
        with pytest.raises(PlanError, match="placeholder"):
            load_settings(write(template(role)))
    assert load_settings(write(completed(role))).role == role


@pytest.mark.parametrize("role", ROLES)
def test_a_template_states_the_defaults_as_they_are(write, role: str) -> None:
    stated = [
        line[1:] if line.startswith("#") and line[1:2].isalpha() else line
        for line in completed(role).splitlines()
    ]
    assert stated != completed(role).splitlines()
    assert load_settings(write("\n".join(stated))) == load_settings(write(completed(role)))


@pytest.mark.parametrize("role", ROLES)
def test_a_template_names_every_key(role: str) -> None:
    text = template(role)

    def keys(model) -> set[str]:
        inner = {"data", "policy", "quotas"}
        return {
            name
            for field, info in model.model_fields.items()
            for name in (keys(info.annotation) if field in inner else {field})
        }

    written = {line.lstrip("# ").partition(" = ")[0].strip("[]") for line in text.splitlines()}
    assert keys(ROLES[role]) - written - {"url"} == set()  # a URL goes into its own file
    assert tomllib.loads(text)["role"] == role


def test_an_analyst_needs_three_lines(write) -> None:
    settings = load_settings(write(ANALYST))
    assert isinstance(settings, AnalystSettings)
    assert settings.coordinator == "https://c:8443"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("lines", {}),
        ("lines:;", {"delimiter": ";"}),
        ("long:receipt,item", {"layout": "long", "basket": "receipt", "item": "item"}),
    ],
)
def test_a_file_may_hold_baskets(write, words: str, expected: dict[str, str]) -> None:
    file = write(SILO + f'data.baskets = "{words}"\n')
    assert silo(file).data.source() == Baskets(file.parent / "ward.csv", **expected)


def test_the_folder_of_a_cache_is_found_from_the_files_own(write) -> None:
    file = write(SILO + 'data.cache_dir = "fast"\n')
    assert silo(file).data.cache_dir == file.parent / "fast"
    assert silo(write(SILO)).data.cache_dir is None


def test_a_query_gives_baskets_row_by_row(write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_DATA_URL", "postgresql://db/shop")
    long = silo(write(SQL + 'data.baskets = "long:no,item"\n')).data.source()
    assert isinstance(long, Baskets)
    assert long.source == SqlQuery("postgresql://db/shop", "SELECT 1")
    with pytest.raises(PlanError, match="must have baskets as long:BASKET,ITEM"):
        silo(write(SQL + 'data.baskets = "lines"\n'))


@pytest.mark.parametrize("words", ["", "rows", "long:a"])
def test_a_wrong_description_of_baskets_is_refused(write, words: str) -> None:
    with pytest.raises(PlanError, match=r"'data.baskets': baskets must be 'lines'"):
        silo(write(SILO + f'data.baskets = "{words}"\n'))
