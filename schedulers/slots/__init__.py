"""The slot scheduler: how fast each flow sends in each of the next slots (flow-scheduling paper, IV)."""
