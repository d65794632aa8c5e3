"""The command line: one file per command, heavy imports only once a command runs."""
