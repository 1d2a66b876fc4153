"""The command line: the only place that prints, reads the environment or exits."""
