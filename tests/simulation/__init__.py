"""A whole job from one seed: production code on a simulated log, store, clock and machines."""
