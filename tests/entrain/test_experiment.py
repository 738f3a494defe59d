"""Experiment files: what is accepted, and that each mistake names file, key and remedy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from controlplane.routing import next_hops, source_port
from controlplane.topology import Topology
from entrain.bound import bound_ms
from entrain.experiment import Combination, Job, load_experiment, load_network
from entrain.policies.mltcp import parameters
from entrain.reserved import reserved
from entrain.results.values import LEARNING, SETTLED_LEAST
from entrain.trials import slot_rates
from hostbpf.mltcp import Params
from machine.errors import BadInput
from simulation.experiments import matrix
from workloads.collectives import steps

EXPERIMENTS = Path(__file__).parents[2] / "experiments"

GOOD = """
[experiment]
name = "small"
routing = ["ecmp", "source"]
seed = [3, 4]

[topology]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts_per_leaf = 2

[[job]]
name = "a"
collective = "ring"
bytes = 1000
hosts = ["h1", "h3"]

[[job]]
name = "b"
model = "vgg16"
scale = 1000
count = 2
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "file.toml"
    path.write_text(text)
    return path


def test_every_combination_once(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path, GOOD))
    assert list(experiment.combinations()) == [
        Combination(routing, "none", seed) for routing in ("ecmp", "source") for seed in (3, 4)
    ]


def test_mltcp_runs_the_variants_of_the_controls_that_have_one(tmp_path: Path) -> None:
    text = GOOD.replace(
        "seed = [3, 4]", 'policy = ["none", "mltcp"]\ncongestion_control = ["bpf_reno", "bbr", "cubic"]'
    )
    found = [(each.policy, each.control) for each in load_experiment(write(tmp_path, text)).combinations()]
    plain = [("none", "bpf_reno"), ("none", "bbr"), ("none", "cubic")]
    assert found == 2 * [*plain, ("mltcp", "mltcp_reno"), ("mltcp", "mltcp_cubic")]


@pytest.mark.parametrize("controls", ["", 'congestion_control = ["bbr"]'])
def test_mltcp_without_a_variant_says_which_there_are(tmp_path: Path, controls: str) -> None:
    text = GOOD.replace("seed = [3, 4]", f'policy = ["mltcp"]\n{controls}')
    with pytest.raises(BadInput, match=r"file\.toml.*congestion_control.*needs one of reno, cubic, dctcp"):
        load_experiment(write(tmp_path, text))


def test_one_value_stands_wherever_a_list_may(tmp_path: Path) -> None:
    text = GOOD.replace('routing = ["ecmp", "source"]', "routing = {routing}\npolicy = {policy}")
    text = text.replace("seed = [3, 4]", "seed = {seed}\ncongestion_control = {control}")
    text += "\n[[cross]]\nhosts = {host}\nto = {to}\n"
    values = {
        "routing": '"ecmp"',
        "policy": '"none"',
        "seed": "3",
        "control": '"cubic"',
        "host": '"h1"',
        "to": '"h2"',
    }
    alone = load_experiment(write(tmp_path, text.format(**values)))
    lists = load_experiment(write(tmp_path, text.format(**{key: f"[{one}]" for key, one in values.items()})))
    assert alone == lists


def test_a_kind_of_experiment_that_is_unknown_is_told_with_the_one_meant(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("[experiment]", '[experiment]\nkind = "slot-rate"'))
    for load in (load_experiment, slot_rates.is_slot_rates, load_network):
        with pytest.raises(BadInput, match=r"\[experiment\], kind: .*did you mean slot-rates\?"):
            load(path)


def test_a_topology_is_brought_up_and_not_run(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD[GOOD.index("[topology]") : GOOD.index("[[job]]")])
    with pytest.raises(BadInput, match=rf"`entrain up {path}` .*topology = .file.toml"):
        load_experiment(path)


def test_an_experiment_stands_for_its_topology(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("[experiment]", '[experiment]\ntarget = "bmv2"'))
    assert load_network(path) == load_experiment(path).topology
    assert {switch.target for switch in load_network(path).switches} == {"bmv2"}


def test_counted_jobs_get_free_hosts_leaf_by_leaf(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path, GOOD))
    assert experiment.jobs[1].hosts == ("h2", "h4")
    assert [str(ip) for ip in experiment.jobs[1].spec.hosts] == ["10.1.2.2", "10.2.2.2"]


def test_command_line_overrides_the_file(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path, GOOD), target="bmv2", seed=9)
    assert experiment.target == "bmv2"
    assert experiment.seeds == (9,)


def test_the_seed_spreads_starts_only_where_asked(tmp_path: Path) -> None:
    identical = load_experiment(write(tmp_path, GOOD))
    spread = load_experiment(write(tmp_path, GOOD.replace("seed =", "start_spread_ms = 30\nseed =")))
    offsets = [spread.start_offset_ms(seed, job) for seed in (3, 4) for job in spread.jobs]
    assert all(0 <= offset <= 30 for offset in offsets)
    assert len(set(offsets)) == 4
    assert offsets == [spread.start_offset_ms(seed, job) for seed in (3, 4) for job in spread.jobs]
    assert {identical.start_offset_ms(seed, job) for seed in (3, 4) for job in identical.jobs} == {0.0}


def test_mltcp_parameters_are_per_job(tmp_path: Path) -> None:
    """A job takes what [mltcp] says, but for the keys of its own [job.mltcp]."""
    text = GOOD.replace("[topology]", "[mltcp]\ngap_ms = 50\nscale_decrease = true\n[topology]")
    text = text.replace("count = 2", "count = 2\n[job.mltcp]\nscale_decrease = false\ntotal_bytes = 7000")
    first, second = load_experiment(write(tmp_path, text)).jobs
    assert parameters(first.tables["mltcp"]) == Params(gap_ms=50, scale_decrease=True)
    assert parameters(second.tables["mltcp"]) == Params(gap_ms=50, total_bytes=7000)
    jobs = load_experiment(write(tmp_path, GOOD)).jobs
    assert {parameters(job.tables["mltcp"]) for job in jobs} == {Params()}


def test_jobs_may_share_hosts_because_their_ports_differ(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path, GOOD.replace("count = 2", 'hosts = ["h3", "h1"]')))
    assert len({job.spec.port_base for job in experiment.jobs}) == 2


def test_the_gap_is_longer_than_any_queue_holds(tmp_path: Path) -> None:
    experiment = load_experiment(
        write(tmp_path, GOOD.replace("leaves = 2", "leaves = 2\nuplink_rate_mbps = 10"))
    )
    holds_ms = max(link.queue_packets * 1514 * 8 / link.rate_mbps / 1e3 for link in experiment.topology.links)
    assert experiment.gap_ms > holds_ms


@pytest.mark.parametrize(
    ("old", "new", "key", "remedy"),
    [
        ('name = "small"', 'name = "small"\nrouting_ = 1', "[experiment], routing_", "did you mean routing?"),
        (
            '["ecmp", "source"]',
            '["ospf"]',
            "[experiment], routing",
            'must be "ecmp", "source" or "vclos", is "ospf"',
        ),
        ('["ecmp", "source"]', '["ecmp", "ecmp"]', "[experiment], routing", "list it once"),
        ("seed = [3, 4]", "seed = -1", "[experiment], seed", "at least 0"),
        ("bytes = 1000", "size_mb = 1000", "[[job]] 1, size_mb", "known are"),
        ("bytes = 1000", "bytes = 1000\ncompute_s = 1", "[[job]] 1, compute_s", "use compute_ms"),
        ("bytes = 1000", "", "[[job]] 1: bytes", "either a model or bytes"),
        ('"ring"', '"circle"', "[[job]] 1: collective", "halving-doubling"),
        ('"vgg16"', '"vgg17"', "[[job]] 2: model", "vgg19"),
        ('["h1", "h3"]', '["h1", "h9"]', "[[job]] 1, hosts", "h1 to h4"),
        ('["h1", "h3"]', '["h1", "h1"]', "[[job]] 1, hosts", "its own host"),
        ("count = 2", "count = 3", "[[job]] 2, count", "2 are free"),
        ("count = 2", "", "[[job]] 2, hosts", "either hosts (their names) or count"),
        ('name = "b"', 'name = "a"', "[[job]], name", "its own name"),
        ("leaves = 2", "leafs = 2", "[topology], leafs", "did you mean leaves?"),
        ('kind = "leaf-spine"', 'kind = "dumbbell"', "[topology]", "dumbbell"),
        (
            'name = "small"',
            'name = "small"\ntopology = "other.toml"',
            "[experiment], topology",
            "keep one of them",
        ),
        ("[topology]", "[network]\nshaping = 'hfsc'\n[topology]", "[network], shaping", '"htb"'),
        ("[topology]", "[mltcp]\nintercept = 0\n[topology]", "[mltcp], intercept", "above 0"),
    ],
)
def test_a_mistake_names_file_key_and_remedy(
    tmp_path: Path, old: str, new: str, key: str, remedy: str
) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(BadInput) as raised:
        load_experiment(path)
    message = str(raised.value)
    assert message.startswith(f"{path}: ")
    assert key in message
    assert remedy in message


def test_source_routing_needs_an_uplink_for_each_host_port(tmp_path: Path) -> None:
    """With fewer, hosts would share uplinks, and nobody would say so."""
    with pytest.raises(BadInput, match=r"\[experiment\], routing: .*leaf1 has 2 hosts and 1 uplinks"):
        load_experiment(write(tmp_path, GOOD.replace("spines = 2", "spines = 1")))
    load_experiment(write(tmp_path, GOOD.replace("spines = 2", "spines = 1\nlinks_per_pair = 2")))


VCLOS = """
[experiment]
name = "good"
routing = "vclos"

[topology]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts_per_leaf = 4
links_per_pair = 2

[[job]]
name = "a"
bytes = 1000
collective = "ring"
hosts = ["h1", "h5", "h2", "h6"]

[[job]]
name = "b"
bytes = 1000
collective = "ring"
hosts = ["h3", "h7"]
"""


def test_vclos_gives_jobs_on_given_hosts_links_of_their_own(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path, VCLOS))
    (combination,) = experiment.combinations()
    assert (combination.routing, combination.strategy) == ("source", "vclos")
    tenants = reserved(experiment.topology, experiment.jobs)
    assert [set(tenant.hosts) for tenant in tenants] == [set(job.hosts) for job in experiment.jobs]
    links = [link for tenant in tenants for link in tenant.placement.links]
    assert len(set(links)) == len(links) == 6


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('["h3", "h7"]', '["h2", "h7"]', "job b: h2 is another job's, too"),
        ('["h3", "h7"]', '["h3", "h4", "h7"]', "job b: there is no virtual Clos on its hosts"),
        ("links_per_pair = 2", "links_per_pair = 1", "job b: there is no virtual Clos on its hosts"),
        ('hosts = ["h3", "h7"]\n', 'hosts = ["h3", "h7"]\n[[cross]]\n', "use no [[cross]]"),
        (
            "[topology]",
            'policy = "slots"\n[slots]\nloads = "emulated"\n[topology]',
            '[slots], loads = "emulated": not with routing vclos',
        ),
    ],
)
def test_vclos_without_links_for_each_job_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(BadInput) as error:
        load_experiment(write(tmp_path, VCLOS.replace(old, new)))
    assert words in str(error.value)


def test_every_policy_runs_on_the_links_of_a_virtual_clos(tmp_path: Path) -> None:
    three = 'routing = "vclos"\npolicy = ["none", "mltcp", "slots"]\ncongestion_control = "reno"'
    experiment = load_experiment(write(tmp_path, VCLOS.replace('routing = "vclos"', three)))
    assert [each.policy for each in experiment.combinations()] == ["none", "mltcp", "slots"]
    assert {each.strategy for each in experiment.combinations()} == {"vclos"}


def test_load_sets_the_computation_of_every_job(tmp_path: Path) -> None:
    text = VCLOS.replace('routing = "vclos"', 'routing = ["ecmp", "source"]\nload = [20, 50]')
    experiment = load_experiment(write(tmp_path, text))
    found = [(each.load, each.routing) for each in experiment.combinations()]
    assert found == [(20.0, "ecmp"), (20.0, "source"), (50.0, "ecmp"), (50.0, "source")]
    for load in (20.0, 50.0):
        at = experiment.at(load)
        for job, before in zip(at.jobs, experiment.jobs, strict=True):
            alone = bound_ms(job.spec, at.rates_mbps(job))
            assert bound_ms(before.spec, at.rates_mbps(job)) == pytest.approx(alone * load / 100)
            assert (job.hosts, job.spec.bytes) == (before.hosts, before.spec.bytes)
    assert experiment.at(None) == experiment


def test_load_cannot_set_the_computation_of_a_trained_model(tmp_path: Path) -> None:
    text = VCLOS.replace('routing = "vclos"', "load = 50")
    trained = text.replace('bytes = 1000\ncollective = "ring"', 'model = "mlp"', 1)
    with pytest.raises(BadInput, match=r"load: job a is really trained"):
        load_experiment(write(tmp_path, trained))


def test_the_live_matrix_has_the_simulated_jobs_by_scale() -> None:
    experiment = load_experiment(EXPERIMENTS / "matrix.toml")
    assert experiment.loads == matrix.LOADS
    assert experiment.routing == matrix.ROUTINGS
    sizes = [job.spec.bytes for job in experiment.jobs]
    assert [size / max(sizes) for size in sizes] == [model / max(matrix.MODELS) for model in matrix.MODELS]
    for job in experiment.jobs:
        leaves = {experiment.topology.host_by_name[host].leaf for host in job.hosts}
        assert len(leaves) == matrix.CLUSTER.leaves


def test_source_routing_needs_leaves_and_spines(tmp_path: Path) -> None:
    text = GOOD.replace("leaves = 2\nspines = 2\nhosts_per_leaf = 2", "hosts_per_side = 2")
    with pytest.raises(BadInput, match="leaves and spines"):
        load_experiment(write(tmp_path, text.replace("leaf-spine", "dumbbell")))


@pytest.mark.parametrize(
    "path",
    sorted(path for path in EXPERIMENTS.glob("*.toml") if "[experiment]" in path.read_text(encoding="utf-8")),
    ids=lambda path: path.stem,
)
def test_the_experiments_that_come_with_it_are_good(path: Path) -> None:
    name = slot_rates.load(path).name if slot_rates.is_slot_rates(path) else load_experiment(path).name
    assert name == path.stem


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("mltcp-*.toml")), ids=lambda path: path.stem)
def test_experiments_about_settling_run_long_enough_to_tell(path: Path) -> None:
    for job in load_experiment(path).jobs:
        assert job.spec.iterations >= LEARNING + SETTLED_LEAST


def uplinks(topology: Topology, job: Job) -> list[Counter[tuple[str, str]]]:
    """By step of a job, how many flows source routing puts on each link, by the routes."""
    result = []
    for step in steps(job.spec.collective, len(job.hosts)):
        links: Counter[tuple[str, str]] = Counter()
        for flow in step:
            source = topology.host_by_name[job.hosts[flow.src]]
            destination = topology.host_by_name[job.hosts[flow.dst]]
            leaf = topology.switch_by_name[source.leaf]
            hops = next_hops(topology, leaf, destination)
            if source.leaf != destination.leaf:
                spine = leaf.port(source_port(topology, leaf, source.leaf_port, hops)).peer
                links[source.leaf, spine] += 1
                links[spine, destination.leaf] += 1
        result.append(links)
    return result


def test_the_jobs_of_the_source_routing_experiment_are_leaf_wise_permutations() -> None:
    """vClos, Lemma 5.1: then source routing puts at most one flow of a job on a link in a step."""
    experiment = load_experiment(EXPERIMENTS / "source-routing.toml")
    for job in experiment.jobs:
        for links in uplinks(experiment.topology, job):
            assert set(links.values()) <= {1}
        assert any(links for links in uplinks(experiment.topology, job)), "the job never leaves its leaves"


def test_emulated_switches_need_fixed_paths(tmp_path: Path) -> None:
    slots = GOOD.replace("[topology]", '[slots]\nloads = "emulated"\n\n[topology]')
    slots = slots.replace("[experiment]", '[experiment]\npolicy = ["slots"]')
    message = r'\[slots\], loads = "emulated": .* hash of leaf1; use source'
    with pytest.raises(BadInput, match=message):
        load_experiment(write(tmp_path, slots))
    fixed = load_experiment(write(tmp_path, slots.replace('"ecmp", ', "")))
    table = fixed.tables["slots"]
    assert (table["slot_ms"], table["loads"], table["scheduler"]) == (60.0, "emulated", "smallest-first")


def test_policies_of_slots_differ_by_their_length_alone(tmp_path: Path) -> None:
    policies = ("slots", "slots-15", "slots-120")
    text = GOOD.replace("[experiment]", f"[experiment]\npolicy = {list(policies)}")
    tables = load_experiment(write(tmp_path, text)).tables
    assert [tables[name]["slot_ms"] for name in policies] == [60.0, 15.0, 120.0]
    assert len({tables[name]["turns_from"] for name in policies}) == 1
    given = text.replace("[topology]", "[slots-15]\nturns_from = 0.9\n[topology]", 1)
    with pytest.raises(BadInput, match=r"\[slots-15\], turns_from: must be at most 0.8"):
        load_experiment(write(tmp_path, given))
