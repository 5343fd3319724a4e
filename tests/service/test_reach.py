"""Whether a database answers is found out without making or locking anything in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from cloister.core.errors import LedgerError
from cloister.federation.service.store import Store, reach

SECRET = "hunter2"


def test_a_server_answers_whether_or_not_a_coordinator_uses_it(
    new_database: Callable[[], str],
) -> None:
    url = new_database()
    assert reach(url).startswith("PostgreSQL ")
    engine = sa.create_engine(url)
    assert sa.inspect(engine).get_table_names() == []
    engine.dispose()
    store = Store(url)
    try:
        store.check()  # holds the lock of the one coordinator
        assert reach(url).startswith("PostgreSQL ")
    finally:
        store.close()


def test_a_database_that_is_not_there_is_told(new_database: Callable[[], str]) -> None:
    url = sa.make_url(new_database()).set(database="nothing").render_as_string(False)
    with pytest.raises(LedgerError, match='database "nothing" does not exist'):
        reach(url)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql+psycopg://u:{SECRET}@127.0.0.1:9/d",
        f"postgresql+psycopg://u:{SECRET}@h:x/d",
        f"postgresql+nothing://u:{SECRET}@h/d",
        f"nothing {SECRET}",
    ],
)
def test_no_password_is_told(url: str) -> None:
    with pytest.raises(LedgerError, match="cannot be reached: ") as caught:
        reach(url)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_may_forget_is_refused(new_database: Callable[[], str]) -> None:
    url = new_database()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        name = connection.exec_driver_sql("SELECT current_database()").scalar_one()
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
    engine.dispose()
    with pytest.raises(LedgerError, match="runs with synchronous_commit off"):
        reach(url)
