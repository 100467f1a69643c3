"""The mathematics: pure functions of parameters and a batch, with no process, lock, file or chance in them.
Takes networks from nets and batches from memory; gives losses, priorities and metrics to the learners, values to actors."""
