"""The check before a start: facts about the machine and the env.
Takes settings and an env; gives facts, each with its state and what to do, to the command line."""
