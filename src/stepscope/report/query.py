"""SQL over the declared tables, with DuckDB embedded; the tables stay in memory and the database may touch no file."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import duckdb

from stepscope.errors import BadQuery
from stepscope.report.tables import arrow_tables
from stepscope.store.run import read_further_tables
from stepscope.store.schema import TABLES

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.answers.account import Account


def run_query(account: Account, sql: str) -> pa.Table:
    """The result of one SQL statement.

    Raises:
        BadQuery: the database refuses it; the message lists the tables.
    """
    connection = duckdb.connect(":memory:")
    try:
        tables = arrow_tables(account)
        tables |= read_further_tables(account.source, TABLES)
        for name, table in tables.items():
            connection.register(name, table)
        connection.execute("SET enable_external_access = false")
        relation = connection.sql(sql)
        if relation is None:
            raise BadQuery("the statement returns no rows. Write a SELECT.")
        twice = sorted(name for name, count in Counter(relation.columns).items() if count > 1)
        if twice:
            raise BadQuery(f"several columns are named {', '.join(twice)}. Name them apart with AS.")
        return relation.to_arrow_table()
    except duckdb.Error as error:
        first = str(error).strip().splitlines()[0]
        raise BadQuery(
            f"the query was refused: {first}. Tables: {', '.join(TABLES)}; columns: docs/reference.md."
        ) from error
    finally:
        connection.close()
