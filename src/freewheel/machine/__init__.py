"""What is fastest here: cores, threads, devices, processes, and trials of what this machine does best.
Takes settings and measurements; gives choices with their reasons to the plan of a run."""
