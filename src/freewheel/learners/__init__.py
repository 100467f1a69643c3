"""Turn batches into new weights.
Takes batches from memory, losses from algos and networks from nets; gives weights to the actors and priorities to the replay."""
