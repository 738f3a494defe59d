"""The slot scheduler of a host: its thread, where progress comes from, and where loads are learnt."""
