"""A slot scheduler of one's own: the flows of the job with the most left to send decide first.

entrain's own lets the smallest go first. The rest of the algorithm stays: planning, adjusting to what others
have announced, and obeying the dependencies between flows.
"""

from __future__ import annotations

from schedulers.compiled import Floats, Ints
from schedulers.slots.host import SlotScheduler


class LargestFirst(SlotScheduler):
    """The same object decides in the simulator and in the agents on hosts."""

    def ranks(self, left: Floats, link: Floats, draw: Floats, role: Ints) -> Floats:
        """Return the positions (n,) in the order of decisions, 0 (first) to 1.

        `left` has the bytes that each flow's job has yet to send from its host in this iteration, `role` what
        the flow does in its collective.
        """
        return 1.0 - super().ranks(left, link, draw, role)
