"""The datapath of a host: pacing, slot header, MLTCP, agent."""
