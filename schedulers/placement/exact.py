"""The integer programs of vClos and OCS-vClos, solved by HiGHS. The search must find what these find."""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from schedulers.compiled import Floats, Ints


def virtual_clos(
    idle: Ints, free_links: Ints, links_per_pair: int, unit: int, leaves: int, width: int
) -> Ints | None:
    """Return the leaves of the best virtual Clos of `leaves` x `width`, ascending; None if there is none.

    idle (L,) has the idle servers of each leaf, of `unit` GPUs each, free_links (L, S) the free links C of
    each pair. Over binaries x_n and integers y_m from 0 to K:

        minimise  sum_m (sum_n C_nm) y_m + unit sum_n idle_n x_n
        subject to  sum x = leaves, sum y = width, y_m <= C_nm where x_n = 1

    Of placements that cost the same, the one whose leaves' numbers have the smallest sum. Source: vClos, A.2,
    without the products c_nm.
    """
    count, spines = free_links.shape
    usable = idle * unit >= width
    short = (free_links < links_per_pair) & usable[:, None]
    leaf, spine = np.nonzero(short)
    size = len(leaf)
    # y_m + (K - C_nm) x_n <= K
    row = np.concatenate([np.arange(size), np.arange(size)])
    column = np.concatenate([leaf, count + spine])
    value = np.concatenate([links_per_pair - free_links[leaf, spine], np.ones(size)])
    sums = np.zeros((2, count + spines))
    sums[0, :count] = 1
    sums[1, count:] = 1
    constraints = [LinearConstraint(sums, [leaves, width], [leaves, width])]
    if size:
        matrix = csr_array((value, (row, column)), shape=(size, count + spines))
        constraints.append(LinearConstraint(matrix, -np.inf, links_per_pair))
    cost = np.concatenate([unit * idle + _tie(count), free_links.sum(axis=0)])
    upper = np.concatenate([usable, np.full(spines, links_per_pair)])
    found = _solve(cost, constraints, upper.astype(np.float64))
    return None if found is None else np.flatnonzero(found[:count])


def rewired_clos(
    idle: Ints, uplinks: Ints, spine_ports: Ints, unit: int, leaves: int, width: int
) -> tuple[Ints, Ints] | None:
    """Return how many virtual leaves each leaf holds (L,), and virtual spines each spine (S,); None if there
    is no virtual Clos of `leaves` x `width` that circuits can make.

    idle (L,) has the idle servers of each leaf, uplinks (L,) and spine_ports (S,) the free ports. One OCS
    joins any two ports, so the circuits c_nm = x_n y_m exist if the ports do:

        minimise  sum_m spine_ports_m y_m + unit sum_n idle_n x_n
        subject to  sum x = leaves, sum y = width,
                    width x_n <= unit idle_n, width x_n <= uplinks_n, leaves y_m <= spine_ports_m

    Source: vClos, A.3, equations 7 to 11.
    """
    count, spines = len(idle), len(spine_ports)
    sums = np.zeros((2, count + spines))
    sums[0, :count] = 1
    sums[1, count:] = 1
    cost = np.concatenate([unit * idle + _tie(count), spine_ports + _tie(spines)])
    room = np.concatenate([np.minimum(unit * idle, uplinks) / width, spine_ports / leaves])
    totals = LinearConstraint(sums, [leaves, width], [leaves, width])
    found = _solve(cost, [totals], np.floor(room))
    return None if found is None else (found[:count], found[count:])


def _tie(count: int) -> Floats:
    """Costs that add up to less than 1, by which lower numbers win ties."""
    return np.arange(count) / max(1, count * count)


def _solve(cost: Floats, constraints: list[LinearConstraint], upper: Floats) -> Ints | None:
    """The whole numbers from 0 to `upper` that cost least, or None. Raises RuntimeError if HiGHS gives up."""
    result = milp(
        cost,
        constraints=constraints,
        bounds=Bounds(0, upper),
        integrality=np.ones(len(cost)),
        options={"mip_rel_gap": 0.0},
    )
    if result.status == 2:  # infeasible
        return None
    if result.x is None:
        raise RuntimeError(f"HiGHS found no answer: {result.message}")
    whole: Ints = np.rint(result.x).astype(np.int64)
    return whole
