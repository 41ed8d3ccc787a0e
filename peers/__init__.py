"""Other people's SDKs, stopped in every way, without and with quiesce: `make peers`."""
