"""The algorithms, one file each: settings, network, policy, memory, pace and losses. Losses are pure functions: all randomness is an input.
Takes networks from nets and batches from memory; gives losses, priorities and metrics to the learners, policies to actors."""
