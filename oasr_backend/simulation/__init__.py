"""A discrete-event simulation that drives the real scheduler under a fake clock."""
