"""Networks: raw observations in, action values or outputs of a policy out.
Takes the spaces of the worlds and the settings of the config; gives modules to the algorithms, learners and actors."""
