"""One run of an experiment: network, cross traffic, samples, and the process behind `entrain up`."""
