"""What a transaction is: a generator that asks for statements by name and is sent their rows.

One idea: what happens in a transaction is written once, without a database. A generator yields `(name, parameters)` and gets
a list of rows; with a list of parameters the statement runs once for each, and the rows come together in that order. A driver
runs it from beginning to end inside of one transaction, commits when it returns, and rolls back when anything is raised.

What constraints refuse is turned into errors by the driver: a row that is there already is a `Conflict`, a row whose
conversation or branch is not there is `NotFound`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

Dialect: TypeAlias = Literal["sqlite", "postgres"]
Parameters: TypeAlias = Mapping[str, object]
Row: TypeAlias = tuple[Any, ...]
Step: TypeAlias = tuple[str, Parameters | Sequence[Parameters]]
Transaction: TypeAlias = Generator[Step, list[Row], T]

EVERYTHING = 1 << 62
"""More rows than there can be, and a number after every message's; it fits the integers of both databases."""


class Driver(Protocol):
    """One database. A transaction is given as the function that begins it, so that a driver can begin it again."""

    @property
    def dialect(self) -> Dialect: ...

    async def read(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def read_at_once(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """All statements see the database as it is at one moment, whatever others write meanwhile."""
        ...

    async def write(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def close(self) -> None: ...
