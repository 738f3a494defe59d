"""What the tables must hold: 64 jobs on 64 hosts, each host known to every job."""

from __future__ import annotations

from finsy import P4TableAction, P4TableEntry

from tests.p4.conftest import Start
from tests.p4.fabric import host_port, known_host, route, send, source_route, to_host, udp, vrf

JOBS, MEMBERS = 64, 64
FIRST_VRF, FIRST_LINK = 2, 3


def test_a_switch_holds_64_jobs_on_64_hosts(start: Start) -> None:
    """Every job has a route to each host, and each of 64 links a source route to it: as on a spine with
    several virtual spines of a job."""
    target = start("fabric")
    addresses = [f"10.3.0.{host}" for host in range(MEMBERS)]
    far = [f"10.4.0.{host}" for host in range(MEMBERS)]
    jobs = range(FIRST_VRF, FIRST_VRF + JOBS)
    links = range(FIRST_LINK, FIRST_LINK + MEMBERS)
    entries = [
        host_port(1, jobs[-1]),
        *(vrf(port, job) for port, job in zip(links, jobs, strict=True)),
        *(route(job, f"{address}/32", to_host(2)) for job in jobs for address in addresses),
        route(jobs[0], "10.4.0.0/24", P4TableAction("to_group", group=99)),
        *(source_route(port, f"{address}/32", 5, 64) for port in links for address in far),
        *(known_host(host) for host in range(MEMBERS)),
    ]
    with target.installed(*entries):
        kept = [found for found in target.client.read(P4TableEntry()) if not found.is_default_action]
        assert len(kept) == len(entries)
        for address in (addresses[0], addresses[-1]):
            assert send(target, 1, udp(address))[0][0] == 2
        for address in (far[0], far[-1]):
            assert send(target, FIRST_LINK, udp(address))[0][0] == 5
