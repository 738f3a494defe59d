"""Who may change what through the agent: root everything, other users their own flows and jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection

from hostbpf.rates.sockets import Socket
from hostbpf.rpc.calls import Exhausted
from machine.callers import Denied
from wire.flow import Flow

ROOT = 0
FLOWS_PER_USER = 256
JOBS_PER_USER = 16


class Flows:
    """The flows that users have set schedules for, root's excepted."""

    def __init__(self, find: Callable[[Flow], Socket | None]) -> None:
        """`find` returns the socket that sends a flow."""
        self._find = find
        self._users: dict[Flow, int] = {}

    def check(self, user: int, flow: Flow) -> None:
        """Raise Denied unless `user` may change `flow`: root may, and the owner of its socket."""
        if user == ROOT:
            return
        found = self._find(flow)
        if found is None or found.uid != user:
            raise Denied(f"flow {flow}: no socket of user {user} sends it")

    def make_room(self, user: int, flow: Flow) -> list[Flow]:
        """Return the flows whose schedules have to be cleared first: their sockets are gone.

        Raises Exhausted where the user has schedules for FLOWS_PER_USER other flows with open sockets.
        """
        own = [each for each in self._users if self._users[each] == user and each != flow]
        if user == ROOT or len(own) < FLOWS_PER_USER:
            return []
        gone = [each for each in own if self._find(each) is None]
        if not gone:
            raise Exhausted(f"user {user} has {len(own)} flows with a schedule; clear one first")
        return gone

    def add(self, user: int, flow: Flow) -> None:
        """Note that `user` has set a schedule for `flow`."""
        self._users.pop(flow, None)
        if user != ROOT:
            self._users[flow] = user

    def remove(self, flow: Flow) -> None:
        """Note that `flow` has no schedule any more."""
        self._users.pop(flow, None)

    def sees(self, user: int, flow: Flow) -> bool:
        """Whether `user` gets feedback about `flow`."""
        return user == ROOT or self._users.get(flow) == user


class Jobs:
    """The jobs that users have set parameters for: a job is the user's who sets it first."""

    def __init__(self) -> None:
        self._users: dict[int, int] = {}

    def check(self, user: int, job: int, present: Collection[int]) -> None:
        """Raise Denied unless `user` may change `job`; `present` are the jobs that have parameters."""
        if user == ROOT:
            return
        if job == 0:
            raise Denied("job 0: only root may change it; sockets of all users without a mark belong to it")
        if job in present and self._users.get(job) != user:
            raise Denied(f"job {job}: somebody else has set it; choose another number")

    def add(self, user: int, job: int, present: Collection[int]) -> None:
        """Note that `user` sets parameters for `job`. Raises Exhausted beyond JOBS_PER_USER of a user."""
        self._users = {each: owner for each, owner in self._users.items() if each in present}
        own = [each for each in self._users if self._users[each] == user and each != job]
        if user != ROOT and len(own) >= JOBS_PER_USER:
            raise Exhausted(f"user {user} has {len(own)} jobs; remove one first")
        self._users[job] = user
