"""Other people's test suites, without and with `--quiesce`."""
